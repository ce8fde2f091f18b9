r"""The rank-quantile program written down as one matrix, and its plain solution by HiGHS (theory 2.4).

The same program as in `lpverify.lp.quantile`. `solve` gives every leaf every bin and rebuilds the program in every
refinement step: the readable version, a peer in the benchmark, and an independent solver in the tests. Beyond a few
thousand nodes use `lpverify.lp.quantile`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from scipy import sparse

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.core.results import LpSolution, RankTable, RefinementStep
from lpverify.lp import certify, highs
from lpverify.lp.bins import IntVector, Vector
from lpverify.lp.coverage import phi_mean_slope
from lpverify.lp.single_path import child_matrix, flow_bounds, flow_matrix, flow_multipliers
from lpverify.numerics import Levels

MAX_ENTRIES = 400_000
FIRST_BINS = 40
MAX_ROUNDS = 12


def solve(
    pair: ModelPair,
    num_paths: int,
    *,
    tolerance: float = 1e-8,
    time_limit: float | None = None,
    progress: Callable[[RefinementStep], None] | None = None,
) -> LpSolution:
    """The optimum by HiGHS's interior point; bins are cut where the heights of the leaves jump.

    Arguments and result are those of `quantile.solve`. ``status`` is "stalled" when HiGHS's own precision (about 1e-7)
    keeps the bounds further apart than ``tolerance``. Raises SizeError when leaves x bins exceed 400,000.
    """
    began = time.perf_counter()
    errors.integer("num_paths (K)", num_paths, min=1)
    pair = pair.floats
    leaves = pair.draft_paths[-1].size
    edges = np.linspace(0.0, 1.0, FIRST_BINS + 1)
    if leaves * FIRST_BINS > MAX_ENTRIES:
        size = f"{leaves * FIRST_BINS:,} table entries"
        raise errors.too_large(
            "dense rank-quantile program", size=size, limit=f"{MAX_ENTRIES:,}", instead="use the method quantile"
        )
    bounds = certify.Bounds(pair, num_paths)
    steps: list[RefinementStep] = []
    status = ""
    while not status:
        bins = len(edges) - 1
        leaf, column = np.repeat(np.arange(leaves), bins), np.tile(np.arange(bins), leaves)
        point = highs.solve(program(pair, num_paths, edges, leaf, column), method="ipm")
        bounds.see_ranks(RankTable(edges, leaf, column, point.x[2 * pair.nodes :] * pair.draft_paths[-1][leaf]))
        bounds.see_multipliers(flow_multipliers(pair, point))
        steps.append(RefinementStep(bins, leaf.size, bounds.lower, bounds.upper, time.perf_counter() - began))
        if progress is not None:
            progress(steps[-1])
        edges = with_jumps(pair, bounds.multipliers, edges, bounds.gap)
        if bounds.gap <= tolerance:
            status = "optimal"
        elif time_limit is not None and time.perf_counter() - began > time_limit:
            status = "time_limit"
        elif len(steps) == MAX_ROUNDS or len(edges) - 1 == bins or leaves * (len(edges) - 1) > MAX_ENTRIES:
            status = "stalled"
    return bounds.solution(steps, status=status, method="dense rank-quantile (HiGHS)", began=began)


def program(pair: ModelPair, num_paths: int, edges: Vector, leaf: IntVector, column: IntVector) -> highs.LinearProgram:
    """The rank-quantile program on the table entries (leaf[e], column[e]), (E,), at least one for every leaf.

    Columns: f and M of every node below the root, then t = T(leaf, b) / Q(leaf) of every entry. Rows, in this order:
    ``f(cx) - p f(c) <= p(x|root) [c = root]``; ``f - M <= 0``; ``M(c) - sum_x M(cx) = 0``, at a leaf ``M(leaf) - sum_b
    phibar_b T(leaf, b) = 0``; ``sum_b t = 1``; ``sum_leaf Q t = width``. ``edges`` of the bins: (B+1,), from 0 to 1.
    """
    nodes, bins, entries = pair.nodes, len(edges) - 1, np.arange(leaf.size)
    mass = pair.draft_paths[-1]
    slopes = phi_mean_slope(edges[:-1], np.diff(edges), num_paths)
    identity = sparse.eye_array(nodes)
    at_leaf = (nodes - mass.size + leaf, entries)
    of_leaf = sparse.coo_array((-slopes[column] * mass[leaf], at_leaf), shape=(nodes, leaf.size))
    share = sparse.coo_array((np.ones(leaf.size), (leaf, entries)), shape=(mass.size, leaf.size))
    width = sparse.coo_array((mass[leaf], (column, entries)), shape=(bins, leaf.size))
    carry = identity - child_matrix(pair)
    rows = [
        [flow_matrix(pair), None, None],
        [identity, -identity, None],
        [None, carry, of_leaf],
        [None, None, share],
        [None, None, width],
    ]
    upper = np.concatenate([flow_bounds(pair), np.zeros(2 * nodes), np.ones(mass.size), np.diff(edges)])
    lower = np.concatenate([np.full(2 * nodes, -np.inf), upper[2 * nodes :]])
    objective = np.repeat([1.0, 0.0], [nodes, nodes + leaf.size])
    return highs.LinearProgram(objective, sparse.block_array(rows), lower, upper)


def with_jumps(pair: ModelPair, multipliers: Levels, edges: Vector, gap: float) -> Vector:
    """The edges and every rank at which the height of the leaves falls by more than ``gap``."""
    heights = certify.leaf_heights(pair, multipliers)
    order = np.argsort(-heights, kind="stable")
    falls = -np.diff(heights[order]) > max(gap, 1e-6)
    steps = np.cumsum(pair.draft_paths[-1][order])[:-1][falls]
    merged = np.unique(np.concatenate([edges, steps[(steps > 0) & (steps < 1)]]))
    return np.asarray(merged[np.concatenate([[True], np.diff(merged[:-1]) > 1e-10, [True]])])
