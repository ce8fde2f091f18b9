"""Rank measures: how the ranks of the paths through a node are distributed on [0, 1] (theory 5, 5.3).

A measure is a list of m pieces in rank order, uniform inside each piece. A piece is stored by its width and by the
length of [0, 1] *above* it (1 - right end), so that the mean of phi' on it, phi'(u) = K (1-u)^(K-1), is accurate
however small the piece is. Lengths are relative to the node's ``scale``, the length above the start of its first piece:
below a node only ratios of means matter, so they neither underflow nor overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpverify.numerics import Array, divide, is_exact, one, ones, take_in_rows, zero, zeros

MANTISSA_GUARD = 2**9 + 1  # ratios p/q are compared by 53 - 9 = 44 bits, so that ratios that are equal on paper tie
LARGEST_RATIO = 1e300  # larger ratios p/q tie; any order that is a function of the row is lossless


@dataclass(frozen=True, eq=False)
class RankMeasure:
    """The rank measures of R nodes with m pieces each, smallest ranks first."""

    above: Array  # (R, m) length of [0, 1] above the piece, divided by ``scale``
    width: Array  # (R, m) length of the piece, divided by ``scale``
    mass: Array  # (R, m) fraction of the node's paths that have their rank in the piece; rows sum to 1; padding has 0
    scale: Array  # (R,) largest ``above + width`` of a piece with mass, as a length

    def __getitem__(self, rows: Any) -> RankMeasure:
        """The measures of some of the nodes."""
        return RankMeasure(self.above[rows], self.width[rows], self.mass[rows], self.scale[rows])


def whole(count: int, like: Array) -> RankMeasure:
    """``count`` copies of the root's measure, uniform on [0, 1], in the arithmetic of ``like``."""
    column = ones((count, 1), like)
    return RankMeasure(zeros((count, 1), like), column, column, ones((count,), like))


def rescaled(above: Array, width: Array, mass: Array, scale: Array) -> RankMeasure:
    """The measure with pieces ``above``, ``width`` (in units of ``scale``) and ``mass``, brought to its own scale.

    A node whose lengths are all below the smallest double gets one position for all pieces; its splits are neutral.
    """
    above, width = (np.where(mass > 0, lengths, zero(mass)) for lengths in (above, width))
    top = np.max(above + width, axis=-1)
    if not is_exact(mass) and top.all():
        return RankMeasure(above / top[:, None], width / top[:, None], mass, scale * top)
    above = divide(above, top[:, None], where_zero=one(mass))
    return RankMeasure(above, divide(width, top[:, None], where_zero=zero(mass)), mass, scale * top)


def ratio_order(target: Array, draft: Array) -> Array:
    """Tokens of every row by p/q descending, ties to the smaller token, tokens that are never drafted last; (R, V).

    >>> ratio_order(np.array([[0.2, 0.5, 0.3]]), np.array([[0.6, 0.3, 0.1]])).tolist()
    [[2, 1, 0]]
    """
    with np.errstate(over="ignore"):
        ratio = divide(target, draft, where_zero=-one(draft))
    if not is_exact(draft):
        spread = np.minimum(ratio, LARGEST_RATIO) * MANTISSA_GUARD
        ratio = spread - (spread - np.minimum(ratio, LARGEST_RATIO))
    return np.argsort(-ratio, axis=-1, stable=True)


def compact(measure: RankMeasure) -> RankMeasure:
    """The same measures with pieces of mass 0 removed, as many as the row with the most pieces allows."""
    used = measure.mass > 0
    most = max(1, int(used.sum(axis=-1).max()))
    if most == used.shape[-1]:
        return measure
    index = np.argsort(~used, axis=-1, kind="stable")[:, :most]
    above, width, mass = (take_in_rows(values, index) for values in (measure.above, measure.width, measure.mass))
    return RankMeasure(above, width, mass, measure.scale)


def stacked(measures: Sequence[RankMeasure]) -> RankMeasure:
    """One batch from several, padded to the same number of pieces."""
    most = max(measure.mass.shape[-1] for measure in measures)

    def padded(pieces: Array) -> Array:
        missing = most - pieces.shape[-1]
        return np.concatenate([pieces, zeros((len(pieces), missing), pieces)], axis=-1) if missing else pieces

    names = ("above", "width", "mass")
    above, width, mass = (np.concatenate([padded(getattr(measure, name)) for measure in measures]) for name in names)
    return RankMeasure(above, width, mass, np.concatenate([measure.scale for measure in measures]))
