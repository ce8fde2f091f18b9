"""The audit itself: enumeration of choices, the sampled test and its bounds, strange programs, the command."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
from bisect import bisect
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wrong_verifiers as w
from scipy import stats
from typer.testing import CliRunner

import lpverify
from lpverify.auditing.audit import audit, compare_distributions, joint_distribution
from lpverify.auditing.cases import Case, cases, iid, select
from lpverify.auditing.choices import (
    UNIFORMS,
    EndChoices,
    NotEnumerable,
    SampledChoices,
    enumerate_outcomes,
    number,
    numbers,
)
from lpverify.auditing.identity import identity_test, smallest_found, threshold
from lpverify.auditing.load import load_function
from lpverify.cli import app
from lpverify.core.draft_tree import DraftTree
from lpverify.core.problem import VerifyProblem
from lpverify.errors import InputError, SizeError
from lpverify.verifiers import VERIFIERS, StopDistribution, Verifier
from lpverify.verifiers.block import block_verification
from lpverify.verifiers.residual import acceptance
from lpverify.verifiers.rows import rows_of

SHORT = ["one step", "coin", "tree of 3 K=2", "target lacks a token", "equal to the last bit"]
STEP = "one step K=1"


# choices


def test_masses_of_a_decision_tree() -> None:
    """Exact in Fractions; branches of probability 0 are never taken."""

    def run(rng: Any) -> tuple[int, bool]:
        x = rng.categorical([Fraction(1, 2), 0, Fraction(1, 2)])
        return x, x == 2 and rng.bernoulli(Fraction(1, 3))

    masses, runs = enumerate_outcomes(run, max_runs=10)
    assert masses == {(0, False): Fraction(1, 2), (2, True): Fraction(1, 6), (2, False): Fraction(1, 3)}
    assert runs == 3


def test_weights_need_not_sum_to_one_and_probabilities_are_cut() -> None:
    masses, _ = enumerate_outcomes(lambda rng: (rng.categorical([1, 3]), rng.bernoulli(Fraction(7, 5))), max_runs=9)
    assert masses == {(0, True): Fraction(1, 4), (1, True): Fraction(3, 4)}


def test_floats_and_tensors_are_taken() -> None:
    assert numbers(np.array([0.25, 0.75])) == (0.25, 0.75)
    assert numbers([1, Fraction(1, 2), np.float64(0.5)]) == (1, Fraction(1, 2), 0.5)
    assert isinstance(number("p", 1), Fraction)
    torch: Any = pytest.importorskip("torch")
    assert numbers(torch.tensor([0.25, 0.75])) == (0.25, 0.75)
    assert number("p", torch.tensor(0.5)) == 0.5


@pytest.mark.parametrize("weights", [[], [0, 0], [-1, 2], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_bad_weights(weights: Any) -> None:
    with pytest.raises(InputError, match="categorical: got"):
        enumerate_outcomes(lambda rng: rng.categorical(weights), max_runs=9)
    with pytest.raises(InputError, match="categorical: got"):
        SampledChoices(0).categorical(weights)


def test_what_cannot_be_enumerated() -> None:
    state = iter(range(100))
    for program in (
        lambda rng: float(rng.uniform()),
        lambda rng: math.log(rng.uniform()),
        lambda rng: rng.uniform() < rng.uniform(),
        lambda rng: np.array([rng.uniform()], dtype=float).sum(),
    ):
        with pytest.raises(NotEnumerable, match="draws uniforms"):
            enumerate_outcomes(program, max_runs=9)
    with pytest.raises(NotEnumerable, match="does not repeat itself"):
        enumerate_outcomes(lambda rng: rng.bernoulli(0.5) and rng.bernoulli(1 / (2 + next(state))), max_runs=9)
    with pytest.raises(NotEnumerable, match="more than 9 runs"):
        enumerate_outcomes(lambda rng: [rng.bernoulli(0.5) for _ in range(4)] == [], max_runs=9)

    def rejection(rng: Any) -> int:
        while not rng.bernoulli(Fraction(0)):
            pass
        return 0

    with pytest.raises(NotEnumerable, match="more than 2000 choices"):
        enumerate_outcomes(rejection, max_runs=9)


UNIFORM_PROGRAMS: dict[str, tuple[Any, dict[Any, Fraction]]] = {
    "one comparison": (lambda u: u < Fraction(1, 3), {True: Fraction(1, 3), False: Fraction(2, 3)}),
    "the other way round": (lambda u: Fraction(1, 3) >= u, {True: Fraction(1, 3), False: Fraction(2, 3)}),
    "the same uniform twice": (
        lambda u: (u < Fraction(1, 2), u < Fraction(1, 3)),
        {(True, True): Fraction(1, 3), (True, False): Fraction(1, 6), (False, False): Fraction(1, 2)},
    ),
    "known already": (
        lambda u: (u >= Fraction(1, 2), u > Fraction(1, 4))[0],
        {True: Fraction(1, 2), False: Fraction(1, 2)},
    ),
    "linear": (lambda u: (1 - 2 * u) / Fraction(1, 2) + 1 < 2, {True: Fraction(3, 4), False: Fraction(1, 4)}),
    "scaled by zero": (lambda u: u * 0 < Fraction(1, 2), {True: Fraction(1)}),
    "outside": (lambda u: (u < 0, u <= 0, u < 1, u > 2, u != 0.5), {(False, False, True, False, True): Fraction(1)}),
    "inverse of a cumulative sum": (
        lambda u: bisect([Fraction(1, 2), Fraction(3, 4), Fraction(1)], u),
        {0: Fraction(1, 2), 1: Fraction(1, 4), 2: Fraction(1, 4)},
    ),
    "numpy's": (
        lambda u: int(np.searchsorted(np.cumsum([Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)]), u, side="right")),
        {0: Fraction(1, 2), 1: Fraction(1, 4), 2: Fraction(1, 4)},
    ),
    "elements of an array": (
        lambda u: tuple((np.array([u, u * 2]) < np.array([Fraction(1, 2)] * 2)).tolist()),
        {(True, True): Fraction(1, 4), (True, False): Fraction(1, 4), (False, False): Fraction(1, 2)},
    ),
    "smaller of two": (
        lambda u: min(u, Fraction(1, 4)) < Fraction(1, 8),
        {True: Fraction(1, 8), False: Fraction(7, 8)},
    ),
    "with itself": (
        lambda u: (u < u, u * 2 < u + Fraction(1, 4)),
        {(False, True): Fraction(1, 4), (False, False): Fraction(3, 4)},
    ),
    "not a number": (lambda u: (u < math.nan, u >= math.nan), {(False, False): Fraction(1)}),
}


@pytest.mark.parametrize("name", UNIFORM_PROGRAMS)
def test_uniforms_that_are_only_compared_are_enumerated(name: str) -> None:
    program, expected = UNIFORM_PROGRAMS[name]
    masses, _ = enumerate_outcomes(lambda choices: program(choices.uniform()), max_runs=99)
    assert masses == expected
    assert all(isinstance(mass, Fraction) for mass in masses.values())


def test_uniforms_and_bernoulli_choices_are_the_same() -> None:
    """A verifier by uniforms, in exact fractions; the ends of [0, 1) are looked at all the same."""
    cases = ["one step", "coin", "tree of 3 K=1", "target lacks a token K=1"]
    for program in (w.with_uniforms, w.u_zero_accepts):
        report = audit(program, cases=cases)
        assert {row.mode for row in report.cases} == {"exact"}
        assert report.false_alarm == 0
        found = {"tree of 3 K=1", "target lacks a token K=1"} if program is w.u_zero_accepts else set()
        assert {case for case, _ in report.findings} == found
        assert {finding.cause for _, finding in report.findings} <= {"boundary"}


def test_uniforms_of_a_program_that_takes_floats_only() -> None:
    """Fractions fail, floats fail with a uniform that has no value: it is sampled."""

    def verify(paths: Any, target: Any, draft: Any, rng: Any) -> Any:
        np.log(rng.uniform() + 1)
        return w.token_rule(paths, target, draft, rng)

    [row] = audit(verify, cases=[STEP], draws=500).cases
    assert (row.mode, row.finding) == ("sampled", None)
    assert UNIFORMS in row.note


def test_uniforms_at_the_ends() -> None:
    drawn = [EndChoices(seed).uniform() for seed in range(300)]
    assert min(drawn) == 0
    assert max(drawn) == 1 - 2**-53
    assert 60 < sum(0 < u < 1 - 2**-53 for u in drawn) < 140  # binomial tails below 1e-6


def test_drawn_choices_have_the_stated_law() -> None:
    """Binomial tails of 1e-9 each, 4 of them."""
    rng, draws = SampledChoices(1), 40_000
    drawn = [rng.categorical([0.0, 0.25, 0.75, 0.0]) for _ in range(draws)]
    assert set(drawn) == {1, 2}
    for seen, chance in ((drawn.count(1), 0.25), (sum(rng.bernoulli(0.125) for _ in range(draws)), 0.125)):
        assert min(stats.binom.cdf(seen, draws, chance), stats.binom.sf(seen - 1, draws, chance)) > 1e-9


# the sampled test


def test_threshold_is_the_bound_of_bretagnolle_huber_and_carol() -> None:
    for cells, draws, alpha in ((4, 1_000, 1e-6), (27, 100_000, 1e-8)):
        limit = threshold(cells, draws, alpha)
        assert 2.0**cells * math.exp(-2 * draws * limit**2) == pytest.approx(alpha / 2)
        missed = math.exp(-2 * draws * (smallest_found(cells, draws, alpha) - limit) ** 2)
        assert missed == pytest.approx(0.01)


def test_false_alarms_and_misses_are_as_rare_as_stated() -> None:
    """At alpha = 0.2 of 400 samples of the law at most 0.2 fail, of one at the stated distance 0.99 do (tails 1e-9)."""
    law = np.array([0.4, 0.3, 0.2, 0.1])
    generator, draws, alpha, samples = np.random.default_rng(0), 500, 0.2, 400
    distance = smallest_found(4, draws, alpha)
    shifted = law + np.array([distance, -distance, 0, 0])

    def rejected(of: Any) -> int:
        counts = generator.multinomial(draws, of, size=samples)
        return sum(identity_test(row, law, 2, 2, alpha).prefix is not None for row in counts)

    assert stats.binom.sf(rejected(law) - 1, samples, alpha) > 1e-9
    assert stats.binom.cdf(rejected(shifted), samples, 0.99) > 1e-9


@pytest.mark.heavy
def test_total_variation_of_one_percent_is_found() -> None:
    """A law 0.01 from the target's: 1/60 more acceptance of token 0. The right one raises no alarm."""
    [case] = select(["one step K=1"])
    draws = 250_000
    found = smallest_found(9, draws, 1e-6)
    assert found <= 0.01
    report = audit(w.slightly_greedy, cases=[case], draws=draws)
    assert report.cases[0].smallest_found == pytest.approx(found)
    assert report.cases[0].total_variation == pytest.approx(0.01, abs=0.005)
    assert not report.lossless
    right = audit(w.with_drawn_uniforms, cases=[case], draws=draws)
    assert right.lossless
    assert right.cases[0].mode == "sampled"
    assert right.false_alarm == 1e-6


# verdicts


SLOW = ("tgbv", "pbv", "ebv", "policy", "spectr", "ot")


@pytest.mark.parametrize("name", [name for name in VERIFIERS if name not in SLOW])
def test_our_verifiers_are_lossless_on_the_table(name: str) -> None:
    report = audit(name)
    assert report.lossless, report.findings
    assert report.false_alarm == 0
    assert {row.mode for row in report.cases} == {"exact"}
    assert all(row.total_variation == 0 for row in report.cases if row.rational)


@pytest.mark.parametrize("name", SLOW)
def test_our_slower_verifiers_are_lossless(name: str) -> None:
    report = audit(name, cases=SHORT)
    assert report.lossless, report.findings


@pytest.mark.parametrize("name", ["specinfer", "gbv"])
def test_program_and_law_agree(name: str) -> None:
    """The same verifier, enumerated choice by choice: total variation 0 in Fractions."""
    report = audit(w.ours(name), cases=["one step K=2", "coin K=2"])
    assert report.lossless
    assert all(row.mode == "exact" and row.total_variation == 0 for row in report.cases)


@pytest.mark.parametrize(("choose", "lossless"), [(max, False), (lambda places, key: places[-1], True)])
def test_claims_about_the_order_of_paths_are_not_believed(choose: Any, lossless: bool) -> None:
    """BV of the path with the largest tokens, of the last path: both claim that only the multiset, or only the first
    path, matters. Summed over multisets in ascending order the two would be the same."""

    def law(view: DraftTree) -> StopDistribution:
        path = choose(range(len(view.paths)), key=lambda k: tuple(view.paths[k]))
        rows = rows_of(view)
        edges = rows.observe()
        weight = view.target[:, 0] * 0 + 1
        for above, node in zip(view.node_of[path], view.node_of[path][1:], strict=False):
            weight[node] = acceptance(weight[above] * edges.target_edge[node - 1], edges.draft_edge[node - 1])
        return block_verification(rows, weight, [path], weight[:1])

    claims = Verifier("claims", law, path_order=False, first_path_only=True)
    assert audit(claims, cases=["one step K=2"]).lossless == lossless


def test_finding_names_the_first_prefix() -> None:
    [(case, finding)] = audit(partial(w.block_rule, residual=w.token_residual), cases=["block residual K=1"]).findings
    assert case == "block residual K=1"
    assert finding.kind == "law"
    assert finding.prefix == (2, 0)
    assert (finding.expected, finding.got) == (Fraction(2, 25), Fraction(1, 10))
    assert (
        finding.message == 'the emitted distribution differs from the target at "2 0": probability 1/10, expected 2/25'
    )


def test_impossible_token_has_no_tolerance() -> None:
    pair = iid("1/2 1/2 0", "1/3 1/3 1/3", 1).floats
    law = np.array([0.25, 0.25, 0, 0.25, 0.25, 0, 0, 0, 0])
    assert compare_distributions(pair, law, 1, 1e-12)[1] is None
    law[2], law[0] = 1e-15, 0.25 - 1e-15
    finding = compare_distributions(pair, law, 1, 1e-12)[1]
    assert finding is not None
    assert (finding.kind, finding.prefix) == ("impossible token", (0, 2))


def test_joint_distribution_of_two_rounds_is_the_product() -> None:
    pair = iid("1/4 3/4", "3/5 2/5", 1)
    single = joint_distribution(pair, {((0, 1),): Fraction(1, 3), ((1,),): Fraction(2, 3)})
    assert single.tolist() == [0, Fraction(1, 3), Fraction(1, 6), Fraction(1, 2)]
    masses = {((0, 1), (1,)): Fraction(1, 3), ((1,), (1,)): Fraction(2, 3)}
    after = joint_distribution(pair, {((1,),): Fraction(1)})
    assert (joint_distribution(pair, masses).reshape(4, 4) == single[:, None] * after).all()


# strange programs


def returning(answer: Any) -> Any:
    return lambda paths, target, draft, rng: answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, "(accepted tokens, next token)"),
        (((), 0.5), "(accepted tokens, next token)"),
        (((), 3), "a next token in 0..2"),
        (((), -1), "a next token in 0..2"),
        (((0, 0), 0), "a prefix of a drafted path"),
        (((7,), 0), "a prefix of a drafted path"),
        (("a", 0), "(accepted tokens, next token)"),
    ],
)
def test_bad_answers(answer: Any, expected: str) -> None:
    [(_, finding)] = audit(returning(answer), cases=[STEP]).findings
    assert finding.kind == "returned"
    assert expected in finding.message


def test_numpy_answers_are_taken() -> None:
    def verify(paths: Any, target: Any, draft: Any, rng: Any) -> Any:
        accepted, token = w.token_rule(paths, target, draft, rng)
        return np.array(accepted, dtype=np.int32), np.int64(token)

    assert audit(verify, cases=[STEP]).lossless


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda paths, target, draft, rng: 1 // 0, "raised ZeroDivisionError"),
        (lambda paths, target, draft, rng: rng.random(), "raised AttributeError"),
        (lambda paths, target, draft: ((), 0), "raised TypeError"),
        (lambda paths, target, draft, rng: (paths[0], draft(paths[0])), "draft: got a prefix of 1 tokens, expected at"),
        (lambda paths, target, draft, rng: ((), target((5,))), "token of a prefix given to target: got 5, expected"),
        (lambda paths, target, draft, rng: ((), rng.categorical([float("nan")])), "categorical: got [nan]"),
        (lambda paths, target, draft, rng: ((), int(rng.bernoulli(float("nan")))), "bernoulli: got NaN"),
    ],
)
def test_errors_are_findings(program: Any, message: str) -> None:
    [(_, finding)] = audit(program, cases=[STEP]).findings
    assert finding.kind == "raised"
    assert message in finding.message
    assert "\n" not in finding.message


def test_float_programs_are_audited_in_floats() -> None:
    """math.log of a Fraction is fine, numpy's is not: the case is repeated in floats and the report says so."""

    def verify(paths: Any, target: Any, draft: Any, rng: Any) -> Any:
        np.log(target(()))
        return w.token_rule(paths, target, draft, rng)

    report = audit(verify, cases=["coin"])
    assert report.lossless
    assert all(not row.rational and "in floats, as it does not take Fractions" in row.note for row in report.cases)


@pytest.mark.parametrize("generator", [random, random.Random(1)], ids=["global", "own"])
def test_own_randomness_is_sampled(generator: Any) -> None:
    def verify(paths: Any, target: Any, draft: Any, rng: Any) -> Any:
        return w.token_rule(paths, target, draft, w.Own(generator))

    report = audit(verify, cases=[STEP, "rare draft"], draws=4_000)
    assert report.lossless
    assert {row.mode for row in report.cases} == {"sampled"}
    assert report.cases[0].note == "it brings randomness of its own"


def test_global_generators_are_watched() -> None:
    """Where randomness shows once in 10^8 runs, no repetition would tell."""
    rare = Case("rare", VerifyProblem(iid("1/100000000 99999999/100000000", "0 1", 1), 1))

    def verify(paths: Any, target: Any, draft: Any, rng: Any) -> Any:
        return w.token_rule(paths, target, draft, w.Own(random))

    [row] = audit(verify, cases=[rare], draws=1_000).cases
    assert (row.mode, row.finding) == ("sampled", None)


def test_changed_rows_are_found_where_the_law_is_right() -> None:
    def doubles(paths: Any, target: Any, draft: Any, rng: Any) -> Any:
        p = target(())
        y = rng.categorical(p / p.sum())
        p *= 2
        return (), y

    [(_, finding)] = audit(doubles, cases=[STEP]).findings
    assert (finding.kind, finding.prefix) == ("changed its input", ())
    assert finding.message == 'it changed the row target("")'


def test_class_is_made_anew_and_object_is_kept() -> None:
    made: list[Any] = []

    class Counts:
        def __init__(self) -> None:
            made.append(self)

        def __call__(self, paths: Any, target: Any, draft: Any, rng: Any) -> Any:
            return w.token_rule(paths, target, draft, rng)

    assert audit(Counts, cases=[STEP]).cases[0].count == len(made)
    made.clear()
    assert audit(Counts(), cases=[STEP]).lossless
    assert len(made) == 1


def test_bad_drafters() -> None:
    for drafted, expected in ((((0, 0),), "1 paths of 1 tokens"), (((9,),), "tokens in 0..2"), (3, "tuples of tokens")):
        program = w.Drafting(None, w.token_rule)
        program.draft_paths = lambda draft, paths, length, rng, drafted=drafted: drafted  # type: ignore[method-assign]
        [(_, finding)] = audit(program, cases=[STEP]).findings
        assert finding.kind == "returned"
        assert expected in finding.message


def test_seed_repeats_a_sampled_audit() -> None:
    first, second, other = (audit(w.with_drawn_uniforms, cases=[STEP], draws=500, seed=s).cases[0] for s in (1, 1, 2))
    assert first == second
    assert first.total_variation != other.total_variation


# the border


def test_cases() -> None:
    assert len(cases()) > 40
    assert {case.problem.num_paths for case in cases().values()} >= {1, 2, 3, 8}
    assert any(case.rounds == 2 for case in cases().values())
    assert [case.name for case in select(["skewed-3:2", "coin K=1"])] == ["skewed-3 K=2", "coin K=1"]
    with pytest.raises(InputError, match="case: got 'nonsense', expected PROBLEM:K, or one of one step, block"):
        audit("bv", cases=["nonsense"])
    with pytest.raises(InputError, match="cases: got none"):
        audit("bv", cases=[])


def test_bad_arguments() -> None:
    with pytest.raises(InputError, match="algorithm: got 'nonsense'"):
        audit("nonsense")
    with pytest.raises(InputError, match="verifier: got 3, expected a name"):
        audit(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="draws: got 0"):
        audit("bv", draws=0)
    with pytest.raises(InputError, match="tolerance"):
        audit("bv", tolerance=float("nan"))
    large = Case("large", VerifyProblem(lpverify.make.dirichlet(10, 6, seed=0), 1))
    with pytest.raises(SizeError, match="audit of case large: got 10,000,000 sequences"):
        audit("bv", cases=[large])


def test_too_many_drafts_are_refused_not_failed() -> None:
    large = Case("large", VerifyProblem(lpverify.make.dirichlet(8, 3, seed=0), 2))
    report = audit("bv", cases=[large, "coin K=1"])
    assert [row.mode for row in report.cases] == ["refused", "exact"]
    assert (report.outcome, report.lossless, len(report.undecided)) == ("not decided", False, 1)
    assert audit("bv", cases=[large]).outcome == "not decided"
    wrong = audit(
        Verifier("wrong", lambda tree: StopDistribution(tree, 0 * tree.target[:, 0], None)), cases=[large, STEP]
    )
    assert wrong.outcome == "not lossless"
    assert len(wrong.undecided) == 1


# somebody else's code


def test_speculative_sampling_of_transformers() -> None:
    """Right as far as the draws tell, but for U = 0, where it accepts a token of target probability 0."""
    pytest.importorskip("transformers")
    file = Path(__file__).parents[1] / "experiments" / "audit_transformers.py"
    released, offered, ensemble = (
        load_function(f"{file}:{f}") for f in ("as_released", "offered_uniforms", "ensemble")
    )
    report = audit(released, cases=[STEP], draws=500)
    assert report.lossless, report.findings
    assert {row.mode for row in report.cases} == {"sampled"}
    [(_, finding)] = audit(offered, cases=["disjoint K=1"], draws=20).findings
    assert finding.kind == "impossible token"
    assert "a uniform of 0" in finding.message
    assert not audit(ensemble, cases=["sure target K=1"], draws=200).lossless


# command line

FILE = """
def token(paths, target, draft, rng):
    path = paths[0]
    for i, x in enumerate(path):
        p, q = target(path[:i]), draft(path[:i])
        if not rng.bernoulli(min(1, p[x] / q[x])):
            return path[:i], rng.categorical([max(a - b, 0) for a, b in zip(p, q)])
    return path, rng.categorical(target(path))

def naive(paths, target, draft, rng):
    path = paths[0]
    for i, x in enumerate(path):
        p, q = target(path[:i]), draft(path[:i])
        if not rng.bernoulli(min(1, p[x] / q[x])):
            return path[:i], rng.categorical(p)
    return path, rng.categorical(target(path))

SIZE = 3
"""


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["audit", *arguments])


def test_command_says_yes_and_no(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    right = run(f"{file}:token", "--cases", "one step,coin K=2,skewed-3:1")
    assert right.exit_code == 0, right.output
    assert "is lossless on 6 cases" in right.output
    wrong = run(f"{file}:naive", "--cases", "one step", "--json", str(tmp_path / "out.json"))
    assert wrong.exit_code == 1
    assert "is NOT lossless" in wrong.output
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["schema"] == "lpverify/audit@1"
    assert not data["lossless"]
    finding = data["cases"][0]["finding"]
    assert finding["prefix"] == [2]
    assert (finding["expected"], finding["got"]) == (0.4, 0.26)
    assert run("bv", "--cases", "coin").exit_code == 0


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (FILE, "missing", "got no 'missing' in it, expected one of token, naive"),
        (FILE, "SIZE", "got a int, expected a function"),
        ("import nothing_of_that_name", "f", "got ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("def f(:", "f", "got SyntaxError: invalid syntax"),
    ],
)
def test_bad_files(text: str, name: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    result = run(f"{file}:{name}")
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert line.startswith("lpverify: error: ")
    assert message in line


ENDS = {
    "exit": "sys.exit(0)",
    "quit": "quit()",
    "interrupt": "raise KeyboardInterrupt",
    "generator exit": "raise GeneratorExit",
    "own": "raise type('Own', (BaseException,), {})('mine')",
    "recursion": "verify(paths, target, draft, rng)",
    "unprintable": "raise type('Bad', (Exception,), {'__str__': lambda self: sys.exit(0)})()",
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("where", ["function", "class", "drafter", "answer", "repr"])
def test_whatever_ends_a_program_is_a_finding(end: str, where: str) -> None:
    """And the caller's process lives on. Red before: SystemExit and KeyboardInterrupt went through."""

    def ends(*_: Any) -> Any:
        exec(ENDS[end], {"sys": sys, "verify": ends, "paths": 0, "target": 0, "draft": 0, "rng": 0})

    class Program:
        def __init__(self) -> None:
            if where == "class":
                ends()

        draft_paths = staticmethod(ends) if where == "drafter" else None

        def __call__(self, *_: Any) -> Any:
            if where == "function":
                ends()
            wrong = type("Wrong", (), {"__iter__": ends} if where == "answer" else {"__repr__": ends})
            return wrong()

    if where != "drafter":
        del Program.draft_paths
    [(_, finding)] = audit(Program, cases=[STEP]).findings
    assert finding.kind == ("returned" if where == "repr" and end in ("recursion", "unprintable") else "raised")
    assert "\n" not in finding.message


def test_whatever_ends_an_own_verifier_is_a_finding() -> None:
    def leave(tree: DraftTree) -> StopDistribution:
        raise SystemExit(0)

    [(_, finding)] = audit(Verifier("mine", leave), cases=[STEP]).findings
    assert (finding.kind, finding.message[:18]) == ("raised", "raised SystemExit:")


def test_answers_without_an_end_are_findings(recwarn: Any) -> None:
    """Only as much of them is read as a right answer has; a coroutine is closed."""

    async def coroutine(paths: Any, target: Any, draft: Any, rng: Any) -> Any:
        return (), 0

    drafter = w.Drafting(None, w.token_rule)
    drafter.draft_paths = lambda *_: (itertools.repeat(0),) * 1  # type: ignore[method-assign]
    endless = w.Drafting(None, w.token_rule)
    endless.draft_paths = lambda *_: itertools.repeat((0,))  # type: ignore[method-assign]

    def weights(paths: Any, target: Any, draft: Any, rng: Any) -> Any:
        return (), rng.categorical(itertools.repeat(1))

    for program in (returning((itertools.repeat(0), 0)), coroutine, drafter, endless, weights):
        [(_, finding)] = audit(program, cases=[STEP]).findings
        assert finding.kind == ("raised" if program is weights else "returned")
    assert not recwarn.list


@pytest.mark.parametrize("instead", [lambda: ((), 0), lambda: 1 // 0], ids=["returns", "raises"])
def test_a_program_that_catches_everything_is_sampled(instead: Any) -> None:
    """It catches how the enumeration stops a run that draws uniforms, too."""

    def verify(paths: Any, target: Any, draft: Any, rng: Any) -> Any:
        try:
            return w.with_drawn_uniforms(paths, target, draft, rng)
        except BaseException:
            return instead()

    [row] = audit(verify, cases=[STEP], draws=500).cases
    assert (row.mode, row.note, row.finding) == ("sampled", UNIFORMS, None)


@pytest.mark.parametrize("error", [SystemExit(0), RuntimeError("no"), None])
def test_a_name_that_is_none(error: Any) -> None:
    class Odd:
        def __getattr__(self, name: str) -> Any:
            if name != "__name__":
                raise AttributeError(name)
            if error is not None:
                raise error
            return 3

        def __call__(self, paths: Any, target: Any, draft: Any, rng: Any) -> Any:
            return w.token_rule(paths, target, draft, rng)

    report = audit(Odd(), cases=[STEP])
    assert report.lossless
    assert report.verifier == "Odd"


def test_ctrl_c_is_not_a_finding() -> None:
    """A signal, as opposed to a KeyboardInterrupt that the program raises."""

    def slow(paths: Any, target: Any, draft: Any, rng: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return (), 0

    with pytest.raises(KeyboardInterrupt):
        audit(slow, cases=[STEP])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


LEAVES = {
    "os._exit(0)": "exit status 0",
    "os._exit(3)": "exit status 3",
    "os.kill(os.getpid(), signal.SIGKILL)": "signal 9",
    "os.closerange(3, 256); os._exit(0)": "exit status 0",
    "sys.exit(0)": "raised SystemExit: 0",
    "raise KeyboardInterrupt": "raised KeyboardInterrupt",
}


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("loading", [False, True])
def test_command_has_a_verdict_however_the_program_leaves(leave: str, loading: bool, tmp_path: Path) -> None:
    """Red before: exit code 0 without a verdict."""
    file = tmp_path / "mine.py"
    file.write_text("import os, signal, sys\n" + (f"{leave}\n" if loading else f"def f(*a):\n    {leave}\n"))
    result = run(f"{file}:f", "--cases", STEP)
    assert result.exit_code == 1, result.output
    assert LEAVES[leave] in result.output
    assert "is NOT lossless: 1 of 1 cases" in result.output


def test_not_decided_is_an_outcome_of_its_own(tmp_path: Path) -> None:
    """Red before: "NOT lossless: 0 of 1 cases" and exit code 1."""
    alone = run("bv", "--cases", "tree-v3-l4:8")
    assert alone.exit_code == 2
    assert "bv is not decided: 0 of 1 cases lossless, 1 not decided" in alone.stdout
    [line] = alone.stderr.splitlines()
    assert line.startswith("lpverify: error: audit of bv: got not decided")
    mixed = run("bv", "--cases", "tree-v3-l4:8,coin K=1", "--json", "-")
    document = json.loads(mixed.stdout)
    assert (mixed.exit_code, document["outcome"], document["lossless"]) == (2, "not decided", False)
    assert [case["mode"] for case in document["cases"]] == ["refused", "exact"]


def test_imports_inside_the_function_change_nothing(tmp_path: Path) -> None:
    """Red before: the import of torch looked like randomness of the program's own, and everything was sampled."""
    body = FILE.split("def naive")[0].replace(
        "    path = paths[0]", "    import unittest.mock, secrets, seeds\n    path = paths[0]"
    )
    (tmp_path / "mine.py").write_text(body)
    (tmp_path / "seeds.py").write_text("import random, numpy\nrandom.seed(3)\nnumpy.random.seed(5)\n")
    result = run(f"{tmp_path / 'mine.py'}:token", "--cases", "one step", "--json", "-")
    assert result.exit_code == 0
    assert {(case["mode"], case["note"]) for case in json.loads(result.stdout)["cases"]} == {("exact", "")}


def test_prints_do_not_reach_the_document(tmp_path: Path, capfd: Any) -> None:
    """At import, in the function, past sys.stdout and from child processes: all on standard error."""
    noise = "import os, subprocess, sys\nprint('noise')\n"
    body = FILE.replace("    path = paths[0]", "    print('noise'); os.write(1, b'noise')\n    path = paths[0]")
    body += "subprocess.run([sys.executable, '-c', 'print(\"noise\")'])\n"
    (tmp_path / "mine.py").write_text(noise + body)
    command = [
        sys.executable,
        "-m",
        "lpverify",
        "audit",
        f"{tmp_path / 'mine.py'}:token",
        "--cases",
        STEP,
        "--json",
        "-",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["lossless"]
    assert done.stderr.count("noise") > 3


MODULES = {
    "mine.py": "",
    "random.py": "",
    "with-hyphen.and dot.py": "",
    "package/inner/mine.py": "from ..other import NUMBER\nassert __name__ == 'package.inner.mine'\n",
}


@pytest.mark.parametrize("name", MODULES)
def test_files_are_real_modules(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dataclasses with postponed annotations, pickling, type hints, relative imports; the module is not __main__."""
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    for folder in file.parents[: len(Path(name).parts) - 1]:
        (folder / "__init__.py").write_text("")
    (tmp_path / "package").mkdir(exist_ok=True)
    (tmp_path / "package" / "other.py").write_text("NUMBER = 3\n")
    real = """
import pickle, typing
from dataclasses import dataclass
@dataclass
class Held:
    number: int
assert __name__ != "__main__"
assert typing.get_type_hints(Held) == {"number": int}
"""
    body = FILE.replace(
        "    path = paths[0]", "    assert pickle.loads(pickle.dumps(Held(3))) == Held(3)\n    path = paths[0]"
    )
    file.write_text("from __future__ import annotations\n" + MODULES[name] + real + body)
    result = run(f"{file}:token", "--cases", STEP)
    assert result.exit_code == 0, result.output
    if "package" in name:
        monkeypatch.chdir(tmp_path)
        assert run("package.inner.mine:token", "--cases", STEP).exit_code == 0


def test_a_fault_from_the_fifth_token_on_is_found() -> None:
    """Red before: no case was deeper than three tokens."""

    def late(paths: Any, target: Any, draft: Any, rng: Any) -> Any:
        accepted, token = w.token_rule(paths, target, draft, rng)
        late = len(accepted) == 5 < len(paths[0])
        return (accepted, rng.categorical(target(accepted))) if late else (accepted, token)

    report = audit(late)
    assert [case for case, _ in report.findings] == ["six tokens K=1", "six tokens, two ends K=2"]
    assert max(case.depth for case in report.cases) == 6


def in_single_precision(paths: Any, target: Any, draft: Any, rng: Any) -> Any:
    path = paths[0]
    for i, x in enumerate(path):
        p, q = (np.asarray(row(path[:i]), dtype=np.float32).astype(float) for row in (target, draft))
        if not rng.bernoulli(min(1.0, p[x] / q[x])):
            return path[:i], rng.categorical(np.maximum(p - q, 0))
    return path, rng.categorical(np.asarray(target(path), dtype=np.float32).astype(float))


def accepts_too_much(paths: Any, target: Any, draft: Any, rng: Any) -> Any:
    return w.token_rule(paths, target, draft, rng) if rng.bernoulli(Fraction(9, 10)) else (paths[0], 0)


def orders_ties_differently(paths: Any, target: Any, draft: Any, rng: Any) -> Any:
    """Picks the path with the largest p/q, of equal ones the last token; corrects as if it were the first."""
    best = max(paths, key=lambda path: (_ratio(path, target, draft), path))
    return w.greedy_multipath([best] * len(paths), target, draft, rng)


def _ratio(path: Any, target: Any, draft: Any) -> Any:
    return [target(path[:i])[x] / draft(path[:i])[x] for i, x in enumerate(path)]


@pytest.mark.parametrize(
    ("program", "cases", "cause"),
    [
        (in_single_precision, ["coin K=1", "tree of 3 K=1"], "rounding"),
        (accepts_too_much, ["coin K=1"], "acceptance"),
        (partial(w.block_rule, residual=w.token_residual), ["block residual K=1"], "residual"),
        (w.u_zero_accepts, ["target lacks a token K=1"], "boundary"),
        (w.SameDraftsAgain, ["coin K=1", "coin K=1 two rounds"], "rounds"),
        (orders_ties_differently, ["ties", "coin K=2", "one step K=2"], "ties"),
    ],
)
def test_findings_name_their_cause(program: Any, cases: Any, cause: str) -> None:
    findings = audit(program, cases=cases, draws=200).findings
    assert findings
    assert {finding.cause for _, finding in findings} == {cause}


def test_the_tolerance_that_passes_is_named() -> None:
    findings = audit(in_single_precision, cases=["coin K=1"]).findings
    enough = float(findings[0][1].explanation.rpartition("--tolerance ")[2].removesuffix(" passes"))
    assert audit(in_single_precision, cases=["coin K=1"], tolerance=enough).lossless
    assert not audit(in_single_precision, cases=["coin K=1"], tolerance=enough / 4).lossless


def test_bad_command_arguments(tmp_path: Path) -> None:
    for arguments, message in [
        (("nonsense",), "verifier: got 'nonsense', expected FILE.py:FUNCTION, MODULE:FUNCTION or one of token"),
        ((f"{tmp_path}/none.py:f",), "none.py, which does not exist"),
        (("bv", "--cases", "nonsense"), "case: got 'nonsense'"),
        (("bv", "--draws", "0"), "draws: got 0"),
        (("bv", "--draws", "many"), "got 'many', expected an integer"),
        (("bv", "--json", f"{tmp_path}/no/out.json"), "--json"),
    ]:
        result = run(*arguments)
        assert result.exit_code == 2
        [line] = result.stderr.splitlines()
        assert message in line
