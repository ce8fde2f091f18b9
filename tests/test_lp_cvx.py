"""The cvxpy programs: equal to the optimum by two solvers, and open to more constraints."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from lp_cases import random_pair, rational_pair

from lpverify.errors import InputError, SizeError
from lpverify.lp import certify, coverage, cvx, reference, single_path
from lpverify.lp.rational import exact_optimum, level_sets

SOLVERS = ("CLARABEL", "HIGHS")


def edges_where_prices_jump(pair, paths):
    """The draft masses below the antichains that carry one optimal dual."""
    multipliers = reference.solve_by_cuts(pair, paths).details["multipliers"]
    draft = np.concatenate(pair.draft_paths[1:])
    masses = np.unique(np.round(level_sets(pair, multipliers) @ draft, 12))
    return [0.0, *masses[(masses > 1e-9) & (masses < 1 - 1e-9)].tolist(), 1.0]


@pytest.mark.parametrize("solver", SOLVERS)
def test_single_path(solver):
    pair = random_pair(3, 3, 0)
    program = cvx.single_path_program(pair)
    assert program.solve(solver=solver) == pytest.approx(single_path.solve(pair).value, abs=1e-6)
    assert [f.shape for f in program.variables["prefix_acceptance"]] == [(1,), (3,), (9,), (27,)]
    assert program.problem.variables()[0].name().startswith("prefix_acceptance")


@pytest.mark.parametrize("solver", SOLVERS)
def test_multi_path_with_the_right_edges(solver):
    pair = random_pair(2, 3, 1)
    value = reference.solve_antichains(pair, 2).value
    program = cvx.multi_path_program(pair, 2, edges_where_prices_jump(pair, 2))
    assert program.solve(solver=solver) == pytest.approx(value, abs=1e-6)
    selected = [np.asarray(level.value) for level in program.variables["selected"]]
    assert coverage.separate(pair.draft_paths, tuple(selected), 2)[1] < 1e-6
    multipliers = (np.zeros(1), *(np.maximum(c.dual_value, 0).reshape(-1) for c in program.constraints["target"]))
    assert certify.upper_bound(pair, multipliers, 2) == pytest.approx(value, abs=1e-5)


def test_two_solvers_agree_and_enclose_the_optimum():
    pair = random_pair(3, 2, 1)
    value = reference.solve_antichains(pair, 3).value
    program = cvx.multi_path_program(pair, 3, 24)
    clarabel, highs = (program.solve(solver=solver) for solver in SOLVERS)
    assert clarabel == pytest.approx(highs, abs=1e-6)
    assert value - 0.01 < highs <= value + 1e-7
    multipliers = (np.zeros(1), *(np.maximum(c.dual_value, 0).reshape(-1) for c in program.constraints["target"]))
    assert value - 1e-7 <= certify.upper_bound(pair, multipliers, 3) < value + 0.01


def test_any_bins_are_a_lower_bound():
    pair = rational_pair(3, 2, 0, 20)
    exact = float(exact_optimum(pair, 3).exact)
    values = [cvx.multi_path_program(pair, 3, bins).solve(solver="HIGHS") for bins in (1, 2, 4, 8, 32)]
    assert values[0] == pytest.approx(single_path.solve(pair).value, abs=1e-7)
    assert values == sorted(values)  # each binning refines the one before
    assert all(value <= exact + 1e-7 for value in values)
    assert values[-1] > exact - 0.02


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_constraint_of_the_user_costs_something(solver):
    pair = random_pair(3, 2, 3)
    program = cvx.multi_path_program(pair, 2, 8)
    free = program.solve(solver=solver)
    first = program.variables["prefix_acceptance"][1]
    token = int(np.argmax(first.value))
    cap = first.value[token] / 2
    capped = program.with_constraints([first[token] <= cap])
    assert capped.solve(solver=solver) < free - 1e-3
    assert first.value[token] <= cap + 1e-6
    assert len(capped.constraints["extra"]) == 1
    assert "extra" not in program.constraints
    assert program.solve(solver=solver) == pytest.approx(free, abs=1e-6)


def test_border():
    pair = random_pair(2, 2, 0)
    for bad in ([0.0, 0.5], [0.0, 0.6, 0.4, 1.0], [0.1, 1.0]):
        with pytest.raises(InputError, match="rising edges from 0 to 1"):
            cvx.multi_path_program(pair, 2, bad)
    with pytest.raises(InputError, match="bins"):
        cvx.multi_path_program(pair, 2, 0)
    with pytest.raises(SizeError, match="1000 leaves x 2000 bins, expected at most 1000000"):
        cvx.multi_path_program(random_pair(10, 3, 0), 2, 2000)


def test_cvxpy_is_loaded_only_when_a_program_is_built():
    code = "import sys, lpverify.lp.cvx; print('cvxpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
