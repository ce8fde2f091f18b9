"""The probability that a drafted path has the smallest rank (theory 5).

Every path draws its rank from its leaf's measure, normalised, independently of the others. On every interval of the
common refinement of all measures the probability that a path ranks later is linear, so the probability that a given
path is the first is an integral of polynomials with coefficients >= 0: exact in Fractions, and without cancellation in
floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lpverify.numerics import Array, divide, inverse_in_rows, one, ones, sums_after, zero, zeros
from lpverify.verifiers.rank_measure import RankMeasure


def smallest_rank(leaves: RankMeasure, multiplicity: Sequence[int], order: Any = None) -> Array:
    """Probability (n,) of each of n leaves that one of its ``multiplicity`` >= 1 paths has the smallest rank of all.

    Pieces that begin and end at the same double count as points; equal points rank by ``order`` (n,), the positions of
    the leaves (None: as in ``leaves``).

    >>> twice = RankMeasure(*np.array([[[0.5], [0.0]], [[0.5], [0.5]], [[1.0], [1.0]]]), np.ones(2))
    >>> smallest_rank(twice, [1, 1]).tolist(), smallest_rank(twice, [1, 2]).tolist()
    ([1.0, 0.0], [1.0, 0.0])
    """
    if order is None:
        return smallest_in(refinement(leaves), multiplicity)
    return smallest_in(refinement(leaves[np.argsort(order)])[order], multiplicity)


def smallest_in(part: Array, multiplicity: Sequence[int]) -> Array:
    """`smallest_rank` for ranks that are uniform inside each of some consecutive intervals.

    ``part`` (n, intervals) is the fraction of each leaf's paths that have their rank in the interval.

    >>> smallest_in(np.array([[0.5, 0.5], [0.0, 1.0]]), [1, 1]).tolist()
    [0.75, 0.25]
    """
    later, leaf = sums_after(part), np.arange(len(part))
    polynomial = ones((1, *part.shape), part)  # powers of the fraction of the interval that is still to come
    for other, copies in enumerate(multiplicity):
        for copy in range(copies):
            itself = ((leaf == other) & (copy == 0))[:, None]  # the path that is to come first
            constant, linear = np.where(itself, one(part), later[other]), np.where(itself, zero(part), part[other])
            product = np.concatenate([polynomial * constant, zeros((1, *part.shape), part)])
            product[1:] += polynomial * linear
            polynomial = product
    integral = sum((coefficient / (k + 1) for k, coefficient in enumerate(polynomial[1:], 1)), start=polynomial[0])
    chance: Array = (part * integral).sum(axis=-1) * np.asarray(multiplicity)
    return chance


def refinement(leaves: RankMeasure) -> Array:
    """Mass of each of n leaves on the intervals of the common refinement of their pieces, (n, intervals), in order.

    A piece whose ends are the same double is an interval of length 0.
    """
    row, piece = np.nonzero(leaves.mass > 0)
    mass, scale = leaves.mass[row, piece], leaves.scale[row]
    above = leaves.above[row, piece] * scale
    points = np.stack([above + leaves.width[row, piece] * scale, above], axis=-1).reshape(-1)
    order = np.argsort(-points, kind="stable")
    begin, end = inverse_in_rows(order[None])[0].reshape(-1, 2).T
    points = points[order]
    length = points[:-1] - points[1:]
    by_leaf = np.argsort(row * len(points) + begin)
    row, mass, begin, end = row[by_leaf], mass[by_leaf], begin[by_leaf], end[by_leaf]
    end[:-1] = np.where(row[1:] == row[:-1], np.minimum(end[:-1], begin[1:]), end[:-1])  # pieces may overlap by an ulp
    total = points[begin] - points[end]
    is_point = total == 0
    used = length > 0
    used[begin[is_point]] = True
    new = np.append(0, np.cumsum(used))
    begin, end, length = new[begin], new[end], length[used]
    count = end - begin
    index = np.repeat(begin - (np.cumsum(count) - count), count) + np.arange(count.sum())
    piece = np.repeat(np.arange(len(row)), count)
    part = zeros((len(leaves.mass), len(length)), mass)
    fraction = divide(np.where(is_point[piece], one(mass), length[index]), total[piece], where_zero=one(mass))
    part[row[piece], index] = mass[piece] * fraction
    complete: Array = part / part.sum(axis=-1, keepdims=True)
    return complete
