"""EBV, entropic block verification: the least skew that loses nothing, and ranks spread as evenly as it allows.

The row, the coupling T_xu of children x and cells u, and its rounding to the exact marginals are those of theory 5.4:
where a child gets more than its w p can use, w = f/Q*, half of the excess is given back, and among the couplings with
that row the one of largest entropy is used. Newton's method for it starts near the solution and ends with a linearised
step, which meets the constraints; the split is lossless to the last bit for any table. Where a table misses the row by
too much, PBV's pooling is used if it comes nearer.

EBV needs the rows of drafted nodes and w only. ``experiments/beat_pbv.py`` compares it with the alternatives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from lpverify.numerics import Array, as_float, as_fractions, divide, is_exact, one, take_in_rows, zero, zeros
from lpverify.verifiers.base import Verifier
from lpverify.verifiers.compiled import couple_groups, in_use
from lpverify.verifiers.pbv import INFINITE, LARGEST_MEAN, minorant_groups, pooling, segments
from lpverify.verifiers.rank_measure import RankMeasure, rescaled
from lpverify.verifiers.rank_selection import selecting_verifier
from lpverify.verifiers.splits import ROUNDING, Ints, Layout, Split, lay_out, ranges
from lpverify.verifiers.token_buckets import BUCKETS

FINEST = 16  # pieces of a measure are cut until none has more than 1/FINEST of its mass
ENTRIES, FEWEST_CELLS, MOST_CELLS = 512, 16, 32  # a node of V children has ENTRIES // V cells in a group, within bounds
START_STEPS = 2  # towards the needed means, for each child by itself, before Newton's method begins
STEPS, PATIENCE = 32, 3  # Newton's method stops after so many, or so many that hardly reduce the negative entries
SMALLEST = 1e-300  # cells of less mass do not take part in a Newton step
CLIPPED = 1e-9  # the last Newton step's negative entries sum to at most this fraction of the group
# Error of the row, relative to the group, from which on pooling is tried; the latter where atoms share cells: then no
# table may meet the row exactly, and evenly spread ranks are worth more than a small error.
MISSED, MISSED_IF_SHARED = 1e-9, 1e-2

Floats = npt.NDArray[np.float64]

WantedRow = Callable[[Layout, Array], tuple[Array, Ints]]  # as `spared_row`
Coupling = Callable[[Floats, Floats, Floats, Floats], Floats]  # as `coupling`


def entropic_split(measure: RankMeasure, target: Array, draft: Array, weight: Array, num_paths: int) -> Split:
    """The split of EBV, a `SplitRule`.

    >>> from lpverify.verifiers.rank_measure import whole
    >>> rows = np.array([[0.6, 0.4]]), np.array([[0.2, 0.8]])
    >>> entropic_split(whole(1, rows[0]), *rows, np.array([0.5]), 2).q_star.round(6).tolist()
    [[0.33, 0.67]]
    """
    return coupled_split(measure, target, draft, weight, num_paths, spared_row, coupling)


def coupled_split(
    measure: RankMeasure,
    target: Array,
    draft: Array,
    weight: Array,
    num_paths: int,
    wanted_row: WantedRow,
    couple: Coupling,
) -> Split:
    """The split that couples the children of every group with its cells.

    ``wanted_row`` gives the rows q* to aim at and the groups, ``couple`` tables, which are rounded to the marginals.
    """
    layout = lay_out(refined(measure), target, draft, num_paths)
    row, group = wanted_row(layout, weight)
    groups = Groups.of(layout, group)
    shares, q_star = _shared_out(groups, layout, row, couple)

    def children(rows: Any, tokens: Any) -> RankMeasure:
        rows = np.asarray(rows)
        place = layout.place[rows, tokens]
        child = rows * row.shape[1] + np.where(layout.draft[rows, place] > 0, place, 0)
        number = groups.number[child]
        index, inside = ranges(groups.first_part[number], groups.first_part[number + 1])
        mass = groups.mass[index] * inside
        problem = groups.problem[number]
        shared = (problem >= 0).nonzero()[0]
        cell = (groups.cell[index[shared]] - groups.first_cell[number[shared]][:, None]) * inside[shared]
        position = child[shared] - groups.first_child[number[shared]]
        mass[shared] *= shares[problem[shared][:, None], position[:, None], cell]
        # A child whose share is below the smallest double gets the measure of its group.
        mass = np.where((mass > 0).any(axis=-1, keepdims=True), mass, groups.mass[index] * inside)
        total = mass.sum(axis=-1, keepdims=True)
        return rescaled(groups.above[index], groups.width[index], mass / total, layout.measure.scale[rows])

    return Split(layout.by_token(q_star), layout.place, children)


def refined(measure: RankMeasure) -> RankMeasure:
    """The same measures, pieces cut evenly until none has more than 1/`FINEST` of the mass."""
    mass = as_float(measure.mass)
    parts = np.maximum(np.ceil(mass * FINEST - ROUNDING).astype(np.int64), mass > 0)
    ends = parts.cumsum(axis=-1)
    count, pieces = int(ends[:, -1].max()), mass.shape[1]
    if count == pieces and int(parts.max()) == 1:
        return measure
    slot = np.arange(count)
    piece = (slot[:, None] >= ends[:, None, :]).sum(axis=-1)
    used = piece < pieces
    index = np.minimum(piece, pieces - 1) + np.arange(len(mass))[:, None] * pieces
    number = parts.take(index)
    number = number + (number == 0)
    width = measure.width.take(index) / number
    above = measure.above.take(index) + width * (ends.take(index) - 1 - slot)
    return RankMeasure(above * used, width * used, measure.mass.take(index) / number * used, measure.scale)


def spared_row(layout: Layout, weight: Array, back: Fraction = Fraction(1, 2)) -> tuple[Array, Ints]:
    """The row q* (R, V) of theory 5.4, in the order of the children, for ``weight`` (R,) w = f/Q*.

    Also the first child of every child's group, (R, V): those of `minorant_groups` where r <= w, and one group of all
    others. ``back`` > 0 is the fraction of the excess over w p that is given back.

    >>> from lpverify.verifiers.rank_measure import whole
    >>> rows = np.array([[0.6, 0.4]]), np.array([[0.2, 0.8]])
    >>> row, group = spared_row(lay_out(whole(1, rows[0]), *rows, 2), np.array([0.5]))
    >>> row.round(3).tolist(), group.tolist()
    ([[0.33, 0.67]], [[0, 0]])
    """
    p, q = layout.target, layout.draft
    exact, nothing, size = is_exact(p), zero(p), q.shape[1]
    drafted = q > 0
    budget = weight[:, None] * p
    group, slope = minorant_groups(layout.ordered, p * drafted)
    finite = (slope != INFINITE) & (p != 0)
    full = np.where(finite, np.where(finite, slope, nothing) * (p * drafted), layout.ordered)
    spare = (slope > weight[:, None] * (1 if exact else 1 + ROUNDING)) | (p == 0)
    excess = np.maximum(full - budget, nothing) * spare * (back if exact else float(back))
    floor = full - excess
    # kappa if the children from here on were at kappa q, and those before at their floors
    mass, rest = ((values * spare)[:, ::-1].cumsum(axis=-1)[:, ::-1] for values in (q, full))
    with np.errstate(over="ignore"):
        level = (rest + (excess.cumsum(axis=-1) - excess)) / (mass + (mass == 0))
    if not exact:
        level = np.minimum(level, LARGEST_MEAN)
    enough = spare & drafted & (floor <= level * q)
    first = np.where(enough.any(axis=-1), enough.argmax(axis=-1), size)[:, None]
    kappa = take_in_rows(level, np.minimum(first, size - 1))
    row = np.where(spare & (np.arange(size) >= first), kappa * q, floor)
    first_spare = np.where(spare.any(axis=-1), spare.argmax(axis=-1), size)[:, None]
    return row, np.where(spare, first_spare, group)


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of R nodes, G in all, with their atoms of positive mass and their cells, all numbered consecutively.

    Neighbouring atoms in the same piece and cell, taken together, are the parts of which children's measures are made.
    """

    number: Ints  # (R V,) group of every child
    first_child: Ints  # (G + 1,) bounds of the groups, as those of cells and parts
    first_cell: Ints
    first_part: Ints
    problem: Ints  # (G,) number of the group among those with at least two drafted children; -1 for others
    atom_mass: Array  # (N,) mass, integral of phi', child and cell of the atoms
    atom_moment: Array
    atom_child: Ints
    atom_cell: Ints
    above: Array  # of the parts, as in `RankMeasure`, and their cells
    width: Array
    mass: Array
    cell: Ints

    @classmethod
    def of(cls, layout: Layout, group: Ints) -> Groups:
        """The groups given by the first child of every child's group, (R, V)."""
        atoms, (rows, size) = layout.atoms, group.shape
        first_child, number = segments(group)
        number = number.reshape(-1)
        used = atoms.mass.reshape(-1).nonzero()[0]
        child = atoms.owner.reshape(-1)[used] + used // atoms.mass.shape[1] * size
        mass = atoms.mass.reshape(-1)[used]
        of_group = number[child]
        first_atom = np.searchsorted(of_group, np.arange(len(first_child) + 1))
        count = np.diff(first_atom)
        several = np.add.reduceat((layout.draft.reshape(-1) > 0).astype(np.int64), first_child) > 1
        most = min(max(ENTRIES // size, FEWEST_CELLS), MOST_CELLS)
        cells = np.minimum(count, np.where(several, most, 1))
        first_cell = np.append(0, cells.cumsum())
        position = np.arange(len(used)) - first_atom[of_group]
        cell = first_cell[of_group] + position * cells[of_group] // count[of_group]
        piece = atoms.piece.reshape(-1)[used]
        begins = np.append(True, (cell[1:] != cell[:-1]) | (piece[1:] != piece[:-1]))
        part = begins.nonzero()[0]
        ends = np.append(part[1:], len(used)) - 1
        width = atoms.width.reshape(-1)[used]
        return cls(
            number,
            np.append(first_child, rows * size),
            first_cell,
            np.searchsorted(of_group[part], np.arange(len(first_child) + 1)),
            np.where(several, several.cumsum() - 1, -1),
            mass,
            mass * layout.density.reshape(-1)[used],
            child,
            cell,
            atoms.above.reshape(-1)[used[ends]],
            np.add.reduceat(width, part),
            np.add.reduceat(mass, part),
            cell[part],
        )


def _shared_out(groups: Groups, layout: Layout, row: Array, couple: Coupling) -> tuple[Array, Array]:
    """The share of every cell that each child of the B groups with several children gets, (B, W, n); and q*, (R, V)."""
    q_star = layout.ordered
    problem = (groups.problem >= 0).nonzero()[0]
    if len(problem) == 0:
        return zeros((0, 1, 1), row), q_star
    starts = np.append(True, groups.atom_cell[1:] != groups.atom_cell[:-1]).nonzero()[0]
    mu, moment = (np.add.reduceat(values, starts) for values in (groups.atom_mass, groups.atom_moment))
    cell, is_cell = ranges(groups.first_cell[problem], groups.first_cell[problem + 1])
    child, is_child = ranges(groups.first_child[problem], groups.first_child[problem + 1])
    mu, moment = mu[cell] * is_cell, moment[cell] * is_cell
    q, wanted = (values.reshape(-1)[child] * is_child for values in (layout.draft, row))
    wanted = wanted * (q > 0)
    phi = moment / (mu + (mu == 0))
    total, size = mu.sum(axis=-1, keepdims=True), q.sum(axis=-1, keepdims=True)
    mu, q, wanted = mu / total, q / size, wanted / size
    table = _one_by_one(couple, mu, phi, q, wanted) if is_exact(mu) else couple(mu, phi, q, wanted)
    table = onto_marginals(table, mu, q)
    met = (table * phi[:, None, :]).sum(axis=-1)
    missed = abs(met - wanted).sum(axis=-1)
    missed = np.where(missed == missed, missed, INFINITE)  # Newton's method left the doubles: pooling always exists
    group = groups.number[groups.atom_child]
    is_shared = np.bincount(group)[problem] > np.diff(groups.first_cell)[problem]
    far = (missed > np.where(is_shared, MISSED_IF_SHARED, MISSED) * wanted.sum(axis=-1)).nonzero()[0]
    if len(far):
        of = np.full(len(groups.problem), -1)  # of every group its number among those
        of[problem[far]] = np.arange(len(far))
        atom = (of[group] >= 0).nonzero()[0]
        group, own = group[atom], zeros((len(far), *table.shape[1:]), q)
        child_at, cell_at = groups.first_child[group], groups.first_cell[group]
        at = (of[group], groups.atom_child[atom] - child_at, groups.atom_cell[atom] - cell_at)
        np.add.at(own, at, groups.atom_mass[atom])
        pooled = _pooled(own / total[far, :, None], phi[far], q[far], wanted[far])
        reached = (pooled * phi[far, None, :]).sum(axis=-1)
        better = abs(reached - wanted[far]).sum(axis=-1) < missed[far]
        table[far[better]], met[far[better]] = pooled[better], reached[better]
    q_star = q_star.reshape(-1).copy()
    q_star[child[is_child]] = (met * size)[is_child]
    q_star = q_star.reshape(row.shape)
    return table / (mu + (mu == 0))[:, None, :], q_star / q_star.sum(axis=-1, keepdims=True)


def _pooled(own: Array, phi: Array, q: Array, wanted: Array) -> Array:
    """PBV's tables (B, W, n): what the children keep of their ``own`` cells (B, W, n), and get from the pool."""
    ordered = (own * phi[:, None, :]).sum(axis=-1)
    number = np.repeat(np.arange(len(q))[:, None], q.shape[1], axis=1)
    kept, given = pooling(q, ordered, wanted, number[:, 0] * q.shape[1], number)
    pool = (given[:, :, None] * own).sum(axis=1)
    pool = divide(pool, pool.sum(axis=-1, keepdims=True), where_zero=zero(q))
    table: Array = kept[:, :, None] * own + (given * q)[:, :, None] * pool[:, None, :]
    return table


def _one_by_one(couple: Coupling, mu: Array, phi: Array, q: Array, wanted: Array) -> Array:
    """``couple`` for Fractions: the floats it finds, as Fractions.

    A group is solved by itself and without its zeros. In a batch the last bits of a float could depend on the other
    groups, and the split on what else was drafted.
    """
    table = zeros((*q.shape, mu.shape[1]), q)
    for number, (cells, children) in enumerate(zip(mu > 0, q > 0, strict=True)):
        parts = (mu[number, cells], phi[number, cells], q[number, children], wanted[number, children])
        if (parts[3] == parts[2] * parts[3].sum()).all():  # one mean for all children: no skew, to the last digit
            solution = parts[2][:, None] * parts[0]
        else:
            solution = as_fractions(couple(*(as_float(part)[None] for part in parts))[0])
        table[number][np.ix_(children, cells)] = solution
    return table


def coupling(mu: Floats, phi: Floats, q: Floats, wanted: Floats) -> Floats:
    """Tables T (B, V, n) >= 0 of nearly the largest entropy with given sums and means, for B groups.

    ``mu``, ``phi`` (B, n) are masses and means of phi' of the cells, ``q``, ``wanted`` (B, V) masses of the children
    and the sums sum_u phi_u T_xu; rows of ``mu`` and ``q`` sum to 1, entries may be 0. If no table meets the
    constraints, or if the steps do not suffice, sums and means are only nearly right.

    The start is the solution for phi' and needed means that are normally distributed, each child's tilt g_x improved
    by itself. Steps of Newton's method on the convex dual follow, in the linearised form T (1 + change) that meets all
    constraints; the last step is the first one that leaves hardly any negative entry. Before, entries are multiplied
    by 1 + change or, where that is less than 1, by 1 / (1 - change).

    >>> T = coupling(*(np.array([row]) for row in ([0.5, 0.5], [1.5, 0.5], [0.4, 0.6], [0.5, 0.5])))
    >>> T[0].sum(axis=1).round(9).tolist(), (T[0] @ [1.5, 0.5]).round(9).tolist()
    ([0.4, 0.6], [0.5, 0.5])
    """
    if kernel := in_use(couple_groups):
        found = np.empty((*q.shape, mu.shape[1]))
        limits = START_STEPS, STEPS, PATIENCE, CLIPPED, SMALLEST, ROUNDING
        kernel(mu, phi, q, wanted, limits, found)
        return found
    mean = (mu * phi).sum(axis=-1, keepdims=True)
    spread = np.sqrt((mu * (phi - mean) ** 2).sum(axis=-1, keepdims=True))
    spread[spread <= ROUNDING * mean] = np.inf  # one mean for all cells: nothing can be skewed
    feature = (phi - mean) / spread * (mu > 0)  # phi', standardised
    goal = (wanted - mean * q) / spread * (q > 0)
    table = _start(mu, feature, q, goal)
    result = np.empty_like(table)
    active, best, since = np.arange(len(mu)), np.full(len(mu), np.inf), np.zeros(len(mu), dtype=np.int64)
    for step in range(STEPS + 1):
        change = newton_step(table, mu, feature, q, goal)
        last = table * (1 + change)
        clipped = -np.minimum(last, 0.0).sum(axis=(1, 2))
        since = np.where(clipped <= 0.9 * best, 0, since + 1)
        best = np.minimum(clipped, best)
        stops = (clipped <= CLIPPED) | (since >= PATIENCE) | (step == STEPS)
        result[active[stops]] = np.maximum(last[stops], 0.0)
        if stops.all():
            break
        active, best, since, table, change, mu, feature, q, goal = (
            values[~stops] for values in (active, best, since, table, change, mu, feature, q, goal)
        )
        table *= np.where(change > 0, 1 + change, 1 / (1 - np.minimum(change, 0.0)))
        table = _with_column_sums(table, mu, q)
    return result


def _start(mu: Floats, feature: Floats, q: Floats, goal: Floats) -> Floats:
    """Where `coupling` starts, (B, V, n): rows with nearly the needed means, columns with the sums ``mu``."""
    needed = goal / (q + (q == 0))
    inside = np.maximum(1 - (goal * needed).sum(axis=-1, keepdims=True), 0.1)  # variance of phi' left in a child
    tilt = np.clip(needed / inside, -40.0, 40.0)
    used = mu > 0
    base = np.where(used, np.log(mu + ~used) - (1 - inside) / inside * feature * feature / 2, -np.inf)[:, None, :]
    powers = np.stack([used, feature, feature * feature], axis=-1)
    for step in range(START_STEPS + 1):
        table = tilt[:, :, None] * feature[:, None, :]
        table += base
        table -= table.max(axis=-1, keepdims=True)
        np.exp(table, out=table)
        sums = table @ powers
        average, square = sums[:, :, 1] / sums[:, :, 0], sums[:, :, 2] / sums[:, :, 0]
        if step < START_STEPS:
            tilt = tilt + np.clip((needed - average) / np.maximum(square - average * average, 1e-4), -2.0, 2.0)
    table *= (q / sums[:, :, 0])[:, :, None]
    return _with_column_sums(table, mu, q)


def _with_column_sums(table: Floats, mu: Floats, q: Floats) -> Floats:
    """``table`` with columns scaled to the sums ``mu``; a cell that no child's tilt reaches is shared out by mass."""
    total = table.sum(axis=1)
    reached = total > SMALLEST
    table = table * (mu / np.where(reached, total, np.inf))[:, None, :]
    scaled: Floats = np.where(reached[:, None, :], table, q[:, :, None] * mu[:, None, :])
    return scaled


def newton_step(table: Floats, mu: Floats, feature: Floats, q: Floats, goal: Floats) -> Floats:
    """The relative change (B, V, n) of the entries of a table that meets all constraints.

    The change is a_x + g_x X_u - c_u, X being ``feature``. The Hessian of the dual is D - Y' diag(1/mu) Y with a 2 x 2
    block D_x for each child and Y (2V, n) = (T, T X). By Woodbury's identity its inverse follows from that of the
    (n, n) matrix 1 - R'R, R = L' Y diag(mu)^(-1/2), D^-1 = L L'. Adding the same a, g to all children changes nothing,
    so both matrices are singular in two directions, in which the right side is 0; a trace of the identity makes them
    regular.
    """
    scale = (mu > SMALLEST) / np.maximum(mu, SMALLEST)
    sums = table @ np.stack([np.ones_like(mu), feature, feature * feature], axis=-1)
    zeroth, first, second = sums[:, :, 0], sums[:, :, 1], sums[:, :, 2]
    off_mass, off_mean = zeroth - q, first - goal
    determinant = np.maximum(zeroth * second - first * first, 1e-10 * zeroth * np.maximum(second, zeroth))
    usable = (q > 0) & (determinant > 0)  # not where the square of a mass underflows: such a child stays as it is
    determinant, zeroth = np.where(usable, determinant, 1.0), np.where(usable, zeroth, 1.0)
    l11 = np.sqrt(zeroth / determinant) * usable  # L = ((l00, l01), (0, l11))
    l00, l01 = np.sqrt(1 / zeroth) * usable, -first / zeroth * l11
    (groups, children, cells), x = table.shape, feature[:, None, :]
    root = table * np.sqrt(scale)[:, None, :]
    factor = np.empty((groups, 2 * children, cells))
    np.multiply(root, l00[:, :, None], out=factor[:, :children])
    np.multiply(root, l11[:, :, None] * x + l01[:, :, None], out=factor[:, children:])
    off = np.concatenate([l00 * off_mass, l01 * off_mass + l11 * off_mean], axis=-1)[:, :, None]
    transposed = factor.transpose(0, 2, 1)
    matrix = (1 + 1e-10) * np.eye(cells) - transposed @ factor
    step = (off + factor @ np.linalg.solve(matrix, transposed @ off))[:, :, 0]
    shift = -(l00 * step[:, :children] + l01 * step[:, children:])
    change = -(l11 * step[:, children:])[:, :, None] * x
    change += shift[:, :, None]
    change -= ((table * change).sum(axis=1) * scale)[:, None, :]
    relative: Floats = change
    return relative


def onto_marginals(table: Array, mu: Array, q: Array) -> Array:
    """A table (B, V, n) near ``table`` with sums exactly ``mu`` (B, n) and ``q`` (B, V).

    Rows and columns that are too large are scaled down; what is missing is filled up in proportion.

    >>> half = Fraction(1, 2)
    >>> T = onto_marginals(np.array([[[half, half], [half, 0]]]), *np.array([[[half, half]], [[half, half]]]))
    >>> T.sum(axis=1).tolist() == T.sum(axis=2).tolist() == [[half, half]]
    True
    """
    unit, nothing = one(mu), zero(mu)
    for axis, sums in ((-1, q[:, :, None]), (1, mu[:, None, :])):
        present = table.sum(axis=axis, keepdims=True)
        table = table * np.where(present > sums, sums / (present + (present == 0)), unit)
    of_child = np.maximum(q - table.sum(axis=-1), nothing)
    of_cell = np.maximum(mu - table.sum(axis=1), nothing)
    missing = of_cell.sum(axis=-1)
    filled: Array = table + of_child[:, :, None] * (of_cell / (missing + (missing == 0))[:, None])[:, None, :]
    return filled


def verifier(blocks: int | None = BUCKETS) -> Verifier:
    """The verifier ``ebv``; see `selecting_verifier` for ``blocks``."""
    text = "entropic: as PBV, with ranks spread as evenly as its distribution allows"
    return selecting_verifier("ebv", entropic_split, blocks, text, "this project, theory 5.4")
