"""The HiGHS wrapper: signs, warm additions, errors, silence."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse

from lpverify.lp.highs import LinearProgram, Model, SolverError, solve

INF = np.inf


def program(upper: float = 4.0) -> LinearProgram:
    """maximise 3x + 2y s.t. x + y <= upper, x + 3y <= 7, x >= 1 written as a row, x <= 3."""
    return LinearProgram(
        objective=np.array([3.0, 2.0]),
        matrix=sparse.csr_array(np.array([[1.0, 1.0], [1.0, 3.0], [1.0, 0.0]])),
        row_lower=np.array([-INF, -INF, 1.0]),
        row_upper=np.array([upper, 7.0, INF]),
        lower=np.zeros(2),
        upper=np.array([3.0, INF]),
    )


@pytest.mark.parametrize("method", ["simplex", "ipm"])
def test_duals_are_derivatives(method):
    point = solve(program(), method=method, tolerance=1e-8)
    assert point.status == "optimal"
    np.testing.assert_allclose(point.x, [3, 1], atol=1e-5)
    np.testing.assert_allclose(point.row_duals, [2, 0, 0], atol=1e-5)
    assert solve(program(4.001)).objective - solve(program()).objective == pytest.approx(0.002)
    assert point.basic_columns.any() == (method == "simplex")


def test_rows_can_be_added():
    model = Model(program())
    assert model.solve().objective == pytest.approx(11)
    model.add_rows(sparse.csr_array(np.array([[0.0, 1.0]])), np.array([0.5]))
    point = model.solve()
    assert point.objective == pytest.approx(10)
    np.testing.assert_allclose(point.x, [3, 0.5])


def test_a_basis_can_be_set():
    """From the optimal basis of one right side, that of another is found; the basis flags describe it."""
    point = solve(program())
    model = Model(program(4.5))
    model.start_from(point.basic_columns, point.basic_rows)
    moved = model.solve()
    assert moved.objective == pytest.approx(12 - 1 / 3)
    assert moved.basic_columns.sum() + moved.basic_rows.sum() == 3


def test_no_point_is_an_error():
    bad = program()
    with pytest.raises(SolverError, match="Infeasible"):
        solve(LinearProgram(bad.objective, bad.matrix, np.full(3, 10.0), np.full(3, INF), bad.lower, bad.upper))
    with pytest.raises(SolverError, match="option"):
        solve(bad, method="no such")


def test_prints_nothing():
    """Standard output belongs to JSON; HiGHS prints a banner once per process unless told not to."""
    code = (
        "import numpy as np; from scipy import sparse; from lpverify.lp.highs import LinearProgram, solve; "
        "a = np.ones(1); solve(LinearProgram(a, sparse.csr_array(np.ones((1, 1))), 0 * a, a, 0 * a, a))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert done.stderr == ""
