"""Every algorithm beside the optimum: the one place that knows how each is evaluated.

Rows of a comparison, by block efficiency:

    token <= bv = single-path optimum          gbv <= best single ranking <= multi-path optimum <= node relaxation
    every algorithm <= multi-path optimum,     policy = multi-path optimum

``gap`` is the multi-path optimum's value minus an algorithm's block efficiency, for the same K (also for algorithms
that look at one path); ``relative_gap`` divides it by the optimum. The optimum's value is its attained lower bound
unless the solver proved more; the true gap is larger by at most the certified width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from lpverify import errors
from lpverify.core.problem import VerifyProblem
from lpverify.core.results import Certificate, LpSolution, RefinementStep
from lpverify.exact import evaluate as enumeration
from lpverify.exact.closed_form import block_efficiency
from lpverify.exact.ranking import best_ranking
from lpverify.lp import single_path
from lpverify.lp.certify import exact_certificate
from lpverify.lp.coverage import node_relaxation
from lpverify.lp.solve import solve
from lpverify.numerics import is_exact, total
from lpverify.verifiers import VERIFIERS, Verifier, names

if TYPE_CHECKING:
    import pandas as pd

OPTIMUM, RELAXATION, RANKING = "optimum", "node relaxation", "best ranking"
REFERENCES = (RELAXATION, OPTIMUM, RANKING)
"""Rows that are not algorithms."""

POLICY = "policy"
ALGORITHMS = tuple(VERIFIERS)
COLUMNS = ("paths", "name", "block_efficiency", "gap", "relative_gap", "law_error", "method")

MAX_DRAFTS = 1_000
"""Most drafts that are enumerated for a law error where the value has a closed form: a few seconds an algorithm."""

EXACT_SHARE = 5
"""Fractions are slower: a law error is exact up to ``max_drafts / EXACT_SHARE`` drafts, else computed in floats."""


@dataclass(frozen=True)
class AlgorithmResult:
    """One row: ``block_efficiency`` is None where the algorithm was refused, ``refused`` then says why."""

    name: str
    block_efficiency: float | None
    law_error: float | None  # total variation of the emitted (L+1)-token law to the target's; None: not enumerated
    method: str
    exact: Fraction | None = None
    refused: str = ""


@dataclass(frozen=True)
class Comparison:
    """The optimum and everything that is measured against it, for one number of paths."""

    problem: VerifyProblem
    single_path: LpSolution
    multi_path: LpSolution
    results: tuple[AlgorithmResult, ...]
    references: tuple[AlgorithmResult, ...]  # node-relaxation bound, best single ranking

    def gap(self, result: AlgorithmResult) -> float | None:
        """Multi-path optimum minus the row's block efficiency."""
        if result.block_efficiency is None:
            return None
        if result.exact is not None and self.multi_path.exact is not None:
            return float(self.multi_path.exact - result.exact)
        return self.multi_path.value - result.block_efficiency

    def relative_gap(self, result: AlgorithmResult) -> float | None:
        """`gap` divided by the multi-path optimum."""
        gap = self.gap(result)
        return None if gap is None else gap / self.multi_path.value

    def frame(self) -> pd.DataFrame:
        """All rows, columns `COLUMNS`: the optimum and the references first."""
        import pandas as pd

        best = measure(self.problem, OPTIMUM, self.multi_path)
        relaxation, *others = self.references
        rows = [
            (
                self.problem.num_paths,
                row.name,
                row.block_efficiency,
                self.gap(row),
                self.relative_gap(row),
                row.law_error,
                row.method,
            )
            for row in (relaxation, best, *others, *self.results)
        ]
        frame = pd.DataFrame(rows, columns=list(COLUMNS))
        numbers = list(COLUMNS[2:6])
        frame[numbers] = frame[numbers].astype(float)
        return frame


def comparison(
    problem: VerifyProblem,
    algorithms: Sequence[str] | None = None,
    *,
    method: str = "auto",
    tolerance: float = 1e-9,
    time_limit: float | None = None,
    exact: bool = False,
    max_drafts: int = MAX_DRAFTS,
    progress: Callable[[RefinementStep], None] | None = None,
    stage: Callable[[str], None] = lambda name: None,
) -> Comparison:
    """Solve for both optima and evaluate ``algorithms`` (default: `ALGORITHMS`) exactly.

    ``method``, ``tolerance``, ``time_limit`` (seconds), ``exact`` and ``progress`` are `lpverify.lp.solve.solve`'s;
    ``exact`` needs a rational problem. ``max_drafts`` bounds the drafts that are enumerated for a law error where the
    value itself is known in closed form. ``stage`` is told what begins.

    Raises InputError for an algorithm that was asked for by name and is refused, for its size mostly; of the default
    ones such an algorithm is a row with ``refused`` set.
    """
    chosen = ALGORITHMS if algorithms is None else tuple(algorithms)
    for name in chosen:
        errors.choice("algorithm", name, ALGORITHMS)
    stage("single-path optimum")
    single = single_path.solve(problem.pair)
    stage("multi-path optimum")
    multi = solve(problem, method=method, tolerance=tolerance, time_limit=time_limit, exact=exact, progress=progress)
    results = []
    for name in chosen:
        stage(name)
        try:
            results.append(measure(problem, name, multi, max_drafts))
        except errors.InputError as error:
            if algorithms is not None:
                raise type(error)(f"algorithm {name}: {error}") from error
            results.append(AlgorithmResult(name, None, None, "refused", refused=str(error)))
    stage(RANKING)
    references = (measure(problem, RELAXATION, multi), measure(problem, RANKING, multi))
    return Comparison(problem, single, multi, tuple(results), references)


def measure(
    problem: VerifyProblem,
    name: str,
    optimum: LpSolution,
    max_drafts: int = MAX_DRAFTS,
    max_terms: int | None = None,
) -> AlgorithmResult:
    """One row, for an algorithm or one of `REFERENCES`; ``optimum`` is the problem's, as `solve` found it.

    The value is in closed form where there is one, the law error there where the drafts can be enumerated.
    ``max_terms`` bounds the terms of the others' evaluation (default: the limit of `evaluate`'s method). Raises
    InputError for a name that cannot be measured, SizeError where it is too large.
    """
    if name == OPTIMUM:
        return AlgorithmResult(OPTIMUM, optimum.value, None, optimum.method, optimum.exact)
    if name in (RELAXATION, RANKING):
        return _relaxation(problem) if name == RELAXATION else _ranking(problem)
    if name not in names(closed_form=True) and name != POLICY:
        found = enumeration.evaluate(problem, name, max_terms=max_terms)
        value: float | Fraction = found.block_efficiency
        return AlgorithmResult(name, float(value), _float(found.law_error), found.method, _fraction(name, value))
    if name == POLICY:
        certificate = _certificate(problem, optimum)
        value, verifier = total(certificate.prefix_acceptance), VERIFIERS[POLICY](certificate)
    else:
        value, verifier = block_efficiency(problem.pair, name, problem.num_paths), VERIFIERS[name]()
    law_error = _law_error(verifier, problem, max_drafts)
    return AlgorithmResult(name, float(value), law_error, "closed form", _fraction(name, value))


def _law_error(verifier: Verifier, problem: VerifyProblem, max_drafts: int) -> float | None:
    """By enumeration, in the problem's arithmetic where that is quick enough; None beyond ``max_drafts``."""
    floats = VerifyProblem(problem.pair.floats, problem.num_paths)
    for task, most in ((problem, max_drafts // (EXACT_SHARE if problem.pair.rational else 1)), (floats, max_drafts)):
        try:
            found = enumeration.evaluate(task, verifier, method="enumeration", max_terms=most)
        except errors.SizeError:
            continue
        return _float(found.law_error)
    return None


def _certificate(problem: VerifyProblem, optimum: LpSolution) -> Certificate:
    """What runs the optimum, in the problem's arithmetic (in Fractions it attains the optimum to about 1e-9)."""
    found = optimum.certificate
    if found is None:
        raise errors.fail("its rank table", got=f"none from method {optimum.method}", expected="another method")
    if problem.pair.rational and not is_exact(found.ranks.mass):
        return exact_certificate(problem.pair, found)
    return found


def _float(value: float | Fraction | None) -> float | None:
    return None if value is None else float(value)


def _fraction(name: str, value: float | Fraction) -> Fraction | None:
    """The exact value; None in floats, and for SpecTr: its rho is irrational, the Fraction is that of a rho nearby."""
    return value if isinstance(value, Fraction) and name != "spectr" else None


def _relaxation(problem: VerifyProblem) -> AlgorithmResult:
    bound, _ = node_relaxation(problem.pair, problem.num_paths)
    exact = bound if isinstance(bound, Fraction) else None
    return AlgorithmResult(RELAXATION, float(bound), None, "closed form", exact)


def _ranking(problem: VerifyProblem) -> AlgorithmResult:
    best = best_ranking(problem)
    effort = "all" if best.complete else "search,"
    how = f"{effort} {best.orders_tried} orders" if best.orders_tried > 1 else "any order"
    return AlgorithmResult(RANKING, best.block_efficiency, None, how)


def compare(
    problem: VerifyProblem,
    num_paths: int | Iterable[int] | None = None,
    *,
    algorithms: Sequence[str] | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Optimum, bounds and algorithms as one frame; ``num_paths`` are the numbers of paths (default: the problem's).

    Columns: paths, name, block_efficiency, gap, relative_gap, law_error, method. Rows for each number of paths: the
    node relaxation (an upper bound), the optimum, the best single ranking, then the algorithms. ``options`` are
    those of `comparison`.

    >>> from lpverify.core.problem import load_problem
    >>> frame = compare(VerifyProblem(load_problem("one-position").pair), [1, 2], algorithms=["bv", "gbv"])
    >>> frame[frame["name"] == "gbv"]["block_efficiency"].round(6).tolist()
    [1.6, 1.84]
    """
    import pandas as pd

    numbers = (
        [problem.num_paths] if num_paths is None else [num_paths] if isinstance(num_paths, int) else list(num_paths)
    )
    frames = [comparison(problem.with_num_paths(number), algorithms, **options).frame() for number in numbers]
    return pd.concat(frames, ignore_index=True)


def parse_names(what: str, text: str) -> tuple[str, ...]:
    """Algorithm names separated by commas, without repeats.

    >>> parse_names("--algorithms", "gbv, bv,gbv")
    ('gbv', 'bv')
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        errors.choice(what, name, ALGORITHMS)
    return names
