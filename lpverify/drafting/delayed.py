"""Delayed branching: one path of M tokens, then K i.i.d. continuations of it (theory 9.1).

With Q(A | stem) the draft mass of A below a stem of M tokens, given that stem,

    C(A) = sum over stems of Q(stem) phi(Q(A | stem)),     phi(s) = 1 - (1 - s)^K
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lpverify import errors
from lpverify.core import prefix_tree
from lpverify.core.draft_tree import DraftTree
from lpverify.core.model_pair import ModelPair
from lpverify.drafting.base import Draft, DraftDistribution, Ints, Uniforms, parse_integers
from lpverify.drafting.iid_paths import IidPaths, draw_path, phi
from lpverify.numerics import Array, Levels, divide, zeros


@dataclass(frozen=True)
class Delayed(DraftDistribution):
    """A stem of ``stem`` (M) tokens and ``num_paths`` (K) independent continuations to the depth of the pair.

    >>> Delayed(1, 2).spec
    'delayed:1,2'
    """

    kind = "delayed"
    help = "delayed:M,K, one path of M tokens, then K independent continuations"
    provides = frozenset({"any tree", "a path", "distinct children"})

    stem: int
    num_paths: int

    def __post_init__(self) -> None:
        errors.integer("delayed: length of the stem (M)", self.stem, min=0)
        errors.integer("delayed: num_paths (K)", self.num_paths, min=1)

    @property
    def spec(self) -> str:
        return f"{self.kind}:{self.stem},{self.num_paths}"

    @classmethod
    def parse(cls, numbers: str) -> Delayed:
        return cls(*parse_integers("delayed:M,K", numbers, count=2, min=0))

    def check(self, pair: ModelPair) -> None:
        if self.stem >= pair.depth:
            expected = f"less than the {pair.depth} levels of the draft"
            raise errors.fail(f"draft distribution {self.spec}", got=f"a stem of {self.stem} tokens", expected=expected)

    def below(self, pair: ModelPair, stem: int) -> ModelPair:
        """The tables below one stem, numbered as a node of level M: the problem of its i.i.d. continuations."""
        levels = []
        for tables in (pair.target, pair.draft):
            rows = []
            for depth in range(self.stem, pair.depth):
                width = prefix_tree.level_size(pair.vocab_size, depth - self.stem)
                rows.append(tables[depth][stem * width : (stem + 1) * width])
            levels.append(tuple(rows))
        return ModelPair(levels[0], levels[1], pair.bonus, pair.tokens)

    def sample(self, pair: ModelPair, generator: Uniforms) -> DraftTree:
        self.check(pair)
        stem = draw_path(pair, generator, depth=self.stem)
        return DraftTree.from_pair(pair, [draw_path(pair, generator, stem) for _ in range(self.num_paths)])

    def _stems(self, pair: ModelPair) -> Iterator[tuple[int, ModelPair]]:
        self.check(pair)
        for stem in np.flatnonzero(pair.draft_paths[self.stem] > 0).tolist():
            yield stem, self.below(pair, stem)

    def enumerate(self, pair: ModelPair, *, ordered: bool = True) -> Iterator[Draft]:
        for stem, below in self._stems(pair):
            tokens = prefix_tree.prefix_of(stem, self.stem, pair.vocab_size)
            for draft in IidPaths(self.num_paths).enumerate(below, ordered=ordered):
                paths = tuple((*tokens, *path) for path in draft.paths)
                yield Draft(paths, pair.draft_paths[self.stem][stem] * draft.probability)

    def count(self, pair: ModelPair, *, ordered: bool = True) -> int:
        return sum(IidPaths(self.num_paths).count(below, ordered=ordered) for _, below in self._stems(pair))

    def first_drafted(self, pair: ModelPair, order: Ints) -> Array:
        width = prefix_tree.level_size(pair.vocab_size, pair.depth - self.stem)
        first = zeros(len(order), pair.draft[0])
        for stem, below in self._stems(pair):
            inside = np.flatnonzero(order // width == stem)
            chance = IidPaths(self.num_paths).first_drafted(below, order[inside] - stem * width)
            first[inside] = pair.draft_paths[self.stem][stem] * chance
        return first

    def node_coverage(self, pair: ModelPair) -> Levels:
        self.check(pair)
        stems, levels = pair.draft_paths[self.stem], list(pair.draft_paths[: self.stem + 1])
        for level in pair.draft_paths[self.stem + 1 :]:
            stem = np.repeat(stems, len(level) // len(stems))
            levels.append(stem * phi(divide(level, stem, where_zero=0 * stem[0]), self.num_paths))
        return tuple(levels)
