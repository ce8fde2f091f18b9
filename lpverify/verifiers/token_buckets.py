"""Buckets of tokens: at a large vocabulary a rank split sees about a hundred children instead of V (theory 5.2, 11).

Tokens are put into `FINE` bins of log2(p/q), read off the bits of the float32 ratio, so nothing is sorted; the bins are
then cut into at most ``limit`` buckets. A split treats the buckets as children; inside a bucket it is neutral. Tokens
with q = 0 have a bucket of their own: a draft never proposes them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lpverify.numerics import Array, accumulate, accumulate_rows, as_float, divide, is_exact, zero, zeros
from lpverify.verifiers.compiled import LONG, bin_row, compiled
from lpverify.verifiers.rank_measure import RankMeasure
from lpverify.verifiers.splits import Split, SplitRule

BUCKETS = 64  # children of a node that a split sees; a smaller vocabulary is not merged at all
BITS = 6  # mantissa bits of the float32 ratio that a bin keeps: 2^6 bins an octave
OCTAVES = 8  # ratios p/q beyond 2 to this power, or below its inverse, share the last or the first bin
FINE = 2 * OCTAVES * 2**BITS  # bins of tokens with q > 0; bin FINE holds the tokens with q = 0
LOWEST = (127 - OCTAVES) << BITS  # the leading bits, sign and exponent included, of the float32 ratio 2^-OCTAVES
HIGH_HALF = 1 if sys.byteorder == "little" else 0  # which 16 bits hold its sign, exponent and first 7 mantissa bits
UNEVEN = 0.381966  # offset of cuts from multiples of the bucket weight: weights equal on paper never lie on a cut


@dataclass(frozen=True, eq=False)
class Children:
    """What a split sees of m rows: C children each, tokens of a small vocabulary or buckets of a large one."""

    target: Any  # (m, C), as ``draft``: their masses p and q
    draft: Any
    bins: Any = None  # (m, V) the bin of every token, None where every token is its own child
    bucket: Any = None  # (m, FINE + 1) the child that a bin belongs to, None likewise

    def of(self, rows: Any, tokens: Any) -> Any:
        """The children that ``tokens[e]`` of ``rows[e]`` belong to, (E,)."""
        return np.asarray(tokens) if self.bins is None else self.bucket[rows, self.bins[rows, tokens]]


def children_of(target: Any, draft: Array, limit: int | None = BUCKETS) -> Children:
    """The children that a split sees of rows (m, V), float64 or Fraction.

    Larger vocabularies are merged into at most ``limit`` buckets (None: never), the one for q = 0 not counted.

    >>> rows = np.array([[0.9, 0.05, 0.05, 0.0]]), np.array([[0.45, 0.05, 0.0, 0.5]])
    >>> merged = children_of(*rows, limit=2)
    >>> merged.of(0, [0, 1, 2, 3]).tolist(), merged.draft.round(2).tolist()
    ([1, 1, 2, 0], [[0.5, 0.5, 0.0]])
    """
    if limit is None or draft.shape[1] <= limit:
        return Children(target, draft)
    bins = np.empty(draft.shape, dtype=np.int16)
    fine = zeros((len(draft), 2, FINE + 1), draft)
    kernel = None if draft.shape[1] < LONG or is_exact(draft) else compiled(bin_row)
    scratch = np.empty(draft.shape[1], dtype=np.float32)
    for row, (p, q) in enumerate(zip(target, draft, strict=True)):
        if kernel is not None:
            kernel(p, q, scratch, bins[row], fine[row], 23 - BITS, LOWEST, FINE)
        else:
            bins[row] = _bins(as_float(p), as_float(q))
            index = bins[row].astype(np.intp)
            fine[row] = [accumulate(index, values, FINE + 1) for values in (p, q)]
    bucket = cut(as_float(fine[:, 0] + fine[:, 1]), limit, np)
    p, q = (accumulate_rows(bucket, fine[:, side], limit + 1) for side in (0, 1))
    return Children(p, q, bins, bucket)


def _bins(target: Array, draft: Array) -> npt.NDArray[Any]:
    """The bin of every token of one row, (V,)."""
    ratio = np.empty(draft.shape, dtype=np.float32)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
        np.divide(target, draft, out=ratio, casting="same_kind")
    leading = ratio.view(np.uint16)[HIGH_HALF::2] >> (7 - BITS)
    bins = np.clip(leading, LOWEST, LOWEST + FINE - 1, out=leading)
    bins -= LOWEST
    if draft.min() == 0:
        bins[draft == 0] = FINE
    return bins


def cut(mass: Any, limit: int, xp: Any) -> Any:
    """The bucket of every bin, (m, FINE + 1), for bins of ``mass`` (m, FINE + 1), their p + q.

    Buckets are intervals of the ratio with equal sums of the square root of the mass: measured at V = 120 and 200 this
    loses 3 to 10 times less than equal mass, which leaves too few buckets to the light bins. A heavy bin counts for one
    bucket at most, so that no bucket is left empty beside it. The bucket of a bin is decided by what lies before its
    middle. Bin `FINE` is bucket ``limit``.
    """
    weight = xp.sqrt(mass[:, :FINE])
    weight = xp.minimum(weight, xp.sum(weight, axis=1, keepdims=True) / limit)
    before = xp.cumulative_sum(weight, axis=1)
    share = (before - weight / 2) * (limit / before[:, -1:])
    inside = xp.clip(xp.astype(xp.floor(share + UNEVEN), xp.int64), 0, limit - 1)
    return xp.concat([inside, xp.full_like(inside[:, :1], limit)], axis=1)


def in_blocks(split: SplitRule, limit: int | None = BUCKETS) -> SplitRule:
    """``split`` on the children of `children_of`, with q* and measures of single tokens."""

    def split_buckets(measure: RankMeasure, target: Array, draft: Array, weight: Array, num_paths: int) -> Split:
        children = children_of(target, draft, limit)
        inner = split(measure, children.target, children.draft, weight, num_paths)
        if children.bins is None:
            return inner
        bucket = np.take_along_axis(children.bucket, children.bins.astype(np.intp), axis=1)
        factor = divide(inner.q_star, children.draft, where_zero=zero(draft))
        factor, place = (np.take_along_axis(values, bucket, axis=1) for values in (factor, inner.place))
        return Split(draft * factor, place, lambda rows, tokens: inner.children(rows, bucket[rows, tokens]))

    return split_buckets
