r"""The plain rank-quantile program: all leaves, all bins, rebuilt and solved by HiGHS in every round (THEORY 2.4).

The same program as `lpverify.lp.quantile`, written down as one matrix. It is the readable version, the peer in the
benchmark, and an independent solver in the tests; beyond a few thousand nodes use `lpverify.lp.quantile`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import sparse

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.core.results import Certificate, LpSolution, RankTable, Round
from lpverify.lp import certify, highs
from lpverify.lp.bins import Vector
from lpverify.lp.coverage import phi_mean_slope
from lpverify.lp.single_path import flow_bounds, flow_matrix, split_levels
from lpverify.numerics import Levels, down_the_tree

MAX_ENTRIES = 400_000
FIRST_BINS = 40
MAX_ROUNDS = 12


def solve(
    pair: ModelPair,
    paths: int,
    *,
    tolerance: float = 1e-8,
    time_limit: float | None = None,
    progress: Callable[[Round], None] | None = None,
) -> LpSolution:
    """The optimum by HiGHS's interior point without crossover; bins are cut where the heights of the leaves jump.

    Bounds are certified. Status "stalled" when the solver's own precision (about 1e-7) keeps them further apart than
    ``tolerance``. Raises SizeError when leaves x bins exceed `MAX_ENTRIES`.
    """
    began = time.perf_counter()
    errors.integer("paths (K)", paths, least=1)
    pair = pair.floats
    leaves = pair.draft_paths[-1].size
    edges = np.linspace(0.0, 1.0, FIRST_BINS + 1)
    lower, upper = -np.inf, np.inf
    rounds: list[Round] = []
    status = ""
    while not status:
        entries = leaves * (len(edges) - 1)
        if entries > MAX_ENTRIES:
            if rounds:
                status = "stalled"
                break
            raise errors.too_large(
                "dense rank-quantile program",
                size=f"{entries:,} table entries",
                limit=f"{MAX_ENTRIES:,}",
                instead="use the method quantile",
            )
        point = highs.solve(program(pair, paths, edges), method="ipm", crossover=False)
        table = point.x[2 * pair.nodes :] * np.repeat(pair.draft_paths[-1], len(edges) - 1)
        ranks = certify.repair(pair, every_entry(leaves, edges, table))
        multipliers = split_levels(np.maximum(point.row_duals[: pair.nodes], 0.0), pair, 0.0)
        bound = certify.lower_bound(pair, ranks, paths)
        if bound.value > lower:
            lower, best = float(bound.value), (ranks, bound)
        ceiling = float(certify.upper_bound(pair, multipliers, paths))
        if ceiling < upper:
            upper, best_multipliers = ceiling, multipliers
        rounds.append(Round(len(edges) - 1, entries, lower, upper, time.perf_counter() - began))
        if progress is not None:
            progress(rounds[-1])
        new_edges = with_jumps(pair, best_multipliers, edges, upper - lower)
        if upper - lower <= tolerance:
            status = "optimal"
        elif time_limit is not None and time.perf_counter() - began > time_limit:
            status = "time_limit"
        elif len(rounds) == MAX_ROUNDS or len(new_edges) == len(edges):
            status = "stalled"
        edges = new_edges
    ranks, bound = best
    return LpSolution(
        value=lower,
        lower_bound=lower,
        upper_bound=max(lower, upper),
        status=status,
        method="dense rank-quantile (HiGHS)",
        seconds=time.perf_counter() - began,
        certificate=Certificate(paths, ranks, bound.selected, bound.budgets, best_multipliers),
        rounds=tuple(rounds),
    )


def program(pair: ModelPair, paths: int, edges: Vector) -> highs.LinearProgram:
    """Columns: f and M of every node below the root, then t(leaf, b) = T(leaf, b) / Q(leaf), leaf by leaf."""
    nodes, bins = pair.nodes, len(edges) - 1
    mass = pair.draft_paths[-1]
    leaves = mass.size
    slopes = phi_mean_slope(edges[:-1], np.diff(edges), paths)
    identity = sparse.eye_array(nodes)
    inner = nodes - leaves
    carried = -slopes[None, :] * mass[:, None]
    of_leaf = sparse.block_array([[sparse.csr_array((inner, leaves * bins))], [_rows_of(leaves, bins, carried)]])
    share = _rows_of(leaves, bins, np.ones((leaves, bins)))
    width = sparse.kron(mass[None, :], sparse.eye_array(bins))
    matrix = sparse.block_array(
        [
            [flow_matrix(pair), None, None],  # f(cx) - p f(c) <= p(x|root) [c = root]
            [identity, -identity, None],  # f - M <= 0
            [None, identity - _children(pair), of_leaf],  # M - sum of the children's M, or - sum_b phibar T, = 0
            [None, None, share],  # sum_b t = 1
            [None, None, width],  # sum_leaf Q t = width
        ]
    )
    upper = np.concatenate([flow_bounds(pair), np.zeros(2 * nodes), np.ones(leaves), np.diff(edges)])
    lower = np.concatenate([np.full(2 * nodes, -np.inf), upper[2 * nodes :]])
    columns = matrix.shape[1]
    return highs.LinearProgram(
        objective=np.concatenate([np.ones(nodes), np.zeros(columns - nodes)]),
        matrix=matrix,
        row_lower=lower,
        row_upper=upper,
        lower=np.zeros(columns),
        upper=np.full(columns, np.inf),
    )


def every_entry(leaves: int, edges: Vector, table: Vector) -> RankTable:
    """A full table, leaf by leaf, as a RankTable."""
    bins = len(edges) - 1
    return RankTable(edges, np.repeat(np.arange(leaves), bins), np.tile(np.arange(bins), leaves), table)


def with_jumps(pair: ModelPair, multipliers: Levels, edges: Vector, gap: float) -> Vector:
    """The edges and every rank at which the height of the leaves falls by more than a share of the gap."""
    height = down_the_tree(certify.path_prices(pair, multipliers))
    order = np.argsort(-height, kind="stable")
    falls = height[order][:-1] - height[order][1:] > max(gap, 1e-6)
    steps = np.cumsum(pair.draft_paths[-1][order])[:-1][falls]
    merged = np.unique(np.concatenate([edges, steps[(steps > 0) & (steps < 1)]]))
    return np.asarray(merged[np.concatenate([[True], np.diff(merged[:-1]) > 1e-10, [True]])])


def _children(pair: ModelPair) -> sparse.csr_array:
    """Row c has ones at the children of c (none for a leaf)."""
    inner = pair.nodes - pair.draft_paths[-1].size
    below = np.arange(pair.vocab_size, pair.nodes)
    start = np.concatenate([np.arange(inner + 1) * pair.vocab_size, np.full(pair.nodes - inner, below.size)])
    return sparse.csr_array((np.ones(below.size), below, start), shape=(pair.nodes, pair.nodes))


def _rows_of(leaves: int, bins: int, values: npt.NDArray[np.float64]) -> sparse.csr_array:
    """Row i holds ``values[i]`` at the entries of leaf i."""
    start = np.arange(leaves + 1) * bins
    return sparse.csr_array((values.reshape(-1), np.arange(leaves * bins), start), shape=(leaves, leaves * bins))
