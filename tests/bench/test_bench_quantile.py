"""Time of the rank-quantile solver as ratios to two peers, measured in turns in one run (K = 4, Dirichlet rows).

* Solver against the dense program by HiGHS (`lpverify.lp.dense`), from the problem to a certified gap of 1e-8. HiGHS
  stops at about 1e-7, so its time is at most what it would need and the printed ratio is at least the true one.
* Interior-point method against Clarabel on one and the same sparse program: the bins and table entries of the last
  refinement step. Both start cold and stop at a gap of 1e-8.

Every repetition runs all methods one after the other. A ratio is the mean over repetitions, its error the standard
error of that mean, so that a machine that slows down during the run shows in the error. 11,110 nodes take minutes:
``LPVERIFY_BENCH_LARGE=1 make bench``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import clarabel
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from scipy import sparse

from lpverify.core import families as make
from lpverify.core.model_pair import ModelPair
from lpverify.lp import certify, dense, highs, quantile
from lpverify.lp.bins import Heights

GAP = 1e-8
NUM_PATHS = 4
REPETITIONS = 3
LARGE = pytest.mark.skipif(not os.environ.get("LPVERIFY_BENCH_LARGE"), reason="minutes; set LPVERIFY_BENCH_LARGE=1")


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def ratio(ours: list[float], peer: list[float]) -> tuple[float, float]:
    """Mean of the ratios of the repetitions, and its standard error."""
    ratios = np.array(ours) / np.array(peer)
    return float(ratios.mean()), float(ratios.std(ddof=1) / np.sqrt(len(ratios)))


def last_bins(pair: ModelPair, multipliers: tuple[np.ndarray, ...]) -> quantile.Bins:
    """Bins and entries as in the last refinement step, from optimal multipliers."""
    heights = Heights(certify.leaf_heights(pair, multipliers), pair.draft_paths[-1], NUM_PATHS)
    edges = heights.refined(np.linspace(0.0, 1.0, quantile.FIRST_BINS + 1), GAP, quantile.MAX_BINS)
    return quantile.Bins(edges, *heights.support(edges, 1e-5))


def by_interior_point(pair: ModelPair, bins: quantile.Bins) -> float:
    """The optimum of the program on ``bins`` by the project's own method."""
    method = quantile.interior_point(pair, NUM_PATHS, bins)
    while method.complementarity + method.primal_residual > GAP:
        method.step()
    return 1 + float(method.shape.columns(method.x)[0][method.shape.live_f].sum())


def by_clarabel(program: highs.LinearProgram) -> float:
    """The same by Clarabel: inequalities first, then equations, then x >= 0."""
    equation = program.row_lower == program.row_upper
    matrix, columns = sparse.csr_array(program.matrix), len(program.objective)
    rows = sparse.vstack([matrix[~equation], matrix[equation], -sparse.eye_array(columns)], format="csc")
    right = np.concatenate([program.row_upper[~equation], program.row_upper[equation], np.zeros(columns)])
    count = int(equation.sum())
    cones = [
        clarabel.NonnegativeConeT(len(equation) - count),
        clarabel.ZeroConeT(count),
        clarabel.NonnegativeConeT(columns),
    ]
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.tol_gap_abs, settings.tol_gap_rel = False, GAP, GAP
    quadratic = sparse.csc_matrix((columns, columns))
    solver = clarabel.DefaultSolver(quadratic, -program.objective, sparse.csc_matrix(rows), right, cones, settings)
    return 1 - float(solver.solve().obj_val)


@pytest.mark.benchmark(group="multi-path optimum")
@pytest.mark.parametrize("depth", [3, pytest.param(4, marks=LARGE)], ids=["1,110 nodes", "11,110 nodes"])
def test_quantile_against_peers(benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str], depth: int) -> None:
    pair = make.dirichlet(10, depth, 0, alpha=0.5)
    ours = benchmark.pedantic(lambda: quantile.solve(pair, NUM_PATHS, tolerance=GAP), rounds=1)
    assert ours.gap <= GAP
    assert certify.check(pair, ours.certificate).valid
    bins = last_bins(pair, ours.certificate.multipliers)
    program = dense.program(pair, NUM_PATHS, bins.edges, *bins.entries(np.ones(len(bins.lowest), dtype=bool)))
    assert by_interior_point(pair, bins) == pytest.approx(by_clarabel(program), abs=1e-5)
    runs: dict[str, Callable[[], object]] = {
        "solver": lambda: quantile.solve(pair, NUM_PATHS, tolerance=GAP),
        "interior point": lambda: by_interior_point(pair, bins),
        "Clarabel": lambda: by_clarabel(program),
    }
    if depth == 3:  # beyond, the dense program is refused for its size
        runs["dense"] = lambda: dense.solve(pair, NUM_PATHS, tolerance=GAP)
    times = {name: [] for name in runs}
    for _ in range(REPETITIONS):
        for name, run in runs.items():
            times[name].append(seconds(run))
    peers = [(a, b) for a, b in (("solver", "dense"), ("interior point", "Clarabel")) if b in times]
    with capsys.disabled():
        for name, peer in peers:
            mean, error = ratio(times[name], times[peer])
            means = f"{np.mean(times[name]):.2f} s against {np.mean(times[peer]):.2f} s"
            print(f"\n{pair.nodes:,} nodes: {name} / {peer}: {mean:.3f} +- {error:.3f} ({means})", end="")
            benchmark.extra_info[f"{name} / {peer}"] = mean
            benchmark.extra_info[f"{name} / {peer}, standard error"] = error
        print()
