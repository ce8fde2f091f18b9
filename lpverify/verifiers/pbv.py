"""The proportional split: where coverage allows, a child law proportional to the target (THEORY 5.2, PBV).

Lay the children out by p/q descending and let c_x be the share of the integral of phi' on x's interval. The lower
convex minorant of the points (p_1 + .. + p_k, c_1 + .. + c_k) cuts the children into groups; a group of slope r wants

    q*(x|c) = r p(x|c),     r = sum of c / sum of p over the group:

the lexicographically optimal base of the node's coverage polymatroid for the weights p. It is realised inside the
group by pooling: with phibar_x = c_x / q_x the mean of phi' on x's interval and t_x = r p_x / q_x the mean that x
needs, child x keeps the fraction lambda_x of its interval, the rest goes to the group's pool, and x gets
(1 - lambda_x) q_x back from it. For a supposed pool mean c,

    lambda_x = clip((t_x - c) / (phibar_x - c), 0, 1) where both differences have one sign, else 0,

and c is, among all t_x and phibar_x of the group, the smallest with the least sum_x |q*(x|c) - q_x t_x|. If t - phibar
changes sign once along the group this is exact, otherwise near.
"""

from __future__ import annotations

from typing import Any

from lpverify.numerics import (
    Array,
    accumulate_rows,
    divide,
    ignoring_overflow,
    is_exact,
    namespace,
    one,
    take_in_rows,
    zero,
    zeros,
    zeros_like,
)
from lpverify.verifiers.base import Verifier
from lpverify.verifiers.rank_measure import RankMeasure, rescaled
from lpverify.verifiers.rank_selection import SelectedPath
from lpverify.verifiers.splits import ROUNDING, Layout, Split, lay_out
from lpverify.verifiers.token_buckets import BUCKETS

LARGEST_MEAN = 1e300
"""Wanted means are cut here; only a target probability of 1e-300 or more times the draft's reaches it."""


def proportional_split(measure: RankMeasure, target: Array, draft: Array, weight: Array, paths: int) -> Split:
    """PBV: ``target``, ``draft`` (R, V) rows; ``weight`` is not used (see `tempered_split`).

    A child's measure has m + V - 1 pieces: the node's m pieces cut by its children's intervals.
    """
    layout = lay_out(measure, target, draft, paths)
    ordered, mass = layout.ordered, layout.draft
    drafted = namespace(mass).where(mass > 0, layout.target, zero(mass))
    group, slope = minorant_groups(ordered, drafted)
    mean = divide(ordered, mass, where_zero=zero(mass))
    needed = wanted_means(slope, layout.target, mass, mean)
    kept, rest = pooling(mass, mean, needed, group)
    same = group[:, :, None] == group[:, None, :]
    pooled = rest * mass
    pool = _sum_over(same, pooled)
    pool_mean = divide(_sum_over(same, pooled * mean), pool, where_zero=zero(mass))
    q_star = kept * ordered + pooled * pool_mean

    def children(rows: Any, tokens: Any) -> RankMeasure:
        rows, place = layout.at(rows, tokens)
        return _from_pool(layout, group, kept, rest, pool, rows, place)

    return Split(layout.by_token(q_star), layout.place, children)


def minorant_groups(shares: Array, target: Array) -> tuple[Array, Array]:
    """Segments of the lower convex minorant of the points (p_1 + .. + p_k, c_1 + .. + c_k), k = 0..V.

    ``shares`` c and ``target`` p are (R, V) in layout order. Returns for every child the first child of its group and
    the slope r of the segment, infinite where p = 0 at the end. Collinear segments are one group.

    >>> import numpy as np
    >>> minorant_groups(np.array([[0.125, 0.125, 0.75]]), np.array([[0.25, 0.25, 0.25]]))
    (array([[0, 0, 2]]), array([[0.5, 0.5, 3. ]]))
    """
    xp = namespace(shares)
    rows, size = shares.shape
    index = xp.arange(size, device=shares.device)
    after = index[:, None] <= index[None, :]  # [start, end]
    rise, run = (
        xp.cumulative_sum(xp.where(after, values[:, None, :], zero(shares)), axis=-1) for values in (shares, target)
    )
    with ignoring_overflow():
        steepness = xp.where(after, divide(rise, run, where_zero=float("inf")), float("inf"))
    least = xp.min(steepness, axis=-1, keepdims=True)
    lowest = after & (steepness <= (least if is_exact(shares) else least * (1 + ROUNDING)))
    end = size - 1 - xp.argmax(xp.flip(xp.astype(lowest, xp.int64), axis=-1), axis=-1)
    slope = xp.reshape(take_in_rows(xp.reshape(steepness, (rows * size, size)), xp.reshape(end, (-1, 1))), (rows, size))
    starts = _visited(end + 1)
    group = xp.max(xp.where(after.T & starts[:, None, :], index, 0), axis=-1)
    return group, take_in_rows(slope, group)


def _visited(following: Any) -> Any:
    """Which of the places 0..V-1 a walk visits that begins at 0 and goes from x to ``following[x]`` > x, (R, V).

    V ends it. Every pass of the loop doubles the steps taken, so that no number of them has to be known on the host.
    """
    xp = namespace(following)
    rows, size = following.shape
    place = xp.arange(size + 1, device=following.device)
    jump = xp.concat([following, following[:, :1] * 0 + size], axis=-1)
    visits = xp.astype(xp.broadcast_to(place == 0, (rows, size + 1)), xp.float64)
    for _ in range(size.bit_length()):
        visits = xp.astype(visits + accumulate_rows(jump, visits, size + 1) > 0, xp.float64)
        jump = take_in_rows(jump, jump)
    return visits[:, :-1] > 0


def wanted_means(slope: Array, target: Array, draft: Array, mean: Array) -> Array:
    """t_x = r p_x / q_x; children without target mass at the end (r infinite) keep their interval, t_x = phibar_x."""
    xp = namespace(draft)
    unbounded = slope == float("inf")
    finite = xp.where(unbounded, zero(draft), slope)
    with ignoring_overflow():
        needed = divide(finite * target, draft, where_zero=zero(draft))
    if not is_exact(draft):
        needed = xp.clip(needed, None, LARGEST_MEAN)
    bounded: Array = xp.where(unbounded, mean, needed)
    return bounded


def pooling(draft: Array, mean: Array, needed: Array, group: Array) -> tuple[Array, Array]:
    """lambda and 1 - lambda of every child, (R, V) each, for the best pool mean of its group.

    ``draft`` q, ``mean`` phibar, ``needed`` t and ``group`` are (R, V) in layout order. Axes below: candidate, child.
    """
    xp = namespace(draft)
    candidate = xp.concat([needed, mean], axis=-1)
    same = xp.concat([group, group], axis=-1)[:, :, None] == group[:, None, :]
    q, phibar, t = (values[:, None, :] for values in (draft, mean, needed))
    kept, rest = _fractions(candidate[:, :, None], phibar, t)
    pooled = xp.where(same, rest * q, zero(draft))
    pool_mean = divide(xp.sum(pooled * phibar, axis=-1), xp.sum(pooled, axis=-1), where_zero=zero(draft))
    miss = abs(kept * q * phibar + pooled * pool_mean[:, :, None] - q * t)
    if not is_exact(draft):
        miss = xp.clip(miss - ROUNDING * q * t, 0.0, None)
    misfit = xp.sum(xp.where(same, miss, zero(draft)), axis=-1)
    slack = zeros_like(misfit)
    if not is_exact(draft):  # two candidates may miss equally, and then the law must not depend on who adds up how
        slack = ROUNDING * (misfit + xp.sum(xp.where(same & (miss > 0), q * t, 0.0), axis=-1))

    by_child = xp.permute_dims(same, (0, 2, 1))  # child, candidate
    far = 4 * one(draft) + xp.max(misfit, axis=-1)[:, None, None]
    least = xp.min(xp.where(by_child, misfit[:, None, :], far), axis=-1, keepdims=True)
    good = by_child & (misfit[:, None, :] <= least + slack[:, None, :])
    beyond = 1 + xp.max(candidate, axis=-1)[:, None, None]
    best = xp.min(xp.where(good, candidate[:, None, :], beyond), axis=-1)
    return _fractions(best, mean, needed)


def _fractions(pool_mean: Array, mean: Array, needed: Array) -> tuple[Array, Array]:
    """lambda = (t - c) / (phibar - c) clipped to [0, 1], 0 where the differences differ in sign; and 1 - lambda."""
    xp = namespace(mean)
    wanted, offered = needed - pool_mean, mean - pool_mean
    none, all_ = zero(mean), one(mean)
    above, below = (wanted > 0) & (offered > 0), (wanted < 0) & (offered < 0)
    inner = (above & (needed < mean)) | (below & (needed > mean))
    scale = xp.where(inner, abs(offered), all_)
    kept = xp.where(inner, abs(wanted) / scale, xp.where(above | below, all_, none))
    rest = xp.where(inner, abs(mean - needed) / scale, xp.where(above | below, none, all_))
    return kept, rest


def _sum_over(same: Array, values: Array) -> Array:
    """For every child the sum of ``values`` (R, V) over its group, ``same`` (R, V, V)."""
    xp = namespace(values)
    total: Array = xp.sum(xp.where(same, values[:, None, :], zero(values)), axis=-1)
    return total


def _from_pool(
    layout: Layout, group: Array, kept: Array, rest: Array, pool: Array, rows: Any, place: Any
) -> RankMeasure:
    """Measures of E children on the atoms of their nodes: ``kept`` of the own interval and the pool's share.

    ``pool`` (R, V) is the mass of every child's pool.
    """
    xp = namespace(kept)
    above, width, mass, owner = atoms(layout)
    above, width, mass, owner = above[rows], width[rows], mass[rows], owner[rows]
    own = owner == place[:, None]
    grouped = take_in_rows(group[rows], owner) == group[rows, place][:, None]
    total = layout.draft[rows, place][:, None]
    ordered = divide(xp.where(own, mass, zero(mass)), total, where_zero=zero(mass))
    given = xp.where(grouped, mass * take_in_rows(rest[rows], owner), zero(mass))
    pooled = divide(given, pool[rows, place][:, None], where_zero=zero(mass))
    share = kept[rows, place][:, None] * ordered + rest[rows, place][:, None] * pooled
    return rescaled(above, width, xp.where(total == 0, mass, share), layout.measure.scale[rows])


def atoms(layout: Layout) -> tuple[Array, Array, Array, Array]:
    """Above, width, mass of the common refinement in rank order and the position of the child it belongs to.

    (R, m + V - 1) each. Along the refinement every step goes to the next child, the next piece, or both, so cell (j, i)
    with mass has slot i + j to itself.
    """
    xp = namespace(layout.draft)
    count, children, pieces = layout.overlap.shape

    def skewed(cells: Array) -> Array:
        padding = zeros((count, children, children), layout.draft)
        flat = xp.reshape(xp.concat([cells, padding], axis=-1), (count, -1))
        rows: Array = xp.reshape(
            flat[:, : children * (pieces + children - 1)], (count, children, pieces + children - 1)
        )
        return rows

    used = layout.overlap > 0
    above, width, mass = (
        xp.sum(skewed(xp.where(used, cells, zero(cells))), axis=-2)
        for cells in (layout.above, layout.width, layout.overlap)
    )
    owner = xp.argmax(xp.astype(skewed(layout.overlap) > 0, xp.int64), axis=-2)
    return above, width, mass, owner


def verifier(blocks: int | None = BUCKETS) -> Verifier:
    """The verifier ``pbv``. ``blocks``: larger vocabularies are merged into so many blocks (None: never)."""
    return Verifier(
        "pbv",
        SelectedPath(proportional_split, blocks),
        "proportional: the selected path follows the target where coverage allows",
        "this project, theory 5.2",
        path_order=False,
        closed_form="block",
        split=proportional_split,
        blocks=blocks,
    )
