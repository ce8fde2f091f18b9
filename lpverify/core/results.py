"""Results: frozen data, no computation.

Values are block efficiencies: expected tokens per target call, including the bonus (or correction) token.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from lpverify import errors
from lpverify.numerics import Array, Levels


class Result:
    """Base of the results: a representation of one line, whatever the size of the arrays inside."""

    def __repr__(self) -> str:
        values = ((entry.name, getattr(self, entry.name)) for entry in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={brief(value)}' for name, value in values)})"


def brief(value: Any) -> str:
    """A short representation of a value: long arrays by their shape, long fractions as decimals.

    >>> brief(np.zeros((3, 2))), brief(Fraction(1, 3)), brief((1, 2, 3)), brief(Fraction(10**40, 3 * 10**40 + 1))
    ('<array (3, 2)>', '1/3', '<3 entries>', '<Fraction, about 0.333333333333>')
    """
    if isinstance(value, Result):
        return f"<{type(value).__name__}>"
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.size <= 6:
        return f"[{', '.join(brief(entry) for entry in value)}]"
    if isinstance(value, np.ndarray):
        return f"<array {value.shape}>"
    if isinstance(value, tuple | dict):
        return f"<{len(value)} entries>"
    if isinstance(value, Fraction):
        short = value.denominator < 10**12 and abs(value) < 10**12
        return str(value) if short else f"<Fraction, about {float(value):.12g}>"
    return f"{float(value):.12g}" if isinstance(value, float) else errors.shown(value)


@dataclass(frozen=True, repr=False)
class RankTable(Result):
    """A joint distribution of drafted leaf and rank bin, the unknown of the rank-quantile program (theory 2.4).

    Sparse: entry e puts mass ``mass[e]`` on leaf ``leaf[e]`` and the rank bin ``[edges[bin[e]], edges[bin[e]+1]]``.
    The mass of a leaf sums to its draft probability, that of a bin to its width; inside a bin the rank is uniform.

    Attributes:
        edges: Shape (B+1,), from 0 to 1.
        leaf: Shape (E,).
        bin: Shape (E,).
        mass: Shape (E,).
    """

    edges: Array
    leaf: npt.NDArray[np.int64]
    bin: npt.NDArray[np.int64]
    mass: Array


@dataclass(frozen=True, repr=False)
class Certificate(Result):
    """Everything that is needed to check both bounds without a solver (`lpverify.lp.certify`).

    ``ranks`` proves the lower bound: the path of smallest rank has the distribution ``selected``, and
    ``prefix_acceptance`` satisfies f(cx) <= p(x|c) f(c) and f <= Q*. ``multipliers`` (lambda >= 0 of the constraints
    f(cx) <= p(x|c) f(c)) prove the upper bound.

    Attributes:
        num_paths: K.
        ranks: The rank table.
        selected: Q*(c), one (V**i,) array per level i = 0..L.
        prefix_acceptance: f(c), likewise.
        multipliers: lambda(c), likewise; the root's entry is 0.
    """

    num_paths: int
    ranks: RankTable
    selected: Levels
    prefix_acceptance: Levels
    multipliers: Levels


@dataclass(frozen=True)
class RefinementStep:
    """One refinement step of an iterative solver: what it worked on, and the best bounds after it."""

    bins: int
    columns: int
    lower_bound: float
    upper_bound: float
    seconds: float


@dataclass(frozen=True, repr=False)
class LpSolution(Result):
    """The answer of every LP: a value between certified bounds.

    Attributes:
        value: The optimum, expected tokens per target call: the lower bound, which a verifier attains, unless the
            method proves more.
        lower_bound: Certified.
        upper_bound: Certified.
        status: "optimal" if the bounds are within the requested tolerance, else "time_limit" or "stalled"; the bounds
            are valid in every case.
        method: What solved it.
        seconds: Time that it took.
        certificate: Proof of both bounds, from the methods that have one.
        refinement_steps: History of an iterative solver.
        exact: The optimum as a Fraction, if it was proved.
        exact_bounds: Rational lower and upper bound, if exact arithmetic was asked for.
        details: Of the method.
    """

    value: float
    lower_bound: float
    upper_bound: float
    status: str
    method: str
    seconds: float
    certificate: Certificate | None = None
    refinement_steps: tuple[RefinementStep, ...] = ()
    exact: Fraction | None = None
    exact_bounds: tuple[Fraction, Fraction] | None = None
    details: dict[str, Any] | None = None

    @property
    def gap(self) -> float:
        """Certified width, ``upper_bound - lower_bound``."""
        return self.upper_bound - self.lower_bound


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Result):
    """One algorithm evaluated exactly on one problem (`lpverify.exact.evaluate`); Fractions for rational problems.

    Attributes:
        algorithm: Name of the verifier.
        num_paths: K.
        block_efficiency: Expected tokens per target call.
        method: "enumeration", "recursion" or "closed form".
        terms: How many drafts, drafted tuples or nodes were summed over.
        accepted: Shape (L+1,): Pr(tau >= i) for i = 0..L, tau the number of accepted drafted tokens. None, as the next
            two, if only the value was computed, in closed form.
        law: Shape (V**(L+1),): distribution of the first L+1 tokens when the target continues after the emitted one, in
            lexicographic order.
        law_error: Total variation distance between ``law`` and the target's distribution; 0 for a lossless algorithm.
    """

    algorithm: str
    num_paths: int
    block_efficiency: float | Fraction
    method: str
    terms: int
    accepted: Array | None = None
    law: Array | None = None
    law_error: float | Fraction | None = None


@dataclass(frozen=True, repr=False)
class Finding(Result):
    """Why a verifier is not lossless on a case.

    Attributes:
        kind: "law" (a wrong distribution), "impossible token" (one that the target never emits), "raised", "returned"
            (not a drafted prefix and a token), or "changed its input".
        message: One line.
        prefix: For the first two kinds, a shortest sequence of emitted tokens whose probability is wrong; tokens of a
            second decoding round follow after L+1 tokens of the first.
        expected: Its probability under the target.
        got: Its probability under the verifier.
    """

    kind: str
    message: str
    prefix: tuple[int, ...] | None = None
    expected: float | Fraction | None = None
    got: float | Fraction | None = None


@dataclass(frozen=True, repr=False)
class CaseAudit(Result):
    """One case of an audit.

    Attributes:
        case: Name of the case.
        vocab_size: V.
        depth: L.
        num_paths: K.
        rounds: Decoding rounds that were played.
        mode: "exact" (all drafts and choices enumerated), "sampled", or "refused" (too large for the verifier).
        rational: Whether Fractions were used.
        count: Runs enumerated, drafts summed over, or draws.
        total_variation: Distance between the distribution of the emitted tokens (or of the sample) and the target's.
        threshold: If sampled, the distance from which the sample is rejected.
        smallest_found: If sampled, the distance that is detected with probability 0.99.
        finding: Why it is not lossless.
        note: Why it was sampled or refused.
    """

    case: str
    vocab_size: int
    depth: int
    num_paths: int
    rounds: int
    mode: str
    rational: bool
    count: int = 0
    total_variation: float | Fraction | None = None
    threshold: float | None = None
    smallest_found: float | None = None
    finding: Finding | None = None
    note: str = ""


@dataclass(frozen=True, repr=False)
class AuditReport(Result):
    """Outcome of `lpverify.auditing.audit.audit`.

    Attributes:
        verifier: Name.
        cases: The cases, in order.
        false_alarm: Bound on the probability that a lossless verifier has a finding; 0 if nothing was sampled.
    """

    verifier: str
    cases: tuple[CaseAudit, ...]
    false_alarm: float

    @property
    def findings(self) -> tuple[tuple[str, Finding], ...]:
        """Pairs (name of the case, finding), in the order of the cases."""
        return tuple((case.case, case.finding) for case in self.cases if case.finding is not None)

    @property
    def lossless(self) -> bool:
        """No finding on any case, and at least one case that was not refused."""
        return not self.findings and any(case.mode != "refused" for case in self.cases)
