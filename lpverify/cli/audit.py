"""``lpverify audit``: is a verifier lossless?"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpverify import errors
from lpverify.cli.options import option
from lpverify.cli.output import Output, check_output
from lpverify.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from lpverify.core.results import AuditReport

NO = 1  # exit code: the verifier is not lossless
MAX_FINDINGS = 8


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
    adapter: Annotated[
        str | None, option("NAME", "The function has the tensors of an engine: sglang-tree, vllm-chain, ...")
    ] = None,
    arrays: Annotated[
        str | None, option("KIND", "With --adapter, what it takes: torch (default), or numpy, which can be exact.")
    ] = None,
    report: Annotated[
        str | None, option("FILE.html", "Write a page with the outcome, to read without lpverify.")
    ] = None,
    output: Output,
) -> None:
    """Is a verifier lossless? Exit code 0 if it is, 1 if it is not, 2 if that was not decided.

    A function of your own is f(paths, target, draft, rng) -> (accepted_tokens, next_token): paths are K tuples of L
    tokens, target(prefix) and draft(prefix) return probability rows, rng has bernoulli(p), categorical(weights) and
    uniform(). Its output distribution is computed exactly if it only compares its uniforms with numbers. Otherwise it
    is sampled, and a lossless function is called lossy with probability at most 1e-6. It runs in a process of its own:
    however it ends there is a verdict, and what it prints goes to standard error.

    With --adapter the function is one of a serving engine: its parameters have the names of the tensors of
    sglang-tree, sglang-chain, vllm-chain, vllm-ngram or flashinfer-chain.
    """
    names = None if cases is None else [name.strip() for name in cases.split(",")]
    inputs: dict[str, str | None] = {f"case {name}": name.rpartition(":")[0] for name in names or ()}
    output.check("lpverify/audit@", inputs | {"verifier": verifier.rpartition(":")[0]}, report=report)
    if report is not None:
        from lpverify.report.audit_page import SIGNATURE, page

        check_output("--report", report, lambda content: SIGNATURE.encode() in content, stdout=False)
    if arrays is not None and adapter is None:
        raise errors.fail("--arrays", got=arrays, expected="no such option without --adapter")
    engine = None if adapter is None else (adapter, arrays or "torch")
    options = {"cases": names, "draws": draws, "seed": seed, "tolerance": tolerance}
    outcome = _audit(verifier, engine, **options)
    if report is not None:
        write_whole(report, page(verifier, outcome, adapter=adapter).encode())
    output.write(to_json(verifier, outcome, adapter), lambda: _print(verifier, outcome))
    if outcome.outcome == "not lossless":
        raise typer.Exit(NO)
    if outcome.outcome == "not decided":
        note = outcome.undecided[0].note if outcome.undecided else "there is no case for it"
        raise errors.fail(f"audit of {verifier}", got=f"{outcome.summary} ({note})", expected="only cases that fit")


def _audit(verifier: str, engine: tuple[str, str] | None, **options: Any) -> AuditReport:
    """The report; a program that ends otherwise than by returning, at any time, has a finding."""
    from lpverify.auditing.audit import audit
    from lpverify.auditing.cases import select
    from lpverify.auditing.guard import Fault, guarded, in_own_process, interrupts_pass
    from lpverify.auditing.load import load_function
    from lpverify.core.results import AuditReport, CaseAudit, Finding
    from lpverify.integrations.engines import adapt, check
    from lpverify.verifiers import VERIFIERS

    if verifier in VERIFIERS:
        if engine is not None:
            raise errors.fail("--adapter", got=f"{engine[0]} for {verifier}", expected="a function of your own")
        return audit(verifier, **options)
    if ":" not in verifier:
        expected = f"FILE.py:FUNCTION, MODULE:FUNCTION or one of {', '.join(VERIFIERS)}"
        raise errors.fail("verifier", got=errors.shown(verifier), expected=expected)
    select(options["cases"])
    if engine is not None:
        check(*engine)

    def work(say: Callable[[str], None]) -> AuditReport:
        say("while it was loaded")
        try:
            with interrupts_pass(), guarded(passing=errors.InputError):
                function = load_function(verifier)
        except Fault as fault:
            return _without_report("while it was loaded", fault.finding)
        subject = function if engine is None else adapt(function, engine[0], arrays=engine[1])
        return audit(subject, progress=say, **options)

    def _without_report(when: str, finding: Finding) -> AuditReport:
        return AuditReport(verifier, (CaseAudit(when, 0, 0, 0, 0, "exact", False, finding=finding),), 0.0)

    if not hasattr(os, "fork"):
        return work(lambda what: None)
    report, ended, when = in_own_process(work)
    return report if report is not None else _without_report(when, Finding("raised", ended))


def to_json(verifier: str, report: AuditReport, adapter: str | None = None) -> dict[str, Any]:
    """The document ``lpverify/audit@1``; with the key ``adapter`` if there is one."""
    cases = [asdict(case) for case in report.cases]
    cases = [{"name": case.pop("case"), "paths": case.pop("num_paths"), **case} for case in cases]
    verdict = {"lossless": report.lossless, "outcome": report.outcome, "false_alarm": report.false_alarm}
    named = {"verifier": verifier} | ({} if adapter is None else {"adapter": adapter})
    return {"schema": "lpverify/audit@1", **named, **verdict, "cases": cases}


def _print(verifier: str, report: AuditReport) -> None:
    from lpverify.report.audit_page import HEADINGS, caption, cells
    from lpverify.report.tables import show, table

    rows = [cells(case) for case in report.cases]
    show(table(HEADINGS, rows, right=(2, 3, 4), title=f"Audit of {verifier}", caption=caption(report)))
    for note in dict.fromkeys(case.note for case in report.cases if case.note):
        print(errors.one_line(f"{sum(case.note == note for case in report.cases)} cases: {note}"))
    for name, finding in report.findings[:MAX_FINDINGS]:
        explanation = f"; {finding.explanation}" * bool(finding.explanation)
        print(errors.one_line(f"{errors.label(name)}: {finding.message}{explanation}"))
    if len(report.findings) > MAX_FINDINGS:
        print(f"and {len(report.findings) - MAX_FINDINGS} more")
    if report.missed:
        print(report.missed)
    print(f"{verifier} is {report.summary}")
