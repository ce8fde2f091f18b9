r"""The multi-path optimum at scale: the rank-quantile formulation with adaptive bins and a certified gap (THEORY 2.4).

    maximise  sum_c f(c)
    s.t.      f(root) = 1,  f(cx) <= p(x|c) f(c),  f(c) <= M(c),
              M(c) = sum_x M(cx),  M(leaf) = sum_b phibar_b T(leaf,b),
              sum_b T(leaf,b) = Q(leaf),  sum_leaf T(leaf,b) = width_b,  T >= 0

over bins b of the rank interval [0, 1], phibar_b the mean of phi'(u) = K (1-u)^(K-1) on bin b. Any binning gives a
feasible policy, hence a lower bound; the multipliers lambda of ``f(cx) <= p f`` give an upper bound for every
binning. Both are taken from the iterates through `lpverify.lp.certify`, so they hold whatever the solver did.

The first round uses ten bins for all leaves. Every later round cuts the bins where the heights of the leaves jump and
gives a leaf only the bins that an optimal table can use (`lpverify.lp.bins`), typically 4 to 10. Each round is
solved by an interior-point method whose linear algebra follows the prefix tree (`lpverify.lp.interior_point`); it
starts from the point that the last round reached and stops as soon as its own gap is small against what the bins lose.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from threadpoolctl import threadpool_limits

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.core.results import Certificate, LpSolution, RankTable, Round
from lpverify.lp import certify, single_path
from lpverify.lp.bins import Heights, IntVector, Vector
from lpverify.lp.coverage import phi_mean_slope
from lpverify.lp.interior_point import InteriorPoint
from lpverify.lp.tree_newton import Breakdown, Shape
from lpverify.numerics import Levels, down_the_tree

MAX_NODES = 2_000_000
"""Beyond this even eight bins a leaf need more than about 6 GB."""

FIRST_BINS = 10
MAX_BINS = 600
MAX_STEPS = 200
"""Interior-point steps in one round."""

GAIN = 20.0
"""A round cuts the bins until they lose this much less than the gap: few bins while the heights are still rough."""

STALLED_ROUNDS = 4

NEGLIGIBLE = 1e-14
"""Nodes of less draft or target probability are left out of the program (never out of the bounds)."""


def solve(
    pair: ModelPair,
    paths: int,
    *,
    tolerance: float = 1e-9,
    time_limit: float | None = None,
    progress: Callable[[Round], None] | None = None,
) -> LpSolution:
    """The optimum between certified bounds that are at most ``tolerance`` apart, or as close as ``time_limit`` allows.

    ``status`` is "optimal", "time_limit", or "stalled" when rounding errors keep the bounds further apart.
    ``progress`` is called after every round. Works in float64; bounds hold up to rounding (`certify.check` with
    ``exact=True`` makes them rational).

    Raises InputError for K < 1 and SizeError beyond `MAX_NODES`.
    """
    errors.integer("paths (K)", paths, least=1)
    pair = pair.floats
    if pair.nodes > MAX_NODES:
        raise errors.too_large(
            "rank-quantile program",
            size=f"{pair.nodes:,} nodes",
            limit=f"{MAX_NODES:,}",
            instead="reduce the vocabulary or the depth; the node relaxation bounds any size",
        )
    with threadpool_limits(limits=1, user_api="blas"):  # the dense blocks are small: threads would only wait
        return _Search(pair, paths, tolerance, time_limit, progress).run()


@dataclass(frozen=True)
class Bins:
    """The bins of one round and the ones that each leaf may use, ``lowest .. highest``."""

    edges: Vector  # (B+1,)
    lowest: IntVector  # (N,)
    highest: IntVector  # (N,)


@dataclass
class _Search:
    """The bounds found so far and what proves them."""

    pair: ModelPair
    paths: int
    tolerance: float
    time_limit: float | None
    progress: Callable[[Round], None] | None
    began: float = field(default_factory=time.perf_counter)
    rounds: list[Round] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lower, self.upper = -np.inf, np.inf
        start = single_path.solve(self.pair).certificate
        assert start is not None
        self.see_ranks(start.ranks)
        self.see_multipliers(start.multipliers)

    @property
    def gap(self) -> float:
        return self.upper - self.lower

    @property
    def out_of_time(self) -> bool:
        return self.time_limit is not None and time.perf_counter() - self.began > self.time_limit

    def see_ranks(self, ranks: RankTable) -> float:
        """Turn any nonnegative table into a lower bound."""
        legal = certify.repair(self.pair, ranks)
        bound = certify.lower_bound(self.pair, legal, self.paths)
        if bound.value > self.lower:
            self.lower, self.proof = float(bound.value), (legal, bound)
        return float(bound.value)

    def see_multipliers(self, multipliers: Levels) -> float:
        """Turn any multipliers into an upper bound."""
        bound = float(certify.upper_bound(self.pair, multipliers, self.paths))
        if bound < self.upper:
            self.upper, self.multipliers = bound, multipliers
        return bound

    def run(self) -> LpSolution:
        leaves = self.pair.draft_paths[-1].size
        edges = 1.0 - (1.0 - np.linspace(0.0, 1.0, FIRST_BINS + 1)) ** (2.0 / (self.paths + 1))
        bins = Bins(edges, np.zeros(leaves, dtype=np.int64), np.full(leaves, FIRST_BINS - 1))
        method = interior_point(self.pair, self.paths, bins)
        without_gain, reach = 0, 30.0
        while True:
            before = self.gap
            excluded = self.round(method, bins)
            without_gain = 0 if self.gap < 0.8 * before else without_gain + 1
            if self.gap <= self.tolerance:
                return self.solution("optimal")
            if self.out_of_time:
                return self.solution("time_limit")
            if without_gain == STALLED_ROUNDS:
                return self.solution("stalled")
            if excluded > 0.3 * self.gap:
                reach *= 5.0
            last = self.heights(self.last_multipliers)
            finer = self.finer(bins, last, reach)
            earlier, method = method, interior_point(self.pair, self.paths, finer)
            if excluded < np.inf:
                warm_start(method, earlier, bins, finer, last)
            bins = finer

    def finer(self, bins: Bins, last: Heights, reach: float) -> Bins:
        """The bins of the next round.

        The best multipliers tell where an optimal table lies, the last ones what the last bins lacked. ``reach`` times
        the gap is the cost beyond which a bin is not offered to a leaf.
        """
        edges = bins.edges
        views = (self.heights(self.multipliers), last)
        for heights in views:
            edges = heights.refined(edges, max(0.05 * self.tolerance, self.gap / GAIN), MAX_BINS)
        (lowest, highest), (lower, higher) = (heights.support(edges, reach * self.gap) for heights in views)
        return Bins(edges, np.minimum(lowest, lower), np.maximum(highest, higher))

    def round(self, method: InteriorPoint, bins: Bins) -> float:
        """Solve on the given bins and take bounds from the iterates.

        Returns what keeps the round's own bounds apart besides the loss of the bins: entries that were not offered, or
        (infinite) rounding errors that ended the round, after which the next one starts cold.
        """
        shape, edges = method.shape, bins.edges
        seen, excluded = np.inf, 0.0
        for _ in range(MAX_STEPS):
            try:
                method.step()
            except Breakdown:
                excluded = np.inf
                break
            gap = method.complementarity + method.primal_residual
            late = self.out_of_time
            if gap > 0.5 * seen and not late:
                continue
            seen = gap
            multipliers = self.last_multipliers = multipliers_of(method, self.pair)
            upper = self.see_multipliers(multipliers)
            lower = self.see_ranks(RankTable(edges, shape.entry_leaf, shape.entry_bin, method.x.t))
            lost = float(self.heights(multipliers).loss(edges[:-1], edges[1:]).sum())
            excluded = upper - lower - lost - gap
            if late or self.gap <= self.tolerance or gap < max(0.1 * lost, 0.05 * self.tolerance):
                break
        found = Round(len(edges) - 1, len(method.x.t), self.lower, self.upper, time.perf_counter() - self.began)
        self.rounds.append(found)
        if self.progress is not None:
            self.progress(found)
        return excluded

    def heights(self, multipliers: Levels) -> Heights:
        height = down_the_tree(certify.path_prices(self.pair, multipliers))
        return Heights(height, self.pair.draft_paths[-1], self.paths)

    def solution(self, status: str) -> LpSolution:
        legal, bound = self.proof
        return LpSolution(
            value=self.lower,
            lower_bound=self.lower,
            upper_bound=max(self.upper, self.lower),
            status=status,
            method="rank-quantile",
            seconds=time.perf_counter() - self.began,
            certificate=Certificate(self.paths, legal, bound.selected, bound.budgets, self.multipliers),
            rounds=tuple(self.rounds),
        )


def warm_start(method: InteriorPoint, earlier: InteriorPoint, bins: Bins, finer: Bins, heights: Heights) -> None:
    """Start ``method`` (on ``finer``, whose edges contain those of ``bins``) from the ``earlier`` point.

    Every old entry is shared out among the parts of its bin, so rows stay legal; the price of a bin is the potential
    of its middle.
    """
    shape, old = method.shape, earlier.shape
    middle = (finer.edges[1:] + finer.edges[:-1]) / 2
    whole = np.searchsorted(bins.edges, middle, side="right") - 1
    share = np.diff(finer.edges) / np.diff(bins.edges)[whole]
    leaf, old_bin = shape.entry_leaf, whole[shape.entry_bin]
    known = (old_bin >= bins.lowest[leaf]) & (old_bin <= bins.highest[leaf])
    first = np.searchsorted(old.entry_leaf, np.arange(shape.leaves))
    place = np.where(known, first[leaf] + old_bin - bins.lowest[leaf], 0)
    table = np.where(known, earlier.x.t[place] * share[shape.entry_bin], 0.0)
    sums = shape.leaf_sum(table)
    table = table * (method.leaf_mass / np.where(sums > 0, sums, 1.0))[leaf]
    price = heights.potential(middle)
    method.start_from(earlier, table, price - price[-1])


def interior_point(pair: ModelPair, paths: int, bins: Bins) -> InteriorPoint:
    """The program on given bins, at its cold start.

    Leaves of draft mass below `NEGLIGIBLE` take no part, and f = 0 is fixed at nodes of target mass below it.
    """
    edges, lowest, highest = bins.edges, bins.lowest, bins.highest
    size, depth = pair.vocab_size, pair.depth
    mass = pair.draft_paths[-1]
    live = mass > NEGLIGIBLE
    live_mass = [live]
    for _ in range(depth - 1):
        live_mass.insert(0, np.asarray(live_mass[0].reshape(-1, size).any(axis=1)))
    mass_mask = np.concatenate(live_mass)
    budget_mask = mass_mask & (np.concatenate(pair.target_paths[1:]) > NEGLIGIBLE)
    count = np.where(live, highest - lowest + 1, 0)
    leaf = np.repeat(np.arange(mass.size), count)
    column = np.arange(leaf.size) - np.repeat(np.cumsum(count) - count, count) + lowest[leaf]
    leaf_mass = np.where(live, mass, 0.0)
    slopes = phi_mean_slope(edges[:-1], np.diff(edges), paths)
    shape = Shape(
        vocab_size=size,
        depth=depth,
        bins=len(edges) - 1,
        target=np.concatenate([rows.reshape(-1) for rows in pair.target]),
        entry_leaf=leaf,
        entry_bin=column,
        entry_slope=slopes[column],
        live_budget=budget_mask,
        live_mass=mass_mask,
    )
    return InteriorPoint(shape, leaf_mass, np.diff(edges) * (leaf_mass.sum() / edges[-1]))


def multipliers_of(method: InteriorPoint, pair: ModelPair) -> Levels:
    """lambda >= 0 of an iterate. Where f = 0 was fixed lambda makes the node's price 0, which costs nothing."""
    shape = method.shape
    levels = [np.zeros(0)] * (pair.depth + 1)
    for depth in range(pair.depth, 0, -1):
        at = shape.level(depth)
        below = 0.0
        if depth < pair.depth:
            below = (pair.target[depth] * levels[depth + 1].reshape(-1, pair.vocab_size)).sum(axis=1)
        fixed = np.where(shape.live_mass[at], 1.0 + below, 0.0)
        levels[depth] = np.where(shape.live_budget[at], np.maximum(method.multiplier[at], 0.0), fixed)
    levels[0] = np.zeros(1)
    return tuple(levels)
