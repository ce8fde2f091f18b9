"""Splitting a node's rank measure among its children: what all splits share, and the ordered split (theory 4, 5).

A split gives every child x of node c a measure mu_cx of mass q(x|c) mu_c[0, 1], with sum_x mu_cx = mu_c. All splits
start from the same layout: the children lie along the ranks of their node by p/q descending, child x on an interval of
relative mass q(x|c). The *ordered* split, that of GBV, gives x the ranks in its interval.

All functions take R nodes at once, as float64 or as object arrays of Fraction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lpverify.drafting.iid_paths import mean_density
from lpverify.numerics import Array, inverse_in_rows, is_exact, one, take_in_rows, zero, zeros
from lpverify.verifiers.rank_measure import RankMeasure, ratio_order, rescaled

Ints = npt.NDArray[np.int64]

ROUNDING = 1e-14  # relative difference of two floats that rounding can explain; Fractions are compared exactly
END = 2 * int(np.array(1.0).view(np.int64))  # the sort key of the right end of [0, 1]


@dataclass(frozen=True, eq=False)
class Split:
    """How R nodes are split.

    ``children(rows, tokens)`` gives the measures of the children ``tokens[e]`` of the nodes ``rows[e]``; any measure
    for a child with q(x|c) = 0, which is never drafted.
    """

    q_star: Array  # (R, V) q*(x|c), the draft row of the selected path; rows sum to 1
    place: Ints  # (R, V) position of every token in the order of the children
    children: Callable[[Any, Any], RankMeasure]


# (measure of R nodes, target rows (R, V), draft rows (R, V), weights f/Q* (R,), K) -> how the nodes are split
SplitRule = Callable[[RankMeasure, Array, Array, Array, int], Split]


def point_keys(before: Array, after: Array) -> Array:
    """Sort keys of points of [0, 1] given by the masses before and after them, so that both ends of [0, 1] are exact.

    A point is located by the smaller of the two. The bits of non-negative doubles are ordered as the doubles are.
    """
    if is_exact(before):
        return before
    return np.where(before <= after, before.view(np.int64), END - after.view(np.int64))


def _distance(begin: tuple[Array, Array], end: tuple[Array, Array]) -> Array:
    """Mass between points (before, after) and points that follow them; exact in the half of the latter."""
    ahead: Array = end[0] - begin[0]
    return ahead if is_exact(ahead) else np.where(end[0] <= end[1], ahead, begin[1] - end[1])


@dataclass(frozen=True, eq=False)
class Atoms:
    """Measures of R nodes cut at the ends of the n intervals of a partition: A = n + m atoms a row, in rank order."""

    above: Array  # (R, A), as ``width`` and ``mass``: see `RankMeasure`; some atoms have mass 0
    width: Array
    mass: Array
    owner: Ints  # (R, A) the interval that contains the atom
    piece: Ints  # (R, A) the piece, numbered through all rows
    first: Ints  # (R, n) index of every interval's first atom in the flattened arrays


def segment_sums(values: Array, first: Ints) -> Array:
    """Sums of ``values`` over consecutive segments that begin at the flat indices ``first``, in the shape of it."""
    return np.add.reduceat(values.reshape(-1), first.reshape(-1)).reshape(first.shape)


def cut(measure: RankMeasure, masses: Array) -> Atoms:
    """Cut R measures at the right ends of consecutive intervals of ``masses`` (R, n), rows that sum to 1.

    Positions are located from the nearer end of [0, 1], and the atoms of an interval are scaled to sum to its mass:
    an interval of mass 1e-200 is as accurate as any other.
    """
    (rows, size), pieces = masses.shape, measure.mass.shape[1]
    row = np.arange(rows)[:, None]
    both = np.concatenate([masses, measure.mass], axis=-1)
    before, after = np.empty_like(both), zeros(both.shape, both)
    for part in (slice(0, size), slice(size, None)):
        np.cumsum(both[:, part], axis=-1, out=before[:, part])
        np.cumsum(both[:, part][:, :0:-1], axis=-1, out=after[:, part][:, -2::-1])
    order = np.argsort(point_keys(before, after), axis=-1, kind="stable")
    at_interval = order < size
    passed = at_interval.cumsum(axis=-1) - at_interval  # intervals that end before the atom
    owner = np.minimum(passed, size - 1)
    piece = np.minimum(np.arange(size + pieces) - passed, pieces - 1) + row * pieces  # flat
    order = order + row * (size + pieces)  # flat
    end = before.take(order), after.take(order)
    begin = np.empty_like(before), np.empty_like(after)
    begin[0][:, 0], begin[1][:, 0] = zero(masses), one(masses)
    begin[0][:, 1:], begin[1][:, 1:] = end[0][:, :-1], end[1][:, :-1]
    mass, in_piece = _distance(begin, end), measure.mass
    first = _first_atoms(at_interval, size)
    if not is_exact(masses):
        whole = np.ones_like(at_interval)  # a whole interval or a whole piece keeps its mass
        whole[:, 1:] = at_interval[:, 1:] == at_interval[:, :-1]
        mass = np.where(whole, both.take(order), np.maximum(mass, 0.0))
        total = segment_sums(mass, first)
        lost = (total == 0) & (masses > 0)
        if lost.any():  # intervals between two doubles: one atom takes all
            total = np.where(lost, masses, total)
            mass.reshape(-1)[first[lost]] = masses[lost]
        mass = mass * (masses / (total + (total == 0))).take(owner + row * size)
        in_piece = segment_sums(mass, _first_atoms(~at_interval, pieces))
    length = (measure.width / (in_piece + (in_piece == 0))).take(piece)  # per mass
    right = before[:, size:].take(piece), after[:, size:].take(piece)
    above = measure.above.take(piece) + length * _distance(end, right)
    return Atoms(above, length * mass, mass, owner, piece, first)


def _first_atoms(last: npt.NDArray[np.bool_], size: int) -> Ints:
    """Flat index (R, n) of the first atom of each of n segments a row, from the marks (R, A) of their last atoms."""
    first = np.empty((len(last), size), dtype=np.int64)
    first[:, 0] = np.arange(len(last)) * last.shape[1]
    first[:, 1:] = last.reshape(-1).nonzero()[0].reshape(-1, size)[:, :-1] + 1
    return first


@dataclass(frozen=True, eq=False)
class Layout:
    """The children of R nodes along the ranks of their node, by p/q descending."""

    place: Ints  # (R, V) position of every token; all other arrays are in order of position
    target: Array  # (R, V), as ``draft``: p and q, divided by their sums
    draft: Array
    atoms: Atoms  # the nodes' ``measure``, cut at the ends of the children's intervals
    density: Array  # (R, A) mean of phi' on every atom, divided by that of the node
    ordered: Array  # (R, V) share of the integral of phi' on the child's interval, the q* of the ordered split
    measure: RankMeasure

    def by_token(self, by_position: Array) -> Array:
        """Values by position, in token order."""
        return take_in_rows(by_position, self.place)

    def children_from(
        self, rows: Any, place: Ints, first: Ints, last: Ints, share: Callable[[Ints, Array], Array]
    ) -> RankMeasure:
        """Measures of the children at ``place[e]`` of ``rows[e]``, made of atoms of the intervals first..last[e].

        ``share(owner, mass)`` gives the child's mass of the atoms from their owners and masses, (E, n) each.
        """
        atoms, size = self.atoms, self.draft.shape[1]
        undrafted = self.draft[rows, place] == 0
        first, last = np.where(undrafted, 0, first), np.where(undrafted, size - 1, last)
        bounds = np.append(atoms.first.reshape(-1), atoms.mass.size)
        index, inside = ranges(bounds[rows * size + first], bounds[rows * size + last + 1])
        mass = atoms.mass.take(index) * inside
        mass = np.where(undrafted[:, None], mass, share(atoms.owner.take(index), mass))
        return rescaled(atoms.above.take(index), atoms.width.take(index), mass, self.measure.scale[rows])


def ranges(first: Ints, end: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Integers first[e] .. end[e]-1 as rows of a table, padded with first[e], and which of them are not padding."""
    index = first[:, None] + np.arange((end - first).max(initial=1))
    inside = index < end[:, None]
    return np.where(inside, index, first[:, None]), inside


def lay_out(measure: RankMeasure, target: Array, draft: Array, num_paths: int) -> Layout:
    """Lay out the children of R nodes with ``target`` and ``draft`` rows (R, V) along ``measure``."""
    order = ratio_order(target, draft)
    target, draft = take_in_rows(target, order), take_in_rows(draft, order)
    target, draft = (rows / rows.sum(axis=-1, keepdims=True) for rows in (target, draft))
    atoms = cut(measure, draft)
    density = mean_density(atoms.above, atoms.above + atoms.width, num_paths)
    integral = segment_sums(atoms.mass * density, atoms.first)
    total = integral.sum(axis=-1, keepdims=True)
    return Layout(inverse_in_rows(order), target, draft, atoms, density / total, integral / total, measure)


def ordered_split(measure: RankMeasure, target: Array, draft: Array, weight: Array, num_paths: int) -> Split:
    """The split of GBV: every child gets the ranks in its interval; ``weight`` is not used.

    >>> from lpverify.verifiers.rank_measure import whole
    >>> rows = np.array([[0.75, 0.25]]), np.array([[0.5, 0.5]])
    >>> ordered_split(whole(1, rows[0]), *rows, np.ones(1), 2).q_star.tolist()
    [[0.75, 0.25]]
    """
    layout = lay_out(measure, target, draft, num_paths)

    def children(rows: Any, tokens: Any) -> RankMeasure:
        rows = np.asarray(rows)
        place = layout.place[rows, tokens]
        total = layout.draft[rows, place][:, None]
        total = total + (total == 0)
        return layout.children_from(rows, place, place, place, lambda owner, mass: mass / total)

    return Split(layout.by_token(layout.ordered), layout.place, children)
