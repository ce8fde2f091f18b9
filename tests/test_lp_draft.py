"""The optimum of any draft distribution: reference values, two formulations, certificates, its policy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lp_cases import random_pair, rational_pair

from lpverify.core.model_pair import ModelPair
from lpverify.core.problem import as_problem
from lpverify.core.results import DraftCertificate, LeafOrders
from lpverify.drafting import draft_distribution
from lpverify.errors import InputError, SizeError
from lpverify.exact.evaluate import evaluate
from lpverify.lp import certify, leaf_orders
from lpverify.lp.coverage import node_relaxation
from lpverify.lp.solve import solve

VALUES = json.loads((Path(__file__).parent / "data" / "draft-laws.json").read_text())["values"]
SPECS = (
    "distinct-paths:2",
    "distinct-paths:3",
    "branching:2,2",
    "distinct-children:2,1",
    "greedy-plus-one:2,1",
    "delayed:1,2",
    "delayed:0,3",
    "top:4",
    "random-paths:0=1/4,1=1/4,3=1/2",
)


@pytest.mark.parametrize("name", VALUES)
def test_reference_values(name: str) -> None:
    """Optimum to 1e-6 and expected nodes to 1e-9; the bounds, checked without a solver, enclose the value."""
    pair = as_problem(name).pair
    for spec, value in VALUES[name].items():
        draft = draft_distribution(spec)
        solution = solve(pair, draft=draft)
        assert solution.value == pytest.approx(value["optimum"], abs=1e-6), spec
        assert solution.status == "optimal"
        assert float(draft.expected_nodes(pair)) == pytest.approx(value["expected_nodes"], abs=1e-9)
        checked = certify.check(pair, solution.certificate)
        assert checked.valid, (spec, checked.violations)
        assert checked.lower_bound == pytest.approx(solution.lower_bound, abs=1e-9)
        assert checked.upper_bound == pytest.approx(solution.upper_bound, abs=1e-9)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("seed", range(3))
def test_the_flow_over_all_drafted_trees_agrees(spec: str, seed: int) -> None:
    """Two formulations that share no code for the coverage, and the node relaxation above both."""
    pair = random_pair(3 if seed else 2, 2, seed)
    flow, solution = solve(pair, draft=spec, method="transport"), solve(pair, draft=spec)
    assert solution.value == pytest.approx(flow.value, abs=2e-7)
    assert solution.lower_bound <= flow.upper_bound + 1e-9
    assert flow.lower_bound <= solution.upper_bound + 1e-9
    assert solution.value <= node_relaxation(pair, draft_distribution(spec))[0] + 1e-9


@pytest.mark.parametrize("paths", [1, 2, 4])
def test_leaf_orders_of_independent_paths_agree_with_the_rank_quantile_program(paths: int) -> None:
    pair = random_pair(3, 3, 5)
    assert solve(pair, paths, method="leaf-orders").value == pytest.approx(solve(pair, paths).value, abs=2e-7)
    assert solve(pair, draft=f"iid:{paths}").value == solve(pair, paths).value


def test_a_poisson_number_of_paths_lies_between_random_numbers_of_paths() -> None:
    """Cut at 12 paths the number loses a mass of 1e-9: the optima differ by at most L times that."""
    pair, mean = random_pair(3, 2, 1), 1.5
    weights = [mean**k * np.exp(-mean) / float(np.prod(range(1, k + 1))) for k in range(1, 13)]
    rounded = [f"{k}={round(weight * 10**12)}/{10**12}" for k, weight in enumerate(weights, 1)]
    rest = 10**12 - sum(round(weight * 10**12) for weight in weights)
    cut = "random-paths:" + ",".join([f"0={rest}/{10**12}", *rounded])
    assert solve(pair, draft="poisson:1.5").value == pytest.approx(solve(pair, draft=cut).value, abs=1e-6)


@pytest.mark.parametrize("spec", [*SPECS[:-1], "random-paths:1=1/4,3=3/4"])
def test_the_policy_is_lossless_and_attains_the_optimum(spec: str) -> None:
    """In Fractions, by enumeration: law error 0, and the block efficiency is the exact lower bound."""
    pair = rational_pair(2, 2, seed=1)
    result, solution = evaluate(pair, "policy", draft=spec), solve(pair, draft=spec, exact=True)
    assert result.law_error == 0
    assert solution.exact_bounds is not None
    assert result.block_efficiency == solution.exact_bounds[0]
    assert solution.exact_bounds[0] <= solution.exact_bounds[1]


@pytest.mark.parametrize("spec", ["branching:2,2,2", "distinct-children:3,2,1", "distinct-paths:4"])
def test_hundreds_of_leaves(spec: str) -> None:
    """343 leaves to a gap of 1e-6; ``tests/bench`` has the seconds."""
    pair = random_pair(7, 3, 0)
    solution = solve(pair, draft=spec, tolerance=1e-6)
    assert solution.status == "optimal"
    assert certify.check(pair, solution.certificate).valid


def test_a_forged_certificate_is_refused() -> None:
    pair = random_pair(3, 2, 0)
    proof = solve(pair, draft="distinct-paths:2").certificate
    assert isinstance(proof, DraftCertificate)
    assert isinstance(proof.selection, LeafOrders)
    higher = (*proof.prefix_acceptance[:2], proof.prefix_acceptance[2] + 1e-6)
    below = tuple(level - 1e-3 for level in proof.multipliers)
    heavy = replace(proof.selection, weights=proof.selection.weights * 1.01)
    twice = replace(proof.selection, orders=np.zeros_like(proof.selection.orders))
    for forged in (
        replace(proof, prefix_acceptance=higher),
        replace(proof, multipliers=below),
        replace(proof, selection=heavy),
        replace(proof, selection=twice),
        replace(proof, draft=draft_distribution("distinct-paths:1")),
    ):
        assert not certify.check(pair, forged).valid


def test_nothing_to_accept_and_everything_to_accept() -> None:
    apart = ModelPair.iid([1.0, 0.0, 0.0], [0.0, 0.5, 0.5], depth=2)
    same = ModelPair.iid([0.2, 0.8], [0.2, 0.8], depth=2)
    for spec in SPECS:
        assert solve(apart, draft=spec).value == pytest.approx(1, abs=1e-9)
    for spec in ("distinct-paths:2", "branching:2,2", "distinct-children:2,1", "delayed:1,2"):
        assert solve(same, draft=spec).value == pytest.approx(3, abs=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="expected one of them"):
        solve("coin-2", 2, draft="distinct-paths:2")
    with pytest.raises(InputError, match="2 numbers of children"):
        solve("coin-2", draft="branching:2,2,2")
    with pytest.raises(InputError, match="expected one of auto, transport, leaf-orders"):
        solve("coin-2", draft="distinct-paths:2", method="quantile")
    with pytest.raises(InputError, match="one that needs independent paths"):
        evaluate("coin-2", "pbv", draft="distinct-paths:2")
    with pytest.raises(InputError, match="sometimes drafts nothing"):
        evaluate("coin-2", "policy", draft="poisson:1.5")
    with pytest.raises(SizeError, match="1,110 nodes|11,110 nodes"):
        leaf_orders.solve(random_pair(10, 4, 0), draft_distribution("distinct-paths:2"))


def test_traversal_is_lossless_without_replacement() -> None:
    """In Fractions; with distinct whole paths it is not, so it is refused there."""
    for spec in ("distinct-children:2,2", "distinct-children:3,1", "branching:2,2", "delayed:1,2"):
        assert evaluate(rational_pair(3, 2, seed=0), "traversal", draft=spec).law_error == 0
    with pytest.raises(InputError, match="needs distinct children"):
        evaluate("coin-2", "traversal", draft="distinct-paths:2")
