"""Comparison with the optimum, the best single ranking, and one position's balance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpverify.core import families as make
from lpverify.core.model_pair import ModelPair
from lpverify.core.problem import VerifyProblem, load_problem
from lpverify.drafting.iid_paths import phi
from lpverify.errors import InputError
from lpverify.exact import ranking
from lpverify.exact.breakdown import balance, parse_prefix
from lpverify.exact.compare import ALGORITHMS, COLUMNS, OPTIMUM, RANKING, RELAXATION, compare, comparison
from lpverify.exact.ranking import best_ranking, evaluate_orders, greedy_order, selection_of_orders
from lpverify.lp import single_path

REFERENCE = Path(__file__).parent / "data" / "reference"


def reference(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((REFERENCE / f"{name}.json").read_text())["block_efficiency"]
    return values


def cases() -> Iterator[tuple[str, int]]:
    for file in sorted(REFERENCE.glob("*.json")):
        for paths in reference(file.stem)["paths"]:
            yield file.stem, int(paths)


# best single ranking


def test_law_of_the_best_ranked_path_by_enumeration() -> None:
    mass = np.array([0.1, 0.4, 0.3, 0.2])
    for order in permutations(range(4)):
        rank = {leaf: i for i, leaf in enumerate(order)}
        expected = np.zeros(4)
        for drawn in product(range(4), repeat=3):
            expected[min(drawn, key=rank.__getitem__)] += mass[list(drawn)].prod()
        law = selection_of_orders(mass, np.array([order]), 3)[0]
        np.testing.assert_allclose(law, expected, rtol=1e-13)


@pytest.mark.parametrize("paths", [1, 2, 5, 64])
def test_law_is_a_vertex_of_the_coverage_polymatroid(paths: int) -> None:
    """Q*(A) <= phi(Q(A)) for every set of leaves, with equality for the best ranked ones; positive to 1e-300."""
    mass = np.array([0.5, 1e-300, 0.3, 0.2, 1e-17])
    order = np.array([[2, 4, 0, 1, 3]])
    law = selection_of_orders(mass, order, paths)[0]
    assert law[1] == pytest.approx(paths * 1e-300 * float(mass[[3]].sum()) ** (paths - 1), rel=1e-12, abs=0)
    for size in range(1, 6):
        np.testing.assert_allclose(law[order[0, :size]].sum(), phi(mass[order[0, :size]].sum(), paths), rtol=1e-14)
        for subset in combinations(range(5), size):
            assert law[list(subset)].sum() <= phi(mass[list(subset)].sum(), paths) * (1 + 1e-14)


def test_one_path_makes_every_order_block_verification() -> None:
    pair = make.dirichlet(3, 2, seed=5)
    expected = single_path.solve(pair).value
    orders = np.array([np.random.default_rng(i).permutation(9) for i in range(5)])
    np.testing.assert_allclose(evaluate_orders(pair, orders, 1), expected, rtol=1e-14)
    assert best_ranking(VerifyProblem(pair)).block_efficiency == pytest.approx(expected, rel=1e-14)


def test_one_step_by_hand() -> None:
    """p = (.3, .7), q = (.5, .5), K = 2: 1 first gives Q* = (.25, .75) and 1.95, 0 first 1.55."""
    problem = VerifyProblem(ModelPair.from_levels([[[0.3, 0.7]]], [[[0.5, 0.5]]]), 2)
    np.testing.assert_allclose(evaluate_orders(problem.pair, np.array([[1, 0], [0, 1]]), 2), [1.95, 1.55], rtol=1e-15)
    best = best_ranking(problem)
    assert (best.order.tolist(), best.orders_tried, best.complete) == ([1, 0], 2, True)


@pytest.mark.parametrize(("name", "paths"), list(cases()))
def test_ranking_lies_between_gbv_and_the_optimum(name: str, paths: int) -> None:
    problem = load_problem(name, num_paths=paths)
    values = reference(name)["paths"][str(paths)]
    pair = problem.pair.floats
    assert evaluate_orders(pair, greedy_order(pair)[None], paths)[0] == pytest.approx(values["gbv"], abs=1e-9)
    best = best_ranking(problem, effort=500_000)
    assert values["gbv"] - 1e-12 <= best.block_efficiency <= values["multi_path_optimum"][1] + 1e-9


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_local_search_finds_the_best_of_all_orders(seed: int) -> None:
    problem = VerifyProblem(make.dirichlet(2, 3, seed=seed), 3)
    best = best_ranking(problem)
    assert (best.complete, best.orders_tried) == (True, 40320)
    effort = 30_000 * 8 * 3  # less than all orders need
    found = best_ranking(problem, seed=seed, effort=effort)
    assert not found.complete
    assert found.orders_tried <= 30_000
    assert found.block_efficiency == pytest.approx(best.block_efficiency, abs=1e-9)
    assert found.block_efficiency == best_ranking(problem, seed=seed, effort=effort).block_efficiency


def test_one_possible_leaf() -> None:
    pair = ModelPair.from_levels([[[0.3, 0.7]]], [[[1.0, 0.0]]])
    best = best_ranking(VerifyProblem(pair, 3))
    assert (best.block_efficiency, best.order.tolist()) == (1.3, [0])


def test_impossible_leaves_are_not_ranked() -> None:
    problem = VerifyProblem(load_problem("zero-draft-mass").pair, 2)
    best = best_ranking(problem)
    assert best.complete
    assert (problem.pair.draft_paths[-1][best.order] > 0).all()


@given(st.integers(0, 2**32 - 1), st.sampled_from([(2, 3), (3, 2), (4, 1)]))
def test_moves_are_permutations(seed: int, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(seed)
    pair = make.dirichlet(*size, seed=0)
    order = rng.permutation(size[0] ** size[1])[: rng.integers(2, size[0] ** size[1] + 1)]
    moved = ranking._move(order, pair, rng)
    assert sorted(moved) == sorted(order)


# one position


def rational_rows(size: int) -> st.SearchStrategy[list[Fraction]]:
    counts = st.lists(st.integers(0, 6), min_size=size, max_size=size).filter(any)
    return counts.map(lambda row: [Fraction(n, sum(row)) for n in row])


@given(st.integers(1, 5).flatmap(lambda size: st.tuples(rational_rows(size), rational_rows(size))))
def test_balance_identities(rows: tuple[list[Fraction], list[Fraction]]) -> None:
    p, q = rows
    result = balance(ModelPair.from_levels([np.array([p])], [np.array([q])]))
    assert result.emitted.tolist() == p
    assert result.law_error == 0
    assert result.accepted_mass + result.rejected_mass == 1
    assert result.residual.sum() == result.rejected_mass
    assert (result.accepted + result.residual).tolist() == p
    assert result.naive.sum() == 1
    if result.residual_law is not None:
        assert result.naive_law_error == result.rejected_mass * abs(result.residual_law - result.target).sum() / 2


def test_balance_of_the_naive_correction() -> None:
    result = balance(load_problem("one-position").pair)
    assert result.naive.tolist() == [Fraction(7, 25), Fraction(1, 2), Fraction(11, 50)]
    assert result.naive_law_error == Fraction(2, 25)
    assert result.accepted.tolist() == [Fraction(1, 5), Fraction(3, 10), Fraction(1, 10)]


def test_balance_reads_the_row_of_its_prefix() -> None:
    pair = make.dirichlet(3, 3, seed=1)
    assert balance(pair, (2, 1)).target.tolist() == pair.target[2][7].tolist()
    assert parse_prefix(pair, " 2  1 ") == (2, 1)
    with pytest.raises(InputError, match="at most 2"):
        balance(pair, (0, 0, 0))
    with pytest.raises(InputError, match="0..2"):
        balance(pair, (3,))
    with pytest.raises(InputError, match="'x'"):
        parse_prefix(pair, "0 x")


# comparison


def frame_of(name: str, paths: int) -> pd.Series:
    """Block efficiency by row name."""
    problem = load_problem(name)
    frame = compare(VerifyProblem(problem.pair.floats), paths, max_drafts=1)
    assert tuple(frame.columns) == COLUMNS
    assert set(frame["paths"]) == {paths}
    assert frame["name"].tolist() == [RELAXATION, OPTIMUM, RANKING, *ALGORITHMS]
    optimum = frame.loc[frame["name"] == OPTIMUM, "block_efficiency"].item()
    np.testing.assert_allclose(frame["gap"], optimum - frame["block_efficiency"], atol=1e-15)
    np.testing.assert_allclose(frame["relative_gap"], frame["gap"] / optimum, atol=1e-15)
    values: pd.Series = frame.set_index("name")["block_efficiency"]
    return values


@pytest.mark.parametrize(
    ("name", "paths"),
    [("one-position", 2), ("coin-3", 3), ("tree-v2-l3-a", 2), ("tree-v3-l2-a", 3), ("zero-draft-mass", 2)],
)
def test_comparison_agrees_with_the_reference_and_its_order(name: str, paths: int) -> None:
    values = frame_of(name, paths)
    expected = reference(name)
    per_paths = {k: v for k, v in expected["paths"][str(paths)].items() if k != "multi_path_optimum"}
    for algorithm, value in ({"token": expected["token"], "bv": expected["bv"]} | per_paths).items():
        assert values[algorithm] == pytest.approx(value, abs=1e-7), algorithm
    lower, upper = expected["paths"][str(paths)]["multi_path_optimum"]
    assert lower - 1e-7 <= values[OPTIMUM] <= upper + 1e-7
    assert values["token"] <= values["bv"] + 1e-12
    assert values["gbv"] - 1e-12 <= values[RANKING] <= values[OPTIMUM] + 1e-8
    assert values[list(ALGORITHMS)].max() <= values[OPTIMUM] + 1e-8 <= values[RELAXATION] + 2e-8
    assert values["policy"] == pytest.approx(values[OPTIMUM], abs=1e-9)


def test_comparison_of_equal_laws() -> None:
    """p = q: the optimum is L + 1 for every K; BV, TGBV, PBV and the policy attain it, GBV does not (2.4375)."""
    values = frame_of("fair-coin", 2)
    for name in (OPTIMUM, "bv", "tgbv", "pbv", "policy"):
        assert values[name] == pytest.approx(3, abs=1e-8), name
    assert values["gbv"] == pytest.approx(2.4375, abs=1e-12)


def test_optimum_never_falls_with_more_paths() -> None:
    pair = make.softmax(3, 2, seed=4, draft_noise=0.5)
    frame = compare(VerifyProblem(pair), [1, 2, 3], algorithms=["bv", "policy"], tolerance=1e-10)
    optima = frame[frame["name"] == OPTIMUM]["block_efficiency"].tolist()
    assert len(frame) == 3 * 5
    assert optima == sorted(optima)
    bv = frame[frame["name"] == "bv"]["block_efficiency"]
    assert bv.nunique() == 1
    assert optima[0] == pytest.approx(bv.iloc[0], rel=1e-14)


def test_comparison_in_fractions() -> None:
    problem = VerifyProblem(make.rational(2, 2, seed=3, denominator=6), 2)
    result = comparison(problem, exact=True)
    optimum = result.multi_path.exact
    assert optimum is not None
    by_name = {row.name: row for row in result.results}
    assert by_name.pop("spectr").exact is None
    for row in by_name.values():
        assert row.law_error == 0
        assert row.exact is not None
        assert row.exact <= optimum
        assert result.gap(row) == float(optimum - row.exact)
    assert by_name["policy"].exact >= optimum - Fraction(1, 10**8)


def test_law_errors_are_left_out_beyond_the_limit_and_names_are_checked() -> None:
    problem = VerifyProblem(make.dirichlet(2, 2, seed=0), 2)  # 10 multisets of 2 paths out of 4 leaves
    found = {n: {r.name: r for r in comparison(problem, ["gbv", "bv"], max_drafts=n).results} for n in (3, 4, 9, 10)}
    assert [found[n]["bv"].law_error is None for n in (3, 4)] == [True, False]
    assert [found[n]["gbv"].law_error is None for n in (9, 10)] == [True, False]
    with pytest.raises(InputError, match="'magic'"):
        comparison(problem, ["magic"])
    with pytest.raises(InputError, match="algorithms: got none"):
        comparison(problem, "")
    with pytest.raises(InputError, match="algorithm: got 3, expected one of token"):
        comparison(problem, [3])  # type: ignore[list-item]
