"""Every algorithm beside the optimum: the one place that knows how each is evaluated.

By block efficiency, token <= bv = single-path optimum, gbv <= best single ranking <= multi-path optimum <= node
relaxation, and every algorithm <= policy = multi-path optimum. ``gap`` is the multi-path optimum's value minus an
algorithm's block efficiency, for the same K (also for algorithms that look at one path); ``relative_gap`` divides it by
the optimum. The optimum's value is its attained lower bound unless the solver proved more; the true gap is larger by at
most the certified width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

from lpverify import errors
from lpverify.core.problem import ProblemLike, VerifyProblem, as_problem, as_problems
from lpverify.core.results import LpSolution, RefinementStep, Result
from lpverify.exact.closed_form import block_efficiency
from lpverify.exact.evaluate import Algorithm, as_verifier, evaluate, policy_certificate
from lpverify.exact.ranking import best_ranking
from lpverify.lp import single_path
from lpverify.lp.coverage import node_relaxation
from lpverify.lp.solve import solve
from lpverify.numerics import is_exact, total
from lpverify.verifiers import VERIFIERS, Verifier

if TYPE_CHECKING:
    import pandas as pd

OPTIMUM, RELAXATION, RANKING = "optimum", "node relaxation", "best ranking"
REFERENCES = (RELAXATION, OPTIMUM, RANKING)  # rows that are not algorithms
POLICY = "policy"
ALGORITHMS = tuple(VERIFIERS)
Algorithms: TypeAlias = Sequence[Algorithm] | str | None  # None: `ALGORITHMS`
COLUMNS = ("paths", "name", "block_efficiency", "gap", "relative_gap", "law_error", "method")

MAX_DRAFTS = 1_000  # enumerated for a law error where the value has a closed form: a few seconds an algorithm
EXACT_SHARE = 5  # Fractions are slower: a law error is exact up to max_drafts / EXACT_SHARE drafts, else in floats


@dataclass(frozen=True, repr=False)
class AlgorithmResult(Result):
    """One row of a comparison."""

    name: str  # of the algorithm, or one of `REFERENCES`
    block_efficiency: float | None  # expected tokens per target call; None if the algorithm was refused
    law_error: float | None  # total variation distance, as in `Evaluation`; None if it was not enumerated
    method: str  # how the value was computed
    exact: Fraction | None = None  # the value
    refused: str = ""  # why the algorithm was refused


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """The optimum and everything that is compared with it, for one K."""

    problem: VerifyProblem
    single_path: LpSolution  # optimum for K = 1
    multi_path: LpSolution  # optimum for the problem's K
    results: tuple[AlgorithmResult, ...]  # one row per algorithm
    references: tuple[AlgorithmResult, ...]  # the node relaxation (an upper bound) and the best single ranking

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

        best, paths = measure(self.problem, OPTIMUM, self.multi_path), self.problem.num_paths
        relaxation, *others = self.references
        rows = [
            (paths, row.name, row.block_efficiency, self.gap(row), self.relative_gap(row), row.law_error, row.method)
            for row in (relaxation, best, *others, *self.results)
        ]
        return pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(COLUMNS[2:6], float))


def comparison(
    problem: ProblemLike,
    algorithms: Algorithms = None,
    num_paths: int | None = None,
    *,
    method: str = "auto",
    tolerance: float = 1e-9,
    time_limit: float | None = None,
    exact: bool = False,
    max_drafts: int = MAX_DRAFTS,
    progress: Callable[[RefinementStep], None] | None = None,
    stage: Callable[[str], None] = lambda name: None,
) -> Comparison:
    """Solve for both optima and evaluate algorithms exactly.

    The arguments are those of `compare` and `lpverify.lp.solve.solve`; ``max_drafts`` is the largest number of drafts
    that are enumerated for ``law_error`` if the value has a closed form; ``stage`` is called with the name of what
    begins. Raises InputError for a listed algorithm that is unknown, or refused, mostly for its size. If ``algorithms``
    is None, a refused algorithm is a row with ``refused`` set.
    """
    problem = as_problem(problem, num_paths)
    listed = errors.choices("algorithms", algorithms, ALGORITHMS) if isinstance(algorithms, str) else algorithms
    chosen = [
        errors.choice("algorithm", one, ALGORITHMS) if isinstance(one, str) else as_verifier(one, problem)
        for one in (ALGORITHMS if listed is None else listed)
    ]
    stage("single-path optimum")
    single = single_path.solve(problem.pair)
    stage("multi-path optimum")
    multi = solve(problem, method=method, tolerance=tolerance, time_limit=time_limit, exact=exact, progress=progress)
    results = []
    for algorithm in chosen:
        name = algorithm.name if isinstance(algorithm, Verifier) else str(algorithm)
        stage(name)
        try:
            results.append(measure(problem, algorithm, multi, max_drafts))
        except errors.InputError as error:
            if algorithms is not None:
                raise type(error)(f"algorithm {name}: {error}") from error
            results.append(AlgorithmResult(name, None, None, "refused", refused=str(error)))
    stage(RANKING)
    references = (measure(problem, RELAXATION, multi), measure(problem, RANKING, multi))
    return Comparison(problem, single, multi, tuple(results), references)


def measure(
    problem: VerifyProblem,
    algorithm: Algorithm,
    optimum: LpSolution,
    max_drafts: int = MAX_DRAFTS,
    max_terms: int | None = None,
) -> AlgorithmResult:
    """One row of a comparison: an algorithm as in `evaluate`, or one of `REFERENCES`.

    ``max_drafts`` is that of `comparison`; ``max_terms`` is the largest number of terms where the value has no closed
    form, None the limit of `evaluate`. Raises InputError for an algorithm that cannot be measured, SizeError for one
    for which the problem is too large.
    """
    if algorithm == OPTIMUM:
        return AlgorithmResult(OPTIMUM, optimum.value, None, optimum.method, optimum.exact)
    if algorithm == RELAXATION:
        bound, _ = node_relaxation(problem.pair, problem.num_paths)
        return AlgorithmResult(RELAXATION, float(bound), None, "closed form", bound if is_exact(bound) else None)
    if algorithm == RANKING:
        best = best_ranking(problem)
        effort = f"{'all' if best.complete else 'search,'} {best.orders_tried} orders"
        return AlgorithmResult(RANKING, best.block_efficiency, None, effort if best.orders_tried > 1 else "any order")
    law_error: float | Fraction | None
    if algorithm == POLICY:
        certificate = policy_certificate(problem, optimum)
        value, verifier = total(certificate.prefix_acceptance), VERIFIERS[POLICY](certificate)
    else:
        verifier = as_verifier(algorithm, problem)
        value = None if verifier.closed_form is None else block_efficiency(problem.pair, verifier, problem.num_paths)
    if value is None:
        result = evaluate(problem, verifier, max_terms=max_terms)
        value, law_error, method = result.block_efficiency, result.law_error, result.method
    else:
        law_error, method = _law_error(verifier, problem, max_drafts), "closed form"
    # SpecTr's rho is irrational: the Fraction is that of a rho nearby
    exact = value if isinstance(value, Fraction) and verifier.name != "spectr" else None
    return AlgorithmResult(verifier.name, float(value), None if law_error is None else float(law_error), method, exact)


def _law_error(verifier: Verifier, problem: VerifyProblem, max_drafts: int) -> float | Fraction | None:
    """By enumeration, in the problem's arithmetic if that is quick enough; None beyond ``max_drafts``."""
    floats = VerifyProblem(problem.pair.floats, problem.num_paths)
    share = EXACT_SHARE if problem.pair.rational else 1
    for task, limit in ((problem, max_drafts // share), (floats, max_drafts)):
        try:
            return evaluate(task, verifier, method="enumeration", max_terms=limit).law_error
        except errors.SizeError:
            continue
    return None


def compare(
    problem: ProblemLike, num_paths: int | Iterable[int] | None = None, *, algorithms: Algorithms = None, **options: Any
) -> pd.DataFrame:
    """Optimum, bounds and algorithms side by side, for one K or several.

    Args:
        problem: A problem or what can become one: a name, a file, a pair, a document (`lpverify.as_problem`).
        num_paths: K, or several; None: that of the problem.
        algorithms: Names (also as a text with commas), verifiers, or functions as in `evaluate`; None: all names.
        options: Those of `comparison`: method, tolerance, time_limit, exact, max_drafts, progress, stage.

    Returns:
        A frame with the columns paths, name, block_efficiency, gap, relative_gap, law_error and method. Rows for each
        K: the node relaxation (an upper bound), the optimum, the best single ranking, then the algorithms.

    Raises:
        InputError: As `comparison`.

    >>> frame = compare("one-position", [1, 2], algorithms=["bv", "gbv"])
    >>> frame[frame["name"] == "gbv"]["block_efficiency"].round(6).tolist()
    [1.6, 1.84]
    """
    import pandas as pd

    frames = [comparison(one, algorithms, **options).frame() for one in as_problems(problem, num_paths)]
    return pd.concat(frames, ignore_index=True)
