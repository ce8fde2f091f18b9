"""The multi-path programs: two formulations that share no code, closed forms, theorems, cutting planes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from lp_cases import REFERENCE, iid_pair, random_pair, rational_pair, reference_pair

from lpverify.errors import InputError, SizeError
from lpverify.lp import coverage, one_step, reference, single_path

TINY = [(2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 1)]


@pytest.mark.parametrize("paths", [1, 2, 3])
@pytest.mark.parametrize(("vocab", "depth"), TINY)
def test_transport_is_antichain_is_cuts(vocab, depth, paths):
    for seed in range(2):
        pair = random_pair(vocab, depth, seed)
        flow, cover = reference.solve_flow(pair, paths), reference.solve_antichains(pair, paths)
        cuts = reference.solve_by_cuts(pair, paths)
        assert flow.value == pytest.approx(cover.value, abs=1e-7)
        assert cuts.status == "optimal"
        assert cuts.lower_bound - 1e-8 <= cover.value <= cuts.upper_bound + 1e-8
        for solution in (flow, cover):  # the multipliers alone, without the solver, prove the value
            assert solution.upper_bound == pytest.approx(solution.value, abs=1e-6)


def sum_of_node_bounds(pair, num_paths):
    """``sum_c min(P(c), phi(Q(c)))``, an upper bound that forgets the order of the nodes along a path (theory 2.6)."""
    levels = zip(pair.target_paths, pair.draft_paths, strict=True)
    return sum(np.minimum(p, coverage.phi(q, num_paths)).sum() for p, q in levels)


@pytest.mark.parametrize("seed", range(5))
def test_theorems(seed):
    """LP(1) = BV; LP rises with K; LP <= node relaxation <= ..., LP <= sum_c min(P, phi(Q))."""
    pair = random_pair(*[(2, 3), (3, 2)][seed % 2], seed)  # type: ignore[call-arg]
    values = [reference.solve_antichains(pair, paths).value for paths in (1, 2, 3, 4)]
    assert values[0] == pytest.approx(single_path.solve(pair).value, abs=1e-8)
    assert all(later >= earlier - 1e-8 for earlier, later in zip(values, values[1:], strict=False))
    for paths, value in enumerate(values, start=1):
        relaxed, _ = coverage.node_relaxation(pair, paths)
        assert value <= relaxed + 1e-8
        assert relaxed <= sum_of_node_bounds(pair, paths) + 1e-12


def test_relaxations_in_fractions():
    pair = rational_pair(3, 3, 1)
    assert coverage.node_relaxation(pair, 1)[0] == single_path.solve(pair).exact
    assert coverage.node_relaxation(pair, 3)[0] <= sum_of_node_bounds(pair, 3)


@pytest.mark.parametrize("paths", [1, 2, 4])
def test_equal_laws_accept_everything(paths):
    for seed in range(2):
        pair = random_pair(2, 3, seed)
        same = type(pair).from_levels(pair.target, pair.target)
        assert reference.solve_antichains(same, paths).value == pytest.approx(4, abs=1e-8)
        assert reference.solve_flow(same, paths).value == pytest.approx(4, abs=1e-8)


@pytest.mark.parametrize("paths", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_one_step_closed_form(paths, seed):
    pair = rational_pair(5, 1, seed)
    closed = one_step.solve(pair, paths)
    assert reference.solve_antichains(pair, paths).value == pytest.approx(closed.value, abs=1e-8)
    every_set = [np.array(list(np.binary_repr(n, 5)), dtype=int).astype(bool) for n in range(32)]
    target, draft = pair.target[0][0], pair.draft[0][0]
    zero = Fraction(0)
    assert closed.exact == 2 + min(
        coverage.phi(sum(draft[h], start=zero), paths) - sum(target[h], start=zero) for h in every_set
    )


@pytest.mark.parametrize(
    ("target", "draft", "paths", "acceptance"),
    [
        ("2 4 4", "6 3 1", 1, "0.6"),
        ("2 4 4", "6 3 1", 2, "0.79"),
        ("2 4 4", "6 3 1", 3, "0.871"),
        ("3 7", "5 5", 2, "1"),
        ("25 75", "60 40", 2, "0.89"),
        ("25 75", "60 40", 3, "1"),
    ],
)
def test_one_step_table(target, draft, paths, acceptance):
    rows = [[Fraction(int(n), sum(map(int, row.split()))) for n in row.split()] for row in (target, draft)]
    assert one_step.solve(iid_pair(*rows, 1), paths).exact == 1 + Fraction(acceptance)  # type: ignore[call-arg]


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.stem)
def test_reference(path):
    pair, expected = reference_pair(path)
    for paths, values in expected["paths"].items():
        low, high = values["multi_path_optimum"]
        for method in (reference.solve_antichains, reference.solve_flow):
            try:
                value = method(pair, int(paths)).value
            except SizeError:
                assert path.stem in ("tree-v3-l4", "tree-v4-l3")
                continue
            assert low - 1e-7 <= value <= high + 1e-7
        if pair.depth == 1:
            assert one_step.solve(pair, int(paths)).value == pytest.approx(low, abs=1e-7)


@pytest.mark.parametrize("name", ["tree-v4-l3", "tree-v3-l4"])
def test_cutting_planes_beyond_enumeration(name):
    pair, expected = reference_pair(next(path for path in REFERENCE if path.stem == name))
    low, high = expected["paths"]["2"]["multi_path_optimum"]
    solution = reference.solve_by_cuts(pair, 2, tolerance=1e-7)
    assert solution.status == "optimal"
    assert solution.lower_bound <= high + 1e-9
    assert solution.upper_bound >= low - 1e-9
    assert [r.lower_bound for r in solution.refinement_steps] == sorted(
        r.lower_bound for r in solution.refinement_steps
    )


def test_cutting_planes_out_of_rounds_still_bound():
    pair = random_pair(3, 2, 0)
    value = reference.solve_antichains(pair, 3).value
    solution = reference.solve_by_cuts(pair, 3, max_rounds=1)
    assert solution.status == "stalled"
    assert solution.lower_bound - 1e-9 <= value <= solution.upper_bound + 1e-9
    assert solution.gap > 1e-6


def test_antichains_are_antichains():
    rows = reference.antichains(2, 3)
    assert rows.shape == (675, 14)  # 26^2 with the empty one, 26 = 1 + 5^2, 5 = 1 + 2^2
    dense = rows.toarray().astype(bool)
    assert len(np.unique(dense, axis=0)) == len(dense)
    for child in range(2, 14):
        assert not (dense[:, child] & dense[:, child // 2 - 1]).any()


def test_sizes_are_refused_with_the_method_that_works():
    with pytest.raises(SizeError, match="V = 3, L = 3, expected at most 100000; use the rank-quantile"):
        reference.solve_antichains(random_pair(3, 3, 0), 2)
    with pytest.raises(SizeError, match="V = 10, L = 4, expected at most 100000"):
        reference.solve_antichains(random_pair(10, 4, 0), 2)
    with pytest.raises(SizeError, match="flow variables for V = 4, L = 3, iid:4, expected at most 200000"):
        reference.solve_flow(random_pair(4, 3, 0), 4)
    with pytest.raises(SizeError, match="11110 nodes, expected at most 5000"):
        reference.solve_by_cuts(random_pair(10, 4, 0), 2)
    with pytest.raises(InputError, match="depth for the one-step closed form: got 2, expected 1"):
        one_step.solve(random_pair(2, 2, 0), 2)
    with pytest.raises(InputError, match="paths"):
        reference.solve_antichains(random_pair(2, 2, 0), 0)
