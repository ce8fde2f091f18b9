"""K i.i.d. paths from the draft, front to back: the draft distribution of theory 2 to 5.

A set A of nodes, none a prefix of another, is hit by one of the K paths with probability

    C(A) = phi(Q(A)),     phi(s) = 1 - (1 - s)^K,     Q(A) the sum of the path probabilities of A.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from lpverify.drafting.base import Draft, DraftDistribution, Prefix, Uniforms
from lpverify.numerics import Array, is_exact


@dataclass(frozen=True)
class IidPaths(DraftDistribution):
    """``num_paths`` i.i.d. paths of the depth of the pair.

    >>> from lpverify.core.families import dirichlet
    >>> IidPaths(2).spec, IidPaths(2).count(dirichlet(2, 1, seed=0))
    ('iid:2', 4)
    """

    num_paths: int

    def __post_init__(self) -> None:
        errors.integer("num_paths (K)", self.num_paths, min=1)

    @property
    def spec(self) -> str:
        return f"iid:{self.num_paths}"

    def sample(self, pair: ModelPair, generator: Uniforms) -> DraftTree:
        paths = []
        for _ in range(self.num_paths):
            path: Prefix = ()
            for rows in pair.draft:
                cumulative = np.cumsum(rows[prefix_tree.index_of(path, pair.vocab_size)])
                beyond = np.flatnonzero(cumulative > generator.random() * cumulative[-1])
                path = (*path, int(beyond[0]))
            paths.append(path)
        return DraftTree.from_pair(pair, paths)

    def enumerate(self, pair: ModelPair, *, ordered: bool = True) -> Iterator[Draft]:
        leaves = list(prefix_tree.prefixes(pair.vocab_size, pair.depth))
        drawn, probability = draws(pair.draft_paths[-1], self.num_paths, ordered=ordered)
        for indices, mass in zip(drawn.tolist(), probability.tolist(), strict=True):
            yield Draft(tuple(leaves[index] for index in indices), mass)

    def count(self, pair: ModelPair, *, ordered: bool = True) -> int:
        return count_draws(int((pair.draft_paths[-1] > 0).sum()), self.num_paths, ordered=ordered)

    def coverage(self, pair: ModelPair, nodes: Sequence[Prefix]) -> Any:
        indices = [(len(node), prefix_tree.index_of(node, pair.vocab_size)) for node in nodes]
        return phi(sum((pair.draft_paths[depth][index] for depth, index in indices), start=0), self.num_paths)

    def expected_nodes(self, pair: ModelPair) -> Any:
        return sum(phi(level, self.num_paths).sum() for level in pair.draft_paths[1:])


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
