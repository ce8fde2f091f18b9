"""Trees in which every node draws a set of children: what branching and distinct children have in common (theory 9.1).

A node of depth i draws a set X of children from its own draft row, independently of all other nodes, and every child
has one subtree. The probability that a set of leaves is missed goes up the tree in one pass,

    miss(c) = sum_X Pr(X) prod_(x in X) miss(cx)

and C = 1 - miss(root). Where the same child is drawn twice it is one child: repeats are merged.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, ClassVar, Self

import numpy as np

from lpverify import errors
from lpverify.core import prefix_tree
from lpverify.core.draft_tree import DraftTree
from lpverify.core.model_pair import ModelPair
from lpverify.drafting.base import Draft, DraftDistribution, Ints, Prefix, Uniforms, draw, parse_integers
from lpverify.numerics import Array, Levels, one, ones, zeros

MAX_SETS = 20_000  # sets of children of one node
MAX_CELLS = 200_000_000  # sets of children times nodes times nested sets of leaves

Sets = dict[tuple[int, ...], Any]


@dataclass(frozen=True)
class ChildSets(DraftDistribution):
    """``child_counts`` (L,): the number of children that a node of depth i = 0..L-1 draws."""

    counts_help: ClassVar[str] = "k1,...,kL"

    child_counts: tuple[int, ...]

    def __post_init__(self) -> None:
        counts = tuple(errors.integer(f"{self.kind}: number of children", count, min=1) for count in self.child_counts)
        object.__setattr__(self, "child_counts", counts)

    @property
    def spec(self) -> str:
        return f"{self.kind}:{','.join(map(str, self.child_counts))}"

    @classmethod
    def parse(cls, numbers: str) -> Self:
        return cls(parse_integers(f"{cls.kind}:{cls.counts_help}", numbers))

    def check(self, pair: ModelPair) -> None:
        if len(self.child_counts) != pair.depth:
            expected = f"{pair.depth} numbers of children, one for each level of the draft"
            raise errors.fail(f"draft distribution {self.spec}", got=f"{len(self.child_counts)}", expected=expected)

    @abstractmethod
    def next_child(self, row: Array, drawn: tuple[int, ...], count: int) -> Array:
        """Distribution of the next of ``count`` draws from ``row`` (V,) after the children ``drawn``, repeats merged.

        All zero where no child is left to draw. Weights, which need not sum to 1, are not allowed.
        """

    def child_sets(self, row: Array, count: int, *, ordered: bool) -> Sets:
        """Probability of every set of children, ascending; ``ordered``: of every sequence of first appearances."""
        sets: Sets = {(): one(row)}
        for number in range(count):
            larger: Sets = {}
            for drawn, probability in sets.items():
                weights = self.next_child(row, drawn, count - number)
                tokens = np.flatnonzero(weights > 0).tolist()
                if not tokens:
                    larger[drawn] = larger.get(drawn, 0) + probability
                for token in tokens:
                    more = drawn if token in drawn else (*drawn, token)
                    more = more if ordered else tuple(sorted(more))
                    larger[more] = larger.get(more, 0) + probability * weights[token]
            if len(larger) > MAX_SETS:
                size = f"more than {len(larger)} sets of {count} out of {len(row)} children"
                raise errors.too_large(self.spec, size=size, limit=f"{MAX_SETS}", instead="draw fewer children")
            sets = larger
        return sets

    def sample(self, pair: ModelPair, generator: Uniforms) -> DraftTree:
        self.check(pair)
        paths: list[Prefix] = [()]
        for rows, count in zip(pair.draft, self.child_counts, strict=True):
            longer = []
            for path in paths:
                row = rows[prefix_tree.index_of(path, pair.vocab_size)]
                drawn: tuple[int, ...] = ()
                for number in range(count):
                    weights = self.next_child(row, drawn, count - number)
                    if not (weights > 0).any():
                        break
                    token = draw(weights, generator)
                    drawn = drawn if token in drawn else (*drawn, token)
                longer += [(*path, token) for token in drawn]
            paths = longer
        return DraftTree.from_pair(pair, paths)

    def enumerate(self, pair: ModelPair, *, ordered: bool = True) -> Iterator[Draft]:
        self.check(pair)

        def subtrees(prefix: Prefix) -> Iterator[Draft]:
            depth = len(prefix)
            if depth == pair.depth:
                yield Draft((prefix,), one(pair.draft[0]))
                return
            row = pair.draft[depth][prefix_tree.index_of(prefix, pair.vocab_size)]
            for children, probability in self.child_sets(row, self.child_counts[depth], ordered=ordered).items():
                for below in product(*(list(subtrees((*prefix, token))) for token in children)):
                    paths = tuple(path for draft in below for path in draft.paths)
                    yield Draft(paths, prod((draft.probability for draft in below), start=probability))

        yield from subtrees(())

    def count(self, pair: ModelPair, *, ordered: bool = True) -> int:
        self.check(pair)
        below = [1] * prefix_tree.level_size(pair.vocab_size, pair.depth)
        for depth in range(pair.depth - 1, -1, -1):
            numbers = []
            for node, row in enumerate(pair.draft[depth]):
                first = node * pair.vocab_size
                sets = self.child_sets(row, self.child_counts[depth], ordered=ordered)
                numbers.append(sum(prod(below[first + token] for token in children) for children in sets))
            below = numbers
        return below[0]

    def first_drafted(self, pair: ModelPair, order: Ints) -> Array:
        missing = self._set_tables(pair)
        leaves, size = pair.draft_paths[-1].size, pair.vocab_size
        widest = max(index.shape[0] * len(table) for index, table in missing)
        if (len(order) + 1) * widest > MAX_CELLS:
            cells = f"{(len(order) + 1) * widest} products of children"
            raise errors.too_large(self.spec, size=cells, limit=f"{MAX_CELLS}", instead="use a smaller tree")
        rank = np.full(leaves, len(order))
        rank[order] = np.arange(len(order))
        unit = one(pair.draft[0])
        miss = np.where(rank[None, :] < np.arange(len(order) + 1)[:, None], 0 * unit, unit)  # (sets S_k, leaves)
        for index, probability in reversed(missing):
            children = miss.reshape(len(miss), -1, size)
            padded = np.concatenate([children, ones((*children.shape[:2], 1), miss)], axis=2)
            miss = (padded[:, :, index].prod(axis=3) * probability).sum(axis=2)
        first: Array = -np.diff(miss[:, 0])
        return first

    def node_coverage(self, pair: ModelPair) -> Levels:
        levels = [ones(1, pair.draft[0])]
        for index, probability in self._set_tables(pair):
            drawn = zeros((probability.shape[0], pair.vocab_size + 1), probability)
            for children, masses in zip(index, probability.T, strict=True):
                drawn[:, children] += masses[:, None]  # the padding of a small set may be counted often: dropped
            levels.append((levels[-1][:, None] * drawn[:, :-1]).reshape(-1))
        return tuple(levels)

    def _set_tables(self, pair: ModelPair) -> list[tuple[Ints, Array]]:
        """For every level the sets (sets, k), padded with V, and their probabilities at its nodes (V**i, sets)."""
        self.check(pair)
        return _set_tables(self, pair)


def _set_tables(draft: ChildSets, pair: ModelPair) -> list[tuple[Ints, Array]]:
    tables = []
    for rows, count in zip(pair.draft, draft.child_counts, strict=True):
        each = [draft.child_sets(row, count, ordered=False) for row in rows]
        sets = {children: number for number, children in enumerate(sorted({s for one_row in each for s in one_row}))}
        index = np.full((len(sets), max(map(len, sets))), pair.vocab_size)
        for children, number in sets.items():
            index[number, : len(children)] = children
        probability = zeros((len(rows), len(sets)), rows)
        for node, one_row in enumerate(each):
            for children, mass in one_row.items():
                probability[node, sets[children]] = mass
        tables.append((index, probability))
    return tables
