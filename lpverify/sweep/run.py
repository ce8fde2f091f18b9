"""Run a sweep: compute the rows that a file lacks, in this process, in local processes (joblib) or on a dask cluster.

This process is the only writer of the file. The rows of a task are appended together, so that an interrupted sweep
resumes with the first task that is not complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from lpverify import errors
from lpverify.files import JsonLines, distinct
from lpverify.sweep.config import SCHEMA, Task, failed, run_task

Rows = list[dict[str, Any]]
Executor = Callable[[Sequence[Task]], AbstractContextManager[Iterator[Rows]]]

CONNECT_SECONDS = 10
IDLE_SECONDS = 20  # after which a worker without work ends, for example because this process was killed


@dataclass(frozen=True)
class Outcome:
    """How many rows the file holds after a sweep."""

    computed: int  # now
    existing: int  # those of the sweep that the file already had
    failures: int  # of both
    error: str | None  # of the first failure
    others: int  # rows of other sweeps in the same file


def run_sweep(
    tasks: Sequence[Task],
    path: str,
    *,
    jobs: int = 1,
    dask: str | None = None,
    retry: bool = False,
    begin: Callable[[int, int], None] = lambda existing, total: None,
    advance: Callable[[int], None] = lambda rows: None,
) -> Outcome:
    """Compute the rows that a file lacks, and append them; the file may hold rows of other sweeps too.

    ``jobs`` local processes compute, or the workers of the scheduler whose address is ``dask``. With ``retry``, rows
    that are in the file as failures are computed again. ``begin`` is called once with the number of rows in the file
    and that of all rows of the sweep, ``advance`` with the number of rows that were just computed. Raises InputError if
    the file is not one of sweeps or is in use, if a package is missing, or if the scheduler does not answer.
    """
    compute = executor(jobs, dask)
    wanted = {key for task in tasks for key in task.keys.values()}
    sources = [task.source for task in tasks if task.source is not None]
    distinct({"the file of rows": path}, {f"the problem {source}": source for source in sources})
    if path.endswith(".json") and Path(path).resolve().parent in {Path(source).resolve().parent for source in sources}:
        expected = "a name that ends in .jsonl, or another folder: the next run would take it for a problem"
        raise errors.fail(path, got="a file in a folder of problems", expected=expected)
    with JsonLines(path, SCHEMA) as lines:
        errors_by_key = dict(lines.read(lambda row: (row["key"], row["error"])))
        if retry:
            again = {key for key in wanted if errors_by_key.get(key) is not None}
            lines.keep(lambda row: row["key"] not in again)
            errors_by_key = {key: error for key, error in errors_by_key.items() if key not in again}
        existing = len(wanted & errors_by_key.keys())
        others = len(errors_by_key) - existing
        begin(existing, len(wanted))
        missing = [task for task in (task.without(errors_by_key) for task in tasks) if task.names]
        if missing:
            with compute(missing) as results:
                for rows in results:
                    lines.append(*rows)
                    errors_by_key |= {row["key"]: row["error"] for row in rows}
                    advance(len(rows))
    failures = [error for key, error in errors_by_key.items() if key in wanted and error is not None]
    return Outcome(len(wanted) - existing, existing, len(failures), next(iter(failures), None), others)


def executor(jobs: int = 1, dask: str | None = None) -> Executor:
    """What computes tasks: it gives the rows of one task after another, in the order in which they are ready."""
    if dask is None and jobs == 1:
        return lambda tasks: nullcontext(map(run_task, tasks))
    package, option = ("joblib", "--jobs") if dask is None else ("distributed", "--dask")
    errors.need(option, package, extra="parallel")
    return (lambda tasks: _with_joblib(tasks, jobs)) if dask is None else (lambda tasks: _with_dask(tasks, dask))


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
    distributed: Any = import_module("distributed")  # only some of its calls have annotations
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
