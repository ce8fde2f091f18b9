"""Running sweeps: a file of rows that only grows, in this process, over local processes (joblib) or a dask cluster.

The file has one JSON object a line. This process is its only writer; the rows of a task are appended in one write and
synced. Whatever stops the sweep leaves whole lines, but for the last one: a line without its end is dropped at the
next start, which then computes what is missing.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from lpverify import errors
from lpverify.files import write_whole
from lpverify.sweep.config import SCHEMA, Task, failed, run_task

Rows = list[dict[str, Any]]
Executor = Callable[[Sequence[Task]], AbstractContextManager[Iterator[Rows]]]
CONNECT_SECONDS = 10
IDLE_SECONDS = 20
"""After which a worker ends that has nothing to do, for example because this process was killed."""


@dataclass(frozen=True)
class Outcome:
    """Rows in the file that belong to the sweep: computed now, found there, and how many of both are failures."""

    computed: int
    found: int
    failures: int
    others: int  # rows in the file that are not of this sweep


class RowFile:
    """The rows of a file, and appending to it. A context manager that keeps a second sweep out.

    Raises InputError when a line is no row of a sweep; the file is then untouched.
    """

    def __init__(self, path: str, *, forget_failures: bool = False) -> None:
        self.path = path
        self.torn = 0
        """Bytes dropped from the end."""
        self._handle = self._open()
        try:
            kept = self._read(forget_failures)
            self.keys = {row["key"] for row in kept}
            self.failures = {row["key"] for row in kept if row["error"] is not None}
        except BaseException:
            os.close(self._handle)
            raise

    def __enter__(self) -> RowFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)

    def append(self, rows: Rows) -> None:
        """All of ``rows`` in one write; on the disk when this returns."""
        _write(self._handle, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())
        self.keys |= {row["key"] for row in rows}
        self.failures |= {row["key"] for row in rows if row["error"] is not None}

    def _open(self) -> int:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise errors.fail(self.path, got="a file that another sweep is writing", expected="a free one") from error
        return handle

    def _read(self, forget_failures: bool) -> Rows:
        content = Path(self.path).read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        rows = [self._parse(number, line) for number, line in enumerate(whole.splitlines(), start=1)]
        self.torn = len(content) - len(whole)
        kept = [row for row in rows if not (forget_failures and row["error"] is not None)]
        if len(kept) < len(rows):
            write_whole(self.path, "".join(json.dumps(row) + "\n" for row in kept).encode())
            os.close(self._handle)
            self._handle = self._open()
        elif self.torn:
            os.ftruncate(self._handle, len(whole))
            os.fsync(self._handle)
        return kept

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or row.get("schema") != SCHEMA or not {"key", "error"} <= row.keys():
            got = line[:40].decode(errors="replace")
            raise errors.fail(f"{self.path} line {number}", got=repr(got), expected=f"a row of a sweep ({SCHEMA})")
        return row


def _write(handle: int, content: bytes) -> None:
    while content:
        content = content[os.write(handle, content) :]
    os.fsync(handle)


def run_sweep(
    tasks: Sequence[Task],
    path: str,
    *,
    jobs: int = 1,
    dask: str | None = None,
    retry: bool = False,
    begin: Callable[[int, int], None] = lambda done, total: None,
    advance: Callable[[int], None] = lambda rows: None,
) -> Outcome:
    """Compute the rows that ``path`` lacks and append them.

    ``jobs`` local processes, or the workers of the dask scheduler at ``dask``. ``retry`` computes rows again that
    are in the file as failures. ``begin`` is told the rows that were found and the rows in all, ``advance`` every step.

    Raises InputError for a file with other content, a missing package or a scheduler that does not answer.
    """
    compute = executor(jobs, dask)
    with RowFile(path, forget_failures=retry) as file:
        wanted = {key for task in tasks for key in task.keys.values()}
        found, others = len(wanted & file.keys), len(file.keys - wanted)
        begin(found, len(wanted))
        left = [task for task in (task.without(file.keys) for task in tasks) if task.names]
        if left:
            with compute(left) as results:
                for rows in results:
                    file.append(rows)
                    advance(len(rows))
        return Outcome(len(wanted) - found, found, len(wanted & file.failures), others)


def executor(jobs: int = 1, dask: str | None = None) -> Executor:
    """What turns tasks into the rows of one task after another, as they are ready."""
    if dask is not None:
        _need("distributed", "--dask")
        return lambda tasks: _with_dask(tasks, dask)
    if jobs == 1:
        return _here
    _need("joblib", "--jobs")
    return lambda tasks: _with_joblib(tasks, jobs)


def _need(package: str, option: str) -> None:
    if find_spec(package) is None:
        raise errors.fail(option, got=f"no {package}", expected="it installed (the extra lpverify[parallel])")


@contextmanager
def _here(tasks: Sequence[Task]) -> Iterator[Iterator[Rows]]:
    yield map(run_task, tasks)


@contextmanager
def _with_joblib(tasks: Sequence[Task], jobs: int) -> Iterator[Iterator[Rows]]:
    from joblib import Parallel, delayed, parallel_config

    with parallel_config(backend="loky", n_jobs=jobs, idle_worker_timeout=IDLE_SECONDS):
        parallel = Parallel(return_as="generator_unordered", pre_dispatch=2 * jobs)
        results = parallel(delayed(run_task)(task) for task in tasks)
    try:
        yield results
    finally:
        results.close()


@contextmanager
def _with_dask(tasks: Sequence[Task], address: str) -> Iterator[Iterator[Rows]]:
    distributed: Any = import_module("distributed")  # it has annotations on some calls only
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TypeError) as error:
        expected = "the address of a running dask scheduler, like tcp://host:8786"
        raise errors.fail("--dask", got=f"{address!r} (no answer)", expected=expected) from error

    def results() -> Iterator[Rows]:
        pending = {client.submit(run_task, task, pure=False): task for task in tasks}
        for future in distributed.as_completed(list(pending)):
            task = pending.pop(future)
            error = future.exception()
            yield future.result() if error is None else failed(task, error)
            future.release()

    try:
        yield results()
    finally:
        client.close()
