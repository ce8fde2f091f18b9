"""A verification problem: target and draft tables and a number of draft paths; where problems come from."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.core.rows import check_text
from lpverify.files import MAX_BYTES, parse_json, read_text, write_whole

MAX_PATHS = 1024  # sums of K terms are evaluated for every node
FOLDER_SETTINGS = "settings.json"  # in a folder of problems the file that is not one: what they were made with


@dataclass(frozen=True)
class VerifyProblem:
    """K = ``num_paths`` i.i.d. draft paths of length L = ``pair.depth``, verified against ``pair.target``.

    ``name`` and ``description`` are for display.

    >>> VerifyProblem(ModelPair.iid([0.2, 0.8], [0.5, 0.5], depth=2), num_paths=3)
    VerifyProblem('unnamed', V = 2, L = 2, K = 3, 6 nodes, float64)
    """

    pair: ModelPair
    num_paths: int = 1
    name: str = field(default="unnamed", compare=False)
    description: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.pair, ModelPair):
            expected = "a ModelPair; as_problem() accepts names, files and documents"
            raise errors.fail("pair", got=errors.shown(self.pair), expected=expected)
        object.__setattr__(self, "num_paths", errors.integer("num_paths (K)", self.num_paths, min=1, max=MAX_PATHS))
        check_text("name", self.name)
        check_text("description", self.description)

    def __repr__(self) -> str:
        size = f"V = {self.pair.vocab_size}, L = {self.pair.depth}, K = {self.num_paths}, {self.pair.nodes} nodes"
        return f"VerifyProblem({errors.shown(self.name)}, {size}, {'rational' if self.pair.rational else 'float64'})"

    def with_num_paths(self, num_paths: int) -> VerifyProblem:
        """The same tables with another number of draft paths."""
        return VerifyProblem(self.pair, num_paths, self.name, self.description)


# What every public function accepts for a problem (`as_problem`)
ProblemLike: TypeAlias = VerifyProblem | ModelPair | str | os.PathLike[str] | Mapping[str, Any]


def as_problem(source: ProblemLike, num_paths: int | None = None, *, normalize: bool = False) -> VerifyProblem:
    """Make a problem of whatever describes one.

    Args:
        source: A VerifyProblem; a ModelPair; the name of a built-in example; the path of a problem file; or a problem
            document, as a dictionary with the keys of a problem file.
        num_paths: K. None: that of a VerifyProblem, else 1.
        normalize: Divide the rows of a file, an example or a document by their sums.

    Raises:
        InputError: Something else, or a file or document that is not a valid problem.
        SizeError: Tables that are too large.

    >>> as_problem("coin-2", num_paths=3)
    VerifyProblem('coin-2', V = 2, L = 2, K = 3, 6 nodes, rational)
    """
    if isinstance(source, VerifyProblem):
        return source if num_paths is None else source.with_num_paths(num_paths)
    paths = 1 if num_paths is None else num_paths
    if isinstance(source, ModelPair):
        return VerifyProblem(source, paths)
    if isinstance(source, str | os.PathLike):
        return load_problem(source, num_paths=paths, normalize=normalize)
    if isinstance(source, Mapping):
        from lpverify.core.problem_file import parse_problem

        return parse_problem(dict(source), "problem", num_paths=paths, normalize=normalize)
    kind = source if isinstance(source, type) else type(source)
    expected = "a VerifyProblem, a ModelPair, the name of an example, a problem file or a problem document (a dict)"
    raise errors.fail("problem", got=f"an object of type {kind.__name__}", expected=expected)


def as_problems(source: ProblemLike, num_paths: int | Iterable[int] | None) -> list[VerifyProblem]:
    """`as_problem` for each of several K, in the given order; None: that of a VerifyProblem, else 1."""
    problem = as_problem(source)
    if num_paths is None:
        return [problem]
    numbers = errors.integers("num_paths (K)", num_paths, min=1, max=MAX_PATHS)
    return [problem.with_num_paths(number) for number in numbers]


def load_problem(
    source: str | os.PathLike[str], *, num_paths: int = 1, normalize: bool = False, rational: bool = False
) -> VerifyProblem:
    """Read a problem file, or the built-in example of that name.

    Args:
        source: A path or a name. An example's name wins over a file of the same name; write ``./NAME`` for the file.
        num_paths: K, which a file does not contain.
        normalize: Divide every row by its sum instead of refusing rows that do not sum to 1.
        rational: Refuse a problem with a float entry, since exact arithmetic needs strings such as "1/3" and integers.

    Raises:
        InputError: Anything that is not a valid problem; the message names the position in the file.
        SizeError: Tables that are too large.

    >>> load_problem("one-position").pair.target[0].tolist()
    [[Fraction(1, 5), Fraction(1, 2), Fraction(3, 10)]]
    """
    from lpverify.core.problem_file import parse_problem

    if not isinstance(source, str | os.PathLike):
        expected = "a path or the name of an example (as_problem accepts tables and documents)"
        raise errors.fail("problem file", got=errors.shown(source), expected=expected)
    where, name = os.fspath(source) or '""', Path(source).stem
    try:
        if source in example_names():
            text = (files("lpverify") / "examples" / f"{name}.json").read_text(encoding="utf-8")
        else:
            text = read_text(source, "a readable problem file")
    except errors.InputError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        close = difflib.get_close_matches(where, example_names(), n=1)
        hint = f"did you mean {close[0]}?" if close else "see `lpverify examples`"
        raise errors.fail(where, got="no such file", expected=f"a problem file or an example ({hint})") from None
    document = parse_json(text, where)
    return parse_problem(document, where, num_paths=num_paths, name=name, normalize=normalize, rational=rational)


def save_problem(problem: ProblemLike, path: str | os.PathLike[str]) -> None:
    """Write a problem file, completely or not at all; `load_problem` returns an equal problem (but for K).

    Raises InputError if ``path`` cannot be written, or if the file could not be read again: a Fraction of more than
    400 digits, or (SizeError) more than MAX_BYTES.
    """
    from lpverify.core.problem_file import format_problem

    content = format_problem(as_problem(problem)).encode()
    if len(content) > MAX_BYTES:
        size, instead = f"a file of {len(content)} bytes", "use a smaller problem"
        raise errors.too_large(os.fspath(path), size=size, limit=str(MAX_BYTES), instead=instead)
    write_whole(path, content)


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
    entries = (files("lpverify") / "examples").iterdir()
    return tuple(sorted(entry.name[:-5] for entry in entries if entry.name.endswith(".json")))


class Examples(Mapping[str, VerifyProblem]):
    """The built-in problems by name, read on first use; it cannot be changed."""

    def __getitem__(self, name: str) -> VerifyProblem:
        if name not in example_names():
            raise KeyError(name)
        return _example(name)

    def __iter__(self) -> Iterator[str]:
        return iter(example_names())

    def __len__(self) -> int:
        return len(example_names())

    def __repr__(self) -> str:
        return f"Examples({', '.join(self)})"


_example = cache(load_problem)


def examples() -> Examples:
    """The built-in problems by name.

    >>> examples()["skewed-3"].pair.nodes
    12
    """
    return Examples()
