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
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from lpverify._array import Array, as_float, as_fractions, divide, ignoring_overflow, is_exact, one, sums_after, zero
from lpverify.verify._proportional import LARGEST_MEAN, atoms, minorant_groups, pooling
from lpverify.verify._ranks import RankMeasure, compact, mean_density, rescaled
from lpverify.verify._splits import ROUNDING, Layout, Split, lay_out

FINEST = 16
"""No piece of a measure has more than this part of its mass when it is split."""

MOST_CELLS = 32
"""Cells of a group; where a group has more pieces, neighbours share a cell."""

STEPS = 60
"""Most Newton steps. About 8 are used, more where the law all but separates two children."""

SETTLED = 1e-11
"""Sum of the misses in mass and in standardised mean, relative to the group, at which Newton's method stops."""

MET = 1e-9
"""Sum of the misses of the law, relative to the group's, from which on pooling is tried."""

FARTHEST = 40.0
"""Largest change of a logarithm of T in one step."""

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def entropic_split(measure: RankMeasure, target: Array, draft: Array, weight: Array, paths: int) -> Split:
    """EBV: ``target``, ``draft`` (R, V) rows, ``weight`` (R,) = f/Q* of the nodes. Rows are numpy's or Fractions."""
    return coupled_split(measure, target, draft, weight, paths, spared_law, coupling)


Law = Callable[[Layout, Array], tuple[Array, Any]]
"""(layout, weights f/Q*) -> wanted law and groups, as `spared_law`."""

Coupling = Callable[[Floats, Floats, Floats, Floats], Floats]
"""(mu, phi', q, wanted) -> T, as `coupling`."""


def coupled_split(
    measure: RankMeasure, target: Array, draft: Array, weight: Array, paths: int, wanted_law: Law, couple: Coupling
) -> Split:
    """The split that gives the children of a node the law of ``wanted_law`` by ``couple``, group by group."""
    layout = lay_out(refined(measure), target, draft, paths)
    law, group = wanted_law(layout, weight)
    above, width, mass, owner = atoms(layout)
    density = mean_density(above, above + width, paths)
    density = density / (mass * density).sum(axis=-1, keepdims=True)
    belongs = np.where(mass > 0, np.take_along_axis(group, owner, axis=-1), -1)
    given = _given(layout, law, group, mass, density, owner, belongs, couple)
    q_star = (given * density[:, None, :]).sum(axis=-1)
    q_star = q_star / q_star.sum(axis=-1, keepdims=True)

    def children(rows: Any, tokens: Any) -> RankMeasure:
        rows, place = layout.at(rows, tokens)
        share = given[rows, place]
        total = share.sum(axis=-1, keepdims=True)
        share = np.where(total == 0, mass[rows], divide(share, total, where_zero=zero(mass)))
        return compact(rescaled(above[rows], width[rows], share, layout.measure.scale[rows]))

    return Split(layout.by_token(q_star), layout.place, children)


def refined(measure: RankMeasure) -> RankMeasure:
    """The same measures, pieces cut evenly until none has more than 1/`FINEST` of the mass."""
    parts = np.maximum(1, np.ceil(as_float(measure.mass) * FINEST - ROUNDING).astype(np.int64))
    most = int(parts.sum(axis=-1).max())
    if most == parts.shape[1]:
        return measure
    ends = np.cumsum(parts, axis=-1)
    slot = np.broadcast_to(np.arange(most), (len(parts), most))
    piece = (slot[:, :, None] >= ends[:, None, :]).sum(axis=-1)
    used = piece < parts.shape[1]
    piece = np.minimum(piece, parts.shape[1] - 1)
    count, after = (np.take_along_axis(values, piece, axis=-1) for values in (parts, ends))
    width, above, mass = (
        np.take_along_axis(values, piece, axis=-1) for values in (measure.width, measure.above, measure.mass)
    )
    width = width / count
    above = above + width * (after - 1 - slot)
    above, width, mass = (np.where(used, values, zero(values)) for values in (above, width, mass / count))
    return RankMeasure(above, width, mass, measure.scale)


def spared_law(layout: Layout, weight: Array, back: Fraction = Fraction(1, 2)) -> tuple[Array, Any]:
    """The wanted law q* (R, V) in layout order and the first child of every child's group.

    Groups of slope r <= w are those of `minorant_groups`; all children behind them are one group. ``back`` > 0: the
    part of the excess over w p that is given back.

    >>> from lpverify.verify._ranks import whole
    >>> rows = np.array([[0.6, 0.4]]), np.array([[0.2, 0.8]])
    >>> law, group = spared_law(lay_out(whole(1, rows[0]), *rows, 2), np.array([0.5]))
    >>> law.round(3).tolist(), group.tolist()
    ([[0.33, 0.67]], [[0, 0]])
    """
    p, q, ordered = layout.target, layout.draft, layout.ordered
    drafted = q > 0
    group, slope = minorant_groups(ordered, np.where(drafted, p, zero(p)))
    unbounded = (slope == float("inf")) | (p == 0)
    full = np.where(unbounded, ordered, np.where(unbounded, zero(p), slope) * np.where(drafted, p, zero(p)))
    part = back if is_exact(p) else float(back)
    limit = weight[:, None] if is_exact(p) else weight[:, None] * (1 + ROUNDING)
    spare = (slope > limit) | (p == 0)  # in floats a share of 1e-20 may look like one more child of the last group
    excess = np.where(spare, full - np.minimum(full, weight[:, None] * p), zero(p)) * part
    floor = full - excess
    mass = np.where(spare, q, zero(q))
    behind = np.where(spare, full, zero(q))
    left = mass + sums_after(mass)
    with ignoring_overflow():  # kappa if all children from here on were at kappa q
        level = divide(behind + sums_after(behind) + excess.cumsum(axis=-1) - excess, left, where_zero=zero(q))
    level = level if is_exact(q) else level.clip(None, LARGEST_MEAN)
    enough = spare & drafted & (floor <= level * q)
    start = np.argmax(enough, axis=-1)[:, None]
    kappa = np.take_along_axis(level, start, axis=-1)
    flat = enough.any(axis=-1)[:, None] & (np.arange(p.shape[1]) >= start) & spare
    law = np.where(flat, kappa * q, floor)
    first = np.where(spare.any(axis=-1), np.argmax(spare, axis=-1), p.shape[1])[:, None]
    return law, np.where(spare, first, group)


def _given(
    layout: Layout, law: Array, group: Any, mass: Array, density: Array, owner: Any, belongs: Any, couple: Coupling
) -> Array:
    """Mass of every atom that every child gets, (R, V, A): whole atoms of its own where it is alone in its group."""
    rows, children = law.shape
    drafted = layout.draft > 0
    index = np.arange(children)
    alone = (owner[:, None, :] == index[None, :, None]) & (mass > 0)[:, None, :]
    given = np.where(alone, mass[:, None, :], zero(mass))
    size = (drafted[:, None, :] & (group[:, None, :] == index[None, :, None])).sum(axis=-1)
    row, first = np.nonzero(size >= 2)
    if len(row) == 0:
        return given
    members = drafted[row] & (group[row] == first[:, None])
    inside = belongs[row] == first[:, None]
    cell = _cells(inside)
    cells = int(cell.max()) + 1
    in_cell = inside[:, None, :] & (cell[:, None, :] == np.arange(cells)[None, :, None])
    here, integral = mass[row], (mass * density)[row]
    mu = np.where(in_cell, here[:, None, :], zero(mass)).sum(axis=-1)
    phi = divide(np.where(in_cell, integral[:, None, :], zero(mass)).sum(axis=-1), mu, where_zero=zero(mass))
    q = np.where(members, layout.draft[row], zero(mass))
    wanted = np.where(members, law[row], zero(mass))
    whole = q.sum(axis=-1, keepdims=True)
    mu, q, wanted = mu / mu.sum(axis=-1, keepdims=True), q / whole, wanted / whole
    found = _one_by_one(couple, mu, phi, q, wanted) if is_exact(mass) else couple(mu, phi, q, wanted)
    cells_given = onto_marginals(found, mu, q)
    missed = _missed(cells_given, phi, wanted)
    far = np.flatnonzero(missed > MET * wanted.sum(axis=-1))
    if len(far):
        own = alone[row[far]] & inside[far, None, :]
        own = np.where(own[:, :, None, :] & in_cell[far, None, :, :], here[far, None, None, :], zero(mass)).sum(axis=-1)
        from_pool = pooled(own / own.sum(axis=(1, 2), keepdims=True), phi[far], q[far], wanted[far])
        nearer = _missed(from_pool, phi[far], wanted[far]) < missed[far]
        cells_given[far[nearer]] = from_pool[nearer]
    share = divide(cells_given, mu[:, None, :], where_zero=zero(mass))
    parts = np.take_along_axis(share, np.broadcast_to(cell[:, None, :], (len(row), children, cell.shape[1])), axis=-1)
    parts = np.where(members[:, :, None] & inside[:, None, :], parts * here[:, None, :], zero(mass))
    shared = np.zeros((rows, mass.shape[1]), dtype=bool)
    np.logical_or.at(shared, row, inside)
    given = np.where(shared[:, None, :], zero(mass), given)
    np.add.at(given, row, parts)
    return given


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


def _missed(found: Array, phi: Array, wanted: Array) -> Array:
    missed: Array = abs((found * phi[:, None, :]).sum(axis=-1) - wanted).sum(axis=-1)
    return missed


def pooled(own: Array, phi: Array, q: Array, wanted: Array) -> Array:
    """PBV's T (B, V, n): what every child keeps of the cells ``own`` (B, V, n) and its share of what all give away."""
    mean = divide((own * phi[:, None, :]).sum(axis=-1), q, where_zero=zero(q))
    with ignoring_overflow():
        needed = divide(wanted, q, where_zero=zero(q))
    needed = needed if is_exact(q) else needed.clip(None, LARGEST_MEAN)
    kept, rest = pooling(q, mean, needed, np.zeros(q.shape, dtype=np.int64))
    pool = (rest[:, :, None] * own).sum(axis=1)
    share = divide(pool, pool.sum(axis=-1, keepdims=True), where_zero=zero(q))
    found: Array = kept[:, :, None] * own + (rest * q)[:, :, None] * share[:, None, :]
    return found


def _cells(inside: Bools) -> Any:
    """Cell 0, 1, ... of every atom of a group, in rank order: its own, or one of `MOST_CELLS` where there are more."""
    place = np.cumsum(inside, axis=-1) - 1
    count = np.maximum(inside.sum(axis=-1, keepdims=True), 1)
    cell = np.where(count > MOST_CELLS, place * MOST_CELLS // count, place)
    return np.where(inside, cell, 0)


def coupling(mu: Floats, phi: Floats, q: Floats, wanted: Floats) -> Floats:
    """T (B, V, n) of largest entropy with sums ``mu`` (B, n) and ``q`` (B, V) and sum_u phi_u T_xu = ``wanted`` (B, V).

    ``mu`` and ``q`` sum to 1; entries may be 0. Sums and means are met as far as Newton's method got.

    >>> T = coupling(*(np.array([row]) for row in ([0.5, 0.5], [1.5, 0.5], [0.4, 0.6], [0.5, 0.5])))
    >>> T[0].sum(axis=1).round(9).tolist(), (T[0] @ [1.5, 0.5]).round(9).tolist()
    ([0.4, 0.6], [0.5, 0.5])
    """
    mean = (mu * phi).sum(axis=-1, keepdims=True)
    spread = np.sqrt((mu * (phi - mean) ** 2).sum(axis=-1, keepdims=True))
    spread = np.where(spread > ROUNDING * mean, spread, np.inf)  # one mean for all cells: nothing can be skewed
    feature = np.where(mu > 0, (phi - mean) / spread, 0.0)
    problem = _Logistic(mu, feature, q, (wanted - mean * q) / spread)
    with ignoring_overflow():
        tilt = np.clip(divide(problem.wanted, q, where_zero=0.0), -1.5, 1.5)
    shift = -tilt * tilt / 2
    everything = np.arange(len(mu))
    value, share = problem.dual(everything, shift, tilt)
    neutral_value, neutral = problem.dual(everything, 0 * shift, 0 * tilt)
    worse = value > neutral_value
    shift[worse], tilt[worse] = 0.0, 0.0
    value, share = np.where(worse, neutral_value, value), np.where(worse[:, None, None], neutral, share)
    active = everything
    for _ in range(STEPS):
        miss, by_mass, by_mean, slope = problem.newton(active, share[active])
        going = miss > SETTLED
        active, by_mass, by_mean, slope = active[going], by_mass[going], by_mean[going], slope[going]
        if len(active) == 0:
            break
        farthest = np.where(q[active] > 0, abs(by_mass) + abs(by_mean) * problem.reach[active], 0.0).max(axis=-1)
        length = np.minimum(1.0, FARTHEST / np.maximum(farthest, FARTHEST / 2))
        trying = np.arange(len(active))
        for _ in range(12):
            node, step = active[trying], length[trying, None]
            new_shift, new_tilt = shift[node] + step * by_mass[trying], tilt[node] + step * by_mean[trying]
            new_value, new_share = problem.dual(node, new_shift, new_tilt)
            good = new_value <= value[node] + 1e-4 * step[:, 0] * slope[trying] + ROUNDING
            taken = node[good]
            shift[taken], tilt[taken], value[taken] = new_shift[good], new_tilt[good], new_value[good]
            share[taken] = new_share[good]
            trying = trying[~good]
            if len(trying) == 0:
                break
            length[trying] /= 4
        active = np.delete(active, trying)
    found: Floats = share * mu[:, None, :]
    return found


class _Logistic:
    """The dual of `coupling`, sum_u mu_u log sum_x q_x exp(a_x + g_x X_u) - sum_x (a_x q_x + g_x W_x), and its steps.

    X is phi' standardised under mu, W_x the wanted mean of X times q_x.
    """

    def __init__(self, mu: Floats, feature: Floats, q: Floats, wanted: Floats) -> None:
        self.mu, self.feature, self.q, self.wanted = mu, feature, q, np.where(q > 0, wanted, 0.0)
        self.reach = abs(feature).max(axis=-1, keepdims=True)
        self._log_q = np.log(np.where(q > 0, q, 1.0))

    def dual(self, at: Any, shift: Floats, tilt: Floats) -> tuple[Floats, Floats]:
        """Value (B,) and the shares T_xu / mu_u (B, V, n) at a, g of the problems ``at``."""
        mu, feature, q = self.mu[at], self.feature[at], self.q[at]
        exponent = (self._log_q[at] + shift)[:, :, None] + tilt[:, :, None] * feature[:, None, :]
        exponent = np.where((q > 0)[:, :, None], exponent, -np.inf)
        top = exponent.max(axis=1, keepdims=True)
        share = np.exp(exponent - top)
        total = share.sum(axis=1, keepdims=True)
        value = (mu * (np.log(total) + top)[:, 0]).sum(axis=-1) - (shift * q + tilt * self.wanted[at]).sum(axis=-1)
        return value, share / total

    def newton(self, at: Any, share: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Sum of misses (B,), the steps of a and g (B, V), and the slope (B,) of the dual along them.

        The Hessian is D - Y' diag(1/mu) Y with a 2 x 2 block D_x a child and Y (2V, n) = (T, T X); its inverse follows
        from that of the (n, n) matrix diag(mu) - Y D^-1 Y'. Both have the two directions of the gauge in their kernel
        (the same a, g added to all children), along which the right side is 0; a trace of the identity keeps them
        invertible.
        """
        mu, feature, q = self.mu[at], self.feature[at][:, None, :], self.q[at]
        mass = share * mu[:, None, :]
        tilted = mass * feature
        zeroth, first, second = mass.sum(axis=-1), tilted.sum(axis=-1), (tilted * feature).sum(axis=-1)
        off_mass, off_mean = zeroth - q, first - self.wanted[at]
        determinant = np.maximum(zeroth * second - first * first, 1e-10 * zeroth * np.maximum(second, zeroth))
        on = (q > 0) & (determinant > 0)  # 0 where the square of a mass underflows: such a child stays as it is
        determinant = np.where(on, determinant, 1.0)
        inverse = [np.where(on, entry / determinant, 0.0)[:, :, None] for entry in (second, -first, zeroth)]

        def solved(by_mass: Floats, by_mean: Floats) -> tuple[Floats, Floats]:
            return inverse[0] * by_mass + inverse[1] * by_mean, inverse[1] * by_mass + inverse[2] * by_mean

        from_mass, from_mean = solved(mass, tilted)
        plain_mass, plain_mean = solved(off_mass[:, :, None], off_mean[:, :, None])
        scale = 1 / np.sqrt(np.where(mu > 0, mu, 1.0))
        mass_t, tilted_t = np.swapaxes(mass, 1, 2), np.swapaxes(tilted, 1, 2)
        matrix = -(mass_t @ from_mass + tilted_t @ from_mean) * scale[:, :, None] * scale[:, None, :]
        diagonal = np.arange(mu.shape[1])
        matrix[:, diagonal, diagonal] += 1 + 1e-10
        right = (mass_t @ plain_mass + tilted_t @ plain_mean) * scale[:, :, None]
        middle = np.linalg.solve(matrix, right) * scale[:, :, None]
        by_mass = -(plain_mass + from_mass @ middle)[:, :, 0]
        by_mean = -(plain_mean + from_mean @ middle)[:, :, 0]
        miss = (abs(off_mass) + abs(off_mean)).sum(axis=-1)
        return miss, by_mass, by_mean, (off_mass * by_mass + off_mean * by_mean).sum(axis=-1)


def onto_marginals(found: Array, mu: Array, q: Array) -> Array:
    """The nearest simple T (B, V, n) with sums exactly ``mu`` and ``q``: scaled down where too much, then filled up.

    >>> from fractions import Fraction
    >>> half = Fraction(1, 2)
    >>> T = onto_marginals(np.array([[[half, half], [half, 0]]]), *np.array([[[half, half]], [[half, half]]]))
    >>> T.sum(axis=1).tolist() == T.sum(axis=2).tolist() == [[half, half]]
    True
    """
    for axis, wanted in ((-1, q[:, :, None]), (1, mu[:, None, :])):
        present = found.sum(axis=axis, keepdims=True)
        found = found * np.where(present > wanted, divide(wanted, present, where_zero=one(mu)), one(mu))
    of_child, of_cell = q - found.sum(axis=-1), mu - found.sum(axis=1)
    if not is_exact(mu):
        of_child, of_cell = of_child.clip(0.0), of_cell.clip(0.0)
    missing = of_cell.sum(axis=-1)[:, None, None]
    filled: Array = found + of_child[:, :, None] * divide(of_cell[:, None, :], missing, where_zero=zero(mu))
    return filled
