"""A fixed tree: the N most probable prefixes, drafted with certainty (theory 9.1).

C(A) is 1 or 0. Sampling from the target and walking down the tree (NSS) is then the optimal verifier, and the optimum
is 1 + the target's probability of the tree's nodes: whatever is lost is lost in the draft.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.core import prefix_tree
from lpverify.core.draft_tree import DraftTree
from lpverify.core.model_pair import ModelPair
from lpverify.drafting.base import Draft, DraftDistribution, Ints, Prefix, Uniforms, parse_integers
from lpverify.numerics import Array, Levels, one


@dataclass(frozen=True)
class TopNodes(DraftDistribution):
    """The ``num_nodes`` (N) nodes of largest draft probability; those that the draft cannot reach are left out.

    Ties go to the shorter prefix, then to the smaller tokens, so the nodes form a tree.

    >>> TopNodes(5).spec
    'top:5'
    """

    kind = "top"
    help = "top:N, the N most probable prefixes"
    full_depth = False

    num_nodes: int

    def __post_init__(self) -> None:
        errors.integer("top: number of nodes (N)", self.num_nodes, min=1)

    @property
    def spec(self) -> str:
        return f"{self.kind}:{self.num_nodes}"

    @classmethod
    def parse(cls, numbers: str) -> TopNodes:
        return cls(*parse_integers("top:N", numbers, count=1))

    def nodes(self, pair: ModelPair) -> tuple[tuple[Prefix, ...], Levels]:
        """The paths to the leaves of the tree, in lexicographic order, and which nodes are in it, (V**i,) a level."""
        mass = np.concatenate(pair.draft_paths[1:])
        best = np.argsort(-mass, kind="stable")[: self.num_nodes]
        inside = np.zeros(mass.size, dtype=bool)
        inside[best[mass[best] > 0]] = True
        sizes = np.cumsum([level.size for level in pair.draft_paths[1:]])[:-1]
        levels = (np.ones(1, dtype=bool), *np.split(inside, sizes))
        paths = []
        for depth, level in enumerate(levels):
            longer = levels[depth + 1].reshape(len(level), -1).any(axis=1) if depth < pair.depth else 0 * level
            ends = np.flatnonzero(level & ~longer.astype(bool)).tolist()
            paths += [prefix_tree.prefix_of(node, depth, pair.vocab_size) for node in ends]
        return tuple(sorted(paths)), levels

    def sample(self, pair: ModelPair, generator: Uniforms) -> DraftTree:
        return DraftTree.from_pair(pair, self.nodes(pair)[0])

    def enumerate(self, pair: ModelPair, *, ordered: bool = True) -> Iterator[Draft]:
        yield Draft(self.nodes(pair)[0], one(pair.draft[0]))

    def count(self, pair: ModelPair, *, ordered: bool = True) -> int:
        return 1

    def first_drafted(self, pair: ModelPair, order: Ints) -> Array:
        """As in the base class; a path of full depth need not exist, so the masses may sum to 0."""
        inside = np.flatnonzero(self.nodes(pair)[1][-1][order])
        first = 0 * pair.draft_paths[-1][order]
        first[inside[:1]] += one(first)
        return first

    def expected_best(self, pair: ModelPair, values: Levels) -> Any:
        inside = self.nodes(pair)[1]
        return max(level[drafted].max() for level, drafted in zip(values, inside, strict=True) if drafted.any())

    def coverage(self, pair: ModelPair, nodes: object) -> object:
        levels = self.nodes(pair)[1]
        hit = any(levels[len(node)][prefix_tree.index_of(node, pair.vocab_size)] for node in nodes)  # type: ignore
        return one(pair.draft[0]) * int(hit)

    def node_coverage(self, pair: ModelPair) -> Levels:
        return tuple(one(pair.draft[0]) * level.astype(int) for level in self.nodes(pair)[1])
