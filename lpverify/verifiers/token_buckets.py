"""Splits for large vocabularies: tokens of similar p/q act as one child (THEORY 5.2, 5.3).

Any partition of the tokens into blocks that is a function of the rows is lossless: the blocks are split as children of
masses p(block), q(block), and inside a block the split is neutral, q*(x) = q(x) q*(block) / q(block). Blocks are
buckets of log(p/q), with the tokens of large q and those of q = 0 apart: O(V) a row, no sort.
"""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np

from lpverify.numerics import (
    Array,
    accumulate_rows,
    as_float,
    as_index,
    divide,
    ignoring_overflow,
    is_exact,
    namespace,
    row_parts,
    take_in_rows,
    zero,
    zeros,
)
from lpverify.verifiers.rank_measure import RankMeasure
from lpverify.verifiers.splits import Split, SplitRule

MOST_BLOCKS = 64
"""Children of a node that a split sees; a vocabulary up to this size is not merged at all."""

HEAVY = 1 / 128
"""Tokens of at least this draft probability stay alone, as long as half of the blocks suffice for them."""

SMALLEST = 1e-290
"""Divisor of p where q is less, so that the ratio stays a number."""

IN_CACHE = 2**14
"""Tokens that are worked on at a time where all their intermediate results should stay in the processor's cache."""

OCTAVES = 8
"""Ratios p/q beyond 2 to this power, or below its inverse, are not told apart."""


def in_blocks(split: SplitRule, most: int | None = MOST_BLOCKS) -> SplitRule:
    """``split`` on at most ``most`` blocks of tokens; None: every token is its own block, whatever the vocabulary."""

    def split_blocks(measure: RankMeasure, target: Array, draft: Array, weight: Array, paths: int) -> Split:
        if most is None or target.shape[-1] <= most:
            return split(measure, target, draft, weight, paths)
        block, p, q = merged(target, draft, most)
        inner = split(measure, p, q, weight, paths)

        def by_token(by_block: Array) -> Array:
            return take_in_rows(by_block, block)

        def children(rows: Any, tokens: Any) -> RankMeasure:
            rows, tokens = as_index(draft, rows), as_index(draft, tokens)
            return inner.children(rows, block[rows, tokens])

        share = divide(draft, by_token(q), where_zero=zero(draft))
        return Split(share * by_token(inner.q_star), by_token(inner.place), children)

    return split_blocks


def merged(target: Array, draft: Array, most: int) -> tuple[Any, Array, Array]:
    """Block of every token (R, V), and the masses p and q of the blocks, (R, most) each."""
    xp, shape = namespace(draft), (len(draft), most)
    block, p, q = xp.zeros(draft.shape, dtype=xp.int64, device=draft.device), zeros(shape, draft), zeros(shape, draft)
    for rows in row_parts(len(draft), draft):
        block[rows] = blocks(target[rows], draft[rows], most)
        p[rows], q[rows] = (accumulate_rows(block[rows], values[rows], most) for values in (target, draft))
    return block, p, q


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
    p, q = (as_float(target), as_float(draft)) if is_exact(draft) else (target, draft)
    if isinstance(q, np.ndarray):
        block = np.empty(q.shape, dtype=np.int64)
        for part in range(0, q.shape[1], IN_CACHE):
            tokens = slice(part, part + IN_CACHE)
            block[:, tokens] = _by_ratio(p[:, tokens], q[:, tokens], heavy_slots, most)
        row, token = np.divmod(np.flatnonzero(q >= HEAVY), q.shape[1])
        slot = np.arange(len(row)) - np.searchsorted(row, row)
        row, token, slot = (values[slot < heavy_slots] for values in (row, token, slot))
        block[row, token] = slot
        return block
    alone = q >= HEAVY
    slot = xp.cumulative_sum(xp.astype(alone, xp.int16), axis=-1, dtype=xp.int16) - 1
    merged_block = xp.where(alone & (slot < heavy_slots), slot, _by_ratio(p, q, heavy_slots, most))
    result: Any = xp.astype(merged_block, xp.int64)
    return result


def _by_ratio(target: Array, draft: Array, heavy_slots: int, most: int) -> Any:
    """The blocks of tokens that do not stay alone, as 16-bit integers."""
    xp = namespace(draft)
    buckets = most - heavy_slots - 1
    with ignoring_overflow():
        ratio = xp.astype(target / xp.clip(draft, SMALLEST, None), xp.float32)  # half the precision, half the time
    octave = xp.log(xp.clip(ratio, 2.0**-OCTAVES, 2.0**OCTAVES)) * (1 / log(2))
    bucket = xp.astype((octave + OCTAVES) * (buckets / (2 * OCTAVES)), xp.int16)
    by_ratio: Any = xp.where(draft == 0, most - 1, xp.clip(bucket, 0, buckets - 1) + heavy_slots)
    return by_ratio
