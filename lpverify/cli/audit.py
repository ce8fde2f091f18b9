"""``lpverify audit``: is a verifier lossless?"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from runpy import run_path
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
        str, typer.Argument(metavar="NAME|FILE.py:FUNCTION", help="A verifier's name, or a function of your own.")
    ],
    cases: Annotated[str | None, option("A,B,...", "Cases by name, or PROBLEM:K for a problem; default: all.")] = None,
    draws: Annotated[int, option("N", "Draws for each sampled case.")] = 20_000,
    seed: Annotated[int, option("S", "Seed of sampled cases.")] = 0,
    tolerance: Annotated[float, option("TV", "Total variation that rounding may cause in floats.")] = 1e-12,
    output: Output,
) -> None:
    """Is a verifier lossless? Exit code 0 if it is, 1 if it is not.

    A function of your own is f(paths, target, draft, rng) -> (accepted_tokens, next_token): paths are K tuples of L
    tokens, target(prefix) and draft(prefix) return probability rows, rng has bernoulli(p), categorical(weights) and
    uniform(). Its output distribution is computed exactly if it only calls bernoulli and categorical. Otherwise it is
    sampled, and a lossless function is called lossy with probability at most 1e-6.
    """
    from lpverify.auditing.audit import audit

    output.check()
    names = None if cases is None else [name.strip() for name in cases.split(",")]
    report = audit(load(verifier), cases=names, draws=draws, seed=seed, tolerance=tolerance)
    output.write(to_json(verifier, report), lambda: _print(verifier, report))
    if not report.lossless:
        raise typer.Exit(NO)


def load(verifier: str) -> str | Callable[..., Any]:
    """The name itself, or the function that ``FILE.py:FUNCTION`` names. Raises InputError."""
    from lpverify.verifiers import VERIFIERS

    file, separator, name = verifier.rpartition(":")
    if not separator or not file.endswith(".py"):
        if verifier not in VERIFIERS:
            expected = f"FILE.py:FUNCTION or one of {', '.join(VERIFIERS)}"
            raise errors.fail("verifier", got=repr(verifier), expected=expected)
        return verifier
    path = Path(file).absolute()
    if not path.is_file():
        raise errors.fail("verifier", got=f"{file}, which does not exist", expected="a Python file")
    sys.path.insert(0, str(path.parent))
    try:
        module = run_path(str(path), run_name="audited")
    except (Exception, SystemExit) as error:
        got = f"{type(error).__name__}: {error}"
        raise errors.fail(file, got=got, expected="a file that can be imported") from error
    finally:
        sys.path.remove(str(path.parent))
    function: Callable[..., Any] | None = module.get(name)
    if function is None:
        own = [key for key, value in module.items() if callable(value) and not key.startswith("_")]
        raise errors.fail(file, got=f"no {name!r} in it", expected=f"one of {', '.join(own) or 'its functions'}")
    if not callable(function):
        raise errors.fail(f"{file}:{name}", got=f"a {type(function).__name__}", expected="a function")
    return function


def to_json(verifier: str, report: AuditReport) -> dict[str, Any]:
    """The document ``lpverify/audit@1``."""
    cases = [asdict(case) for case in report.cases]
    cases = [{"name": case.pop("case"), "paths": case.pop("num_paths"), **case} for case in cases]
    verdict = {"lossless": report.lossless, "false_alarm": report.false_alarm}
    return {"schema": "lpverify/audit@1", "verifier": verifier, **verdict, "cases": cases}


def _print(verifier: str, report: AuditReport) -> None:
    from lpverify.report.tables import number, show, table

    rows = []
    for case in report.cases:
        mode = "in floats" if case.mode == "exact" and not case.rational else case.mode
        lossless = "NO: " + case.finding.kind if case.finding else "yes" if case.mode != "refused" else ""
        distances = ("" if x is None else number(float(x)) for x in (case.total_variation, case.smallest_found))
        rows.append((case.case, mode, f"{case.count:,}" if case.count else "", *distances, lossless))
    caption = CAPTION + (f"; {SAMPLED} {report.false_alarm:g}" if report.false_alarm else "")
    show(table(HEADINGS, rows, right=(2, 3, 4), title=f"Audit of {verifier}", caption=caption))
    for note in dict.fromkeys(case.note for case in report.cases if case.note):
        print(f"{sum(case.note == note for case in report.cases)} cases: {note}")
    for name, finding in report.findings[:MAX_FINDINGS]:
        print(f"{name}: {finding.message}")
    if len(report.findings) > MAX_FINDINGS:
        print(f"and {len(report.findings) - MAX_FINDINGS} more")
    if report.lossless:
        print(f"{verifier} is lossless on {sum(case.mode != 'refused' for case in report.cases)} cases")
    else:
        print(f"{verifier} is NOT lossless: {len(report.findings)} of {len(report.cases)} cases")
