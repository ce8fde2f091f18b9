"""What is to be solved or verified: a pair of laws and a number of draft paths."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from lpverify import errors
from lpverify.core import problem_files as files
from lpverify.core.model_pair import ModelPair

MAX_PATHS = 1024
"""Largest number of draft paths; sums of K terms are evaluated for every node."""


@dataclass(frozen=True)
class VerifyProblem:
    """K i.i.d. draft paths of length L = ``pair.depth``, verified against ``pair.target``.

    ``num_paths`` is K; ``name`` and ``description`` are for display.
    """

    pair: ModelPair
    num_paths: int = 1
    name: str = field(default="unnamed", compare=False)
    description: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        errors.integer("num_paths (K)", self.num_paths, min=1, max=MAX_PATHS)

    def with_num_paths(self, num_paths: int) -> VerifyProblem:
        """The same laws with another number of draft paths."""
        return VerifyProblem(self.pair, num_paths, self.name, self.description)


def load_problem(source: str | os.PathLike[str], *, num_paths: int = 1, normalize: bool = False) -> VerifyProblem:
    """A problem file, or the built-in example of that name, with K = ``num_paths``.

    ``normalize`` divides every row by its sum. Raises as `lpverify.core.problem_files.load_problem`.

    >>> load_problem("skewed-3", num_paths=2).pair.depth
    2
    """
    loaded = files.load_problem(source, normalize=normalize)
    return VerifyProblem(loaded.pair, num_paths, loaded.name, loaded.description)
