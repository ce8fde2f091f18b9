"""Reading and writing files: text, JSON, whole files, rows that survive an interruption, and provenance.

Everything lpverify stores goes through this module, so that one rule holds everywhere: a file that lpverify did not
write is never changed, and a file that it did write is complete or can be resumed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from io import FileIO
from pathlib import Path
from typing import Any, Self, TypeVar

from lpverify import errors

StrPath = str | os.PathLike[str]
T = TypeVar("T")

MAX_BYTES = 2**29  # largest text file that is read; a table of the largest size, written with 6 digits an entry, fits
MAX_DIGITS = 4_000  # of an integer in a JSON document
SHOWING = ("auditing", "cli", "integrations", "report")
MAX_NAMED = 6  # entries that the refusal of a row lists
INSTEAD = "or another file or folder, or --recompute to replace what was computed"
ROOT = Path(__file__).parent.parent


def read_text(path: StrPath, expected: str) -> str:
    """Read a UTF-8 text file, without the byte order mark that some editors put at its beginning.

    Raises InputError for a file that cannot be read (the message expects ``expected``) or is not UTF-8, SizeError for
    one of more than `MAX_BYTES`; no more is read, so a device cannot fill the memory.
    """
    where = os.fspath(path)
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            content = b"" if size > MAX_BYTES else stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL
        raise errors.fail(where, got=_reason(error), expected=expected) from error
    return _decoded(content, size, where)


def read_stdin() -> str:
    """Standard input as `read_text` reads a file."""
    content = b"" if sys.stdin is None else sys.stdin.buffer.read(MAX_BYTES + 1)
    return _decoded(content, 0, "standard input")


def _decoded(content: bytes, size: int, where: str) -> str:
    if max(size, len(content)) > MAX_BYTES:
        size_of = f"a file of more than {MAX_BYTES} bytes"
        raise errors.too_large(where, size=size_of, limit=f"{MAX_BYTES}", instead="use a smaller one")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise errors.fail(f"{where}: byte {error.start}", got=error.reason, expected="UTF-8") from error


def parse_json(text: str, where: str) -> Any:
    """Parse a JSON document that a user wrote; ``where`` is the file.

    Raises InputError, which names line and column, for text that is not JSON, for a key that an object has twice, for
    an integer of more than `MAX_DIGITS` digits and for too much nesting.

    >>> parse_json('{"vocab": 3, "vocab": 4}', "a.json")
    Traceback (most recent call last):
    lpverify.errors.InputError: a.json: key "vocab": got two values, expected one
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
            raise errors.fail(f"{where}: key {json.dumps(twice)[:50]}", got="two values", expected="one")
        return result

    def integer(digits: str) -> int:  # Python's own limit may be switched off
        if len(digits) > MAX_DIGITS:
            raise errors.fail(where, got="an integer with too many digits", expected=f"at most {MAX_DIGITS}")
        return int(digits)

    try:
        return json.loads(text, object_pairs_hook=unique, parse_int=integer)
    except json.JSONDecodeError as error:
        where = f"{where}: line {error.lineno} column {error.colno}"
        raise errors.fail(where, got=error.msg, expected="JSON") from error
    except RecursionError as error:
        raise errors.fail(where, got="JSON nested too deep", expected="fewer levels of nesting") from error


def write_whole(path: StrPath, content: bytes) -> None:
    """Write ``content`` to ``path`` completely or not at all, by way of a temporary file in the same directory.

    A symbolic link is followed; a device or a pipe is written to directly. Raises InputError if the path cannot be
    written; an existing file is then unchanged.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            target.write_bytes(content)
            return
        handle, name = tempfile.mkstemp(prefix=".lpverify-", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(handle)  # before the name is: a machine that goes down leaves the old file or the new one
            mask = os.umask(0)  # the only way to read it
            os.umask(mask)
            os.chmod(name, target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~mask)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL
        raise errors.fail(os.fspath(path), got=_reason(error), expected="a path that can be written") from error


def distinct(outputs: Mapping[str, StrPath | None], inputs: Mapping[str, StrPath | None]) -> None:
    """Check that a command writes to no file that it reads or writes otherwise, also by way of links.

    Both map options and arguments to paths. None, ``-``, devices and folders are skipped, and inputs that are not
    files, such as the name of a model. The file that standard output is redirected to is one of the outputs. Raises
    InputError.

    >>> distinct({"--records": "r.jsonl", "--json": "./r.jsonl"}, {})
    Traceback (most recent call last):
    lpverify.errors.InputError: --json: got ./r.jsonl, the same file as --records, expected another file
    """
    seen: dict[Any, str] = {}
    paths = [*inputs.items(), ("standard output", "/dev/stdout"), *outputs.items()]
    for role, path in paths:
        if path is None or os.fspath(path) in ("", "-") or "\0" in os.fspath(path):
            continue
        identities: list[Any] = [os.path.realpath(path)] if role in outputs else []
        with suppress(OSError):  # it does not exist
            status = os.stat(path)
            identities = [*identities, (status.st_dev, status.st_ino)] if stat.S_ISREG(status.st_mode) else []
        for identity in identities:
            other = seen.setdefault(identity, role)
            if other != role and role in outputs:
                raise errors.fail(role, got=f"{os.fspath(path)}, the same file as {other}", expected="another file")


class JsonLines:
    """A file of JSON rows, one a line, that one process at a time appends to and that an interrupted run resumes from.

    Every line is an object that starts with ``"schema"`` and, if the file has an ``identity``, ``"settings"``, the JSON
    data that the rows depend on besides their own keys.

    - Opening a file changes no byte of it. A file that has a line of another kind or identity is refused; the message
      names the entries that differ. ``rows`` are those that were in the file.
    - With ``recompute``, rows of another identity are no reason to refuse the file: `append` drops all its rows first.
    - The file is locked until `close` or the end of the process. A second process is refused.
    - A full disk or an interruption (Ctrl-C) during `append` leaves complete lines only. A writer that is killed may
      leave a part of one; the next writer drops it when it appends, and the row is then computed again.
    - A ``path`` of None keeps nothing.

    Raises InputError for a file that is refused or cannot be written. Use it as a context manager::

        with JsonLines("rows.jsonl", "lpverify/decode-record@1", {"seed": 0}) as lines:
            finished = lines.read(parse)
            lines.append({"request": "a", "tokens": [1, 2]})
    """

    def __init__(
        self,
        path: StrPath | None,
        schema: str,
        identity: Mapping[str, Any] | None = None,
        *,
        recompute: bool = False,
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self._path = "" if path is None else os.fspath(path)
        self._schema, self._recompute = schema, recompute
        self._head: dict[str, Any] = {"schema": schema}
        if identity is not None:
            self._head["settings"] = json.loads(json.dumps(identity))  # tuples as lists, as in the file
        self._file: FileIO | None = None
        self._created, self._end, self._separator = False, 0, b""
        if path is not None:
            self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def read(self, parse: Callable[[dict[str, Any]], T]) -> list[T]:
        """The `rows`, each converted by ``parse``.

        Where that raises ValueError, KeyError or TypeError, raises InputError with file and line, and closes the file.
        """
        values: list[T] = []
        try:
            for row in self.rows:
                values.append(parse(row))
        except (ValueError, KeyError, TypeError) as error:
            self.close()
            where, got = f"{self._path} line {len(values) + 1}", f"{type(error).__name__}: {error}"
            raise errors.fail(where, got=got, expected=f"a {self._schema}") from error
        return values

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Write rows, all of them or none. They are on the disk when this returns."""
        if self._file is None or not rows:
            return
        lines = (json.dumps({**self._head, **row}, allow_nan=False) + "\n" for row in rows)
        content = self._separator + "".join(lines).encode()
        handle = self._file.fileno()
        try:
            if not os.path.samestat(os.fstat(handle), os.stat(self._path)):
                raise FileNotFoundError(0, "a file that was replaced while the command ran")
            os.ftruncate(handle, self._end)
            os.lseek(handle, self._end, os.SEEK_SET)
            end = self._end + len(content)
            try:
                left = content
                while left:
                    left = left[os.write(handle, left) :]
                os.fsync(handle)
            except BaseException as error:
                if isinstance(error, OSError) or os.fstat(handle).st_size < end:  # an interruption may come too late
                    end = self._end
                    with suppress(OSError):  # what is left of a line is dropped by the next writer
                        os.ftruncate(handle, end)
                raise
            finally:
                if end > self._end:
                    self._end, self._separator = end, b""
        except OSError as error:
            raise errors.fail(self._path, got=_reason(error), expected="a file to append to") from error

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drop the `rows` that are not ``wanted`` from the file, which is replaced in one step."""
        rows = [row for row in self.rows if wanted(row)]
        if self._file is None or len(rows) == len(self.rows):
            return
        write_whole(self._path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())
        self.close()  # its lock was on the file that was replaced
        self._open()

    def close(self) -> None:
        """Release the lock. A file that was created and got no row is removed."""
        file, self._file = self._file, None
        if file is None:
            return
        with file, suppress(OSError):
            status = os.fstat(file.fileno())
            if self._created and status.st_size == 0 and os.path.samestat(status, os.stat(self._path)):
                os.unlink(self._path)

    def _open(self) -> None:
        try:
            self._file, self._created = _open_locked(self._path)
        except (OSError, ValueError) as error:  # ValueError: the name contains a NUL
            raise errors.fail(self._path, got=_reason(error), expected="a file to append to") from error
        try:
            self._load(self._file.readall())
        except BaseException:
            self.close()
            raise

    def _load(self, content: bytes) -> None:
        *lines, tail = content.split(b"\n")
        self._end, self._separator = len(content) - len(tail), b""
        if tail:
            opening = json.dumps({"schema": self._schema})[:-1].encode()
            torn = tail.rstrip(b"\0")  # zeros: the machine went down before the line was on the disk
            ours = torn.startswith(opening) or (opening.startswith(torn) and (lines or len(torn) > len('{"schema": ')))
            try:
                json.loads(torn)
            except (ValueError, RecursionError):
                lines += [] if ours else [tail]  # the next `append` drops what is torn
            else:
                lines.append(tail)
                self._end, self._separator = len(content), b"\n"
        self.rows = [self._parse(number, line) for number, line in enumerate(lines, start=1)]
        for number, row in enumerate(self.rows, start=1):
            if "settings" in self._head and row.get("settings") != self._head["settings"]:
                if not self._recompute:
                    raise self._differing(number, row.get("settings"))
                self.rows, self._end, self._separator = [], 0, b""
                break

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        where = f"{self._path} line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or row.get("schema") != self._schema:
            got = repr(line[:40].decode(errors="replace"))
            raise errors.fail(where, got=got, expected=f"a row of {self._schema}; the file is left as it is")
        return row

    def _differing(self, number: int, settings: Any) -> errors.InputError:
        """The refusal of a row that was computed from something else."""
        stored, asked = (_leaves("settings", source) for source in (settings, self._head["settings"]))
        names, absent = sorted(stored.keys() | asked.keys()), object()
        first, *others = (name for name in names if stored.get(name, absent) != asked.get(name, absent))
        got = f"{first} = {stored[first]!r}" if first in stored else f"no {first}"
        expected = f"{asked[first]!r}" if first in asked else f"no {first}"
        if others:
            expected += f" (also other: {', '.join(others[:MAX_NAMED])}{', ...' * (len(others) > MAX_NAMED)})"
        return errors.fail(f"{self._path} line {number}", got=got, expected=f"{expected}, {INSTEAD}")


def _leaves(name: str, value: Any, above: str = "") -> dict[str, Any]:
    """The entries of nested objects by their dotted names."""
    if not isinstance(value, dict) or not value:
        return {name: value}
    return {k: v for key, entry in value.items() for k, v in _leaves(above + key, entry, f"{above}{key}.").items()}


def _open_locked(path: str) -> tuple[FileIO, bool]:
    """The regular file ``path``, locked, and whether it was created. Raises OSError."""
    import fcntl

    while True:
        created = not os.path.exists(path)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
        try:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(0, "a device or a pipe")
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OSError(0, "a file that another run is writing") from error
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    return file, created
        except BaseException:
            file.close()
            raise
        file.close()  # it was replaced or removed before it was locked


def content_hash(*parts: Any) -> str:
    """What identifies content: 32 hexadecimal digits of SHA-256 over bytes, buffers and plain data, in this order.

    >>> content_hash({"b": 1, "a": 2}) == content_hash({"a": 2, "b": 1})
    True
    """
    digest = hashlib.sha256()
    for part in parts:
        buffer = isinstance(part, bytes | memoryview)
        digest.update(part if buffer else json.dumps(part, sort_keys=True, default=str).encode())
    return digest.hexdigest()[:32]


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


@cache
def provenance(*packages: str) -> dict[str, Any]:
    """What numbers are computed with: versions of Python, lpverify and ``packages``, the machine, and `checkout`.

    A package that is not installed has the version None. Determined once a process; do not change the mapping.

    >>> sorted(provenance("numpy"))
    ['git', 'lpverify', 'machine', 'numpy', 'python']
    """
    values: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("lpverify", *packages):
        values[package] = None
        with suppress(PackageNotFoundError):
            values[package] = version(package)
    return values | {"git": checkout(ROOT)}


def software(*packages: str) -> dict[str, Any]:
    """The part of `provenance` that numbers depend on, and the content of this package's code, which may be edited.

    >>> sorted(software("numpy"))
    ['code', 'lpverify', 'machine', 'numpy']
    """
    made_with = {name: value for name, value in provenance(*packages).items() if name not in ("git", "python")}
    return made_with | {"code": code_hash(Path(__file__).parent)}


@cache
def code_hash(package: Path) -> str:
    """A hash of the package's Python files but those in the rooms of `SHOWING`, which compute no numbers."""
    sources = {path.relative_to(package): path for path in package.rglob("*.py")}
    read = ((str(name), sources[name].read_bytes()) for name in sorted(sources) if name.parts[0] not in SHOWING)
    return content_hash(*(part for pair in read for part in pair))


def checkout(folder: Path) -> dict[str, Any] | None:
    """The commit of the code in ``folder``: ``{"commit": hash}``, or None where it is not a git checkout.

    If code differs from that commit, the names of the files are listed: ``{"commit": hash, "changed": [...]}``. Only
    Python files, ``pyproject.toml`` and ``constraints.txt`` count as code: data and pictures that a command has just
    written do not.
    """
    if not (folder / ".git").exists():
        return None
    lines = []
    for command in ("rev-parse HEAD", "diff --name-only HEAD -- *.py pyproject.toml constraints.txt"):
        words = ["git", "--no-optional-locks", "-C", str(folder), *command.split()]
        try:
            result = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        lines.append(result.stdout.splitlines())
    [commit], changed = lines
    return {"commit": commit} | ({"changed": changed} if changed else {})
