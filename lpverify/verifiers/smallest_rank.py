"""The probability that a drafted leaf has the smallest rank of all drafted paths (theory 5).

Every path draws its rank from its leaf's measure, normalised, independently of the others. The probabilities that a
leaf's paths have the smallest rank are integrals of products of survival functions: on every interval of the common
refinement of all leaves' pieces a survival function is linear, so they are sums of integrals of polynomials with
coefficients >= 0, exact in Fractions and without cancellation in floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lpverify.numerics import Array, divide, namespace, one, ones, sums_after, take_in_rows, zero, zeros
from lpverify.verifiers.rank_measure import RankMeasure


def smallest_rank(leaves: RankMeasure, multiplicity: Sequence[int], order: Any = None) -> Array:
    """Probability of each leaf that one of its paths has the smallest rank of all paths, (n,); sums to 1.

    ``leaves``: the n leaves' measures, each of which ``multiplicity`` paths draw from. Pieces that begin and end at the
    same double count as points, and equal points in the order of the leaves: ``order[i]`` is the place of leaf i, i
    itself where it is not given.

    >>> twice = RankMeasure(*np.array([[[0.5], [0.0]], [[0.5], [0.5]], [[1.0], [1.0]]]), np.ones(2))
    >>> smallest_rank(twice, [1, 1]).tolist(), smallest_rank(whole(2, np.ones(1)), [2, 1]).tolist()
    ([1.0, 0.0], [0.6666666666666666, 0.3333333333333333])
    """
    if order is None:
        return smallest_in(refinement(leaves), multiplicity)
    by_place = namespace(order).argsort(order)
    return smallest_in(refinement(leaves[by_place])[order], multiplicity)


def smallest_in(part: Array, multiplicity: Sequence[int]) -> Array:
    """`smallest_rank` of leaves with ``part`` (n, m) of their mass, uniformly spread, on m common intervals in order.

    >>> smallest_in(np.array([[0.5, 0.5], [0.0, 1.0]]), [1, 1]).tolist()
    [0.75, 0.25]
    """
    xp = namespace(part)
    later = sums_after(part)
    index = xp.arange(len(multiplicity), device=part.device)[:, None]
    polynomial = ones((*part.shape, 1), part)  # in the share of the interval that is still to come
    none = zeros((*part.shape, 1), part)
    for leaf, copies in enumerate(multiplicity):
        for copy in range(copies):
            itself = (index == leaf) & (copy == 0)  # the path that is to come first
            constant = xp.where(itself, one(part), later[leaf][None, :])[:, :, None]
            linear = xp.where(itself, zero(part), part[leaf][None, :])[:, :, None]
            polynomial = xp.concat([constant * polynomial, none], axis=-1) + xp.concat(
                [none, linear * polynomial], axis=-1
            )
    integral = sum((polynomial[:, :, k] / (k + 1) for k in range(1, polynomial.shape[-1])), start=polynomial[:, :, 0])
    first = xp.sum(part * integral, axis=-1)
    chance: Array = xp.stack([first[leaf] * copies for leaf, copies in enumerate(multiplicity)])
    return chance


def refinement(leaves: RankMeasure) -> Array:
    """Mass of each of n leaves on the intervals of the common refinement of their m pieces, (n, 2nm), in rank order."""
    xp = namespace(leaves.mass)
    count, pieces = leaves.mass.shape
    scale = leaves.scale[:, None]
    begin, end = (leaves.above + leaves.width) * scale, leaves.above * scale
    points = xp.reshape(xp.stack([begin, end], axis=-1), (-1,))
    order = xp.argsort(-points, axis=-1, stable=True)
    place = xp.reshape(xp.argsort(order, axis=-1, stable=True), (count, pieces, 2))
    points = points[order]
    length = points - xp.concat([points[1:], points[-1:]], axis=-1)

    slot = xp.arange(2 * count * pieces, device=points.device)[None, :]
    owner = xp.arange(count, device=points.device)[:, None]
    begins = (order // (2 * pieces) == owner) & (order % 2 == 0)
    current = xp.cumulative_sum(xp.astype(begins, xp.int64), axis=-1) - 1
    started, current = current >= 0, xp.clip(current, 0, None)
    by_place = xp.argsort(place[:, :, 0], axis=-1, stable=True)

    def here(values: Any) -> Any:
        return take_in_rows(take_in_rows(values, by_place), current)

    inside = started & (here(place[:, :, 1]) > slot)
    covered = xp.where(inside, length[None, :], zero(points))
    share = divide(covered, here(begin - end), where_zero=one(points))
    part = xp.where(inside, here(leaves.mass) * share, zero(points))
    complete: Array = part / xp.sum(part, axis=-1, keepdims=True)  # pieces may overlap by an ulp
    return complete
