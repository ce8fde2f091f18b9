"""The tempered split: skew a node only as far as its own budget gains (THEORY 5.1, TGBV).

With ordered the child law of the ordered split and q the draft row, one number lambda per node mixes them,

    mu_cx = lambda (ordered part of x) + (1 - lambda) q(x|c) mu_c,      q* = lambda ordered + (1 - lambda) q,

and lambda is the smallest maximiser of sum_x min(p(x|c) f(c), Q*(cx)), that is of sum_x min(w p(x|c), q*(x|c)) with
w = f(c) / Q*(c). The sum is concave and piecewise linear in lambda, so 0, 1 and the points where one of the minima
changes sides are the only candidates.
"""

from __future__ import annotations

from typing import Any

from lpverify._array import Array, divide, ignoring_overflow, is_exact, namespace, ones, sums_after, sums_before, zeros
from lpverify.verify._ranks import RankMeasure, rescaled
from lpverify.verify._splits import Layout, Split, lay_out

TIE = 1e-14
"""Relative difference of two float objectives that rounding explains; exact arithmetic needs none."""


def tempered_split(measure: RankMeasure, target: Array, draft: Array, weight: Array, paths: int) -> Split:
    """TGBV: ``target``, ``draft`` (R, V) rows, ``weight`` (R,) = f/Q* of the nodes.

    A child's measure has m + 2 pieces: its interval cuts two of the node's m pieces.
    """
    layout = lay_out(measure, target, draft, paths)
    kept, rest = tempering(layout.ordered, layout.draft, weight[:, None] * layout.target)
    before = sums_before(layout.overlap, -2)

    def children(rows: Any, tokens: Any) -> RankMeasure:
        rows, place = layout.at(rows, tokens)
        return _mixed(layout, before[rows, place], kept[rows], rest[rows], rows, place)

    return Split(layout.by_token(kept * layout.ordered + rest * layout.draft), children)


def tempering(ordered: Array, draft: Array, wanted: Array) -> tuple[Array, Array]:
    """The smallest lambda in [0, 1] that maximises sum_x min(wanted, lambda ordered + (1 - lambda) draft).

    Rows (R, V); returns lambda and 1 - lambda, (R, 1) each.

    >>> import numpy as np
    >>> ordered, draft = np.array([[0.75, 0.25]]), np.array([[0.5, 0.5]])
    >>> tempering(ordered, draft, np.array([[0.625, 0.375]]))
    (array([[0.5]]), array([[0.5]]))
    """
    xp = namespace(draft)
    change = ordered - draft
    with ignoring_overflow():
        kept = divide(wanted - draft, change, where_zero=-ones((1, 1), draft))
        rest = divide(ordered - wanted, change, where_zero=-ones((1, 1), draft))
    inside = (kept > 0) & (rest > 0)
    none, all_ = zeros((len(draft), 1), draft), ones((len(draft), 1), draft)
    kept = xp.concat([none, all_, xp.where(inside, kept, none)], axis=-1)
    rest = xp.concat([all_, none, xp.where(inside, rest, all_)], axis=-1)
    selected = kept[:, :, None] * ordered[:, None, :] + rest[:, :, None] * draft[:, None, :]
    value = xp.sum(xp.minimum(selected, wanted[:, None, :]), axis=-1)
    best = xp.max(value, axis=-1, keepdims=True)
    maximal = value >= (best if is_exact(draft) else best * (1 - TIE))
    smallest = xp.argmin(xp.where(maximal, kept, 2 * all_), axis=-1)[:, None]
    return xp.take_along_axis(kept, smallest, axis=-1), xp.take_along_axis(rest, smallest, axis=-1)


def _mixed(layout: Layout, before: Array, kept: Array, rest: Array, rows: Any, place: Any) -> RankMeasure:
    """Measures of E children: ``kept`` times their own interval, ``rest`` times the node's measure, (E, 1) each.

    In rank order the node's pieces are first whole, then the part ``before`` the interval, then parts inside it, then
    the part after it, then whole: of 3m parts at most m + 2, with places known from the first and last piece inside.
    """
    xp = namespace(before)
    node = layout.measure[rows]
    inside = layout.overlap[rows, place]
    after = sums_after(layout.overlap, -2)[rows, place]
    in_piece = before + inside + after
    none = zeros((1, 1), before)

    def share(mass: Array) -> Array:
        return node.width * divide(mass, in_piece, where_zero=none)

    total = layout.draft[rows, place][:, None]
    above = xp.concat([node.above + share(after + inside), node.above + share(after), node.above], axis=-1)
    width = xp.concat([share(before), share(inside), share(after)], axis=-1)
    own = divide(inside, total, where_zero=none)
    ordered = xp.concat([zeros(tuple(own.shape), own), own, zeros(tuple(own.shape), own)], axis=-1)
    neutral = xp.concat([before, inside, after], axis=-1)
    mass = xp.where(total == 0, neutral, kept * ordered + rest * neutral)

    pieces = inside.shape[-1]
    used = xp.astype(inside > 0, xp.int64)
    first = xp.argmax(used, axis=-1)[:, None]
    last = pieces - 1 - xp.argmax(xp.flip(used, axis=-1), axis=-1)[:, None]
    slot = xp.arange(pieces + 2, device=first.device)[None, :]
    part = xp.where(slot <= first, slot, xp.where(slot <= last + 1, slot + (pieces - 1), slot + 2 * (pieces - 1)))
    above, width, mass = (xp.take_along_axis(values, part, axis=-1) for values in (above, width, mass))
    return rescaled(above, width, mass, node.scale)
