"""Exact values of the token rule, BV, GBV, TGBV, PBV and EBV: one pass down the tree (THEORY 1, 3, 4, 5).

The selected path follows the draft law Q* (Q itself for the token rule and BV, which look at one path), and the
probability f(c) that the accepted prefix passes through node c is

    f(root) = 1,      f(cx) = min(p(x|c) f(c), Q*(cx)),      block efficiency = sum_c f(c)

(token rule: f(cx) = f(c) min(p(x|c), q(x|c))). On a rational pair everything is a Fraction; ``pair.floats`` is the same
in float64, with full relative accuracy down to path probabilities of 1e-300.

Leviathan et al. 2023 (token rule), Sun et al. arXiv 2403.10444 (BV), Thomas and Pal arXiv 2602.16961 (GBV).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.numerics import Levels, ones, total
from lpverify.verifiers.ebv import entropic_split
from lpverify.verifiers.pbv import proportional_split
from lpverify.verifiers.rank_measure import compact, stacked, whole
from lpverify.verifiers.residual import acceptance
from lpverify.verifiers.splits import SplitRule, ordered_split
from lpverify.verifiers.tgbv import tempered_split
from lpverify.verifiers.token_buckets import MOST_BLOCKS, in_blocks

SPLITS: dict[str, SplitRule] = {
    "gbv": ordered_split,
    "tgbv": tempered_split,
    "pbv": proportional_split,
    "ebv": entropic_split,
}

ALGORITHMS = ("token", "bv", *SPLITS)
"""Algorithms with a closed form."""

CHUNK = 300_000
"""Rows of a level are split in chunks of about this many (child, child or piece) cells, 2.4 MB a temporary array."""


@dataclass(frozen=True)
class Budgets:
    """Node budgets of an algorithm, and the law of the path that it verifies.

    ``budgets`` f(c) and ``selected`` Q*(c): one (V**i,) array per level i = 0..L.
    """

    algorithm: str
    paths: int
    budgets: Levels
    selected: Levels

    @property
    def block_efficiency(self) -> float | Fraction:
        """Expected tokens per target call, sum of f; a Fraction when the pair is rational."""
        value = total(self.budgets)
        return value if isinstance(value, Fraction) else float(value)


def token_budgets(pair: ModelPair) -> Budgets:
    """The token rule on one path: f(cx) = f(c) min(p(x|c), q(x|c))."""
    levels = [ones(1, pair.target[0])]
    for target, draft in zip(pair.target, pair.draft, strict=True):
        levels.append((levels[-1][:, None] * np.minimum(target, draft)).reshape(-1))
    return Budgets("token", 1, tuple(levels), pair.draft_paths)


def bv_budgets(pair: ModelPair) -> Budgets:
    """Block verification of one path: f(cx) = min(p(x|c) f(c), Q(cx)), the single-path optimum."""
    return Budgets("bv", 1, node_budgets(pair, pair.draft_paths), pair.draft_paths)


def ranked_budgets(pair: ModelPair, paths: int, algorithm: str, blocks: int | None = MOST_BLOCKS) -> Budgets:
    """GBV, TGBV, PBV or EBV with K = ``paths``: block verification of the path of smallest rank.

    ``blocks``: TGBV, PBV and EBV merge larger vocabularies into so many blocks of tokens, as the
    verifiers do (None: never).
    Raises InputError for another algorithm or K < 1.

    >>> pair = ModelPair.from_levels([[[0.5, 0.5]], [[0.5, 0.5]] * 2], [[[0.5, 0.5]], [[0.5, 0.5]] * 2])
    >>> [ranked_budgets(pair, 2, name).block_efficiency for name in ("gbv", "tgbv", "pbv")]
    [2.4375, 3.0, 3.0]
    """
    paths = errors.integer("paths (K)", paths, least=1)
    split = SPLITS[errors.choice("algorithm", algorithm, tuple(SPLITS))]
    split = split if algorithm == "gbv" else in_blocks(split, blocks)
    selected = selected_levels(pair, paths, split)
    return Budgets(algorithm, paths, node_budgets(pair, selected), selected)


def closed_form(pair: ModelPair, algorithm: str, paths: int = 1) -> Budgets:
    """Budgets of any of `ALGORITHMS`; the single-path ones do not look at ``paths``. Raises InputError."""
    errors.choice("algorithm", algorithm, ALGORITHMS)
    errors.integer("paths (K)", paths, least=1)
    if algorithm == "token":
        return token_budgets(pair)
    return bv_budgets(pair) if algorithm == "bv" else ranked_budgets(pair, paths, algorithm)


def block_efficiency(pair: ModelPair, algorithm: str, paths: int = 1) -> float | Fraction:
    """Exact expected tokens per target call of one of `ALGORITHMS`. Raises InputError.

    >>> pair = ModelPair.from_levels([[[0.2, 0.5, 0.3]]], [[[0.6, 0.3, 0.1]]])
    >>> round(block_efficiency(pair, "pbv", paths=2), 12)
    1.84
    """
    return closed_form(pair, algorithm, paths).block_efficiency


def selected_law(pair: ModelPair, paths: int, algorithm: str) -> Levels:
    """Q*(c), the law of the path that the algorithm verifies, one (V**i,) array per level. Raises InputError."""
    return closed_form(pair, algorithm, paths).selected


def node_budgets(pair: ModelPair, selected: Levels) -> Levels:
    """f(cx) = min(p(x|c) f(c), Q*(cx)) top-down: block verification of a path with law ``selected``."""
    levels = [ones(1, pair.target[0])]
    for target, law in zip(pair.target, selected[1:], strict=True):
        levels.append(np.minimum((levels[-1][:, None] * target).reshape(-1), law))
    return tuple(levels)


def selected_levels(pair: ModelPair, paths: int, split: SplitRule) -> Levels:
    """Q*(c) of every node when every node is split by ``split``."""
    vocab_size = pair.vocab_size
    law = [ones(1, pair.draft[0])]
    weight, measure = law[0], whole(1, law[0])
    for depth, (target, draft) in enumerate(zip(pair.target, pair.draft, strict=True)):
        rows, weights, measures = [], [], []
        for part in _chunks(len(draft), vocab_size * (2 * vocab_size + measure.mass.shape[1])):
            done = split(compact(measure[part]), target[part], draft[part], weight[part], paths)
            rows.append(done.q_star)
            if depth < pair.depth - 1:
                weights.append(acceptance(weight[part, None] * target[part], done.q_star).reshape(-1))
                size = len(done.q_star)
                nodes, tokens = np.repeat(np.arange(size), vocab_size), np.tile(np.arange(vocab_size), size)
                measures.append(compact(done.children(nodes, tokens)))
        law.append((law[-1][:, None] * np.concatenate(rows)).reshape(-1))
        if depth < pair.depth - 1:
            weight, measure = np.concatenate(weights), stacked(measures)
    return tuple(law)


def _chunks(count: int, cells: int) -> Iterator[Any]:
    step = max(1, CHUNK // cells)
    for start in range(0, count, step):
        yield slice(start, start + step)
