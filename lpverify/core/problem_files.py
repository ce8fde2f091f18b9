"""Problem files and the built-in examples: reading and writing only, `problem_format` says what they mean."""

from __future__ import annotations

import difflib
import os
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.core.problem_format import ProblemFile, format_problem, parse_problem
from lpverify.files import parse_json, read_text, write_whole

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
        content, name = _example(source).read_text(encoding="utf-8"), source
    else:
        content, name = _read(source, where), Path(source).stem
    document = parse_json(content, where)
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


def _read(path: str | os.PathLike[str], where: str) -> str:
    try:
        return read_text(path, "a readable problem file")
    except errors.InputError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
    close = difflib.get_close_matches(where, example_names(), n=1)
    hint = f"did you mean {close[0]}?" if close else "see `lpverify examples`"
    raise errors.fail(where, got="no such file", expected=f"a problem file or an example ({hint})")
