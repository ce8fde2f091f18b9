"""Problem files and the built-in examples: reading and writing only, `problem_format` says what they mean."""

from __future__ import annotations

import difflib
import json
import os
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.core.problem_format import ProblemFile, format_problem, parse_problem
from lpverify.files import write_whole

MAX_FILE_BYTES = 2**29
"""Largest problem file that is read; the largest table written with 6 digits fits."""

MAX_DIGITS = 4_000
"""Longest integer that is read."""

FOLDER_SETTINGS = "settings.json"
"""In a folder of problems the file that is none: what they were made with."""


class Problem(Protocol):
    """What `save_problem` needs: a ProblemFile or a VerifyProblem."""

    @property
    def pair(self) -> ModelPair: ...
    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...


def load_problem(source: str | os.PathLike[str], *, normalize: bool = False, rational: bool = False) -> ProblemFile:
    """Read a problem file, or the built-in example of that name.

    An example's name wins over a file of the same name; write ``./NAME`` for the file. ``normalize`` divides every row
    by its sum instead of refusing rows that do not sum to 1; ``rational`` refuses a problem with a float entry. Raises
    InputError (one line: file, place in it, what came, what was expected) for anything that is not a valid problem,
    SizeError for one whose tables are too large.

    >>> load_problem("one-position").pair.target[0].tolist()
    [[Fraction(1, 5), Fraction(1, 2), Fraction(3, 10)]]
    """
    where = os.fspath(source) or '""'
    if isinstance(source, str) and source in example_names():
        content, name = _example(source).read_bytes(), source
    else:
        content, name = _read(source, where), Path(source).stem
    document = _decode(content, where)
    return parse_problem(document, where, name=name, normalize=normalize, rational=rational)


def save_problem(problem: Problem, path: str | os.PathLike[str]) -> None:
    """Write a problem file, whole or not at all; `load_problem` gives back the same pair.

    Raises InputError when ``path`` cannot be written.
    """
    text = format_problem(ProblemFile(problem.pair, problem.name, problem.description))
    write_whole(path, text.encode())


def problem_folder(folder: str | os.PathLike[str]) -> list[Path]:
    """The problem files of a folder, sorted: every ``.json`` file but `FOLDER_SETTINGS`. Raises InputError."""
    try:
        entries = list(Path(folder).iterdir())
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise errors.fail(os.fspath(folder), got=reason, expected="a folder of problem files") from error
    return sorted(entry for entry in entries if entry.suffix == ".json" and entry.name != FOLDER_SETTINGS)


@cache
def example_names() -> tuple[str, ...]:
    """Names of the built-in problems, sorted."""
    return tuple(sorted(entry.name[:-5] for entry in _directory().iterdir() if entry.name.endswith(".json")))


@cache
def examples() -> MappingProxyType[str, ProblemFile]:
    """The built-in problems by name: ``.description``, and the size in ``.pair``.

    >>> examples()["skewed-3"].pair.nodes
    12
    """
    return MappingProxyType({name: load_problem(name) for name in example_names()})


def _directory() -> Any:
    return files("lpverify") / "examples"


def _example(name: str) -> Any:
    return _directory() / f"{name}.json"


def _read(path: str | os.PathLike[str], where: str) -> bytes:
    """The file's bytes; never more than MAX_FILE_BYTES, so that a device cannot fill the memory."""
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            content = b"" if size > MAX_FILE_BYTES else stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        close = difflib.get_close_matches(where, example_names(), n=1)
        hint = f"did you mean {close[0]}?" if close else "see `lpverify examples`"
        raise errors.fail(where, got="no such file", expected=f"a problem file or an example ({hint})") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise errors.fail(where, got=reason, expected="a readable problem file") from error
    if max(size, len(content)) > MAX_FILE_BYTES:
        limit = f"{MAX_FILE_BYTES} bytes"
        raise errors.too_large(where, size="the file", limit=limit, instead="use a smaller one")
    return content


def _decode(content: bytes, where: str) -> Any:
    try:
        return json.loads(
            content.decode("utf-8-sig"),
            object_pairs_hook=lambda pairs: _object(pairs, where),
            parse_int=lambda digits: _integer(digits, where),
        )
    except UnicodeDecodeError as error:
        raise errors.fail(f"{where}: byte {error.start}", got=f"{error.reason}", expected="UTF-8") from error
    except json.JSONDecodeError as error:
        place = f"{where}: line {error.lineno} column {error.colno}"
        raise errors.fail(place, got=error.msg, expected="JSON") from error
    except RecursionError as error:
        raise errors.fail(where, got="JSON nested too deep", expected="a problem file") from error


def _integer(digits: str, where: str) -> int:
    """Python's own limit on the digits of an integer may be switched off, and is not ours to set."""
    if len(digits) > MAX_DIGITS:
        raise errors.fail(where, got="an integer with too many digits", expected=f"at most {MAX_DIGITS}")
    return int(digits)


def _object(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise errors.fail(f"{where}: key {json.dumps(twice)[:50]}", got="two values", expected="one")
    return result
