"""The tempered split: skew a node only as far as its own budget gains (THEORY 5.1, TGBV).

With ordered the child law of the ordered split and q the draft row, one number lambda per node mixes them,

    mu_cx = lambda (ordered part of x) + (1 - lambda) q(x|c) mu_c,      q* = lambda ordered + (1 - lambda) q,

and lambda is the smallest maximiser of sum_x min(p(x|c) f(c), Q*(cx)), that is of sum_x min(w p(x|c), q*(x|c)) with
w = f(c) / Q*(c). The sum is concave and piecewise linear in lambda, so 0, 1 and the points where one of the minima
changes sides are the only candidates.
"""

from __future__ import annotations

from typing import Any

from lpverify.numerics import (
    Array,
    divide,
    ignoring_overflow,
    is_exact,
    namespace,
    ones,
    sums_after,
    sums_before,
    take_in_rows,
    zero,
    zeros,
)
from lpverify.verifiers.base import Verifier
from lpverify.verifiers.rank_measure import RankMeasure, rescaled
from lpverify.verifiers.rank_selection import SelectedPath
from lpverify.verifiers.splits import ROUNDING, Layout, Points, Split, lay_out, precedes
from lpverify.verifiers.token_buckets import BUCKETS


def tempered_split(measure: RankMeasure, target: Array, draft: Array, weight: Array, paths: int) -> Split:
    """TGBV: ``target``, ``draft`` (R, V) rows, ``weight`` (R,) = f/Q* of the nodes.

    A child's measure has m + 2 pieces: its interval cuts two of the node's m pieces.
    """
    layout = lay_out(measure, target, draft, paths)
    kept, rest = tempering(layout.ordered, layout.draft, layout.target, weight[:, None])
    before = sums_before(layout.overlap, -2)

    def children(rows: Any, tokens: Any) -> RankMeasure:
        rows, place = layout.at(rows, tokens)
        return _mixed(layout, before[rows, place], kept[rows], rest[rows], rows, place)

    return Split(layout.by_token(kept * layout.ordered + rest * layout.draft), layout.place, children)


def tempering(ordered: Array, draft: Array, target: Array, weight: Array) -> tuple[Array, Array]:
    """The smallest lambda in [0, 1] that maximises sum_x min(w p, lambda ordered + (1 - lambda) draft).

    ``ordered``, ``draft``, ``target`` p are (R, V), ``weight`` w is (R, 1); returns lambda and 1 - lambda, (R, 1) each.
    Child x changes sides at lambda_x = (w p - draft) / (ordered - draft), and the slope after a candidate is the sum of
    ordered - draft over the children whose q* is below w p there: the first candidate with none upwards is the answer.
    Slopes, not values, because a child of mass 1e-20 may decide.

    >>> import numpy as np
    >>> rows = np.array([[0.75, 0.25]]), np.array([[0.5, 0.5]]), np.array([[0.625, 0.375]])
    >>> tempering(*rows, np.array([[1.0]]))
    (array([[0.5]]), array([[0.5]]))
    """
    xp = namespace(draft)
    none, all_ = zeros((len(draft), 1), draft), ones((len(draft), 1), draft)
    change = differences(ordered, draft, none)
    with ignoring_overflow():
        turn = divide(differences(weight * target, draft, weight - 1), change, where_zero=none)
        left = divide(differences(ordered, weight * target, 1 - weight), change, where_zero=none)
    candidate = xp.where((turn > 0) & (left > 0), turn, none)
    kept = xp.concat([none, candidate, all_], axis=-1)
    rest = xp.concat([all_, xp.where(candidate > 0, left, all_), none], axis=-1)
    turned = ~precedes(Points(kept, rest).viewed(None, -1), Points(turn, left).viewed(-1, None))
    below = turned == (change[:, None, :] < 0)
    gains = xp.where(below, change[:, None, :], zero(draft))
    slope = xp.sum(gains, axis=-1)
    flat = zero(draft) if is_exact(draft) else ROUNDING * xp.sum(abs(gains), axis=-1)
    maximal = (slope <= flat) | (rest == 0)
    least = xp.min(xp.where(maximal, kept, all_), axis=-1, keepdims=True)
    smallest = xp.argmax(xp.where(maximal & (kept == least), rest, -all_), axis=-1)[:, None]
    return take_in_rows(kept, smallest), take_in_rows(rest, smallest)


def differences(first: Array, second: Array, surplus: Array) -> Array:
    """``first - second`` (R, V), where the sum over a row is known to be ``surplus`` (R, 1).

    In floats an entry above 1/2 takes its difference from all others, as near 1 its own would be rounding only, and
    any other difference that rounding explains is 0.
    """
    xp = namespace(first)
    plain = first - second
    if is_exact(first):
        return plain
    plain = xp.where(abs(plain) <= ROUNDING * second, 0.0, plain)
    others = surplus - (sums_before(plain) + sums_after(plain))
    balanced: Array = xp.where(first > 0.5, others, plain)
    return balanced


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
    total = layout.draft[rows, place][:, None]
    before, after = xp.where(total == 0, in_piece, before), xp.where(total == 0, none, after)

    def share(mass: Array) -> Array:
        return node.width * divide(mass, in_piece, where_zero=none)

    above = xp.concat([node.above + share(after + inside), node.above + share(after), node.above], axis=-1)
    width = xp.concat([share(before), share(inside), share(after)], axis=-1)
    own = divide(inside, total, where_zero=none)
    ordered = xp.concat([zeros(tuple(own.shape), own), own, zeros(tuple(own.shape), own)], axis=-1)
    neutral = xp.concat([before, inside, after], axis=-1)
    mass = xp.where(total == 0, neutral, kept * ordered + rest * neutral)

    pieces = inside.shape[-1]
    used = xp.astype(inside > 0, xp.int64)
    first = xp.where(total == 0, pieces + 1, xp.argmax(used, axis=-1)[:, None])
    last = pieces - 1 - xp.argmax(xp.flip(used, axis=-1), axis=-1)[:, None]
    slot = xp.arange(pieces + 2, device=first.device)[None, :]
    part = xp.where(slot <= first, slot, xp.where(slot <= last + 1, slot + (pieces - 1), slot + 2 * (pieces - 1)))
    above, width, mass = (take_in_rows(values, part) for values in (above, width, mass))
    return rescaled(above, width, mass, node.scale)


def verifier(blocks: int | None = BUCKETS) -> Verifier:
    """The verifier ``tgbv``. ``blocks``: larger vocabularies are merged into so many blocks (None: never)."""
    return Verifier(
        "tgbv",
        SelectedPath(tempered_split, blocks),
        "tempered: GBV that skews the selected path only as far as it helps",
        "this project, theory 5.1",
        path_order=False,
        closed_form="block",
        split=tempered_split,
        blocks=blocks,
    )
