"""PBV, proportional block verification: the selected path follows the target where coverage allows (theory 5.2).

The wanted row is r p in each group of children that the lower convex minorant of (cumulative p, cumulative c) makes, r
being the slope and c_x the share of the integral of phi' on child x's interval. Inside a group the split pools ranks:
child x keeps the fraction lambda_x of its interval, gives the rest to the pool, and gets its mass back from the pool.
The pool's mean is the smallest of all t_x = r p_x / q_x and phibar_x = c_x / q_x of the group with the least error
sum_x |q*(x|c) - q_x t_x|. PBV needs the rows of drafted nodes only, and does not use the weight f/Q*.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lpverify.numerics import Array, divide, is_exact, one, zero
from lpverify.verifiers.base import Verifier
from lpverify.verifiers.compiled import in_use, minorant_rows
from lpverify.verifiers.rank_measure import RankMeasure
from lpverify.verifiers.rank_selection import selecting_verifier
from lpverify.verifiers.splits import ROUNDING, Ints, Split, lay_out
from lpverify.verifiers.token_buckets import BUCKETS

INFINITE = float("inf")
UNBALANCED = 1e-11  # relative difference of what children need and give away at which rounding is to blame
LARGEST_MEAN = 1e300  # needed means are cut here; only a child with q < 1e-300 p reaches it


def proportional_split(measure: RankMeasure, target: Array, draft: Array, weight: Array, num_paths: int) -> Split:
    """The split of PBV, a `SplitRule`; ``weight`` is not used.

    >>> from lpverify.verifiers.rank_measure import whole
    >>> rows = np.array([[0.625, 0.375]]), np.array([[0.5, 0.5]])
    >>> proportional_split(whole(1, rows[0]), *rows, np.ones(1), 2).q_star.tolist()
    [[0.625, 0.375]]
    """
    layout = lay_out(measure, target, draft, num_paths)
    q, ordered = layout.draft, layout.ordered
    group, slope = minorant_groups(ordered, layout.target * (q > 0))
    first, index = segments(group)
    own, pooled = pooling(q, ordered, proportional_row(slope, layout.target, q, ordered), first, index)
    from_pool = pooled * q
    pool, moment = (np.add.reduceat(values.reshape(-1), first) for values in (from_pool, pooled * ordered))
    pool = pool + (pool == 0)
    q_star = own * ordered + from_pool * (moment / pool)[index]
    end = np.append(first[1:], q.size)[index] % q.shape[1]

    def children(rows: Any, tokens: Any) -> RankMeasure:
        rows = np.asarray(rows)
        place = layout.place[rows, tokens]
        mass = q[rows, place]
        total, kept = (mass + (mass == 0))[:, None], own[rows, place][:, None]
        whole_pool, drawn = pool[index[rows, place]][:, None], pooled[rows, place][:, None]

        def share(owner: Ints, mass: Array) -> Array:
            from_own: Array = kept * (np.where(owner == place[:, None], mass, zero(mass)) / total)
            from_own += drawn * (mass * pooled[rows[:, None], owner] / whole_pool)
            return from_own

        return layout.children_from(rows, place, group[rows, place], (end[rows, place] - 1) % q.shape[1], share)

    return Split(layout.by_token(q_star), layout.place, children)


def minorant_groups(shares: Array, target: Array) -> tuple[Ints, Array]:
    """Segments of the lower convex minorant of the points (p_1 + .. + p_k, c_1 + .. + c_k), k = 0..V.

    One pass along the children: a new segment absorbs those before it as long as its slope does not exceed theirs.
    ``shares``, ``target`` (R, V) are c and p in the order of the children. Returns the first child of every child's
    segment, (R, V), and the segment's slope, (R, V), infinite where p = 0.

    >>> minorant_groups(np.array([[0.125, 0.125, 0.75]]), np.array([[0.25, 0.25, 0.25]]))
    (array([[0, 0, 2]]), array([[0.5, 0.5, 3. ]]))
    """
    size = shares.shape[1]
    slack = one(shares) if is_exact(shares) else 1 + ROUNDING
    if kernel := in_use(minorant_rows):
        group, slope = np.empty(shares.shape, np.int64), np.empty(shares.shape)
        kernel(shares, target, slack, group, slope)
        return group, slope
    rise, run, first = shares.reshape(-1), target.reshape(-1), np.arange(shares.size)
    with np.errstate(over="ignore"):
        slope = divide(rise, run, where_zero=INFINITE)
    starts = np.append(True, (slope[1:] > slope[:-1] * slack) | (first[1:] % size == 0)).nonzero()[0]
    rises, runs = (np.add.reduceat(values, starts).tolist() for values in (rise, run))
    segments: list[list[Any]] = []  # first child, sum of c, sum of p, slope
    floor = 0
    for start, up, across in zip(starts.tolist(), rises, runs, strict=True):
        if start % size == 0:
            floor = len(segments)
        steep = up / across if across else INFINITE
        while len(segments) > floor and steep <= segments[-1][3] * slack:
            start, more_up, more_across, _ = segments.pop()
            up, across = up + more_up, across + more_across
            steep = up / across if across else INFINITE
        segments.append([start, up, across, steep])
    first = np.array([segment[0] for segment in segments])
    slope = np.array([segment[3] for segment in segments], dtype=shares.dtype)
    length = np.diff(first, append=shares.size)
    return np.repeat(first % size, length).reshape(shares.shape), np.repeat(slope, length).reshape(shares.shape)


def segments(group: Ints) -> tuple[Ints, Ints]:
    """Flat index (G,) of the first child of every group, and the group (R, V) of every child among all of them."""
    starts = group == np.arange(group.shape[1])
    return starts.reshape(-1).nonzero()[0], (starts.cumsum() - 1).reshape(group.shape)


def proportional_row(slope: Array, target: Array, draft: Array, ordered: Array) -> Array:
    """The wanted row r p, (R, V). Children without target mass (r infinite) keep their interval."""
    bounded = slope != INFINITE
    return np.where(bounded, np.where(bounded, slope, zero(draft)) * target * (draft > 0), ordered)


def pooling(q: Array, ordered: Array, wanted: Array, first: Ints, index: Ints) -> tuple[Array, Array]:
    """lambda and 1 - lambda of every child, for the best pool mean c of its group.

    Every c between the largest t_x of the children with t_x > phibar_x and the smallest t_x of those with t_x <
    phibar_x has error 0, because then the pool's mean is c. Where there is no such c, or where rounding hides what the
    children give away, all t_x and phibar_x are tried. ``q``, ``ordered``, ``wanted`` (R, V) are q_x, q_x phibar_x and
    q_x t_x; ``first``, ``index`` the groups, as `segments`.
    """
    slack = one(q) if is_exact(q) else 1 + ROUNDING
    with np.errstate(over="ignore"):
        needed = divide(wanted, q, where_zero=zero(q))
    needed = needed if is_exact(q) else np.minimum(needed, LARGEST_MEAN)
    more, less = wanted > ordered * slack, wanted * slack < ordered
    low = np.maximum.reduceat(np.where(more, needed, -one(q)).reshape(-1), first)
    high = np.minimum.reduceat(np.where(less, needed, INFINITE).reshape(-1), first)
    searched = low > high
    if not is_exact(q):
        excess = (wanted - ordered, ordered - wanted)
        need, spare = (np.add.reduceat(np.maximum(values, 0.0).reshape(-1), first) for values in excess)
        searched |= (abs(need - spare) > UNBALANCED * need) & (low >= 0)
    if searched.any():
        last = np.append(first[1:], q.size)
        values = [values.reshape(-1) for values in (q, ordered, wanted, needed)]
        for number in searched.nonzero()[0]:
            low[number] = _best_pool_mean(*(value[first[number] : last[number]] for value in values))
    pool_mean = low[index]
    own, pooled = _fractions(pool_mean, q, ordered, wanted)
    alike = pool_mean < 0  # no child of the group needs more than it has: all keep their interval
    return np.where(alike, one(q), own), np.where(alike, zero(q), pooled)


def _best_pool_mean(q: Array, ordered: Array, wanted: Array, needed: Array) -> Any:
    """The smallest of all t and phibar of one group, (n,) each, with the least error."""
    candidate = np.sort(np.concatenate([needed, divide(ordered, q, where_zero=zero(q))]))
    own, pooled = _fractions(candidate[:, None], q, ordered, wanted)
    pool_mean = divide((pooled * ordered).sum(axis=-1), (pooled * q).sum(axis=-1), where_zero=zero(q))
    error = abs(own * ordered + pooled * q * pool_mean[:, None] - wanted)
    if is_exact(q):
        return candidate[np.argmin(error.sum(axis=-1))]
    error = np.maximum(error - ROUNDING * wanted, 0.0)
    total = error.sum(axis=-1)
    slack = ROUNDING * (total + ((error > 0) * wanted).sum(axis=-1))
    return candidate[np.argmax(total <= total.min() + slack)]


def _fractions(pool_mean: Array, q: Array, ordered: Array, wanted: Array) -> tuple[Array, Array]:
    """lambda = (t - c) / (phibar - c) clipped to [0, 1], 0 where the differences differ in sign; and 1 - lambda."""
    level = pool_mean * q
    offered = ordered - level
    some = offered != 0
    offered = offered + ~some
    with np.errstate(over="ignore"):
        own, pooled = (wanted - level) * some / offered, (ordered - wanted) * some / offered + ~some
    own, pooled = (np.minimum(np.maximum(part, zero(q)), one(q)) for part in (own, pooled))
    return own, pooled


def verifier(blocks: int | None = BUCKETS) -> Verifier:
    """The verifier ``pbv``; see `selecting_verifier` for ``blocks``."""
    text = "proportional: the selected path follows the target where coverage allows"
    return selecting_verifier("pbv", proportional_split, blocks, text, "this project, theory 5.2")
