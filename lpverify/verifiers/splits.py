"""Splitting a node's rank measure among its children: the ordered split, and what all splits share (THEORY 5).

A split gives every child x of node c a measure mu_cx of mass q(x|c) mu_c[0, 1] with sum_x mu_cx = mu_c; the selected
path then follows the draft law q*(x|c) = Q*(cx) / Q*(c). Any split that is a function of the rows at drafted nodes is
lossless. Here children are laid out along the node's own ranks by p/q descending, child x on the interval of relative
mass q(x|c); the *ordered* split (GBV) gives it that interval.

All functions take a batch of R rows in an arithmetic of `lpverify.numerics` and have no shape that depends
on the data.

Thomas and Pal, arXiv 2602.16961 (GBV).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lpverify.numerics import (
    Array,
    as_index,
    divide,
    inverse_in_rows,
    is_exact,
    namespace,
    sums_after,
    sums_before,
    take_in_rows,
    zero,
)
from lpverify.verifiers.rank_measure import RankMeasure, mean_density, ratio_order, rescaled

ROUNDING = 1e-14
"""Relative difference of two floats that rounding explains where a split has to choose; exact arithmetic needs none."""

UNRESOLVED = 2.0**-55
"""Distance given to two points of the two halves of [0, 1] whose double representations coincide."""


@dataclass(frozen=True, eq=False)
class Split:
    """How R nodes are split: ``q_star`` (R, V) is q*(x|c), rows sum to 1; ``place`` (R, V) the rank of every token.

    ``children(rows, tokens)``: the measures of the children ``tokens[e]`` of nodes ``rows[e]``. A child of draft
    mass 0 gets the node's own measure (it is never drafted; the rows below it stay defined).
    """

    q_star: Array
    place: Array
    children: Callable[[Any, Any], RankMeasure]


SplitRule = Callable[[RankMeasure, Array, Array, Array, int], Split]
"""(measure of R nodes, target rows (R, V), draft rows (R, V), weights f/Q* (R,), K) -> how the nodes are split."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Children of R nodes laid out by p/q descending; position j along the axis of length V, piece i along m.

    * ``place`` (R, V): position of every token.
    * ``target``, ``draft`` (R, V): p and q by position, relative to their sums.
    * ``overlap`` (R, V, m): mass of child j's interval inside piece i; sums to ``draft`` over i.
    * ``above``, ``width`` (R, V, m): the part of the piece that this is, lengths as in `RankMeasure`.
    * ``density`` (R, V, m): mean of phi' there, up to a factor per row.
    * ``ordered`` (R, V): share of the integral of phi' on child j's interval, the q* of the ordered split.
    """

    measure: RankMeasure
    place: Array
    target: Array
    draft: Array
    overlap: Array
    above: Array
    width: Array
    density: Array
    ordered: Array

    def by_token(self, by_position: Array) -> Array:
        """Values by position, rearranged to token order."""
        return take_in_rows(by_position, self.place)

    def at(self, rows: Any, tokens: Any) -> tuple[Any, Any]:
        """Device indices of nodes ``rows`` and the positions of their ``tokens``."""
        rows, tokens = as_index(self.draft, rows), as_index(self.draft, tokens)
        return rows, self.place[rows, tokens]


def lay_out(measure: RankMeasure, target: Array, draft: Array, paths: int) -> Layout:
    """Refine the pieces of ``measure`` (R nodes) by the children's intervals; ``target``, ``draft`` are (R, V)."""
    xp = namespace(draft)
    order = ratio_order(target, draft)
    target, draft = take_in_rows(target, order), take_in_rows(draft, order)
    target, draft = (rows / xp.sum(rows, axis=-1, keepdims=True) for rows in (target, draft))
    one_piece = measure.mass.shape[-1] == 1 and not is_exact(draft)
    overlap = draft[:, :, None] if one_piece else overlaps(draft, measure.mass)
    in_piece = xp.sum(overlap, axis=-2, keepdims=True)
    width = measure.width[:, None, :] * divide(overlap, in_piece, where_zero=zero(draft))
    after = measure.width[:, None, :] * divide(sums_after(overlap, -2), in_piece, where_zero=zero(draft))
    above = measure.above[:, None, :] + after
    density = mean_density(above, above + width, paths)
    integral = xp.sum(overlap * density, axis=-1)
    ordered = integral / xp.sum(integral, axis=-1, keepdims=True)
    return Layout(measure, inverse_in_rows(order), target, draft, overlap, above, width, density, ordered)


def overlaps(children: Array, pieces: Array) -> Array:
    """Common mass of the consecutive intervals of two partitions of [0, 1]: (R, V) and (R, m) masses to (R, V, m).

    Points are compared by their distance from the nearer end, an interval inside another keeps its own mass, and every
    child's parts are made to sum to its mass. So an interval of mass 1e-200 is exact wherever it lies.
    """
    xp = namespace(children)
    child, piece = children[:, :, None], pieces[:, None, :]
    child_start, child_end = (points.viewed(None, -1) for points in _ends(children))
    piece_start, piece_end = (points.viewed(-1, None) for points in _ends(pieces))
    from_child = ~precedes(child_start, piece_start)
    to_child = precedes(child_end, piece_end)
    parts: Array = xp.where(
        to_child,
        xp.where(from_child, child, _distance(piece_start, child_end)),
        xp.where(from_child, _distance(child_start, piece_end), piece),
    )
    if is_exact(children):
        return parts
    scaled: Array = parts * divide(children, xp.sum(parts, axis=-1), where_zero=0.0)[:, :, None]
    return scaled


@dataclass(frozen=True, eq=False)
class Points:
    """Points of [0, 1] by the mass before and after them; ``front``: the former is not the larger."""

    before: Array
    after: Array

    @property
    def front(self) -> Array:
        return self.before <= self.after

    def viewed(self, *axes: int | None) -> Points:
        """(R, n) points as (R, n, 1) or (R, 1, n): -1 stands for the new axis."""
        index = (slice(None), *(None if axis == -1 else slice(None) for axis in axes))
        return Points(self.before[index], self.after[index])


def _ends(masses: Array) -> tuple[Points, Points]:
    """Start and end points of consecutive intervals; the end of one is the start of the next to the last bit."""
    xp = namespace(masses)
    before, after = sums_before(masses), sums_after(masses)
    all_before = before[:, -1:] + masses[:, -1:]
    all_after = after[:, :1] + masses[:, :1]
    starts = Points(before, xp.concat([all_after, after[:, :-1]], axis=-1))
    ends = Points(xp.concat([before[:, 1:], all_before], axis=-1), after)
    return starts, ends


def precedes(first: Points, second: Points) -> Array:
    """Is ``first`` strictly before ``second``."""
    xp = namespace(first.before)
    in_half = xp.where(first.front, first.before < second.before, first.after > second.after)
    answer: Array = xp.where(first.front == second.front, in_half, first.front)
    return answer


def _distance(first: Points, second: Points) -> Array:
    """Mass from ``first`` to ``second``, 0 when ``second`` is not after it."""
    xp = namespace(first.before)
    across = (1 - second.after) - first.before
    if not is_exact(across):
        across = xp.clip(across, UNRESOLVED, None)
    in_half = xp.where(first.front, second.before - first.before, first.after - second.after)
    distance = xp.where(first.front == second.front, in_half, xp.where(first.front, across, zero(across)))
    positive: Array = xp.where(distance > 0, distance, zero(across))
    return positive


def ordered_split(measure: RankMeasure, target: Array, draft: Array, weight: Array, paths: int) -> Split:
    """GBV: every child gets its interval. ``target``, ``draft`` (R, V); ``weight`` is not used."""
    layout = lay_out(measure, target, draft, paths)

    def children(rows: Any, tokens: Any) -> RankMeasure:
        rows, place = layout.at(rows, tokens)
        return rescaled(*own_pieces(layout, rows, place), measure.scale[rows])

    return Split(layout.by_token(layout.ordered), layout.place, children)


def own_pieces(layout: Layout, rows: Any, place: Any) -> tuple[Array, Array, Array]:
    """Above, width and relative mass (E, m) of the intervals of the children at ``place[e]`` of nodes ``rows[e]``."""
    xp = namespace(layout.draft)
    total = layout.draft[rows, place][:, None]
    whole = layout.measure[rows]
    return (
        xp.where(total == 0, whole.above, layout.above[rows, place]),
        xp.where(total == 0, whole.width, layout.width[rows, place]),
        xp.where(total == 0, whole.mass, divide(layout.overlap[rows, place], total, where_zero=zero(total))),
    )
