"""The audit itself: enumeration of choices, the sampled test and its bounds, strange programs, the command."""

from __future__ import annotations

import json
import math
import random
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
from lpverify.auditing.choices import NotEnumerable, SampledChoices, enumerate_outcomes, number, numbers
from lpverify.auditing.identity import identity_test, smallest_found, threshold
from lpverify.cli import app
from lpverify.cli.audit import load
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
    with pytest.raises(NotEnumerable, match="draws uniforms"):
        enumerate_outcomes(lambda rng: rng.uniform() < 1, max_runs=9)
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
    right = audit(w.with_uniforms, cases=[case], draws=draws)
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
    first, second, other = (audit(w.with_uniforms, cases=[STEP], draws=500, seed=s).cases[0] for s in (1, 1, 2))
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
    assert report.lossless
    assert not audit("bv", cases=[large]).lossless


# somebody else's code


def test_speculative_sampling_of_transformers() -> None:
    """Right as far as the draws tell, but for U = 0, where it accepts a token of target probability 0."""
    pytest.importorskip("transformers")
    file = Path(__file__).parents[1] / "experiments" / "audit_transformers.py"
    released, offered, ensemble = (load(f"{file}:{f}") for f in ("as_released", "offered_uniforms", "ensemble"))
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
        ("raise SystemExit(3)", "f", "got SystemExit: 3"),
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


def test_bad_command_arguments(tmp_path: Path) -> None:
    for arguments, message in [
        (("nonsense",), "verifier: got 'nonsense', expected FILE.py:FUNCTION or one of token"),
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
