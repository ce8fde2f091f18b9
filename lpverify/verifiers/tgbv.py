"""TGBV, tempered greedy multi-path block verification: skew a node only as far as it helps (theory 5.1).

One number lambda per node mixes the ordered split of GBV with the neutral split (every child gets q(x|c) mu_c), so that
q* = lambda ordered + (1 - lambda) q. It is the smallest maximiser of sum_x min(w p(x|c), q*(x|c)), w = f(c) / Q*(c).
TGBV needs the rows of drafted nodes only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lpverify.numerics import Array, divide, is_exact, one, sums_after, sums_before, take_in_rows, zero
from lpverify.verifiers.base import Verifier
from lpverify.verifiers.rank_measure import RankMeasure, rescaled
from lpverify.verifiers.rank_selection import selecting_verifier
from lpverify.verifiers.splits import ROUNDING, Split, cut, lay_out, point_keys
from lpverify.verifiers.token_buckets import BUCKETS


def tempered_split(measure: RankMeasure, target: Array, draft: Array, weight: Array, num_paths: int) -> Split:
    """The split of TGBV, a `SplitRule`.

    A child's measure has m + 2 pieces: the ends of its interval cut two of the node's m pieces.

    >>> from lpverify.verifiers.rank_measure import whole
    >>> rows = np.array([[0.625, 0.375]]), np.array([[0.5, 0.5]])
    >>> tempered_split(whole(1, rows[0]), *rows, np.ones(1), 2).q_star.tolist()
    [[0.625, 0.375]]
    """
    layout = lay_out(measure, target, draft, num_paths)
    skewed, neutral = tempering(layout.ordered, layout.draft, layout.target, weight[:, None])

    def children(rows: Any, tokens: Any) -> RankMeasure:
        rows = np.asarray(rows)
        place = layout.place[rows, tokens]
        q, nodes = layout.draft, measure[rows]
        atoms = cut(nodes, np.stack([values[rows, place] for values in (sums_before(q), q, sums_after(q))], axis=-1))
        of_child = q[rows, place][:, None]
        drafted = of_child > 0
        share = atoms.mass * (drafted & (atoms.owner == 1)) / np.where(drafted, of_child, one(q))
        mass = atoms.mass * np.where(drafted, neutral[rows], one(q)) + skewed[rows] * share
        return rescaled(atoms.above, atoms.width, mass, nodes.scale)

    return Split(layout.by_token(skewed * layout.ordered + neutral * layout.draft), layout.place, children)


def tempering(ordered: Array, draft: Array, target: Array, weight: Array) -> tuple[Array, Array]:
    """The smallest lambda in [0, 1] that maximises sum_x min(w p, lambda ordered + (1 - lambda) draft).

    Child x changes sides at lambda_x = (w p - draft) / (ordered - draft), and the slope after lambda is the sum of
    ordered - draft over the children whose q* is below w p there. The answer is the first candidate after which the
    slope is not positive. Slopes decide and not values, because a child of mass 1e-20 may be the one that gains.

    ``ordered``, ``draft``, ``target`` are (R, V) rows in one order of the children, ``weight`` (R, 1) is w = f/Q*.
    Returns lambda and 1 - lambda, (R, 1) each; each is accurate where it is small.

    >>> rows = np.array([[0.75, 0.25]]), np.array([[0.5, 0.5]]), np.array([[0.625, 0.375]])
    >>> tempering(*rows, np.array([[1.0]]))
    (array([[0.5]]), array([[0.5]]))
    """
    nothing, unit = zero(draft), one(draft)
    change = differences(ordered, draft, nothing)
    with np.errstate(over="ignore"):
        turn = divide(differences(weight * target, draft, weight - 1), change, where_zero=nothing)
        left = divide(differences(ordered, weight * target, 1 - weight), change, where_zero=unit)
    turn, left = (np.where(b > 0, np.maximum(a, nothing), unit) for a, b in ((turn, left), (left, turn)))
    order = np.argsort(point_keys(turn, left), axis=-1, kind="stable")
    turn, left, change = (
        np.concatenate([np.full((len(draft), 1), first), take_in_rows(values, order)], axis=-1)
        for first, values in ((nothing, turn), (unit, left), (nothing, change))
    )
    gain = sums_after(np.maximum(change, nothing))  # of the children below w p until lambda_x
    loss = np.cumsum(np.maximum(-change, nothing), axis=-1)  # of those below it from lambda_x on
    flat = nothing if is_exact(draft) else ROUNDING * (gain + loss)
    best = np.argmax(gain - loss <= flat, axis=-1)[:, None]
    return take_in_rows(turn, best), take_in_rows(left, best)


def differences(first: Array, second: Array, surplus: Array) -> Array:
    """``first - second`` (R, V), whose sum along a row is known to be ``surplus`` (R, 1).

    In floats a difference that rounding explains is 0, and the difference of an entry above 1/2 is the surplus without
    the differences of the others, because its own would be rounding only if the entries are near 1.
    """
    plain = first - second
    if is_exact(first):
        return plain
    plain = np.where(abs(plain) <= ROUNDING * second, 0.0, plain)
    large = first > 0.5
    if not large.any():
        return plain
    return np.where(large, surplus - (sums_before(plain) + sums_after(plain)), plain)


def verifier(blocks: int | None = BUCKETS) -> Verifier:
    """The verifier ``tgbv``; see `selecting_verifier` for ``blocks``."""
    text = "tempered: GBV that skews the selected path only as far as it helps"
    return selecting_verifier("tgbv", tempered_split, blocks, text, "this project, theory 5.1")
