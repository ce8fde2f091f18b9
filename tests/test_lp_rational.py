"""Optima as fractions: closed forms, known values, agreement with formulations that share no code."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lp_cases import iid_pair, random_pair, rational_pair

from lpverify.errors import InputError, SizeError
from lpverify.lp import certify, highs, one_step, rational, reference, single_path
from lpverify.lp.elimination import solve_square
from lpverify.lp.rational import exact_optimum, level_sets
from lpverify.numerics import as_float

COIN = [Fraction(1, 4), Fraction(3, 4)], [Fraction(3, 5), Fraction(2, 5)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("denominator", [6, 1000])
def test_one_path_is_block_verification(seed, denominator):
    pair = rational_pair(3, 3, seed, denominator)
    assert exact_optimum(pair, 1).exact == single_path.solve(pair).exact


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 7))
def test_one_step_closed_form(seed, paths, vocab):
    pair = rational_pair(vocab, 1, seed, 12)
    assert exact_optimum(pair, paths).exact == one_step.solve(pair, paths).exact


@pytest.mark.parametrize(
    ("depth", "paths", "value"),
    [(1, 1, "1.65"), (2, 1, "2.16"), (3, 1, "2.569375"), (2, 2, "2.5944"), (2, 3, "2.844796"), (2, 4, "2.93962864")],
)
def test_coin_table(depth, paths, value):
    assert exact_optimum(iid_pair(*COIN, depth), paths).exact == Fraction(value)


@pytest.mark.parametrize("paths", [1, 2, 3])
def test_extremes(paths):
    fair = [Fraction(1, 2)] * 2
    assert exact_optimum(iid_pair(fair, fair, 3), paths).exact == 4
    one, zero = Fraction(1), Fraction(0)
    assert exact_optimum(iid_pair([one, zero], [zero, one], 3), paths).exact == 1
    hit = 1 - Fraction(1, 2) ** paths  # a one-hot target on a fair draft: the first token is hit
    assert exact_optimum(iid_pair([one, zero], fair, 1), paths).exact == 1 + hit


@pytest.mark.parametrize("paths", [2, 3])
@pytest.mark.parametrize(("vocab", "depth"), [(2, 2), (2, 3), (3, 2)])
def test_agrees_with_the_other_formulations(vocab, depth, paths):
    for seed in range(2):
        pair = rational_pair(vocab, depth, seed, 20)
        solution = exact_optimum(pair, paths)
        assert solution.status == "optimal"
        assert solution.value == pytest.approx(reference.solve_flow(pair, paths).value, abs=1e-8)
        assert solution.value == pytest.approx(reference.solve_antichains(pair, paths).value, abs=1e-8)


@pytest.mark.parametrize("paths", [2, 3, 4])
@pytest.mark.parametrize(("vocab", "depth", "denominator"), [(3, 3, 10), (3, 3, 1000), (4, 3, 10), (4, 3, 10**6)])
def test_tables_up_to_84_nodes(vocab, depth, denominator, paths):
    pair = rational_pair(vocab, depth, 1, denominator)
    solution = exact_optimum(pair, paths)
    assert solution.exact is not None
    assert solution.exact_bounds == (solution.exact, solution.exact)
    proof = certify.check_coverage(pair, solution.details["prefix_acceptance"], solution.details["multipliers"], paths)
    assert proof == certify.CertificateCheck(solution.exact, solution.exact, True, ())
    cuts = reference.solve_by_cuts(pair, paths)
    assert cuts.lower_bound - 1e-9 <= solution.value <= cuts.upper_bound + 1e-9


@pytest.mark.parametrize(("vocab", "depth", "seed"), [(3, 4, 0), (5, 3, 0), (5, 3, 1)])
def test_a_basis_beyond_float_tolerance_is_refined(vocab, depth, seed):
    """Here HiGHS's first basis is wrong by less than its tolerance 1e-10, so the first exact vertex proves nothing."""
    pair = rational_pair(vocab, depth, seed, 1000)
    solution = exact_optimum(pair, 2)
    assert solution.exact is not None
    assert certify.check_coverage(pair, solution.details["prefix_acceptance"], solution.details["multipliers"], 2).valid


@pytest.mark.parametrize("seed", [0, 2, 4, 5])  # seeds whose basis has multipliers that count as decided
def test_refined_objective_is_the_old_one_on_its_equations(seed, monkeypatch):
    """``sum x`` = refined objective + multipliers of the equations, scaled: an identity that holds at every basis."""
    monkeypatch.setattr(rational, "REACH", 1.0)  # so that some rows and columns count as decided
    pair = rational_pair(3, 3, seed, 50)
    rows = rational.CoverageRows(pair, 2)
    noise = np.random.default_rng(seed).uniform(-2, 2, pair.nodes)
    point = highs.solve(replace(rows.program(), objective=noise))
    vertex = rows.vertex(point.basic_columns, point.basic_rows)
    # the basis belongs to another objective, so something is wrong with it
    refined = rows.refined(vertex)
    reduced = 1 - rows.combine(vertex.tight, vertex.duals)
    worst = max(-min(vertex.duals), max(reduced[rows.draft > 0]))
    assert worst > 0
    equations = np.flatnonzero(refined.row_lower == 0)
    assert equations.size
    place = {int(row): k for k, row in enumerate(vertex.tight)}
    decided = sum(as_float(rows.combine(np.array([row]), vertex.duals[[place[row]]])) for row in equations.tolist())
    free = refined.upper > 0
    assert free.any()
    np.testing.assert_allclose(refined.objective[free] * float(worst) + decided[free], 1, rtol=1e-9)


def test_coverage_check_rejects_what_is_not_proved():
    pair = rational_pair(3, 2, 1, 50)
    details = exact_optimum(pair, 2).details
    f, multipliers = details["prefix_acceptance"], details["multipliers"]
    assert certify.check_coverage(pair, f, multipliers, 2).valid
    assert certify.check_coverage(pair.floats, *([as_float(v) for v in part] for part in (f, multipliers)), 2).valid  # type: ignore[call-arg]
    tiny = Fraction(1, 10**15)
    less_paths = certify.check_coverage(pair, f, multipliers, 1)
    assert "an antichain is not covered" in less_paths.violations
    more = (*f[:-1], f[-1] + tiny)
    violations = certify.check_coverage(pair, more, multipliers, 2).violations
    assert violations[0].startswith("a prefix acceptance probability exceeds p f of its parent, level 2,")
    assert not certify.check_coverage(pair, (f[0] - tiny, *f[1:]), multipliers, 2).valid
    assert not certify.check_coverage(pair, (*f[:-1], f[-1] - 1), multipliers, 2).valid
    assert not certify.check_coverage(pair, f, (*multipliers[:-1], multipliers[-1] - 9), 2).valid


def test_optimum_rises_with_paths_exactly():
    pair = rational_pair(3, 3, 5, 100)
    values = [exact_optimum(pair, paths).exact for paths in range(1, 6)]
    assert None not in values
    assert values == sorted(values)


def start_for(pair, paths):
    """A certificate with the multipliers of cutting planes and a blind choice of path."""
    multipliers = reference.solve_by_cuts(pair.floats, paths).details["multipliers"]
    ranks = certify.repair(pair.floats, single_path.one_bin(pair.floats))
    return certify.certificate_of(pair.floats, ranks, multipliers, paths)


def test_start_gives_the_same_fraction():
    pair = rational_pair(4, 3, 2, 50)
    assert exact_optimum(pair, 3, start_for(pair, 3)).exact == exact_optimum(pair, 3).exact


def test_level_sets_are_antichains_that_carry_the_prices():
    pair = random_pair(3, 3, 0)
    multipliers = reference.solve_by_cuts(pair, 2).details["multipliers"]
    sets = level_sets(pair, multipliers)
    for child in range(3, pair.nodes):
        above = child
        while (above := above // 3 - 1) >= 0:
            assert not (sets[:, child] & sets[:, above]).any()
    prices = np.concatenate(certify.path_prices(pair, multipliers)[1:])
    assert (sets.any(axis=0) == (prices > 0)).all()


def test_beyond_the_limit_a_certificate_gives_rational_bounds():
    pair = rational_pair(8, 3, 0, 30)
    with pytest.raises(SizeError, match="584 nodes, expected at most 400; pass the certificate"):
        exact_optimum(pair, 2)
    ranks = certify.repair(pair.floats, single_path.one_bin(pair.floats))
    multipliers = single_path.solve(pair.floats).certificate.multipliers
    start = certify.certificate_of(pair.floats, ranks, multipliers, 2)
    solution = exact_optimum(pair, 2, start)
    assert solution.exact is None
    lower, upper = solution.exact_bounds
    assert lower == single_path.solve(pair).exact  # a blind choice is block verification
    assert lower < upper


def test_out_of_time_is_still_bounds():
    pair = rational_pair(4, 3, 0, 1000)
    solution = exact_optimum(pair, 2, time_limit=0.0)
    exact = exact_optimum(pair, 2).exact
    assert solution.exact_bounds[0] <= exact <= solution.exact_bounds[1]


def test_border():
    with pytest.raises(InputError, match="exact optimum: got a problem in floating point, expected rational"):
        exact_optimum(random_pair(2, 2, 0), 2)
    with pytest.raises(InputError, match="paths"):
        exact_optimum(rational_pair(2, 2, 0), 0)


@settings(deadline=None)
@given(st.integers(1, 6), st.data())
def test_elimination(size, data):
    entries = st.lists(st.integers(-2, 2).map(Fraction), min_size=size, max_size=size)
    matrix = [data.draw(entries) for _ in range(size)]
    wanted = data.draw(entries)
    right = [sum((a * x for a, x in zip(row, wanted, strict=True)), start=Fraction(0)) for row in matrix]
    found = solve_square([dict(enumerate(row)) for row in matrix], right)
    if found is None:
        assert abs(np.linalg.det(np.array(matrix, dtype=float))) < 1e-9
    else:
        assert found == wanted
