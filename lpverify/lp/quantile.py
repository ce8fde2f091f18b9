r"""The multi-path optimum at scale: the rank-quantile formulation with adaptive bins and a certified gap (theory 2.4).

    maximise  sum_c f(c)
    s.t.      f(root) = 1,  f(cx) <= p(x|c) f(c),  f(c) <= M(c),
              M(c) = sum_x M(cx),  M(leaf) = sum_b phibar_b T(leaf,b),
              sum_b T(leaf,b) = Q(leaf),  sum_leaf T(leaf,b) = width_b,  T >= 0

over bins b of the rank interval [0, 1], phibar_b the mean of phi'(u) = K (1-u)^(K-1) on bin b. Any binning gives a
feasible policy, hence a lower bound; the multipliers lambda of ``f(cx) <= p f`` give an upper bound for every binning.
`lpverify.lp.certify` computes both from the iterates, so they hold whatever the solver did.

The first refinement step uses ten bins for all leaves. Every later one cuts the bins where the heights of the leaves
jump and gives a leaf only the bins that an optimal table can use (`lpverify.lp.bins`), typically 4 to 10. A step runs
an interior-point method whose linear algebra follows the prefix tree (`lpverify.lp.interior_point`). It starts from
the point that the last step reached and stops as soon as its own gap is small against the loss of the bins.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.core.results import Certificate, LpSolution, RankTable, RefinementStep
from lpverify.lp import certify, single_path
from lpverify.lp.bins import Heights, IntVector, Vector
from lpverify.lp.coverage import Paths, concave, phi_mean_slope, phi_slope
from lpverify.lp.interior_point import InteriorPoint
from lpverify.lp.tree_newton import Breakdown, Shape
from lpverify.numerics import Levels

MAX_NODES = 2_000_000
"""Beyond this even eight bins a leaf need more than about 6 GB."""

FIRST_BINS = 10
MAX_BINS = 600
MAX_ITERATIONS = 200
"""Interior-point iterations in one refinement step."""

GAIN = 20.0
"""Refine the bins until their loss is below gap / GAIN: few bins while the heights are still rough."""

STALLED_STEPS = 4

NEGLIGIBLE = 1e-14
"""Nodes of less draft or target probability are left out of the program (never out of the bounds)."""


def solve(
    pair: ModelPair,
    num_paths: Paths,
    *,
    tolerance: float = 1e-9,
    time_limit: float | None = None,
    progress: Callable[[RefinementStep], None] | None = None,
) -> LpSolution:
    """The optimum between certified bounds that are at most ``tolerance`` apart, or as close as ``time_limit`` allows.

    Args:
        pair: target and draft tables; floats are used.
        num_paths: K, or another draft distribution with C(A) = phi(Q(A)).
        tolerance: certified gap to stop at.
        time_limit: seconds.
        progress: called after every refinement step.

    Returns:
        The solution with its certificate. ``status`` is "optimal", "time_limit", or "stalled" when rounding errors
        keep the bounds further apart. The bounds hold up to rounding; `certify.check` with ``exact=True`` makes them
        rational.

    Raises:
        InputError: K < 1. SizeError: more than 2,000,000 nodes.

    >>> coin = ModelPair.from_levels([[[0.25, 0.75]]], [[[0.6, 0.4]]])
    >>> round(solve(coin, 2).value, 8)
    1.89
    """
    concave(num_paths)
    pair = pair.floats
    if pair.nodes > MAX_NODES:
        raise errors.too_large(
            "rank-quantile program",
            size=f"{pair.nodes:,} nodes",
            limit=f"{MAX_NODES:,}",
            instead="reduce the vocabulary or the depth; the node relaxation bounds any size",
        )
    with threadpool_limits(limits=1, user_api="blas"):  # the dense blocks are too small for threads
        return _Search(pair, num_paths, tolerance, time_limit, progress).run()


@dataclass(frozen=True)
class Bins:
    """The bins of one refinement step and those that each leaf may use, ``lowest .. highest``."""

    edges: Vector  # (B+1,)
    lowest: IntVector  # (N,)
    highest: IntVector  # (N,)

    def entries(self, live: npt.NDArray[np.bool_]) -> tuple[IntVector, IntVector]:
        """Leaf and bin of every table entry, for the ``live`` leaves (N,)."""
        count = np.where(live, self.highest - self.lowest + 1, 0)
        leaf = np.repeat(np.arange(count.size), count)
        return leaf, np.arange(leaf.size) - np.repeat(np.cumsum(count) - count, count) + self.lowest[leaf]


class _Search(certify.Bounds):
    """The refinement steps, and the best bounds so far."""

    def __init__(
        self,
        pair: ModelPair,
        num_paths: Paths,
        tolerance: float,
        time_limit: float | None,
        progress: Callable[[RefinementStep], None] | None,
    ) -> None:
        super().__init__(pair, num_paths)
        self.tolerance, self.time_limit, self.progress = tolerance, time_limit, progress
        self.began = time.perf_counter()
        self.steps: list[RefinementStep] = []
        start = single_path.solve(pair).certificate
        assert isinstance(start, Certificate)
        self.see_ranks(start.ranks)
        self.see_multipliers(start.multipliers)

    @property
    def out_of_time(self) -> bool:
        return self.time_limit is not None and time.perf_counter() - self.began > self.time_limit

    def run(self) -> LpSolution:
        leaves = self.pair.draft_paths[-1].size
        edges = 1.0 - (1.0 - np.linspace(0.0, 1.0, FIRST_BINS + 1)) ** (2.0 / (phi_slope(0.0, self.num_paths) + 1))
        bins = Bins(edges, np.zeros(leaves, dtype=np.int64), np.full(leaves, FIRST_BINS - 1))
        method = interior_point(self.pair, self.num_paths, bins)
        without_gain, reach, status = 0, 30.0, ""
        while True:
            before = self.gap
            excluded = self.refine(method, bins)
            without_gain = 0 if self.gap < 0.8 * before else without_gain + 1
            if self.gap <= self.tolerance:
                status = "optimal"
            elif self.out_of_time:
                status = "time_limit"
            elif without_gain == STALLED_STEPS:
                status = "stalled"
            if status:
                return self.solution(self.steps, status=status, method="rank-quantile", began=self.began)
            if excluded > 0.3 * self.gap:
                reach *= 5.0
            last = self.heights(self.last_multipliers)
            finer = self.finer(bins, last, reach)
            earlier, method = method, interior_point(self.pair, self.num_paths, finer)
            if excluded < np.inf:
                warm_start(method, earlier, bins, finer, last)
            bins = finer

    def finer(self, bins: Bins, last: Heights, reach: float) -> Bins:
        """The bins of the next step.

        The best multipliers tell where an optimal table lies, the ``last`` ones what the last bins lacked. A leaf gets
        no bin whose cost is beyond ``reach`` times the gap.
        """
        edges = bins.edges
        views = (self.heights(self.multipliers), last)
        for heights in views:
            edges = heights.refined(edges, max(0.05 * self.tolerance, self.gap / GAIN), MAX_BINS)
        (lowest, highest), (lower, higher) = (heights.support(edges, reach * self.gap) for heights in views)
        return Bins(edges, np.minimum(lowest, lower), np.maximum(highest, higher))

    def refine(self, method: InteriorPoint, bins: Bins) -> float:
        """Solve on the given bins and take bounds from the iterates.

        Returns what keeps the step's own bounds apart besides the loss of the bins: the loss from entries that were
        left out, or infinity when rounding errors ended the step; then the next one starts cold.
        """
        shape, edges = method.shape, bins.edges
        seen, excluded = np.inf, 0.0
        for _ in range(MAX_ITERATIONS):
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
            lower = self.see_ranks(RankTable(edges, shape.entry_leaf, shape.entry_bin, method.table))
            lost = float(self.heights(multipliers).loss(edges[:-1], edges[1:]).sum())
            excluded = upper - lower - lost - gap
            if late or self.gap <= self.tolerance or gap < max(0.1 * lost, 0.05 * self.tolerance):
                break
        seconds = time.perf_counter() - self.began
        self.steps.append(RefinementStep(shape.bins, len(method.table), self.lower, self.upper, seconds))
        if self.progress is not None:
            self.progress(self.steps[-1])
        return excluded

    def heights(self, multipliers: Levels) -> Heights:
        return Heights(certify.leaf_heights(self.pair, multipliers), self.pair.draft_paths[-1], self.num_paths)


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
    entry = np.where(known, first[leaf] + old_bin - bins.lowest[leaf], 0)
    table = np.where(known, earlier.table[entry] * share[shape.entry_bin], 0.0)
    sums = shape.leaf_sum(table)
    table = table * (method.leaf_mass / np.where(sums > 0, sums, 1.0))[leaf]
    price = heights.potential(middle)
    method.start_from(earlier, table, price - price[-1])


def interior_point(pair: ModelPair, num_paths: Paths, bins: Bins) -> InteriorPoint:
    """The program on given bins, at its cold start.

    Leaves of draft mass below `NEGLIGIBLE` take no part, and f = 0 is fixed at nodes of target mass below it.
    """
    size, edges, mass = pair.vocab_size, bins.edges, pair.draft_paths[-1]
    live = mass > NEGLIGIBLE
    live_levels = [live]
    for _ in range(pair.depth - 1):
        live_levels.insert(0, np.asarray(live_levels[0].reshape(-1, size).any(axis=1)))
    live_mass = np.concatenate(live_levels)
    leaf, column = bins.entries(live)
    leaf_mass = np.where(live, mass, 0.0)
    shape = Shape(
        vocab_size=size,
        depth=pair.depth,
        bins=len(edges) - 1,
        target=np.concatenate([rows.reshape(-1) for rows in pair.target]),
        entry_leaf=leaf,
        entry_bin=column,
        entry_slope=phi_mean_slope(edges[:-1], np.diff(edges), num_paths)[column],
        live_f=live_mass & (np.concatenate(pair.target_paths[1:]) > NEGLIGIBLE),
        live_mass=live_mass,
    )
    return InteriorPoint(shape, leaf_mass, np.diff(edges) * (leaf_mass.sum() / edges[-1]))


def multipliers_of(method: InteriorPoint, pair: ModelPair) -> Levels:
    """lambda >= 0 of an iterate. Where f = 0 was fixed lambda makes the node's price 0, which costs nothing."""
    shape, size = method.shape, pair.vocab_size
    multiplier = shape.unknowns(method.dual)[0]
    levels: list[Vector] = []
    below = np.zeros(shape.leaves)
    for depth in range(pair.depth, 0, -1):
        at = shape.level(depth)
        fixed = np.where(shape.live_mass[at], 1.0 + below, 0.0)
        levels.insert(0, np.where(shape.live_f[at], np.maximum(multiplier[at], 0.0), fixed))
        below = (pair.target[depth - 1] * levels[0].reshape(-1, size)).sum(axis=1)
    return (np.zeros(1), *levels)
