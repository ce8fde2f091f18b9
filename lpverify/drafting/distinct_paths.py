r"""K distinct whole paths: successive sampling of leaves without replacement (theory 9.1).

The first path is drawn from the draft, the next one from the draft without the paths that were drawn, and so on. As
exponential clocks: leaf x arrives at an exponential time of rate Q(x), and the first K arrivals are drafted. Stochastic
beam search draws them from a model without a list of all leaves (Kool et al., arXiv 1903.06059).

A set S of leaves is hit iff its first arrival, at rate Q(S), comes before K others have:

    C(S) = \int_0^\infty Q(S) exp(-Q(S) t) Pr(fewer than K leaves outside of S have arrived at time t) dt

In floats the integral is a trapezoid sum over log t, whose error falls faster than any power of the step; for Fractions
it is a sum over all sets of fewer than K leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from math import comb, perm
from typing import Any

import numpy as np
import numpy.typing as npt

from lpverify import errors
from lpverify.core import prefix_tree
from lpverify.core.draft_tree import DraftTree
from lpverify.core.model_pair import ModelPair
from lpverify.drafting.base import Draft, DraftDistribution, Ints, Uniforms, draw, parse_integers
from lpverify.numerics import Array, Levels, zeros

STEP, FIRST = 0.25, -45.0  # of the sum over log t: halving STEP, or starting earlier, changes nothing above 1e-14
MAX_SETS = 200_000

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DistinctPaths(DraftDistribution):
    """``num_paths`` distinct paths by successive sampling; all possible ones where there are fewer.

    >>> from lpverify.core.model_pair import ModelPair
    >>> coin = ModelPair.iid(["1/4", "3/4"], ["3/5", "2/5"], depth=2)
    >>> float(DistinctPaths(2).expected_nodes(coin))
    3.655075187969925
    """

    kind = "distinct-paths"
    help = "distinct-paths:K, K distinct paths drawn one after the other"
    provides = frozenset({"any tree", "a path"})

    num_paths: int

    def __post_init__(self) -> None:
        errors.integer("num_paths (K)", self.num_paths, min=1)

    @property
    def spec(self) -> str:
        return f"{self.kind}:{self.num_paths}"

    @classmethod
    def parse(cls, numbers: str) -> DistinctPaths:
        return cls(*parse_integers("distinct-paths:K", numbers, count=1))

    def sample(self, pair: ModelPair, generator: Uniforms) -> DraftTree:
        left, paths = pair.draft_paths[-1].copy(), []
        for _ in range(min(self.num_paths, int((left > 0).sum()))):
            leaf = draw(left, generator)
            left[leaf] *= 0
            paths.append(prefix_tree.prefix_of(leaf, pair.depth, pair.vocab_size))
        return DraftTree.from_pair(pair, paths)

    def enumerate(self, pair: ModelPair, *, ordered: bool = True) -> Iterator[Draft]:
        mass = pair.draft_paths[-1]
        leaves = np.flatnonzero(mass > 0).tolist()
        size = min(self.num_paths, len(leaves))
        if ordered:
            for drawn in permutations(leaves, size):
                probability, left = mass.sum(), mass.copy()
                for leaf in drawn:
                    probability = probability * mass[leaf] / left.sum()
                    left[leaf] *= 0
                yield Draft(self._paths(pair, drawn), probability)
        else:
            for drawn, probability in drawn_sets(mass, size).items():
                yield Draft(self._paths(pair, drawn), probability)

    @staticmethod
    def _paths(pair: ModelPair, leaves: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(prefix_tree.prefix_of(leaf, pair.depth, pair.vocab_size) for leaf in leaves)

    def count(self, pair: ModelPair, *, ordered: bool = True) -> int:
        leaves = int((pair.draft_paths[-1] > 0).sum())
        size = min(self.num_paths, leaves)
        return perm(leaves, size) if ordered else comb(leaves, size)

    def first_drafted(self, pair: ModelPair, order: Ints) -> Array:
        mass = pair.draft_paths[-1]
        if pair.rational:
            rank = {leaf: k for k, leaf in enumerate(order.tolist())}
            first = zeros(len(order), mass)
            for drawn, probability in drawn_sets(mass, min(self.num_paths, int((mass > 0).sum()))).items():
                best = min((rank[leaf] for leaf in drawn if leaf in rank), default=None)
                if best is not None:
                    first[best] += probability
            return first
        time, weight = _times(mass)
        outside = np.ones(mass.size, dtype=bool)
        outside[order] = False
        arrived = _arrivals(mass[outside], time, self.num_paths)
        covered = np.empty(len(order) + 1)
        inside = np.cumsum(mass[order])
        for k in range(len(order), 0, -1):  # S_k; what leaves it joins the others
            late = np.exp(-inside[k - 1] * time) * inside[k - 1]
            covered[k] = weight @ (late * arrived.sum(axis=0))
            arrived = _with_one_more(arrived, mass[order[k - 1]], time)
        covered[0] = 0.0
        covered = np.minimum(covered, 1.0)
        return np.maximum(np.diff(covered), 0.0)

    def node_coverage(self, pair: ModelPair) -> Levels:
        if pair.rational:
            levels = [zeros(len(level), level) for level in pair.draft_paths]
            for draft in self.enumerate(pair, ordered=False):
                for depth in range(pair.depth + 1):
                    for prefix in {path[:depth] for path in draft.paths}:
                        levels[depth][prefix_tree.index_of(prefix, pair.vocab_size)] += draft.probability
            return tuple(levels)
        time, weight = _times(pair.draft_paths[-1])
        alone = np.zeros((self.num_paths, 1, time.size))
        alone[0] = 1.0  # nothing outside of the root
        inside = [_polynomials(pair.draft_paths[-1], time, self.num_paths)]
        for _ in range(pair.depth):
            inside.append(_product(inside[-1].reshape(self.num_paths, -1, pair.vocab_size, time.size)))
        outside, levels = alone, [np.ones(1)]
        for depth, below in enumerate(reversed(inside[:-1]), start=1):
            children = below.reshape(self.num_paths, -1, pair.vocab_size, time.size)
            others = [
                _times_polynomials(outside, _product(np.delete(children, token, axis=2)))
                for token in range(pair.vocab_size)
            ]
            outside = np.stack(others, axis=2).reshape(self.num_paths, -1, time.size)
            mass = pair.draft_paths[depth][:, None]
            covered = (mass * np.exp(-mass * time) * outside.sum(axis=0)) @ weight
            levels.append(np.minimum(covered, 1.0))
        return tuple(levels)


def drawn_sets(mass: Array, size: int) -> dict[tuple[int, ...], Any]:
    """Probability of every set of ``size`` outcomes, ascending, in successive sampling from ``mass`` (n,).

    Pr(X) = sum over the last one y drawn of Pr(X without y) mass(y) / (mass outside of X without y).
    """
    outcomes = np.flatnonzero(mass > 0).tolist()
    if comb(len(outcomes), size) > MAX_SETS:
        count = f"{comb(len(outcomes), size)} sets of {size} out of {len(outcomes)}"
        raise errors.too_large("distinct draws", size=count, limit=f"{MAX_SETS}", instead="use floats or fewer draws")
    sets: dict[tuple[int, ...], Any] = {(): mass.sum() / mass.sum()}
    for _ in range(size):
        larger: dict[tuple[int, ...], Any] = {}
        for before, probability in sets.items():
            left = mass.copy()
            left[list(before)] *= 0
            total = left.sum()
            for last in outcomes:
                if last not in before:
                    drawn = tuple(sorted((*before, last)))
                    larger[drawn] = larger.get(drawn, 0) + probability * mass[last] / total
        sets = larger
    return sets


def _times(mass: Vector) -> tuple[Vector, Vector]:
    """Points t and weights of the integral over t of functions that decay as exp(-t min(mass))."""
    last = np.log(45.0 / mass[mass > 0].min())
    time = np.exp(np.arange(FIRST, last + STEP, STEP))
    return time, STEP * time


def _polynomials(mass: Vector, time: Vector, size: int) -> Vector:
    """exp(-t mass) + z (1 - exp(-t mass)) of every leaf up to degree ``size`` - 1: (size, n, times)."""
    coefficients = np.zeros((size, mass.size, time.size))
    coefficients[0] = np.exp(-mass[:, None] * time)
    if size > 1:
        coefficients[1] = -np.expm1(-mass[:, None] * time)
    return coefficients


def _arrivals(mass: Vector, time: Vector, size: int) -> Vector:
    """Pr(exactly j of the leaves ``mass`` have arrived at each time), j < ``size``: (size, times)."""
    arrived = np.zeros((size, time.size))
    arrived[0] = 1.0
    for one in mass:
        arrived = _with_one_more(arrived, one, time)
    return arrived


def _with_one_more(arrived: Vector, mass: float, time: Vector) -> Vector:
    late = np.exp(-mass * time)
    more = arrived * late
    more[1:] += arrived[:-1] * -np.expm1(-mass * time)
    return more


def _times_polynomials(left: Vector, right: Vector) -> Vector:
    """Products of polynomials (size, ..., times), cut at their size."""
    product = np.zeros(np.broadcast_shapes(left.shape, right.shape))
    for i in range(len(left)):
        product[i:] += left[i] * right[: len(right) - i]
    return product


def _product(factors: Vector) -> Vector:
    """Product over axis 2 of polynomials (size, n, factors, times)."""
    result = np.zeros_like(factors[:, :, 0]) if factors.shape[2] else np.zeros((*factors.shape[:2], factors.shape[3]))
    result[0] = 1.0
    for i in range(factors.shape[2]):
        result = _times_polynomials(result, factors[:, :, i])
    return result
