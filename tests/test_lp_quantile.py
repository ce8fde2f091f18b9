"""The rank-quantile solver: against the reference formulations, on hard inputs, and its parts by hand."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpverify import errors
from lpverify.auditing.cases import cases
from lpverify.core import families as make
from lpverify.core.model_pair import ModelPair
from lpverify.core.problem import VerifyProblem, load_problem
from lpverify.core.results import RankTable, RefinementStep
from lpverify.drafting.iid_paths import phi
from lpverify.lp import certify, dense, quantile, reference
from lpverify.lp.bins import Heights
from lpverify.lp.coverage import node_relaxation, phi_mean_slope, phi_slope
from lpverify.lp.solve import METHODS, solve
from lpverify.lp.tree_newton import Factorisation

REFERENCE = sorted((Path(__file__).parent / "data" / "reference").glob("*.json"))

TINY = [
    pytest.param(make.dirichlet(2, 2, 5, alpha=0.5), id="dirichlet-2-2"),
    pytest.param(make.dirichlet(3, 2, 6, alpha=0.7), id="dirichlet-3-2"),
    pytest.param(make.softmax(2, 3, 7, temperature=0.3), id="softmax-2-3"),
    pytest.param(make.markov(3, 2, 8), id="markov-3-2"),
    pytest.param(make.adversarial("ties", 3, 2, seed=1).floats, id="ties-3-2"),
]


@pytest.mark.parametrize("file", REFERENCE, ids=lambda f: f.stem)
def test_reference_optima(file: Path) -> None:
    document = json.loads(file.read_text())
    for paths, values in document["block_efficiency"]["paths"].items():
        solution = solve(load_problem(document["problem"]["name"], num_paths=int(paths)))
        lower, upper = values["multi_path_optimum"]
        assert solution.status == "optimal"
        assert solution.lower_bound == pytest.approx(lower, abs=1e-7)
        assert solution.upper_bound == pytest.approx(upper, abs=1e-7)


@pytest.mark.parametrize("pair", TINY)
@pytest.mark.parametrize("paths", [2, 3])
def test_three_formulations_agree_and_every_round_encloses_the_optimum(pair: ModelPair, paths: int) -> None:
    steps: list[RefinementStep] = []
    solution = quantile.solve(pair, paths, progress=steps.append)
    value = reference.solve_flow(pair, paths).value
    assert reference.solve_antichains(pair, paths).value == pytest.approx(value, abs=2e-8)
    assert solution.status == "optimal"
    assert solution.value == pytest.approx(value, abs=2e-8)
    assert solution.refinement_steps == tuple(steps)
    for step in steps:
        assert step.lower_bound <= value + 2e-8
        assert step.upper_bound >= value - 2e-8


def test_dense_program_agrees() -> None:
    pair = make.dirichlet(3, 3, 11, alpha=0.5)
    plain = dense.solve(pair, 3, tolerance=1e-6)
    ours = quantile.solve(pair, 3)
    assert plain.lower_bound <= ours.upper_bound + 1e-12
    assert ours.lower_bound <= plain.upper_bound + 1e-12
    assert plain.gap <= 1e-6
    assert certify.check(pair, plain.certificate).valid  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", make.ADVERSARIAL_KINDS)
@pytest.mark.parametrize("paths", [2, 5, 64])
def test_hard_inputs(kind: str, paths: int) -> None:
    for vocab_size, depth in ((2, 2), (3, 3)):
        pair = make.adversarial(kind, vocab_size, depth, seed=3).floats
        solution = quantile.solve(pair, paths, tolerance=1e-8)
        assert solution.status == "optimal"
        assert certify.check(pair, solution.certificate).valid  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in cases() if name.startswith("subnormal")])
def test_subnormal_draft_masses(name: str) -> None:
    """Warnings are errors here: no quotient of a warm start may overflow."""
    case = cases()[name]
    assert quantile.solve(case.problem.pair, case.problem.num_paths).status == "optimal"


@pytest.mark.parametrize("depth", [1, 3])
def test_one_token_vocabulary(depth: int) -> None:
    pair = ModelPair.from_levels([[[1.0]]] * depth, [[[1.0]]] * depth)
    assert quantile.solve(pair, 4).value == pytest.approx(depth + 1, abs=1e-9)


@given(seed=st.integers(0, 10**6), vocab_size=st.integers(2, 4), depth=st.integers(1, 3), paths=st.integers(1, 6))
@settings(max_examples=15, deadline=None)
def test_theorems(seed: int, vocab_size: int, depth: int, paths: int) -> None:
    """LP never falls in K, p = q gives L + 1, LP <= node relaxation (theory 2.6)."""
    pair = make.dirichlet(vocab_size, depth, seed, alpha=0.5)
    fewer, more = quantile.solve(pair, paths, tolerance=1e-8), quantile.solve(pair, paths + 1, tolerance=1e-8)
    assert fewer.lower_bound <= more.upper_bound + 1e-12
    assert fewer.lower_bound <= node_relaxation(pair, paths)[0] + 1e-12
    same = ModelPair.from_levels(pair.target, pair.target)
    assert quantile.solve(same, paths).value == pytest.approx(depth + 1, abs=1e-9)


def test_a_few_hundred_nodes_to_eight_digits_with_a_rational_certificate() -> None:
    pair = make.rational(4, 4, 2, denominator=60)
    solution = quantile.solve(pair, 3, tolerance=1e-8)
    assert solution.status == "optimal"
    exact = certify.check(pair, solution.certificate, exact=True)  # type: ignore[arg-type]
    assert exact.valid
    assert isinstance(exact.lower_bound, Fraction)
    assert exact.lower_bound <= exact.upper_bound
    assert float(exact.upper_bound - exact.lower_bound) <= 2e-8


def test_bounds_hold_when_time_is_up_at_once() -> None:
    pair = make.dirichlet(6, 3, 1, alpha=0.5)
    rough = quantile.solve(pair, 4, time_limit=1e-9)
    fine = quantile.solve(pair, 4, tolerance=1e-7)
    assert rough.status == "time_limit"
    assert rough.lower_bound <= fine.upper_bound
    assert fine.lower_bound <= rough.upper_bound
    assert certify.check(pair, rough.certificate).valid  # type: ignore[arg-type]


def test_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantile, "MAX_NODES", 10)
    with pytest.raises(errors.SizeError, match="14 nodes, expected at most 10"):
        quantile.solve(make.dirichlet(2, 3, 0), 2)
    monkeypatch.setattr(dense, "MAX_ENTRIES", 100)
    with pytest.raises(errors.SizeError, match="320 table entries, expected at most 100; use the method quantile"):
        dense.solve(make.dirichlet(2, 3, 0), 2)


class TestSolve:
    problem = VerifyProblem(make.rational(2, 2, 1, denominator=5), num_paths=2)

    @pytest.mark.parametrize("method", [m for m in METHODS if m not in ("closed-form", "one-step")])
    def test_methods_agree(self, method: str) -> None:
        assert solve(self.problem, method=method, tolerance=1e-7).value == pytest.approx(
            solve(self.problem).value, abs=2e-7
        )

    def test_one_step(self) -> None:
        problem = VerifyProblem(make.rational(4, 1, 1, denominator=9), num_paths=3)
        assert solve(problem).value == pytest.approx(solve(problem, method="one-step").value, abs=1e-8)

    def test_exact_optimum_lies_in_the_float_bounds(self) -> None:
        exact, rough = solve(self.problem, exact=True), solve(self.problem)
        assert exact.exact is not None
        assert rough.lower_bound - 1e-12 <= float(exact.exact) <= rough.upper_bound + 1e-12

    def test_one_path_is_block_verification(self) -> None:
        solution = solve(self.problem.with_num_paths(1), exact=True)
        assert solution.exact == sum(sum(level) for level in solution.certificate.prefix_acceptance)  # type: ignore[union-attr]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"method": "simplex"}, "method: got 'simplex', expected one of auto"),
            ({"method": "closed-form"}, "method: got 'closed-form' with 2 paths"),
            ({"method": "one-step"}, "depth for the one-step closed form: got 2"),
            ({"tolerance": 0.0}, "tolerance: got 0.0, expected a finite number > 0"),
        ],
    )
    def test_bad_arguments(self, arguments: dict[str, object], message: str) -> None:
        with pytest.raises(errors.InputError, match=message):
            solve(self.problem, **arguments)  # type: ignore[arg-type]

    def test_exact_needs_fractions(self) -> None:
        with pytest.raises(errors.InputError, match="expected rational probabilities"):
            solve(VerifyProblem(make.dirichlet(2, 2, 0), 2), exact=True)


class TestHeights:
    rng = np.random.default_rng(3)
    mass = rng.dirichlet(np.full(12, 0.5))
    height = rng.integers(0, 5, 12) / 2.0  # with ties
    heights = Heights(height, mass, 3)

    def integral(self, start: float, stop: float, weight: object = None) -> float:
        """A midpoint rule on H in rank order."""
        grid = np.linspace(start, stop, 400_001)
        middle = (grid[1:] + grid[:-1]) / 2
        step = np.clip(np.searchsorted(self.heights.steps, middle, side="right") - 1, 0, 11)
        values = self.heights.height[step]
        mean = (phi(stop, 3) - phi(start, 3)) / (stop - start)
        return float(((phi_slope(middle, 3) - mean) * values).mean() * (stop - start))

    @pytest.mark.parametrize(("start", "stop"), [(0.0, 1.0), (0.1, 0.35), (0.8, 1.0)])
    def test_loss_is_the_integral(self, start: float, stop: float) -> None:
        loss = self.heights.loss(np.array([start]), np.array([stop]))[0]
        assert loss == pytest.approx(self.integral(start, stop), abs=1e-5)

    def test_cuts_at_all_jumps_leave_no_loss(self) -> None:
        edges = self.heights.refined(np.array([0.0, 0.4, 1.0]), 0.0, 100)
        assert self.heights.loss(edges[:-1], edges[1:]).sum() == pytest.approx(0.0, abs=1e-14)
        assert len(edges) <= 3 + len(set(self.height)) - 1

    def test_no_more_edges_than_allowed(self) -> None:
        assert len(self.heights.refined(np.array([0.0, 0.4, 1.0]), 0.0, 4)) == 4

    def test_support_is_where_moving_is_cheap(self) -> None:
        edges = np.linspace(0, 1, 21)
        middle = (edges[1:] + edges[:-1]) / 2
        theta = 0.05
        lowest, highest = self.heights.support(edges, theta)
        grid = np.linspace(0, 1, 200_001)
        step = np.clip(np.searchsorted(self.heights.steps, grid, side="right") - 1, 0, 11)
        second = -6.0 * (1 - grid)  # phi'' for K = 3
        potential = np.concatenate([[0.0], np.cumsum((second * self.heights.height[step])[:-1] * np.diff(grid))])
        for place, leaf in enumerate(self.heights.order):
            own = (self.heights.steps[place] + self.heights.steps[place + 1]) / 2
            move = np.interp(middle, grid, potential) - np.interp(own, grid, potential)
            cost = move - self.height[leaf] * (phi_slope(middle, 3) - phi_slope(own, 3))
            cheap = np.flatnonzero(cost <= theta - 1e-4)
            assert cost.min() > -1e-4
            assert lowest[leaf] <= cheap.min()
            assert highest[leaf] >= cheap.max()
            assert highest[leaf] - lowest[leaf] + 1 <= np.count_nonzero(cost <= theta + 1e-4) + 2

    def test_upper_bound_is_the_integral_over_ranks(self) -> None:
        pair = make.dirichlet(3, 2, 4)
        multipliers = quantile.solve(pair, 3).certificate.multipliers  # type: ignore[union-attr]
        heights = Heights(np.zeros(9), pair.draft_paths[-1], 3)
        full = quantile._Search(pair, 3, 1e-9, None, None).heights(multipliers)
        value = 1 + pair.target[0][0] @ multipliers[1] + full.weighted(np.array(1.0))
        assert value == pytest.approx(certify.upper_bound(pair, multipliers, 3), abs=1e-13)
        assert heights.loss(np.array([0.0]), np.array([1.0]))[0] == 0.0


def test_elimination_along_the_tree_solves_the_normal_equations() -> None:
    """S d = r for S = A D A' written out as a matrix, with weights over eight orders of magnitude."""
    pair = make.dirichlet(3, 3, 2)
    edges = np.array([0.0, 0.1, 0.35, 0.7, 1.0])
    rng = np.random.default_rng(1)
    lowest = rng.integers(0, 3, 27)
    method = quantile.interior_point(pair, 3, quantile.Bins(edges, lowest, np.minimum(lowest + 2, 3)))
    shape = method.shape
    nodes, leaves, bins, entries = 39, 27, 4, len(shape.entry_leaf)
    parent = np.concatenate([np.full(3, -1), np.repeat(np.arange(12), 3)])
    eye = np.eye(nodes)
    inner = np.zeros((nodes, nodes))  # inner[c, x] = 1 for a child x of c
    inner[parent[3:], np.arange(3, nodes)] = 1
    flow = eye - (inner * shape.target).T  # rows lambda, columns f
    carry = eye - inner  # rows H, columns f or v
    zero = np.zeros
    leaf_of = (np.arange(leaves)[:, None] == shape.entry_leaf).astype(float)
    bin_of = (np.arange(bins)[:, None] == shape.entry_bin).astype(float)
    heights_t = np.concatenate([zero((12, entries)), -leaf_of * shape.entry_slope])
    matrix = np.block(
        [
            [flow, eye, zero((nodes, nodes)), zero((nodes, entries))],
            [carry, zero((nodes, nodes)), carry, heights_t],
            [zero((leaves, 3 * nodes)), leaf_of],
            [zero((bins, 3 * nodes)), bin_of],
        ]
    )
    weight = 10.0 ** rng.uniform(-4, 4, matrix.shape[1])
    want = rng.normal(size=matrix.shape[0])
    want[-1] = 0.0  # the last beta is the fixed one
    right = matrix @ (weight * (matrix.T @ want))
    got = Factorisation(shape, weight).solve(np.concatenate([right, np.zeros(nodes)]))
    unknowns, change_of_f = got[: len(right)], got[len(right) : len(right) + nodes]
    residual = matrix @ (weight * (matrix.T @ unknowns)) - right
    assert np.abs(residual).max() <= 1e-8 * np.abs(right).max()
    # f comes out with more digits than the products of the unknowns have.
    df = weight[:nodes]
    np.testing.assert_allclose(
        change_of_f, -df * (matrix[:, :nodes].T @ want), rtol=1e-5, atol=1e-9 * np.abs(right).max()
    )


def test_a_table_on_few_bins_is_a_policy() -> None:
    """Any nonnegative table becomes a lower bound: the optimum's own table, spoilt, stays below the optimum."""
    pair = make.dirichlet(3, 2, 9)
    solution = quantile.solve(pair, 3)
    ranks = solution.certificate.ranks  # type: ignore[union-attr]
    spoilt = RankTable(
        ranks.edges, ranks.leaf, ranks.bin, ranks.mass * np.random.default_rng(0).uniform(0, 2, ranks.mass.size)
    )
    bounds = certify.Bounds(pair, 3)
    assert bounds.see_ranks(spoilt) == bounds.lower < solution.lower_bound
    assert phi_mean_slope(0.0, 1.0, 3) == pytest.approx(1.0)
