"""Splits for large vocabularies: tokens of similar p/q act as one child (THEORY 5.2, 5.3).

Any partition of the tokens into blocks that is a function of the rows is lossless: the blocks are split as children of
masses p(block), q(block), and inside a block the split is neutral, q*(x) = q(x) q*(block) / q(block). Blocks are
buckets of log(p/q), with the tokens of large q and those of q = 0 apart: O(V) a row, no sort.
"""

from __future__ import annotations

from typing import Any

from lpverify._array import Array, accumulate_rows, as_float, as_index, divide, is_exact, namespace, zero
from lpverify.verify._ranks import RankMeasure
from lpverify.verify._splits import Split, SplitRule

MOST_BLOCKS = 64
"""Children of a node that a split sees; a vocabulary up to this size is not merged at all."""

HEAVY = 1 / 128
"""Tokens of at least this draft probability stay alone, as long as half of the blocks suffice for them."""

OCTAVES = 8
"""Ratios p/q beyond 2 to this power, or below its inverse, are not told apart."""


def in_blocks(split: SplitRule, most: int | None = MOST_BLOCKS) -> SplitRule:
    """``split`` on at most ``most`` blocks of tokens; None: every token is its own block, whatever the vocabulary."""

    def split_blocks(measure: RankMeasure, target: Array, draft: Array, weight: Array, paths: int) -> Split:
        if most is None or target.shape[-1] <= most:
            return split(measure, target, draft, weight, paths)
        xp = namespace(draft)
        block = blocks(target, draft, most)
        masses = accumulate_rows(block, draft, most)
        inner = split(measure, accumulate_rows(block, target, most), masses, weight, paths)

        def by_token(by_block: Array) -> Array:
            values: Array = xp.take_along_axis(by_block, block, axis=-1)
            return values

        def children(rows: Any, tokens: Any) -> RankMeasure:
            rows, tokens = as_index(draft, rows), as_index(draft, tokens)
            return inner.children(rows, block[rows, tokens])

        share = divide(draft, by_token(masses), where_zero=zero(draft))
        return Split(share * by_token(inner.q_star), by_token(inner.place), children)

    return split_blocks


def blocks(target: Array, draft: Array, most: int = MOST_BLOCKS) -> Any:
    """The block 0..most-1 of every token, (R, V) integers; ``most`` >= 3.

    >>> import numpy as np
    >>> rows = np.array([[0.9, 0.05, 0.05]]), np.array([[0.996, 0.004, 0.0]])
    >>> blocks(*rows, most=8).tolist()
    [[0, 6, 7]]
    """
    assert most >= 3
    xp = namespace(draft)
    heavy_slots = most // 2
    buckets = most - heavy_slots - 1
    slot = xp.cumulative_sum(xp.astype(draft >= HEAVY, xp.int64), axis=-1) - 1
    alone = (draft >= HEAVY) & (slot < heavy_slots)
    p, q = (as_float(target), as_float(draft)) if is_exact(draft) else (target, draft)
    scaled = xp.minimum(p, 2.0**OCTAVES * q)  # no overflow
    ratio = xp.clip(divide(scaled, q, where_zero=1.0), 2.0**-OCTAVES, 2.0**OCTAVES)
    octave = (xp.log2(ratio) + OCTAVES) / (2 * OCTAVES)
    bucket = xp.clip(xp.astype(octave * buckets, xp.int64), 0, buckets - 1) + heavy_slots
    result: Any = xp.where(q == 0, most - 1, xp.where(alone, slot, bucket))
    return result
