"""Time of the rank-quantile solver against the plain dense program by HiGHS, in one run (1,110 nodes, K = 4).

The dense program may end before its bounds are 1e-8 apart (HiGHS's interior point stops at about 1e-7), so its time is
a lower bound for what it would need and the ratio printed is at most the true one.
"""

from __future__ import annotations

import time

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from lpverify.core import families as make
from lpverify.lp import certify, dense, quantile

GAP = 1e-8


@pytest.mark.benchmark(group="multi-path optimum, 1,110 nodes")
def test_quantile_against_dense(benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str]) -> None:
    pair = make.dirichlet(10, 3, 0, alpha=0.5)
    began = time.perf_counter()
    plain = dense.solve(pair, 4, tolerance=GAP)
    dense_seconds = time.perf_counter() - began
    ours = benchmark.pedantic(lambda: quantile.solve(pair, 4, tolerance=GAP), rounds=3, warmup_rounds=1)
    ratio = benchmark.stats.stats.mean / dense_seconds
    benchmark.extra_info |= {"dense seconds": dense_seconds, "dense gap": plain.gap, "ratio": ratio, "gap": ours.gap}
    with capsys.disabled():
        print(
            f"\nrank-quantile: gap {ours.gap:.1e} in {benchmark.stats.stats.mean:.2f} s; dense: gap {plain.gap:.1e} in "
            f"{dense_seconds:.2f} s ({plain.status}); ratio {ratio:.3f}"
        )
    assert ours.gap <= GAP
    assert certify.check(pair, ours.certificate).valid  # type: ignore[arg-type]
