"""Exact evaluation: losslessness, three methods that agree, reference values, and faults that must show."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lp_cases import REFERENCE, iid_pair, random_pair, rational_pair, reference_pair

from lpverify.core import families as make
from lpverify.core.draft_tree import DraftTree
from lpverify.core.model_pair import ModelPair, path_probabilities
from lpverify.core.problem import VerifyProblem
from lpverify.drafting.iid_paths import IidPaths
from lpverify.errors import InputError, SizeError
from lpverify.exact.evaluate import evaluate
from lpverify.lp import one_step, reference
from lpverify.numerics import as_float, zeros
from lpverify.verifiers import VERIFIERS, StopDistribution, Verifier, expected_accepted, names, verifier
from lpverify.verifiers.block import verify_first_path
from lpverify.verifiers.optimal_transport import set_probabilities
from lpverify.verifiers.residual import positive_part, residual_distribution
from lpverify.verifiers.specinfer import node_rule as specinfer_rule
from lpverify.verifiers.top_down import SequentialRule
from lpverify.verifiers.traversal import verify as traversal

NAMES = tuple(name for name in VERIFIERS if name != "policy")
RECURSIVE = tuple(n for n in NAMES if verifier(n).node_rule or verifier(n).leaf_to_root)


def fractions(text: str) -> list[Fraction]:
    return [Fraction(x) for x in text.split()]


def impossible(pair: ModelPair) -> Any:
    """Which sequences of L+1 tokens contain a token of target probability 0 (products may also underflow)."""
    return path_probabilities([rows > 0 for rows in (*pair.target, pair.bonus_rows)])[-1] == 0


def permuted(pair: ModelPair, order: list[int]) -> ModelPair:
    """The same laws with tokens renamed, in float or Fraction."""

    def rename(levels: Any) -> list[Any]:
        renamed = []
        for i, rows in enumerate(levels):
            cube = rows.reshape((pair.vocab_size,) * (i + 1))
            renamed.append(cube[np.ix_(*[order] * (i + 1))].reshape(rows.shape))
        return renamed

    return ModelPair.from_levels(rename(pair.target), rename(pair.draft))


EXACT = {
    "S5": iid_pair(fractions(".2 .4 .4"), fractions(".1 .1 .8"), 2),
    "S6a": iid_pair(fractions(".5 .3 .2 0"), fractions(".5 .3 .2 0"), 1),
    "S6c": iid_pair(fractions(".3 .7"), fractions(".5 .5"), 2),
    "S8": iid_pair(fractions(".2 .4 .4"), fractions(".6 .3 .1"), 1),
    "S10": iid_pair(fractions(".1 .2 .3 .1 .1 .2"), fractions(".4 .3 .2 .1 0 0"), 1),
    "coin": iid_pair(fractions("1/4 3/4"), fractions("3/5 2/5"), 2),
    "one token": iid_pair([Fraction(1)], [Fraction(1)], 2),
    "one-hot": iid_pair(fractions("0 1 0"), fractions("1/2 1/3 1/6"), 2),
    "disjoint": iid_pair(fractions("1/3 2/3 0 0"), fractions("0 0 1/5 4/5"), 2),
    "ties": make.rational(3, 2, seed=1, denominator=5),
    "zeros": rational_pair(3, 2, seed=7, denominator=3),
    "deep": make.rational(2, 3, seed=5, denominator=4),
}


@pytest.mark.parametrize("paths", [1, 2])
@pytest.mark.parametrize("case", EXACT)
@pytest.mark.parametrize("name", NAMES)
def test_emitted_law_is_the_target_in_fractions(name: str, case: str, paths: int) -> None:
    result = evaluate(VerifyProblem(EXACT[case], paths), name, method="enumeration")
    assert result.law_error == 0
    assert isinstance(result.block_efficiency, Fraction)
    assert result.accepted is not None
    assert result.accepted[0] == 1
    assert result.block_efficiency == result.accepted.sum()
    assert (np.diff(result.accepted) <= 0).all()


@pytest.mark.parametrize("case", ["S8", "coin", "S6c"])
@pytest.mark.parametrize("name", NAMES)
def test_three_paths_in_fractions(name: str, case: str) -> None:
    assert evaluate(VerifyProblem(EXACT[case], 3), name, method="enumeration").law_error == 0


@pytest.mark.parametrize("case", EXACT)
@pytest.mark.parametrize("name", RECURSIVE)
def test_recursion_is_enumeration(name: str, case: str) -> None:
    """Equal fractions, the whole law and all accepted lengths."""
    problem = VerifyProblem(EXACT[case], 2)
    first, second = (evaluate(problem, name, method=method) for method in ("recursion", "enumeration"))
    assert (first.method, second.method) == ("recursion", "enumeration")
    assert (first.law == second.law).all()
    assert (first.accepted == second.accepted).all()


@pytest.mark.parametrize("case", EXACT)
@pytest.mark.parametrize("name", [n for n in NAMES if n in names(closed_form=True)])
def test_closed_form_is_enumeration(name: str, case: str) -> None:
    problem = VerifyProblem(EXACT[case], 2)
    first, second = (evaluate(problem, name, method=method) for method in ("closed form", "enumeration"))
    assert first.block_efficiency == second.block_efficiency
    assert first.law is None


@pytest.mark.parametrize("kind", make.ADVERSARIAL_KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_emitted_law_is_the_target_in_floats(name: str, kind: str) -> None:
    """Zero masses, ties, one-hot rows, subnormal probabilities; nothing of target probability 0 is ever emitted."""
    pair = make.adversarial(kind, 3, 2, seed=3)
    result = evaluate(VerifyProblem(pair, 2), name, method="enumeration")
    assert result.law_error is not None
    assert result.law_error <= 1e-12
    assert result.law is not None
    assert (result.law[impossible(pair)] == 0).all()


SIZES = st.sampled_from([(2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2), (5, 1), (5, 2), (6, 1)])
"""V and L."""


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(1, 2), st.integers(0, 10**6), st.sampled_from(NAMES))
def test_emitted_law_is_the_target_on_random_tables(shape: tuple[int, int], paths: int, seed: int, name: str) -> None:
    pair = random_pair(*shape, seed, alpha=0.4)
    result = evaluate(VerifyProblem(pair, paths), name, method="enumeration")
    assert result.law_error is not None
    assert result.law_error <= 1e-12


@st.composite
def float_pairs(draw: st.DrawFn) -> ModelPair:
    """Tables with zeros, one-hot rows, ties and entries down to the smallest double."""
    size, depth = draw(SIZES)
    entries = st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, 0.3, 1e-9, 1e-17, 1e-200, 5e-324])

    def table() -> list[Any]:
        levels = []
        for i in range(depth):
            rows = np.array([draw(st.lists(entries, min_size=size, max_size=size)) for _ in range(min(size**i, 3))])
            rows[rows.max(axis=1) < 1e-3, 0] = 1.0
            rows = np.resize(rows, (size**i, size))
            levels.append(rows / rows.sum(axis=1, keepdims=True))
        return levels

    return ModelPair.from_levels(table(), table())


@settings(max_examples=80, deadline=None)
@example(ModelPair.from_levels([np.array([[0, 0, 1.0]])], [np.array([[1.0, 5e-324, 0]])]), 1, "pbv")
@given(float_pairs(), st.integers(1, 2), st.sampled_from(NAMES))
def test_emitted_law_is_the_target_on_extreme_tables(pair: ModelPair, paths: int, name: str) -> None:
    result = evaluate(VerifyProblem(pair, paths), name, method="enumeration")
    assert result.law_error is not None
    assert result.law_error <= 1e-12
    assert result.law is not None
    assert (result.law[impossible(pair)] == 0).all()


@settings(max_examples=20, deadline=None)
@given(st.permutations([0, 1, 2]), st.integers(0, 10**6), st.sampled_from(NAMES))
def test_relabelling_tokens_changes_nothing(order: list[int], seed: int, name: str) -> None:
    pair = random_pair(3, 2, seed, alpha=1.0)
    first = evaluate(VerifyProblem(pair, 2), name).accepted
    second = evaluate(VerifyProblem(permuted(pair, order), 2), name).accepted
    np.testing.assert_allclose(as_float(first), as_float(second), atol=1e-12)


@pytest.mark.parametrize("paths", [1, 2, 3])
def test_equal_laws_accept_everything(paths: int) -> None:
    """S6a: p = q = (.5, .3, .2, 0), L = 3: three accepted tokens; GBV does not manage it, nor NSS."""
    problem = VerifyProblem(iid_pair(fractions(".5 .3 .2 0"), fractions(".5 .3 .2 0"), 3), paths)
    for name in (n for n in NAMES if n not in ("nss", "gbv")):
        method = "auto" if name in RECURSIVE else "closed form"
        assert evaluate(problem, name, method=method).block_efficiency == 4


@pytest.mark.parametrize("name", NAMES)
def test_mean_of_expected_accepted_is_block_efficiency(name: str) -> None:
    """E[tau] = E[E[tau | tree]] as fractions, over ordered drafts whatever the verifier declares (THEORY 8)."""
    pair = EXACT["coin"]
    checked = verifier(name)
    mean = sum(
        draft.probability * expected_accepted(checked(DraftTree.from_pair(pair, draft.paths)))
        for draft in IidPaths(2).enumerate(pair)
    )
    assert 1 + mean == evaluate(VerifyProblem(pair, 2), name).block_efficiency


def test_known_values() -> None:
    """Block efficiency 1 + 26/25 of BV and 1 + 24/25 of the token rule (S5); SpecInfer's 37/50 (S8)."""
    assert evaluate(VerifyProblem(EXACT["S5"]), "bv").block_efficiency == 1 + Fraction(26, 25)
    assert evaluate(VerifyProblem(EXACT["S5"]), "token").block_efficiency == 1 + Fraction(24, 25)
    assert evaluate(VerifyProblem(EXACT["S8"], 2), "specinfer").block_efficiency == 1 + Fraction(37, 50)
    assert evaluate(VerifyProblem(EXACT["S6c"], 2), "ot").accepted.tolist()[:2] == [1, 1]
    assert evaluate(VerifyProblem(EXACT["coin"]), "bv").block_efficiency == Fraction("2.16")
    assert evaluate(VerifyProblem(EXACT["coin"]), "token").block_efficiency == Fraction("2.0725")


@pytest.mark.parametrize("paths", [1, 2])
@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_beats_the_optimum(seed: int, paths: int) -> None:
    pair = random_pair(3, 2, seed, alpha=0.5)
    bound = reference.solve_flow(pair, paths).upper_bound
    for name in NAMES:
        assert evaluate(VerifyProblem(pair, paths), name).block_efficiency <= bound + 1e-9


@pytest.mark.parametrize("paths", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_transport_is_optimal_at_one_step(seed: int, paths: int) -> None:
    """Block efficiency equals the closed-form optimum as a fraction."""
    pair = rational_pair(4, 1, seed)
    assert evaluate(VerifyProblem(pair, paths), "ot").block_efficiency == one_step.solve(pair, paths).exact


# wrong verifiers must show


def test_block_acceptance_with_the_token_residual_is_caught() -> None:
    """S5: total variation exactly 1/50, P(2, 0) = .10 and P(2, 1) = .14, the first token's marginal exact."""

    def faulty(view: DraftTree) -> StopDistribution:
        law = verify_first_path(view)

        def rows(node: int) -> Any:
            if node >= len(view.inner_nodes):
                return law.rows(node)
            return residual_distribution(positive_part(view.target[node] - view.draft[node]), view.target[node])

        return StopDistribution(view, law.stop, rows)

    pair = EXACT["S5"]
    result = evaluate(VerifyProblem(pair), Verifier("bv", faulty))
    assert result.law is not None
    two = result.law.reshape(9, 3).sum(axis=1).reshape(3, 3)
    assert abs(two - np.outer(pair.target[0][0], pair.target[0][0])).sum() / 2 == Fraction(1, 50)
    assert (two[2, 0], two[2, 1]) == (Fraction(1, 10), Fraction(7, 50))
    assert (two.sum(axis=1) == pair.target[0][0]).all()
    with pytest.raises(InputError, match="closed form for bv"):
        evaluate(VerifyProblem(pair), Verifier("bv", faulty), method="closed form")


def test_merged_repeats_are_caught() -> None:
    """S8: law (.2, .46, .34) of the first token, total variation .06."""

    class Merged:
        def __init__(self, target: Any, draft: Any, count: int) -> None:
            self.rules = [specinfer_rule(target, draft, k) for k in range(1, count + 1)]

        def conditional(self, drafted: Any) -> Any:
            distinct = [list(dict.fromkeys(row)) for row in np.asarray(drafted).tolist()]
            return np.concatenate([self.rules[len(row) - 1].conditional([row]) for row in distinct])

    wrong = Verifier("merged", traversal, node_rule=Merged)
    result = evaluate(VerifyProblem(EXACT["S8"], 2), wrong, method="recursion")
    assert result.law_error == Fraction("0.06")
    assert result.law is not None
    assert result.law.reshape(3, 3).sum(axis=1).tolist() == fractions(".2 .46 .34")


def test_fresh_sample_on_a_mismatch_is_caught() -> None:
    """S2: "accept if equal to a target sample", but a fresh sample otherwise: (.264, .408, .328)."""

    class Fresh(SequentialRule):
        def conditional(self, drafted: Any) -> Any:
            hit = self.otherwise[np.asarray(drafted)[:, 0]]
            law = zeros((len(hit), 3), hit) + (1 - hit)[:, None] * self.otherwise
            law[range(len(hit)), np.asarray(drafted)[:, 0]] += hit
            return law

    wrong = Verifier("fresh", traversal, node_rule=lambda p, q, k: Fresh(zeros((k, 3), p), p))
    law = evaluate(VerifyProblem(EXACT["S8"]), wrong, method="recursion").law
    assert law is not None
    assert law.reshape(3, 3).sum(axis=1).tolist() == fractions(".264 .408 .328")


def test_traversal_needs_the_order_of_first_appearance() -> None:
    """Children in the order of token ids: the law breaks."""

    def by_token(view: DraftTree) -> StopDistribution:
        turned = DraftTree.build(sorted(view.paths.tolist()), view.target, view.draft)
        return traversal(turned)

    pair = iid_pair(fractions(".2 .4 .4"), fractions(".6 .3 .1"), 1)
    problem = VerifyProblem(pair, 2)
    assert evaluate(problem, Verifier("sorted", by_token), method="enumeration").law_error > 0
    assert evaluate(problem, "traversal").law_error == 0


# sizes and methods


def test_refused_sizes_name_the_way_out() -> None:
    pair = random_pair(4, 3, seed=0)
    with pytest.raises(SizeError, match='262144 ordered tuples, expected at most 20000; use method="recursion"'):
        evaluate(VerifyProblem(pair, 3), "specinfer", method="enumeration")
    with pytest.raises(SizeError, match="recursion on \\(node, k\\) with 3 paths: got 1764 tuples"):
        evaluate(VerifyProblem(pair, 3), "specinfer", max_terms=1000)
    with pytest.raises(SizeError, match="recursion of traversal with 3 paths"):
        evaluate(VerifyProblem(pair, 3), "traversal", max_terms=1000)
    with pytest.raises(InputError, match="recursion for bv, expected a top-down verifier or traversal"):
        evaluate(VerifyProblem(pair, 3), "bv", method="recursion")
    with pytest.raises(InputError, match="method: got 'guess'"):
        evaluate(VerifyProblem(pair, 3), "bv", method="guess")


@pytest.mark.parametrize(("vocab", "depth", "paths"), [(1, 900, 2), (2, 2, 100), (2, 2, 1000), (2, 1, 1024)])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_large_has_a_value_or_is_refused(vocab: int, depth: int, paths: int, name: str) -> None:  # fault T16
    pair = make.dirichlet(vocab, depth, 0)
    try:
        value = float(evaluate(VerifyProblem(pair, paths), name).block_efficiency)
    except SizeError:
        assert name in ("nss", "specinfer", "spectr", "ot", "traversal", "policy")
    else:
        assert 1 <= value <= depth + 1 + 1e-9


def test_sets_of_many_draws_are_as_the_closed_form() -> None:  # fault T16
    """Pr(set) by inclusion and exclusion, in Fractions and for 1,000 draws."""
    q = [Fraction(1, 2), Fraction(3, 10), Fraction(1, 5)]
    for count in (1, 2, 5, 12):
        for members, mass in set_probabilities(q, count).items():
            chosen = [q[x] for x in members]
            signed = [(-1) ** (len(chosen) - n) * sum(part) ** count for n in range(1, len(chosen) + 1)
                      for part in combinations(chosen, n)]  # fmt: skip
            assert mass == sum(signed)
    many = set_probabilities([0.5, 0.499, 0.001], 1000)
    assert sum(many.values()) == pytest.approx(1, abs=1e-12)
    assert many[0, 1] == pytest.approx(0.999**1000, rel=1e-9)


def test_closed_form_takes_over_where_enumeration_is_too_large() -> None:
    pair = random_pair(4, 2, seed=0)
    small, large = (evaluate(VerifyProblem(pair), "bv", max_terms=terms) for terms in (16, 15))
    assert (small.method, large.method) == ("enumeration", "closed form")
    assert small.block_efficiency == pytest.approx(large.block_efficiency, abs=1e-13)


# stored values


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.stem)
def test_reference_values(path: Any) -> None:
    pair, expected = reference_pair(path)
    for name in ("token", "bv"):
        if name in expected:
            assert evaluate(VerifyProblem(pair), name).block_efficiency == pytest.approx(expected[name], abs=1e-7)
    for paths, values in expected["paths"].items():
        for name in NAMES:
            if name in values:
                result = evaluate(VerifyProblem(pair, int(paths)), name, max_terms=None if name in RECURSIVE else 400)
                assert result.block_efficiency == pytest.approx(values[name], abs=1e-7), (name, paths)
                assert result.law_error is None or result.law_error <= 1e-12
