"""``lpverify audit``: is a verifier lossless?"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpverify import errors
from lpverify.cli.options import option
from lpverify.cli.output import Output

if TYPE_CHECKING:
    from collections.abc import Callable

    from lpverify.core.results import AuditReport

NO = 1  # exit code: the verifier is not lossless
MAX_FINDINGS = 8
HEADINGS = ("case", "mode", "runs", "total variation", "finds", "lossless")
CAPTION = "total variation between the emitted and the target distribution of L+1 tokens (of both rounds if two)"
SAMPLED = "sampled cases: that of the sample. A loss of 'finds' or more is detected with probability 0.99; a lossless \
verifier fails any case with probability at most"


def run(
    *,
    verifier: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE.py:FUNCTION|MODULE:FUNCTION", help="A verifier's name, or a function of your own."
        ),
    ],
    cases: Annotated[str | None, option("A,B,...", "Cases by name, or PROBLEM:K for a problem; default: all.")] = None,
    draws: Annotated[int, option("N", "Draws for each sampled case.")] = 20_000,
    seed: Annotated[int, option("S", "Seed of sampled cases.")] = 0,
    tolerance: Annotated[float, option("TV", "Total variation that rounding may cause in floats.")] = 1e-12,
    output: Output,
) -> None:
    """Is a verifier lossless? Exit code 0 if it is, 1 if it is not, 2 if that was not decided.

    A function of your own is f(paths, target, draft, rng) -> (accepted_tokens, next_token): paths are K tuples of L
    tokens, target(prefix) and draft(prefix) return probability rows, rng has bernoulli(p), categorical(weights) and
    uniform(). Its output distribution is computed exactly if it only calls bernoulli and categorical. Otherwise it is
    sampled, and a lossless function is called lossy with probability at most 1e-6. It runs in a process of its own:
    however it ends there is a verdict, and what it prints goes to standard error.
    """
    names = None if cases is None else [name.strip() for name in cases.split(",")]
    inputs: dict[str, str | None] = {f"case {name}": name.rpartition(":")[0] for name in names or ()}
    output.check("lpverify/audit@", inputs | {"verifier": verifier.rpartition(":")[0]})
    report = _audit(verifier, cases=names, draws=draws, seed=seed, tolerance=tolerance)
    output.write(to_json(verifier, report), lambda: _print(verifier, report))
    if report.outcome == "not lossless":
        raise typer.Exit(NO)
    if report.outcome == "not decided":
        note = report.undecided[0].note if report.undecided else "there is no case for it"
        raise errors.fail(f"audit of {verifier}", got=f"{_counts(report)} ({note})", expected="only cases that fit")


def _audit(verifier: str, **options: Any) -> AuditReport:
    """The report; a program that ends otherwise than by returning, at any time, has a finding."""
    from lpverify.auditing.audit import audit
    from lpverify.auditing.cases import select
    from lpverify.auditing.guard import Fault, guarded, in_own_process, interrupts_pass
    from lpverify.auditing.load import load_function
    from lpverify.core.results import AuditReport, CaseAudit, Finding
    from lpverify.verifiers import VERIFIERS

    if verifier in VERIFIERS:
        return audit(verifier, **options)
    if ":" not in verifier:
        expected = f"FILE.py:FUNCTION, MODULE:FUNCTION or one of {', '.join(VERIFIERS)}"
        raise errors.fail("verifier", got=errors.shown(verifier), expected=expected)
    select(options["cases"])

    def work(say: Callable[[str], None]) -> AuditReport:
        say("while it was loaded")
        try:
            with interrupts_pass(), guarded(passing=errors.InputError):
                function = load_function(verifier)
        except Fault as fault:
            return _without_report("while it was loaded", fault.finding)
        return audit(function, progress=say, **options)

    def _without_report(when: str, finding: Finding) -> AuditReport:
        return AuditReport(verifier, (CaseAudit(when, 0, 0, 0, 0, "exact", False, finding=finding),), 0.0)

    if not hasattr(os, "fork"):
        return work(lambda what: None)
    report, ended, when = in_own_process(work)
    return report if report is not None else _without_report(when, Finding("raised", ended))


def to_json(verifier: str, report: AuditReport) -> dict[str, Any]:
    """The document ``lpverify/audit@1``."""
    cases = [asdict(case) for case in report.cases]
    cases = [{"name": case.pop("case"), "paths": case.pop("num_paths"), **case} for case in cases]
    verdict = {"lossless": report.lossless, "outcome": report.outcome, "false_alarm": report.false_alarm}
    return {"schema": "lpverify/audit@1", "verifier": verifier, **verdict, "cases": cases}


def _print(verifier: str, report: AuditReport) -> None:
    from lpverify.report.tables import number, show, table

    rows = []
    for case in report.cases:
        mode = "in floats" if case.mode == "exact" and not case.rational else case.mode
        finding, refused = case.finding, case.mode == "refused"
        verdict = "not decided" if refused else "yes"
        lossless = f"NO: {finding.cause or finding.kind}" if finding else verdict
        distances = ("" if x is None else number(float(x)) for x in (case.total_variation, case.smallest_found))
        rows.append((errors.label(case.case), mode, f"{case.count:,}" if case.count else "", *distances, lossless))
    caption = CAPTION + (f"; {SAMPLED} {report.false_alarm:g}" if report.false_alarm else "")
    show(table(HEADINGS, rows, right=(2, 3, 4), title=f"Audit of {verifier}", caption=caption))
    for note in dict.fromkeys(case.note for case in report.cases if case.note):
        print(errors.one_line(f"{sum(case.note == note for case in report.cases)} cases: {note}"))
    for name, finding in report.findings[:MAX_FINDINGS]:
        explanation = f"; {finding.explanation}" * bool(finding.explanation)
        print(errors.one_line(f"{errors.label(name)}: {finding.message}{explanation}"))
    if len(report.findings) > MAX_FINDINGS:
        print(f"and {len(report.findings) - MAX_FINDINGS} more")
    if report.false_alarm:
        sizes = (max(getattr(case, of) for case in report.cases) for of in ("vocab_size", "depth", "num_paths"))
        size = ", ".join(f"{name} <= {most}" for name, most in zip("VLK", sizes, strict=True))
        print(f"could be missed: losses below 'finds', and faults that need more than {size}")
    print(f"{verifier} is {_counts(report)}")


def _counts(report: AuditReport) -> str:
    """The outcome with the number of cases of each kind."""
    cases, wrong, undecided = len(report.cases), len(report.findings), len(report.undecided)
    others = f", {undecided} not decided" if undecided else ""
    if wrong:
        return f"NOT lossless: {wrong} of {cases} cases{others}"
    if report.lossless:
        return f"lossless on {cases} cases"
    return f"not decided: {cases - undecided} of {cases} cases lossless{others}"
