"""Results: frozen data, no computation.

Values are block efficiencies: expected tokens per target call, the bonus (or correction) token counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from lpverify.numerics import Array, Levels


@dataclass(frozen=True)
class RankTable:
    """A joint law of (drafted leaf, rank bin), the primal object of the rank-quantile formulation (THEORY 2.4).

    Sparse: entry e puts mass ``mass[e]`` on leaf ``leaf[e]`` and the rank bin ``[edges[bin[e]], edges[bin[e]+1]]``.
    Rows sum to the draft's leaf law, columns to the bin widths; inside a bin the rank is uniform.
    """

    edges: Array  # (B+1,), from 0 to 1
    leaf: npt.NDArray[np.int64]  # (E,)
    bin: npt.NDArray[np.int64]  # (E,)
    mass: Array  # (E,)


@dataclass(frozen=True)
class Certificate:
    """Everything that is needed to check both bounds without a solver (`lpverify.lp.certify`).

    ``ranks`` proves the lower bound: it makes ``selected`` (Q*, the distribution of the path of smallest rank) legal,
    and ``prefix_acceptance`` f satisfies f(cx) <= p(x|c) f(c) and f <= Q*. ``multipliers`` (lambda >= 0 on f(cx) <=
    p(x|c) f(c)) prove the upper bound.
    """

    num_paths: int
    ranks: RankTable
    selected: Levels  # Q*(c), one (V**i,) array per level i = 0..L
    prefix_acceptance: Levels  # f(c), one (V**i,) array per level i = 0..L
    multipliers: Levels  # lambda(c), one (V**i,) array per level i = 0..L; the root's entry is 0


@dataclass(frozen=True)
class RefinementStep:
    """One refinement step of an iterative solver: what it worked on, and the best bounds after it."""

    bins: int
    columns: int
    lower_bound: float
    upper_bound: float
    seconds: float


@dataclass(frozen=True)
class LpSolution:
    """The answer of every LP: a value between certified bounds.

    ``status`` is ``"optimal"`` when ``upper_bound - lower_bound <= tolerance`` asked for, else ``"time_limit"`` or
    ``"stalled"``; both bounds are valid in every case. ``value`` is the lower bound (it is attained by a verifier)
    unless the method proves more.
    """

    value: float
    lower_bound: float
    upper_bound: float
    status: str
    method: str
    seconds: float
    certificate: Certificate | None = None
    refinement_steps: tuple[RefinementStep, ...] = ()
    exact: Fraction | None = None  # the optimum as a fraction, when proved
    exact_bounds: tuple[Fraction, Fraction] | None = None  # rational lower and upper bound
    details: dict[str, Any] | None = None

    @property
    def gap(self) -> float:
        """Certified width, ``upper_bound - lower_bound``."""
        return self.upper_bound - self.lower_bound


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One algorithm evaluated exactly on one problem (`lpverify.exact.evaluate`); Fractions for rational problems.

    ``accepted`` (L+1,): Pr(tau >= i) for i = 0..L, tau the number of accepted drafted tokens. ``law`` (V**(L+1),): law
    of the first L+1 tokens when the target continues after the emitted one, in lexicographic order; ``law_error`` its
    total variation to the target's, 0 for a lossless algorithm. They are None where only the value was computed in
    closed form. ``terms``: how many drafts, drafted tuples or nodes were summed over.
    """

    algorithm: str
    num_paths: int
    block_efficiency: float | Fraction
    method: str  # "enumeration", "recursion" or "closed form"
    terms: int
    accepted: Array | None = None
    law: Array | None = None
    law_error: float | Fraction | None = None


@dataclass(frozen=True)
class Finding:
    """Why a verifier is not lossless on a case.

    ``kind``: "law", "impossible token" (one that the target never emits), "raised", "returned" (not a drafted prefix
    and a token), or "changed its input". For the first two ``prefix`` is where the law first leaves the target, a
    shortest sequence of emitted tokens whose probability ``got`` is not ``expected``; tokens of a second round follow
    after L+1 tokens of the first.
    """

    kind: str
    message: str  # one line
    prefix: tuple[int, ...] | None = None
    expected: float | Fraction | None = None
    got: float | Fraction | None = None


@dataclass(frozen=True)
class CaseAudit:
    """One case of an audit.

    ``mode``: "exact" (all drafts and choices enumerated), "sampled", or "refused" (the verifier does not take the
    size). ``total_variation`` of the emitted to the target's law: the law's own, or that of the sample, which is
    rejected from ``threshold`` on; ``smallest_found``: what is found with probability 0.99 when sampled. ``count``:
    runs enumerated, drafts summed over, or draws. ``note``: why it was sampled or refused.
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


@dataclass(frozen=True)
class AuditReport:
    """Outcome of `lpverify.auditing.audit.audit`.

    ``false_alarm`` bounds the probability that a lossless verifier has a finding; 0 when nothing was sampled.
    """

    verifier: str
    cases: tuple[CaseAudit, ...]
    false_alarm: float

    @property
    def findings(self) -> tuple[tuple[str, Finding], ...]:
        """(case, finding), in the order of the cases."""
        return tuple((case.case, case.finding) for case in self.cases if case.finding is not None)

    @property
    def lossless(self) -> bool:
        """No finding on any case, and at least one case that was not refused."""
        return not self.findings and any(case.mode != "refused" for case in self.cases)
