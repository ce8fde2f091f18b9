"""The optimum as a verifier: attains the LP value, lossless, in Fractions, floats and tensors."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lp_cases import REFERENCE, iid_pair, random_pair, reference_pair

from lpverify.core import families as make
from lpverify.core.draft_tree import DraftTree
from lpverify.core.model_pair import ModelPair
from lpverify.core.problem import VerifyProblem
from lpverify.core.results import RankTable
from lpverify.drafting.iid_paths import IidPaths
from lpverify.errors import InputError
from lpverify.exact.evaluate import as_verifier, evaluate, policy_certificate
from lpverify.lp import certify, one_step, single_path
from lpverify.lp.solve import solve
from lpverify.numerics import as_float, total
from lpverify.verifiers import expected_accepted, verifier
from lpverify.verifiers.policy import bin_distributions


def fractions(text: str) -> list[Fraction]:
    return [Fraction(x) for x in text.split()]


COIN = iid_pair(fractions("1/4 3/4"), fractions("3/5 2/5"), 2)
RATIONAL = {
    "coin": COIN,
    "one step": iid_pair(fractions(".2 .4 .4"), fractions(".6 .3 .1"), 1),
    "zeros": make.rational(3, 2, seed=13, denominator=4),
    "equal": iid_pair(fractions("1/2 1/3 1/6"), fractions("1/2 1/3 1/6"), 2),
    "deep": make.rational(2, 3, seed=5, denominator=4),
}


@pytest.mark.parametrize("paths", [1, 2, 3])
@pytest.mark.parametrize("name", RATIONAL)
def test_lossless_and_optimal_in_fractions(name: str, paths: int) -> None:
    """The law is the target's without any tolerance, and the value is the sum of the exact table's budgets."""
    problem = VerifyProblem(RATIONAL[name], paths)
    if paths == 3 and name == "zeros":
        problem = problem.with_num_paths(2)
    optimum = solve(problem)
    policy = verifier("policy", policy_certificate(problem, optimum))
    result = evaluate(problem, policy)
    assert result.law_error == 0
    assert result.block_efficiency == total(policy.stop_distribution.certificate.prefix_acceptance)  # type: ignore[attr-defined]
    assert float(result.block_efficiency) == pytest.approx(optimum.value, abs=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 4), st.integers(1, 2), st.integers(1, 3), st.integers(0, 10**6))
def test_attains_the_certified_value_in_floats(size: int, depth: int, paths: int, seed: int) -> None:
    problem = VerifyProblem(random_pair(size, depth, seed), min(paths, 2) if size**depth > 9 else paths)
    optimum = solve(problem)
    result = evaluate(problem, verifier("policy", optimum))
    assert result.block_efficiency == pytest.approx(optimum.lower_bound, abs=1e-12)
    assert result.block_efficiency <= optimum.upper_bound + 1e-12
    assert result.law_error is not None
    assert result.law_error <= 1e-12


@pytest.mark.parametrize("kind", make.ADVERSARIAL_KINDS)
def test_degenerate_rows(kind: str) -> None:
    problem = VerifyProblem(make.adversarial(kind, 3, 2, seed=3), 2)
    optimum = solve(problem)
    result = evaluate(problem, "policy")
    assert result.law_error is not None
    assert result.law_error <= 1e-12
    assert result.block_efficiency == pytest.approx(optimum.value, abs=1e-9)


def test_closed_form_of_one_step() -> None:
    """Acceptance at L = 1 is 1 + min over prefixes of the p/q order (FAULTS, table of section 3)."""
    for row, draft, paths, expected in [
        ("1/4 3/4", "3/5 2/5", 2, Fraction(89, 100)),
        (".3 .7", ".5 .5", 2, Fraction(1)),
        (".2 .4 .4", ".6 .3 .1", 3, Fraction(871, 1000)),
    ]:
        problem = VerifyProblem(iid_pair(fractions(row), fractions(draft), 1), paths)
        assert one_step.solve(problem.pair, paths).value == pytest.approx(1 + float(expected), abs=1e-12)
        assert float(evaluate(problem, "policy").block_efficiency) == pytest.approx(1 + float(expected), abs=1e-9)


@pytest.mark.parametrize("pair", [COIN, make.rational(3, 2, seed=2)], ids=["coin", "tree"])
def test_one_path_is_block_verification(pair: ModelPair) -> None:
    """Equal stop laws, in Fractions, on every path."""
    policy, block = as_verifier("policy", VerifyProblem(pair, 1)), verifier("bv")
    for draft in IidPaths(1).enumerate(pair):
        view = DraftTree.from_pair(pair, draft.paths)
        first, second = policy(view), block(view)
        assert (first.stop == second.stop).all()
        for node in np.flatnonzero(first.stop > 0).tolist():
            assert (first.next_token(node) == second.next_token(node)).all()


@pytest.mark.parametrize("paths", [1, 2, 4])
def test_equal_laws_accept_everything(paths: int) -> None:
    pair = iid_pair([0.5, 0.25, 0.25], [0.5, 0.25, 0.25], 2)
    assert evaluate(VerifyProblem(pair, paths), "policy").block_efficiency == pytest.approx(3, abs=1e-9)


def test_any_legal_table_is_lossless() -> None:
    """Losslessness needs only the marginals: a random table, repaired, is as lossless as the optimal one."""
    pair = make.rational(3, 2, seed=2)
    for seed in range(3):
        mass = np.random.default_rng(seed).dirichlet(np.full(5, 0.3), 9).reshape(-1)
        rough = RankTable(np.linspace(0, 1, 6), np.repeat(np.arange(9), 5), np.tile(np.arange(5), 9), mass)
        start = single_path.solve(pair).certificate
        assert start is not None
        legal = certify.certificate_of(pair, certify.repair(pair, rough), start.multipliers, 2)
        result = evaluate(VerifyProblem(pair, 2), verifier("policy", legal))
        assert result.law_error == 0
        assert result.block_efficiency == total(legal.prefix_acceptance)


def test_a_table_with_wrong_marginals_is_not() -> None:
    """Negative control: the same table without the repair."""
    pair = COIN.floats
    certificate = solve(VerifyProblem(pair, 2)).certificate
    assert certificate is not None
    ranks = certificate.ranks
    spoilt = replace(ranks, bin=np.where(ranks.leaf == 0, 0, ranks.bin))
    result = evaluate(VerifyProblem(pair, 2), verifier("policy", replace(certificate, ranks=spoilt)))
    assert result.law_error is not None
    assert result.law_error > 1e-3


def test_exact_certificate_runs_on_floats_too() -> None:
    exact = as_verifier("policy", VerifyProblem(COIN, 3))
    inexact = as_verifier("policy", VerifyProblem(COIN.floats, 3))
    view = DraftTree.from_pair(COIN, [(0, 1), (1, 1), (1, 1)])
    floats = DraftTree.from_pair(COIN.floats, view.paths)
    assert as_float(exact(view).stop) == pytest.approx(exact(floats).stop, abs=1e-15)
    assert expected_accepted(exact(floats)) == pytest.approx(expected_accepted(inexact(floats)), abs=1e-3)
    with pytest.raises(InputError, match="policy: got rows of Fractions, expected floats"):
        inexact(view)


def test_tensors_agree() -> None:
    torch: Any = pytest.importorskip("torch")
    pair = make.dirichlet(3, 2, seed=1)
    policy = as_verifier("policy", VerifyProblem(pair, 3))
    view = DraftTree.from_pair(pair, [(0, 1), (2, 1), (0, 1)])
    on_torch = policy(DraftTree.build(view.paths, torch.tensor(view.target), torch.tensor(view.draft)))
    assert on_torch.stop == pytest.approx(policy(view).stop, abs=1e-15)
    for node in np.flatnonzero(policy(view).stop > 0).tolist():
        assert on_torch.next_token(node) == pytest.approx(policy(view).next_token(node), abs=1e-15)


def test_law_of_the_bin_has_the_table_as_joint_law() -> None:
    pair = make.dirichlet(3, 2, seed=1)
    certificate = solve(VerifyProblem(pair, 3)).certificate
    assert certificate is not None
    laws = bin_distributions(certificate.ranks, np.arange(9))
    assert laws.sum(axis=1) == pytest.approx(np.ones(9), abs=1e-14)
    assert pair.draft_paths[-1] @ laws == pytest.approx(np.diff(certificate.ranks.edges), abs=1e-14)


def test_refused() -> None:
    policy = as_verifier("policy", VerifyProblem(COIN, 2))
    with pytest.raises(InputError, match="drafts of the policy: got 1 paths of 2 out of 2 tokens, expected 2 paths"):
        policy(DraftTree.from_pair(COIN, [(0, 1)]))
    one = iid_pair(fractions("1/4 3/4"), fractions("3/5 2/5"), 1)
    with pytest.raises(InputError, match="optimum: got a solution without a certificate"):
        verifier("policy", one_step.solve(one, 2))


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.stem)
def test_reference_optima_are_attained(path: Any) -> None:
    """Where drafts are few enough to enumerate."""
    pair, expected = reference_pair(path)
    for paths, values in expected["paths"].items():
        problem = VerifyProblem(pair, int(paths))
        if pair.draft_paths[-1].size ** int(paths) > 400:
            continue
        assert evaluate(problem, "policy").block_efficiency == pytest.approx(values["multi_path_optimum"][0], abs=1e-7)
