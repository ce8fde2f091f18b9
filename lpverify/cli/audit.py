"""``lpverify audit``: is a verifier lossless?"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpverify.cli.options import integer, number

if TYPE_CHECKING:
    from collections.abc import Callable

    from lpverify.core.results import AuditReport, CaseAudit

NO = 1
"""Exit code: the verifier is not lossless."""

MOST_FINDINGS = 8


def run(
    verifier: Annotated[str, typer.Argument(metavar="NAME|FILE.py:FUNCTION", help="An algorithm, or your function.")],
    cases: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Cases by name, or PROBLEM:K for your own problem; default: the table."),
    ] = None,
    draws: Annotated[int, typer.Option(metavar="N", parser=integer, help="Draws for each sampled case.")] = 20_000,
    seed: Annotated[int, typer.Option(metavar="S", parser=integer, help="Seed of what is sampled.")] = 0,
    tolerance: Annotated[
        float, typer.Option(metavar="TV", parser=number, help="Total variation that rounding may cause in floats.")
    ] = 1e-12,
    json: Annotated[str | None, typer.Option(metavar="FILE|-", help="Write JSON to a file, or - for stdout.")] = None,
) -> None:
    """Is a verifier lossless? Exit code 0 if so, 1 if not.

    Your function is f(paths, target, draft, rng) -> (accepted_tokens, next_token): paths are K tuples of L tokens,
    target(prefix) and draft(prefix) give probability rows, rng has bernoulli(p), categorical(weights) and uniform().
    Its law is found exactly while it uses the first two only, else it is sampled, with a false alarm of at most 1e-6.
    """
    from lpverify.auditing.audit import audit
    from lpverify.cli.output import STDOUT, check_writable, write_json

    check_writable("--json", json)
    names = None if cases is None else [name.strip() for name in cases.split(",")]
    subject = load(verifier)
    report = audit(subject, cases=names, draws=draws, seed=seed, tolerance=tolerance)
    if json is not None:
        write_json(json, to_json(verifier, report))
    if json != STDOUT:
        _print(verifier, report)
    if not report.lossless:
        raise typer.Exit(NO)


def load(verifier: str) -> str | Callable[..., Any]:
    """The name itself, or the function that ``FILE.py:FUNCTION`` means. Raises InputError, with what went wrong."""
    from importlib.util import module_from_spec, spec_from_file_location
    from os.path import abspath, dirname, isfile
    from sys import path as search

    from lpverify import errors
    from lpverify.verifiers import VERIFIERS

    file, separator, name = verifier.rpartition(":")
    if not separator or not file.endswith(".py"):
        expected = f"FILE.py:FUNCTION or one of {', '.join(VERIFIERS)}"
        if verifier not in VERIFIERS:
            raise errors.fail("verifier", got=repr(verifier), expected=expected)
        return verifier
    if not isfile(file):
        raise errors.fail("verifier", got=f"{file}, which is no file", expected="a Python file")
    spec = spec_from_file_location("audited", abspath(file))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    search.insert(0, dirname(abspath(file)))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise errors.fail(
            file, got=f"{type(error).__name__}: {error}", expected="a file that can be imported"
        ) from error
    finally:
        search.remove(dirname(abspath(file)))
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None:
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise errors.fail(file, got=f"no {name!r} in it", expected=f"one of {', '.join(own) or 'its functions'}")
    if not callable(function):
        raise errors.fail(f"{file}:{name}", got=f"a {type(function).__name__}", expected="a function")
    return function


def to_json(verifier: str, report: AuditReport) -> dict[str, Any]:
    """The document ``lpverify/audit@1``."""
    return {
        "schema": "lpverify/audit@1",
        "verifier": verifier,
        "lossless": report.lossless,
        "false_alarm": report.false_alarm,
        "cases": [_case(case) for case in report.cases],
    }


def _case(case: CaseAudit) -> dict[str, Any]:
    finding = case.finding
    data: dict[str, Any] = {
        "name": case.case,
        "vocab_size": case.vocab_size,
        "depth": case.depth,
        "paths": case.num_paths,
        "rounds": case.rounds,
        "mode": case.mode,
        "rational": case.rational,
        "count": case.count,
        "total_variation": _plain(case.total_variation),
        "threshold": case.threshold,
        "smallest_found": case.smallest_found,
        "note": case.note,
        "finding": None,
    }
    if finding is not None:
        data["finding"] = {
            "kind": finding.kind,
            "message": finding.message,
            "prefix": None if finding.prefix is None else list(finding.prefix),
            "expected": _plain(finding.expected),
            "got": _plain(finding.got),
        }
    return data


def _plain(value: float | Fraction | None) -> float | None:
    return None if value is None else float(value)


def _print(verifier: str, report: AuditReport) -> None:
    from lpverify.report.tables import number, show, table

    rows = [
        (
            case.case,
            "in floats" if case.mode == "exact" and not case.rational else case.mode,
            f"{case.count:,}" if case.count else "",
            "" if case.total_variation is None else number(float(case.total_variation)),
            "" if case.smallest_found is None else number(case.smallest_found),
            "NO: " + case.finding.kind if case.finding else "yes" if case.mode != "refused" else "",
        )
        for case in report.cases
    ]
    headings = ("case", "mode", "runs", "total variation", "finds", "lossless")
    caption = "total variation of the emitted to the target's law of L+1 tokens (two rounds: of both)"
    if report.false_alarm:
        caption += (
            f"; sampled: that of the sample, of which 'finds' or more is found with probability 0.99, and all cases"
            f" together raise a false alarm with probability {report.false_alarm:g} at most"
        )
    show(table(headings, rows, right=(2, 3, 4), title=f"Audit of {verifier}", caption=caption))
    for note in dict.fromkeys(case.note for case in report.cases if case.note):
        print(f"{sum(case.note == note for case in report.cases)} cases: {note}")
    for name, finding in report.findings[:MOST_FINDINGS]:
        print(f"{name}: {finding.message}")
    if len(report.findings) > MOST_FINDINGS:
        print(f"and {len(report.findings) - MOST_FINDINGS} more")
    if report.lossless:
        print(f"{verifier} is lossless on {sum(case.mode != 'refused' for case in report.cases)} cases")
    else:
        print(f"{verifier} is NOT lossless: {len(report.findings)} of {len(report.cases)} cases")
