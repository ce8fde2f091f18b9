"""K i.i.d. paths from the draft, front to back: the draft distribution of theory 2 to 5.

A set A of nodes, none a prefix of another, is hit by one of the K paths with probability

    C(A) = phi(Q(A)),     phi(s) = 1 - (1 - s)^K,     Q(A) the sum of the path probabilities of A.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from math import comb, factorial
from typing import Any

import numpy as np
import numpy.typing as npt

from lpverify import errors
from lpverify.core import prefix_tree
from lpverify.core.draft_tree import DraftTree
from lpverify.core.model_pair import ModelPair
from lpverify.drafting.base import ConcaveCoverage, Draft, Prefix, Uniforms, draw, parse_integers
from lpverify.numerics import Array, Levels, is_exact, one


@dataclass(frozen=True)
class IidPaths(ConcaveCoverage):
    """``num_paths`` i.i.d. paths of the depth of the pair.

    >>> from lpverify.core.families import dirichlet
    >>> IidPaths(2).spec, IidPaths(2).count(dirichlet(2, 1, seed=0))
    ('iid:2', 4)
    """

    kind = "iid"
    help = "iid:K, K independent paths"
    provides = frozenset({"any tree", "a path", "independent children", "independent paths", "distinct children"})

    num_paths: int

    def __post_init__(self) -> None:
        errors.integer("num_paths (K)", self.num_paths, min=1)

    @property
    def spec(self) -> str:
        return f"iid:{self.num_paths}"

    @classmethod
    def parse(cls, numbers: str) -> IidPaths:
        return cls(*parse_integers("iid:K", numbers, count=1))

    def sample(self, pair: ModelPair, generator: Uniforms) -> DraftTree:
        return DraftTree.from_pair(pair, [draw_path(pair, generator) for _ in range(self.num_paths)])

    def enumerate(self, pair: ModelPair, *, ordered: bool = True) -> Iterator[Draft]:
        leaves = list(prefix_tree.prefixes(pair.vocab_size, pair.depth))
        drawn, probability = draws(pair.draft_paths[-1], self.num_paths, ordered=ordered)
        for indices, mass in zip(drawn.tolist(), probability.tolist(), strict=True):
            yield Draft(tuple(leaves[index] for index in indices), mass)

    def count(self, pair: ModelPair, *, ordered: bool = True) -> int:
        return count_draws(int((pair.draft_paths[-1] > 0).sum()), self.num_paths, ordered=ordered)

    def density(self, above: Any) -> Any:
        return self.num_paths * above ** (self.num_paths - 1)

    def mean_density(self, low: Any, high: Any) -> Any:
        return mean_density(low, high, self.num_paths)

    def node_coverage(self, pair: ModelPair) -> Levels:
        return tuple(phi(level, self.num_paths) for level in pair.draft_paths)


def draw_path(pair: ModelPair, generator: Uniforms, start: Prefix = (), depth: int | None = None) -> Prefix:
    """A path down to ``depth`` (None: that of the pair), token by token from the draft rows, that begins ``start``."""
    path = start
    for rows in pair.draft[len(start) : depth]:
        path = (*path, draw(rows[prefix_tree.index_of(path, pair.vocab_size)], generator))
    return path


def phi(mass: Any, num_paths: int) -> Any:
    """Probability ``1 - (1 - mass)^K`` that one of K paths passes through a set of nodes.

    ``mass`` is the draft mass of the set, a number or an array. Exact for Fraction, else accurate for tiny masses.

    >>> float(phi(1e-9, 4))
    3.999999994e-09
    """
    if is_exact(np.asarray(mass)):
        return 1 - (1 - mass) ** num_paths
    with np.errstate(divide="ignore"):  # log1p(-1) = -inf gives phi(1) = 1
        return -np.expm1(num_paths * np.log1p(-np.minimum(mass, 1.0)))


def mean_density(low: Array, high: Array, num_paths: int) -> Array:
    """Mean of phi' on pieces with lengths ``low`` above their right and ``high`` above their left ends.

    It is sum_{i<K} high^i low^(K-1-i), computed by doubling: S_2n = S_n (high^n + low^n), S_n+1 = high S_n + low^n.

    >>> float(mean_density(np.array(0.5), np.array(1.0), 3))
    1.75
    """
    total: Array = low * 0 + one(low)
    low_power, high_power = low, high
    for bit in bin(num_paths)[3:]:
        total = total * (high_power + low_power)
        low_power, high_power = low_power * low_power, high_power * high_power
        if bit == "1":
            total = high * total + low_power
            low_power, high_power = low_power * low, high_power * high
    return total


def draws(masses: Array, num_paths: int, *, ordered: bool) -> tuple[npt.NDArray[np.int64], Array]:
    """All results of K i.i.d. draws and their probabilities, (T, K) and (T,).

    ``masses`` (n,) are the outcomes' probabilities, float64 or Fraction; outcomes of probability 0 are left out.
    ``ordered`` tuples have probability prod q, multisets (ascending) K! / prod m! times that.

    >>> drawn, probability = draws(np.array([0.5, 0.5]), 2, ordered=False)
    >>> drawn.tolist(), probability.tolist()
    ([[0, 0], [0, 1], [1, 1]], [0.25, 0.5, 0.25])
    """
    support = np.flatnonzero(masses > 0).tolist()
    every = product(support, repeat=num_paths) if ordered else combinations_with_replacement(support, num_paths)
    drawn = np.array(list(every), dtype=np.int64).reshape(-1, num_paths)
    probability: Array = masses[drawn].prod(axis=1)
    if not ordered:
        orders = np.full(len(drawn), factorial(num_paths), dtype=object)  # of the tuples of one multiset
        run = np.ones(len(drawn), dtype=np.int64)
        for k in range(1, num_paths):  # a run of m equal outcomes divides by 2, 3, ..., m
            run = np.where(drawn[:, k] == drawn[:, k - 1], run + 1, 1)
            orders //= run
        probability = (orders * probability).astype(masses.dtype)
    return drawn, probability


def count_draws(outcomes: int, num_paths: int, *, ordered: bool) -> int:
    """Number of results of K draws from so many outcomes: ordered tuples, or multisets."""
    return int(outcomes**num_paths) if ordered else comb(outcomes + num_paths - 1, num_paths)
