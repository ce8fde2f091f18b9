"""Losslessness as an assertion, for the tests of other projects.

As a function::

    from lpverify.testing import assert_lossless

    def test_my_verifier():
        assert_lossless(my_verifier)

or, where lpverify is installed, as the pytest fixture ``assert_lossless`` (`lpverify.pytest_plugin`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lpverify import errors
from lpverify.auditing.audit import DRAWS, TOLERANCE, audit
from lpverify.auditing.cases import Case
from lpverify.core.results import AuditReport
from lpverify.integrations.engines import adapt

MAX_SHOWN = 5
"""Largest number of findings in a message."""


def assert_lossless(
    verifier: Any,
    *,
    adapter: str | None = None,
    arrays: str = "torch",
    cases: Sequence[str | Case] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    tolerance: float = TOLERANCE,
) -> AuditReport:
    """Assert that a verifier is lossless; the message of the AssertionError is what was found.

    Args:
        verifier: as `lpverify.audit` takes it: a name, a `Verifier`, or a function f(paths, target, draft, rng); with
            ``adapter`` a function of the tensors of an engine.
        adapter, arrays: as `lpverify.adapt` takes them.
        cases, draws, seed, tolerance: as `lpverify.audit` takes them. A sampled test of a lossless verifier fails with
            probability at most 1e-6, and always with the same seed.

    Returns:
        The report.

    Raises:
        AssertionError: it is not lossless, or a case was too large to decide. InputError: as `lpverify.audit`.

    >>> def greedy(paths, target, draft, rng):
    ...     return paths[0], rng.categorical(target(paths[0]))
    >>> assert_lossless(greedy, cases=["one step K=1"])
    Traceback (most recent call last):
    AssertionError: greedy is NOT lossless: 1 of 1 cases
    one step K=1: the emitted distribution differs from the target at "0": probability 3/5, expected 1/5; it accepts \
the last token of "0" too often
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    subject: Callable[..., Any] | Any = verifier if adapter is None else adapt(verifier, adapter, arrays=arrays)
    report = audit(subject, cases=cases, draws=draws, seed=seed, tolerance=tolerance)
    if not report.lossless:
        lines = [f"{report.verifier} is {report.summary}"]
        for case, finding in report.findings[:MAX_SHOWN]:
            explanation = f"; {finding.explanation}" if finding.explanation else ""
            lines.append(errors.one_line(f"{errors.label(case)}: {finding.message}{explanation}"))
        lines += [f"{errors.label(case.case)}: {errors.one_line(case.note)}" for case in report.undecided[:MAX_SHOWN]]
        hidden = len(report.findings) - MAX_SHOWN
        raise AssertionError("\n".join(lines + ([f"and {hidden} more"] if hidden > 0 else [])))
    return report
