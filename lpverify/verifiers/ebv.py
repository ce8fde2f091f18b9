"""The entropic split: the child law of least skew that loses nothing, and ranks as evenly spread as it allows (EBV).

It changes two things of the proportional split (THEORY 5.2), whose child law c = r p is the best for every concave
value of q*/p that all children share.

*Law.* Up to the group whose slope r exceeds w = f/Q* all coverage is used. Behind it every child has more than its
budget w p can take, and skewing it only narrows the ranks that its own children will find. There the law is

    q*(x|c) = max(b_x, kappa q(x|c)),     b_x = (w p(x|c) + r p(x|c)) / 2,

half of the excess given back, kappa >= 0 such that the sum stays; it is flatter than r p, so coverage allows it.

*Coupling.* The node's measure is cut into cells u. Among all ways to give the cells of a group to its children with
masses q_x and means of phi' q*_x / q_x, the proportional split's pooling is one; here it is the one of largest entropy,

    minimise  sum_{x,u} T_xu log(T_xu / (q_x mu_u))
    s.t.      sum_x T_xu = mu_u,    sum_u T_xu = q_x,    sum_u phi'_u T_xu = q*_x,

whose solution is T_xu = mu_u q_x exp(a_x + g_x phi'_u) / (sum over the group's children): multinomial logistic
regression on phi', solved by Newton's method on its convex dual. What it found is made to sum to mu_u and q_x by
scaling down and filling up (Altschuler, Weed and Rigollet, arXiv 1705.09634), in the arithmetic of the rows: the split
is lossless to the last bit however well the means are met. Where Newton's method does not get there, because the law
all but separates the children, PBV's pooling takes its place if it comes nearer to the wanted law.

In rank measures nothing else can be chosen, and what a child's children will want is not known at its parent. See
``experiments/beat_pbv.py`` for what was tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from lpverify.numerics import (
    Array,
    accumulate_rows,
    add_rows,
    as_float,
    as_fractions,
    divide,
    ignoring_overflow,
    is_exact,
    namespace,
    one,
    solve_each,
    sums_after,
    sums_before,
    take_in_rows,
    zero,
    zeros_like,
)
from lpverify.verifiers.base import Verifier
from lpverify.verifiers.pbv import LARGEST_MEAN, atoms, minorant_groups, pooling
from lpverify.verifiers.rank_measure import RankMeasure, mean_density, rescaled
from lpverify.verifiers.rank_selection import SelectedPath
from lpverify.verifiers.splits import ROUNDING, Layout, Split, lay_out
from lpverify.verifiers.token_buckets import BUCKETS

FINEST = 16
"""No piece of a measure has more than this part of its mass when it is split."""

MOST_CELLS = 32
"""Cells of a group; where a group has more pieces, neighbours share a cell."""

STEPS = 32
"""Most Newton steps. About 8 are used, more where the law all but separates two children."""

STEPS_UNSEEN = 12
"""Newton steps on a device, where looking whether another one is needed would mean to wait for it."""

SETTLED = 1e-11
"""Sum of the misses in mass and in standardised mean, relative to the group, at which Newton's method stops."""

PATIENCE = 6
"""Newton steps in which the misses must fall by a fifth: where the means cannot be had at all, they stay."""

MET = 1e-9
"""Sum of the misses of the law, relative to the group's, from which on pooling is tried."""

FARTHEST = 40.0
"""Largest change of a logarithm of T in one step."""

SHORTER = (1.0, 1 / 4, 1 / 16, 1 / 64)
"""Parts of a Newton step that are tried; the longest that brings the dual down is taken."""

Floats = npt.NDArray[np.float64]


def entropic_split(measure: RankMeasure, target: Array, draft: Array, weight: Array, paths: int) -> Split:
    """EBV: ``target``, ``draft`` (R, V) rows, ``weight`` (R,) = f/Q* of the nodes."""
    return coupled_split(measure, target, draft, weight, paths, spared_law, coupling)


Law = Callable[[Layout, Array], tuple[Array, Any]]
"""(layout, weights f/Q*) -> wanted law and groups, as `spared_law`."""

Coupling = Callable[[Floats, Floats, Floats, Floats], Floats]
"""(mu, phi', q, wanted) -> T, as `coupling`."""


def coupled_split(
    measure: RankMeasure, target: Array, draft: Array, weight: Array, paths: int, wanted_law: Law, couple: Coupling
) -> Split:
    """The split that gives the children of a node the law of ``wanted_law`` by ``couple``, group by group."""
    xp = namespace(draft)
    layout = lay_out(refined(measure), target, draft, paths)
    law, group = wanted_law(layout, weight)
    above, width, mass, owner = atoms(layout)
    density = mean_density(above, above + width, paths)
    density = density / xp.sum(mass * density, axis=-1, keepdims=True)
    belongs = xp.where(mass > 0, take_in_rows(group, owner), -1)
    given = _given(layout, law, group, mass, density, owner, belongs, couple)
    q_star = xp.sum(given * density[:, None, :], axis=-1)
    q_star = q_star / xp.sum(q_star, axis=-1, keepdims=True)

    def children(rows: Any, tokens: Any) -> RankMeasure:
        rows, place = layout.at(rows, tokens)
        share = given[rows, place]
        total = xp.sum(share, axis=-1, keepdims=True)
        share = xp.where(total == 0, mass[rows], divide(share, total, where_zero=zero(mass)))
        return rescaled(above[rows], width[rows], share, layout.measure.scale[rows])

    return Split(layout.by_token(q_star), layout.place, children)


def refined(measure: RankMeasure) -> RankMeasure:
    """The same measures, pieces cut evenly until none has more than 1/`FINEST` of the mass."""
    xp = namespace(measure.mass)
    mass = as_float(measure.mass) if is_exact(measure.mass) else measure.mass
    parts = xp.clip(xp.astype(xp.ceil(mass * FINEST - ROUNDING), xp.int64), 1, None)
    pieces = parts.shape[1]
    most = int(parts.sum(axis=-1).max()) if xp is np else pieces + FINEST
    if most == pieces:
        return measure
    ends = xp.cumulative_sum(parts, axis=-1)
    slot = xp.arange(most, device=mass.device)[None, :] + ends[:, :1] * 0
    piece = xp.sum(xp.astype(slot[:, :, None] >= ends[:, None, :], xp.int64), axis=-1)
    used = piece < pieces
    piece = xp.clip(piece, None, pieces - 1)
    count, after = (take_in_rows(values, piece) for values in (parts, ends))
    width, above, mass = (take_in_rows(values, piece) for values in (measure.width, measure.above, measure.mass))
    width = width / count
    above = above + width * (after - 1 - slot)
    above, width, mass = (xp.where(used, values, zero(values)) for values in (above, width, mass / count))
    return RankMeasure(above, width, mass, measure.scale)


def spared_law(layout: Layout, weight: Array, back: Fraction = Fraction(1, 2)) -> tuple[Array, Any]:
    """The wanted law q* (R, V) in layout order and the first child of every child's group.

    Groups of slope r <= w are those of `minorant_groups`; all children behind them are one group. ``back`` > 0: the
    part of the excess over w p that is given back.

    >>> from lpverify.verifiers.rank_measure import whole
    >>> rows = np.array([[0.6, 0.4]]), np.array([[0.2, 0.8]])
    >>> law, group = spared_law(lay_out(whole(1, rows[0]), *rows, 2), np.array([0.5]))
    >>> law.round(3).tolist(), group.tolist()
    ([[0.33, 0.67]], [[0, 0]])
    """
    p, q, ordered = layout.target, layout.draft, layout.ordered
    xp = namespace(q)
    drafted = q > 0
    group, slope = minorant_groups(ordered, xp.where(drafted, p, zero(p)))
    unbounded = (slope == float("inf")) | (p == 0)
    full = xp.where(unbounded, ordered, xp.where(unbounded, zero(p), slope) * xp.where(drafted, p, zero(p)))
    part = back if is_exact(p) else float(back)
    limit = weight[:, None] if is_exact(p) else weight[:, None] * (1 + ROUNDING)
    spare = (slope > limit) | (p == 0)  # in floats a share of 1e-20 may look like one more child of the last group
    excess = xp.where(spare, full - xp.minimum(full, weight[:, None] * p), zero(p)) * part
    floor = full - excess
    mass = xp.where(spare, q, zero(q))
    behind = xp.where(spare, full, zero(q))
    left = mass + sums_after(mass)
    with ignoring_overflow():  # kappa if all children from here on were at kappa q
        level = divide(behind + sums_after(behind) + sums_before(excess), left, where_zero=zero(q))
    level = level if is_exact(q) else xp.clip(level, None, LARGEST_MEAN)
    enough = spare & drafted & (floor <= level * q)
    start, never = _first(enough)
    kappa = take_in_rows(level, start)
    place = xp.arange(p.shape[1], device=start.device)
    flat = ~never & (place >= start) & spare
    law = xp.where(flat, kappa * q, floor)
    first, never = _first(spare)
    return law, xp.where(spare, xp.where(never, p.shape[1], first), group)


def _first(where: Any) -> tuple[Any, Any]:
    """Place of the first true entry of every row, (R, 1), and whether there is none."""
    xp = namespace(where)
    ones = xp.astype(where, xp.int64)
    return xp.argmax(ones, axis=-1)[:, None], xp.max(ones, axis=-1, keepdims=True) == 0


def _given(
    layout: Layout, law: Array, group: Any, mass: Array, density: Array, owner: Any, belongs: Any, couple: Coupling
) -> Array:
    """Mass of every atom that every child gets, (R, V, A): whole atoms of its own where it is alone in its group."""
    xp = namespace(mass)
    rows, children = law.shape
    drafted = layout.draft > 0
    index = xp.arange(children, device=mass.device)
    in_group = drafted[:, None, :] & (group[:, None, :] == index[:, None])
    size = xp.sum(xp.astype(in_group, xp.int64), axis=-1)
    alone = (owner[:, None, :] == index[:, None]) & (mass > 0)[:, None, :]
    shared = (belongs >= 0) & (take_in_rows(size, xp.clip(belongs, 0, children - 1)) >= 2)
    given: Array = xp.where(alone & ~shared[:, None, :], mass[:, None, :], zero(mass))
    row, first = _groups(size)
    if len(row) == 0:
        return given
    inside = shared[row] & (belongs[row] == first[:, None])
    here = xp.where(inside, mass[row], zero(mass))
    q, wanted = (xp.where(in_group[row, first], values[row], zero(mass)) for values in (layout.draft, law))
    parts = _shared_out(here, density[row], owner[row], _cells(inside), q, wanted, couple)
    together: Array = given + add_rows(row, parts, rows)
    return together


def _shared_out(here: Array, density: Array, owner: Any, cell: Any, q: Array, wanted: Array, couple: Coupling) -> Array:
    """How B groups share their atoms, (B, V, A): ``here`` (B, A) is the mass of the atoms, ``q`` (B, V) of children."""
    xp = namespace(here)
    groups, children = q.shape
    cells = int(cell.max()) + 1 if xp is np else min(MOST_CELLS, cell.shape[1])
    mu = accumulate_rows(cell, here, cells)
    phi = divide(accumulate_rows(cell, here * density, cells), mu, where_zero=zero(here))
    own = accumulate_rows(owner * cells + cell, here, children * cells)
    mass, size = (xp.sum(values, axis=-1, keepdims=True) for values in (mu, q))
    mu, own = (divide(values, mass, where_zero=zero(here)) for values in (mu, own))
    q, wanted = (divide(values, size, where_zero=zero(here)) for values in (q, wanted))
    found = _one_by_one(couple, mu, phi, q, wanted) if is_exact(here) else couple(mu, phi, q, wanted)
    by_cell = _nearer(onto_marginals(found, mu, q), xp.reshape(own, (groups, children, cells)), phi, q, wanted)
    share = xp.reshape(divide(by_cell, mu[:, None, :], where_zero=zero(here)), (groups * children, cells))
    cell = xp.reshape(xp.broadcast_to(cell[:, None, :], (groups, children, cell.shape[1])), (groups * children, -1))
    parts: Array = xp.reshape(take_in_rows(share, cell), (groups, children, -1)) * here[:, None, :]
    return parts


def _groups(size: Any) -> tuple[Any, Any]:
    """Row and first child of every group of at least two; on a device, filled up with first children of less.

    ``size`` (R, V): drafted children of the group that begins at each child.
    """
    if isinstance(size, np.ndarray):
        row, first = np.nonzero(size >= 2)
        return row, first
    xp = namespace(size)
    rows, children = size.shape
    most = max(1, children // 2)
    first = xp.argsort(xp.astype(size < 2, xp.int64), axis=-1, stable=True)[:, :most]
    row = xp.arange(rows, device=size.device)[:, None] + first * 0
    return xp.reshape(row, (-1,)), xp.reshape(first, (-1,))


def _nearer(found: Array, own: Array, phi: Array, q: Array, wanted: Array) -> Array:
    """``found``, in place pooling where it comes nearer to the wanted law than a found T that is too far from it."""
    xp = namespace(found)
    missed = _missed(found, phi, wanted)
    far = missed > MET * xp.sum(wanted, axis=-1)
    at: Any = np.flatnonzero(far) if xp is np else slice(None)  # on a device pooling is tried everywhere
    if xp is np and len(at) == 0:
        return found
    pool = pooled(own[at], phi[at], q[at], wanted[at])
    nearer = far[at] & (_missed(pool, phi[at], wanted[at]) < missed[at])
    found[at] = xp.where(nearer[:, None, None], pool, found[at])
    return found


def _missed(found: Array, phi: Array, wanted: Array) -> Array:
    xp = namespace(found)
    missed: Array = xp.sum(abs(xp.sum(found * phi[:, None, :], axis=-1) - wanted), axis=-1)
    return missed


def _one_by_one(couple: Coupling, mu: Array, phi: Array, q: Array, wanted: Array) -> Array:
    """``couple`` for Fractions, as the Fractions that its floats are.

    A problem is solved by itself and without its zeros: the last bits of a float would else depend on the batch that it
    stands in, and the split on what else was drafted.
    """
    found = np.where(q[:, :, None] > 0, zero(q), mu[:, None, :]) * 0
    for problem, (cells, children) in enumerate(zip(mu > 0, q > 0, strict=True)):
        parts = (mu[problem, cells], phi[problem, cells], q[problem, children], wanted[problem, children])
        if (parts[3] == parts[2] * parts[3].sum()).all():  # one mean for all children: no skew, to the last digit
            found[problem][np.ix_(children, cells)] = parts[2][:, None] * parts[0]
            continue
        found[problem][np.ix_(children, cells)] = as_fractions(couple(*(as_float(part)[None] for part in parts))[0])
    return found


def pooled(own: Array, phi: Array, q: Array, wanted: Array) -> Array:
    """PBV's T (B, V, n): what every child keeps of the cells ``own`` (B, V, n) and its share of what all give away."""
    xp = namespace(q)
    mean = divide(xp.sum(own * phi[:, None, :], axis=-1), q, where_zero=zero(q))
    with ignoring_overflow():
        needed = divide(wanted, q, where_zero=zero(q))
    needed = needed if is_exact(q) else xp.clip(needed, None, LARGEST_MEAN)
    one_group = xp.zeros(q.shape, dtype=xp.int64, device=q.device)
    kept, rest = pooling(q, mean, needed, one_group)
    pool = xp.sum(rest[:, :, None] * own, axis=1)
    share = divide(pool, xp.sum(pool, axis=-1, keepdims=True), where_zero=zero(q))
    found: Array = kept[:, :, None] * own + (rest * q)[:, :, None] * share[:, None, :]
    return found


def _cells(inside: Any) -> Any:
    """Cell 0, 1, ... of every atom of a group, in rank order: its own, or one of `MOST_CELLS` where there are more."""
    xp = namespace(inside)
    count = xp.cumulative_sum(xp.astype(inside, xp.int64), axis=-1)
    place, most = count - 1, xp.clip(count[:, -1:], 1, None)
    cell = xp.where(most > MOST_CELLS, place * MOST_CELLS // most, place)
    return xp.where(inside, cell, 0)


def coupling(mu: Floats, phi: Floats, q: Floats, wanted: Floats) -> Floats:
    """T (B, V, n) of largest entropy with sums ``mu`` (B, n) and ``q`` (B, V) and sum_u phi_u T_xu = ``wanted`` (B, V).

    ``mu`` and ``q`` sum to 1; entries may be 0. Sums and means are met as far as Newton's method got.

    >>> T = coupling(*(np.array([row]) for row in ([0.5, 0.5], [1.5, 0.5], [0.4, 0.6], [0.5, 0.5])))
    >>> T[0].sum(axis=1).round(9).tolist(), (T[0] @ [1.5, 0.5]).round(9).tolist()
    ([0.4, 0.6], [0.5, 0.5])
    """
    xp = namespace(mu)
    mean = xp.sum(mu * phi, axis=-1, keepdims=True)
    spread = xp.sqrt(xp.sum(mu * (phi - mean) ** 2, axis=-1, keepdims=True))
    spread = xp.where(spread > ROUNDING * mean, spread, float("inf"))  # one mean for all cells: nothing can be skewed
    feature = xp.where(mu > 0, (phi - mean) / spread, 0.0)
    problem = _Logistic(mu, feature, q, (wanted - mean * q) / spread)
    with ignoring_overflow():
        tilt = xp.clip(divide(problem.wanted, q, where_zero=0.0), -1.5, 1.5)
    at = problem.at(-tilt * tilt / 2, tilt)
    neutral = problem.at(zeros_like(q), zeros_like(q))
    at = at.where(at.value <= neutral.value, neutral)
    best, since = at.value + float("inf"), at.value * 0
    for _ in range(STEPS if xp is np else STEPS_UNSEEN):
        miss, by_mass, by_mean, slope = problem.newton(at.share)
        since = xp.where(miss <= 0.8 * best, 0.0, since + 1)
        best = xp.where(since == 0, miss, best)
        going = (miss > SETTLED) & (since < PATIENCE)
        if xp is np and not going.any():
            break
        at, stuck = problem.after(at, going, by_mass, by_mean, slope)
        since = xp.where(stuck, float(PATIENCE), since)
    found: Floats = at.share * mu[:, None, :]
    return found


@dataclass(frozen=True, eq=False)
class _Point:
    """B values (B,) of the dual at ``shift`` a and ``tilt`` g, (B, V), and the shares T_xu / mu_u there, (B, V, n)."""

    shift: Floats
    tilt: Floats
    value: Floats
    share: Floats

    def __getitem__(self, chosen: Any) -> _Point:
        """Of points (S, B) the ``chosen`` (B,) one of every problem."""
        problem = namespace(chosen).arange(len(chosen), device=chosen.device)
        return _Point(*(part[chosen, problem] for part in (self.shift, self.tilt, self.value, self.share)))

    def where(self, chosen: Any, other: _Point) -> _Point:
        """This point in the problems that are ``chosen`` (B,), else the ``other``."""
        where = namespace(chosen).where
        row, matrix = chosen[:, None], chosen[:, None, None]
        return _Point(
            where(row, self.shift, other.shift),
            where(row, self.tilt, other.tilt),
            where(chosen, self.value, other.value),
            where(matrix, self.share, other.share),
        )


class _Logistic:
    """The dual of `coupling`, sum_u mu_u log sum_x q_x exp(a_x + g_x X_u) - sum_x (a_x q_x + g_x W_x), and its steps.

    X is phi' standardised under mu, W_x the wanted mean of X times q_x.
    """

    def __init__(self, mu: Floats, feature: Floats, q: Floats, wanted: Floats) -> None:
        self.xp = xp = namespace(mu)
        self.mu, self.feature, self.q, self.wanted = mu, feature, q, xp.where(q > 0, wanted, 0.0)
        self.reach = xp.max(abs(feature), axis=-1, keepdims=True)
        self._log_q = xp.log(xp.where(q > 0, q, 1.0))
        self._absent = (q == 0)[:, :, None]
        self._scale = 1 / xp.sqrt(xp.where(mu > 0, mu, 1.0))
        self._trace = (1 + 1e-10) * xp.eye(mu.shape[1], dtype=mu.dtype, device=mu.device)

    def at(self, shift: Floats, tilt: Floats) -> _Point:
        """The dual at a, g, which may have more axes in front."""
        xp = self.xp
        exponent = (self._log_q + shift)[..., None] + tilt[..., None] * self.feature[:, None, :]
        exponent = xp.where(self._absent, -float("inf"), exponent)
        top = xp.max(exponent, axis=-2, keepdims=True)
        share = xp.exp(exponent - top)
        total = xp.sum(share, axis=-2, keepdims=True)
        value = xp.sum(self.mu * (xp.log(total) + top)[..., 0, :], axis=-1)
        value = value - xp.sum(shift * self.q + tilt * self.wanted, axis=-1)
        return _Point(shift, tilt, value, share / total)

    def after(self, at: _Point, going: Any, by_mass: Floats, by_mean: Floats, slope: Floats) -> tuple[_Point, Any]:
        """The point after as much of a step as brings the dual down, in the problems that are ``going`` (B,).

        Also in which of them no part of it does. On a device all parts are tried at once.
        """
        xp = self.xp
        farthest = xp.max(xp.where(self.q > 0, abs(by_mass) + abs(by_mean) * self.reach, 0.0), axis=-1)
        longest = FARTHEST / xp.clip(farthest, FARTHEST, None)
        for parts in (SHORTER,) if xp is not np else ((part,) for part in SHORTER):
            step = longest * xp.asarray(parts, dtype=longest.dtype, device=longest.device)[:, None]
            tried = self.at(at.shift + step[..., None] * by_mass, at.tilt + step[..., None] * by_mean)
            good = going & (tried.value <= at.value + 1e-4 * step * slope + ROUNDING)
            longest_good = xp.argmax(xp.astype(good, xp.int64), axis=0)
            taken = xp.any(good, axis=0)
            at, going = tried[longest_good].where(taken, at), going & ~taken
            if xp is np and not going.any():
                break
        return at, going

    def newton(self, share: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Sum of misses (B,), the steps of a and g (B, V), and the slope (B,) of the dual along them.

        The Hessian is D - Y' diag(1/mu) Y with a 2 x 2 block D_x a child and Y (2V, n) = (T, T X); its inverse follows
        from that of the (n, n) matrix diag(mu) - Y D^-1 Y'. Both have the two directions of the gauge in their kernel
        (the same a, g added to all children), along which the right side is 0; a trace of the identity keeps them
        invertible.
        """
        xp, q = self.xp, self.q
        mass = share * self.mu[:, None, :]
        tilted = mass * self.feature[:, None, :]
        zeroth, first = xp.sum(mass, axis=-1), xp.sum(tilted, axis=-1)
        second = xp.sum(tilted * self.feature[:, None, :], axis=-1)
        off_mass, off_mean = zeroth - q, first - self.wanted
        determinant = xp.maximum(zeroth * second - first * first, 1e-10 * zeroth * xp.maximum(second, zeroth))
        on = (q > 0) & (determinant > 0)  # 0 where the square of a mass underflows: such a child stays as it is
        determinant = xp.where(on, determinant, 1.0)
        inverse = [xp.where(on, entry / determinant, 0.0)[:, :, None] for entry in (second, -first, zeroth)]

        def solved(by_mass: Floats, by_mean: Floats) -> tuple[Floats, Floats]:
            return inverse[0] * by_mass + inverse[1] * by_mean, inverse[1] * by_mass + inverse[2] * by_mean

        from_mass, from_mean = solved(mass, tilted)
        plain_mass, plain_mean = solved(off_mass[:, :, None], off_mean[:, :, None])
        mass_t, tilted_t = xp.matrix_transpose(mass), xp.matrix_transpose(tilted)
        rows, columns = self._scale[:, :, None], self._scale[:, None, :]
        matrix = self._trace - (mass_t @ from_mass + tilted_t @ from_mean) * rows * columns
        middle = solve_each(matrix, (mass_t @ plain_mass + tilted_t @ plain_mean) * rows) * rows
        by_mass = -(plain_mass + from_mass @ middle)[:, :, 0]
        by_mean = -(plain_mean + from_mean @ middle)[:, :, 0]
        miss = xp.sum(abs(off_mass) + abs(off_mean), axis=-1)
        return miss, by_mass, by_mean, xp.sum(off_mass * by_mass + off_mean * by_mean, axis=-1)


def onto_marginals(found: Array, mu: Array, q: Array) -> Array:
    """The nearest simple T (B, V, n) with sums exactly ``mu`` and ``q``: scaled down where too much, then filled up.

    >>> from fractions import Fraction
    >>> half = Fraction(1, 2)
    >>> T = onto_marginals(np.array([[[half, half], [half, 0]]]), *np.array([[[half, half]], [[half, half]]]))
    >>> T.sum(axis=1).tolist() == T.sum(axis=2).tolist() == [[half, half]]
    True
    """
    xp = namespace(mu)
    for axis, wanted in ((-1, q[:, :, None]), (1, mu[:, None, :])):
        present = xp.sum(found, axis=axis, keepdims=True)
        found = found * xp.where(present > wanted, divide(wanted, present, where_zero=one(mu)), one(mu))
    of_child, of_cell = q - xp.sum(found, axis=-1), mu - xp.sum(found, axis=1)
    if not is_exact(mu):
        of_child, of_cell = xp.clip(of_child, 0.0, None), xp.clip(of_cell, 0.0, None)
    missing = xp.sum(of_cell, axis=-1)[:, None, None]
    filled: Array = found + of_child[:, :, None] * divide(of_cell[:, None, :], missing, where_zero=zero(mu))
    return filled


def verifier(blocks: int | None = BUCKETS) -> Verifier:
    """The verifier ``ebv``. ``blocks``: larger vocabularies are merged into so many blocks (None: never)."""
    return Verifier(
        "ebv",
        SelectedPath(entropic_split, blocks),
        "entropic: as PBV, with ranks spread as evenly as its distribution allows",
        "this project, theory 5.4",
        path_order=False,
        closed_form="block",
        split=entropic_split,
        blocks=blocks,
    )
