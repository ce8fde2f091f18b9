"""The audit rejects known faults of real implementations (S1 to S14) and others, and passes what only looks wrong.

S9 (end of text, counting), S11 (caches) and S12 (temperature) are faults of a decoding loop, not of a verifier.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import wrong_verifiers as w

from lpverify.auditing.audit import audit
from lpverify.auditing.cases import Case, iid
from lpverify.core.problem import VerifyProblem
from lpverify.verifiers import rows, traversal


def case(target: str, draft: str, depth: int = 1, paths: int = 1, name: str = "case") -> list[Case]:
    return [Case(name, VerifyProblem(iid(target, draft, depth), paths))]


STEP = case(".2 .4 .4", ".6 .3 .1")
TOP_K = case(".4 .6 0", ".5 .3 .2")
ROUNDED = case(".5 .3 .2", ".41 .37 .22")


def rounded(q: Any) -> Any:
    return [Fraction(13, 32), Fraction(12, 32), Fraction(7, 32)]


SHORT = ["one step", "coin", "block residual", "draft lacks tokens", "target lacks a token", "sure draft", "tree of 3"]

RIGHT = {
    "token rule": w.token_rule,
    "block verification": w.block_rule,
    "recursive rejection": w.recursive_rejection,
    "GBV": w.greedy_multipath,
    "accept if equal to the target's own sample": w.own_sample,
    "q = 1 rule": w.one_hot_rule,
    "q = 1 rule, greedy draft": w.Drafting(w.argmax, w.one_hot_rule),
    "greedy draft, one-hot q": w.Drafting(w.argmax, w.filtered(w.argmax)),
    "top-2 draft, its own q": w.Drafting(w.top_two, w.filtered(w.top_two)),
    "no bonus token": w.drops_last,
    "ours through views": w.ours("traversal"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_verifiers_pass(name: str) -> None:
    report = audit(RIGHT[name], cases=SHORT)
    assert report.lossless, report.findings
    assert all(row.mode == "exact" and row.rational and row.total_variation == 0 for row in report.cases)


# (mutant, cases or None for the table, kind, prefix, expected, got), with published values where there are some
FAULTS: dict[str, tuple[Any, Any, str, Any, Any, Any]] = {
    "S1 top-k draft, raw q": (w.Drafting(w.top_two, w.token_rule), TOP_K, "law", (0,), "2/5", "1/2"),
    "S2 greedy draft, softmax q": (w.Drafting(w.argmax, w.token_rule), STEP, "law", (1,), "2/5", "1/6"),
    "S2 fresh sample on a mismatch": (partial(w.own_sample, fresh=True), STEP, "law", (2,), "2/5", "41/125"),
    "S5 token residual in BV": (
        partial(w.block_rule, residual=w.token_residual),
        case(".2 .4 .4", ".1 .1 .8", 2),
        "law",
        (2, 0),
        "2/25",
        "1/10",
    ),
    "S5 missing q": (w.missing_draft_as_one, None, "law", None, None, None),
    "S6 epsilon everywhere": (
        partial(w.block_rule, residual=w.epsilon_everywhere),
        ["target lacks a token"],
        "impossible token",
        None,
        None,
        None,
    ),
    "S6 0/0": (w.block_rule_of(w.undefined), ["equal with a zero"], "raised", None, None, None),
    "S7 difference of powers": (
        partial(w.greedy_multipath, difference=w.single_precision),
        ["rare before common"],
        "law",
        None,
        None,
        None,
    ),
    "S7 fallback to q": (
        partial(w.greedy_multipath, fallback=lambda count: count >= 6),
        case("1/2 1/2", "1/4 3/4", paths=6),
        "law",
        None,
        None,
        None,
    ),
    "S8 merged repeats": (
        partial(w.recursive_rejection, merged=True),
        case(".2 .4 .4", ".6 .3 .1", paths=2),
        "law",
        (1,),
        "2/5",
        "23/50",
    ),
    "S10 cut target": (w.cut_target, ["draft lacks tokens"], "law", (5,), "1/5", "0"),
    "S13 rounded draft": (
        w.Drafting(rounded, w.token_rule),
        ROUNDED,
        "law",
        (1,),
        "3/10",
        "45/148",
    ),
    "S14 rewrites the tables": (w.rewrites_tables, STEP, "changed its input", (), None, None),
    "S14 seeds again": (w.reseeds, None, "law", None, None, None),
    "S4 placeholder": (w.placeholder, None, "returned", None, None, None),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_real_implementations_are_found(name: str) -> None:
    mutant, cases, kind, prefix, expected, got = FAULTS[name]
    report = audit(mutant, cases=cases, stop_early=True)
    assert not report.lossless
    [(_, finding)] = report.findings
    assert finding.kind == kind
    assert report.cases[-1].mode == "exact"
    if prefix is not None:
        assert finding.prefix == prefix
    if expected is not None:
        assert (finding.expected, finding.got) == (Fraction(expected), Fraction(got))


def test_total_variations_that_are_known() -> None:
    for name, distance in {
        "S1 top-k draft, raw q": "1/10",
        "S2 greedy draft, softmax q": "7/30",
        "S5 token residual in BV": "1/50",
        "S8 merged repeats": "3/50",
    }.items():
        mutant, cases, *_ = FAULTS[name]
        report = audit(mutant, cases=cases)
        assert report.cases[0].total_variation == Fraction(distance), name


# faults that need uniforms or a state, and what is right beside them


def test_noise_used_twice_is_found() -> None:
    """S3: exponentials shared by draft and replacement; total variation 2/45, emitted (1/5, 16/45, 4/9)."""
    report = audit(w.NoiseTwice, cases=STEP, draws=40_000)
    assert report.cases[0].mode == "sampled"
    [(_, finding)] = report.findings
    assert finding.kind == "law"
    assert finding.prefix in ((1,), (2,))
    assert finding.got == pytest.approx({(1,): 16 / 45, (2,): 4 / 9}[finding.prefix], abs=0.01)
    assert audit(w.NoiseOnce, cases=STEP, draws=40_000).lossless


def test_noise_of_the_last_round_is_found_in_two_rounds_only() -> None:
    assert audit(w.SameDraftsAgain, cases=["one step K=1", "coin K=1", "tree of 3 K=1"]).lossless
    report = audit(w.SameDraftsAgain, cases=["one step K=1 two rounds"])
    assert report.cases[0].mode == "exact"
    [(_, finding)] = report.findings
    assert finding.kind == "law"
    assert finding.prefix is not None
    assert len(finding.prefix) == 3
    assert " | " in finding.message


def test_stale_state_is_found_in_two_rounds_only() -> None:
    assert audit(w.StaleAccept, cases=["one step K=1", "coin K=1"]).lossless
    assert not audit(w.StaleAccept, cases=["coin K=1 two rounds"]).lossless


@pytest.mark.parametrize("memo", [w.MemoByDepth, w.MemoByDepth()], ids=["new for every run", "kept"])
def test_memo_is_found(memo: Any) -> None:
    """S14: the rows of another prefix, within one run of two paths or from run to run; kept state is no error yet."""
    report = audit(memo, cases=["tree of 3 K=1"], draws=5_000)
    if isinstance(memo, type):
        assert report.lossless
    else:
        assert not report.lossless


def test_zero_uniform_is_found() -> None:
    """S4: only at U = 0 does the inclusive comparison accept a token of target probability 0."""
    cases = ["target lacks a token K=1"]
    [(_, finding)] = audit(w.u_zero_accepts, cases=cases, draws=5_000).findings
    assert finding.kind == "impossible token"
    assert audit(w.with_uniforms, cases=cases, draws=5_000).lossless


# faults of ours

OTHERS = {
    "bonus token from q": partial(w.token_rule, bonus=lambda draft, path: draft(path[:-1])),
    "unskewed q in GBV's residual": partial(w.greedy_multipath, skewed_residual=False),
    "BV or GBV after seeing the paths": w.better_of_two,
    "most probable path, then BV": w.most_probable_path,
    "one path after the other": w.tries_all_paths,
    "longest of K": w.longest,
    "off by one": w.off_by_one,
    "stops at the first test that fails": partial(w.block_rule, forward=True),
    "acceptance by p after a rejection": partial(w.recursive_rejection, updated=False),
    "residual of the next position": partial(w.token_rule, shift=1),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_faults_are_found(name: str) -> None:
    report = audit(OTHERS[name], stop_early=True)
    [(_, finding)] = report.findings
    assert finding.kind in ("law", "impossible token")
    assert report.cases[-1].mode == "exact"


def test_traversal_without_renormalisation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traversal, "turns_of", w.forgets_renormalising)
    assert not audit("traversal", cases=["one step", "tree of 3"], stop_early=True).lossless


@pytest.mark.parametrize("name", ["bv", "gbv", "tgbv", "pbv", "policy", "traversal"])
def test_wrong_residual_in_our_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own code with a residual of equal entries."""
    monkeypatch.setattr(rows, "positive_part", lambda row: row * 0 + (row > 0))
    assert not audit(name, cases=["tree of 3 K=2"]).lossless
