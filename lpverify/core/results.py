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
    if isinstance(value, np.ndarray):
        short = value.ndim == 1 and value.size <= 6
        return f"[{', '.join(map(brief, value))}]" if short else f"<array {value.shape}>"
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
    """

    edges: Array  # (B+1,), from 0 to 1
    leaf: npt.NDArray[np.int64]  # (E,)
    bin: npt.NDArray[np.int64]  # (E,)
    mass: Array  # (E,)


@dataclass(frozen=True, repr=False)
class Certificate(Result):
    """Everything that is needed to check both bounds without a solver (`lpverify.lp.certify`).

    ``ranks`` proves the lower bound: the path of smallest rank has the distribution ``selected``, and
    ``prefix_acceptance`` satisfies f(cx) <= p(x|c) f(c) and f <= Q*. ``multipliers`` (lambda >= 0 of the constraints
    f(cx) <= p(x|c) f(c)) prove the upper bound.
    """

    num_paths: Any  # K, or the draft distribution if its coverage is another concave function of the draft mass
    ranks: RankTable
    selected: Levels  # Q*(c), one (V**i,) array per level i = 0..L
    prefix_acceptance: Levels  # f(c), likewise
    multipliers: Levels  # lambda(c), likewise; the root's entry is 0


@dataclass(frozen=True, repr=False)
class LeafOrders(Result):
    """A mixture of J orders of the leaves: a way to select a drafted path (theory 9.1).

    Order j is drawn with probability ``weights[j]``; the drafted leaf that comes first in it is selected.
    """

    orders: npt.NDArray[np.int64]  # (J, V**L), every row a permutation of the leaves
    weights: Array  # (J,), positive, sum 1


@dataclass(frozen=True, repr=False)
class DraftCertificate(Result):
    """A `Certificate` for any draft distribution (theory 9.1).

    ``selection`` proves the lower bound. It selects a drafted path, whose distribution is ``selected``: a mixture of
    leaf orders; for delayed branching a rank table for every stem that can be drafted; None for a fixed tree, where
    ``selected`` is its coverage and sampling from the target attains the bound (NSS).
    """

    draft: Any  # the `DraftDistribution`
    selection: LeafOrders | dict[int, RankTable] | None
    selected: Levels  # M(c), one (V**i,) array per level i = 0..L
    prefix_acceptance: Levels  # f(c), likewise
    multipliers: Levels  # lambda(c), likewise; the root's entry is 0


@dataclass(frozen=True)
class RefinementStep:
    """One refinement step of an iterative solver: what it worked on, and the best bounds after it."""

    bins: int  # of the rank interval; 0 where the program has none
    columns: int  # table entries, or leaf orders
    lower_bound: float
    upper_bound: float
    seconds: float


@dataclass(frozen=True, repr=False)
class LpSolution(Result):
    """The answer of every LP: a value between certified bounds.

    ``value`` is the optimum, expected tokens per target call: the lower bound, which a verifier attains, unless the
    method proves more. ``status`` is "optimal" if the bounds are within the requested tolerance, else "time_limit" or
    "stalled"; the bounds are valid in every case.
    """

    value: float
    lower_bound: float
    upper_bound: float
    status: str
    method: str
    seconds: float
    certificate: Certificate | DraftCertificate | None = None  # proof of both bounds, from the methods that have one
    refinement_steps: tuple[RefinementStep, ...] = ()  # history of an iterative solver
    exact: Fraction | None = None  # the optimum, if it was proved
    exact_bounds: tuple[Fraction, Fraction] | None = None  # if exact arithmetic was asked for
    details: dict[str, Any] | None = None  # of the method

    @property
    def gap(self) -> float:
        """Certified width, ``upper_bound - lower_bound``."""
        return self.upper_bound - self.lower_bound


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Result):
    """One algorithm evaluated exactly on one problem (`lpverify.exact.evaluate`); Fractions for rational problems.

    ``accepted`` (L+1,) is Pr(tau >= i) for i = 0..L, tau the number of accepted drafted tokens. ``law`` (V**(L+1),) is
    the distribution of the first L+1 tokens when the target continues after the emitted one, in lexicographic order,
    and ``law_error`` its total variation distance to the target's; 0 for a lossless algorithm. All three are None if
    only the value was computed, in closed form.
    """

    algorithm: str
    num_paths: int  # K
    block_efficiency: float | Fraction  # expected tokens per target call
    method: str  # "enumeration", "recursion" or "closed form"
    terms: int  # how many drafts, drafted tuples or nodes were summed over
    accepted: Array | None = None
    law: Array | None = None
    law_error: float | Fraction | None = None


@dataclass(frozen=True, repr=False)
class Finding(Result):
    """Why a verifier is not lossless on a case.

    ``kind`` is "law" (a wrong distribution), "impossible token" (one that the target never emits), "raised", "returned"
    (not a drafted prefix and a token), or "changed its input". For the first two, ``prefix`` is a shortest sequence of
    emitted tokens whose probability is wrong; tokens of a second decoding round follow after L+1 tokens of the first.
    ``cause`` is what the fault looks like, where that can be told: "acceptance" (a token is accepted too often),
    "residual" (what is accepted is possible, the next token is wrong), "boundary" (a token is accepted where a uniform
    equals its probability), "rounding", "ties" (only where p/q has ties), "rounds" (two rounds depend on each other).
    """

    kind: str
    message: str  # one line
    prefix: tuple[int, ...] | None = None
    expected: float | Fraction | None = None  # its probability under the target
    got: float | Fraction | None = None  # its probability under the verifier
    cause: str = ""
    explanation: str = ""  # of the cause, one line


@dataclass(frozen=True, repr=False)
class CaseAudit(Result):
    """One case of an audit."""

    case: str  # its name
    vocab_size: int  # V
    depth: int  # L
    num_paths: int  # K
    rounds: int  # decoding rounds that were played
    mode: str  # "exact" (all drafts and choices enumerated), "sampled", or "refused" (too large for the verifier)
    rational: bool  # whether Fractions were used
    count: int = 0  # runs enumerated, drafts summed over, or draws
    total_variation: float | Fraction | None = None  # of the emitted (or sampled) distribution to the target's
    threshold: float | None = None  # if sampled, the distance from which the sample is rejected
    smallest_found: float | None = None  # if sampled, the distance that is detected with probability 0.99
    finding: Finding | None = None  # why it is not lossless
    note: str = ""  # why it was sampled or refused


@dataclass(frozen=True, repr=False)
class AuditReport(Result):
    """Outcome of `lpverify.auditing.audit.audit`."""

    verifier: str  # its name
    cases: tuple[CaseAudit, ...]
    false_alarm: float  # bound on the probability that a lossless verifier has a finding; 0 if nothing was sampled

    @property
    def findings(self) -> tuple[tuple[str, Finding], ...]:
        """Pairs (name of the case, finding), in the order of the cases."""
        return tuple((case.case, case.finding) for case in self.cases if case.finding is not None)

    @property
    def undecided(self) -> tuple[CaseAudit, ...]:
        """The cases that were refused."""
        return tuple(case for case in self.cases if case.mode == "refused")

    @property
    def outcome(self) -> str:
        """ "not lossless" with a finding on any case; else "not decided" if a case was refused; else "lossless"."""
        if self.findings:
            return "not lossless"
        return "not decided" if self.undecided or not self.cases else "lossless"

    @property
    def lossless(self) -> bool:
        """Every case was decided, and none has a finding."""
        return self.outcome == "lossless"

    @property
    def summary(self) -> str:
        """The outcome with the number of cases of each kind."""
        cases, wrong, undecided = len(self.cases), len(self.findings), len(self.undecided)
        others = f", {undecided} not decided" if undecided else ""
        if wrong:
            return f"NOT lossless: {wrong} of {cases} cases{others}"
        if self.lossless:
            return f"lossless on {cases} cases"
        return f"not decided: {cases - undecided} of {cases} cases lossless{others}"

    @property
    def missed(self) -> str:
        """What sampled cases could miss; empty where nothing was sampled."""
        if not self.false_alarm:
            return ""
        sizes = (max(getattr(case, of) for case in self.cases) for of in ("vocab_size", "depth", "num_paths"))
        size = ", ".join(f"{name} <= {most}" for name, most in zip("VLK", sizes, strict=True))
        return f"could be missed: losses below 'finds', and faults that need more than {size}"
