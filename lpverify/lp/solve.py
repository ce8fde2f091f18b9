"""One entry to every method for the optimum."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypedDict, Unpack, overload

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.core.problem import ProblemLike, as_problems
from lpverify.core.results import Certificate, LpSolution, RefinementStep
from lpverify.drafting import DraftLike, draft_distribution
from lpverify.drafting.base import ConcaveCoverage, DraftDistribution
from lpverify.drafting.delayed import Delayed
from lpverify.drafting.fixed_tree import TopNodes
from lpverify.drafting.iid_paths import IidPaths
from lpverify.lp import (
    certify,
    dense,
    draft_certificate,
    leaf_orders,
    one_step,
    quantile,
    rational,
    reference,
    single_path,
    stems,
)

REFERENCES = {
    "antichain": reference.solve_antichains,
    "cutting-planes": reference.solve_by_cuts,
}
METHODS = ("auto", "closed-form", "one-step", "quantile", "leaf-orders", "dense", "transport", *REFERENCES)
TOLERANCE = 1e-9  # certified gap, in tokens, where none is given; that of leaf orders is 1e-7


class Options(TypedDict, total=False):
    """The keywords of `solve`."""

    draft: DraftLike | None
    method: str
    tolerance: float | None
    time_limit: float | None
    exact: bool
    progress: Callable[[RefinementStep], None] | None


@overload
def solve(problem: ProblemLike, num_paths: int | None = None, **options: Unpack[Options]) -> LpSolution: ...
@overload
def solve(problem: ProblemLike, num_paths: Iterable[int], **options: Unpack[Options]) -> list[LpSolution]: ...
def solve(
    problem: ProblemLike,
    num_paths: int | Iterable[int] | None = None,
    *,
    draft: DraftLike | None = None,
    method: str = "auto",
    tolerance: float | None = None,
    time_limit: float | None = None,
    exact: bool = False,
    progress: Callable[[RefinementStep], None] | None = None,
) -> LpSolution | list[LpSolution]:
    """The optimal block efficiency of any lossless verifier, between certified bounds.

    With f(c) the probability that the accepted prefix passes through c, and C(A) the probability that one of a set A of
    nodes is drafted, of which none is an ancestor of another (theory 2.1, 9.1), the program is::

        maximise  sum_c f(c)   s.t.  f(root) = 1,  0 <= f(cx) <= p(x|c) f(c),  sum_{c in A} f(c) <= C(A) for all A

    For K i.i.d. paths C(A) = phi(Q(A)), phi(s) = 1 - (1 - s)^K, and Q(A) is the draft probability of A.

    Args:
        problem: A problem or what can become one: a name, a file, a pair, a document (`lpverify.as_problem`).
        num_paths: K i.i.d. paths, or several K; None: that of the problem.
        draft: Another draft distribution, or its spec such as "distinct-paths:3", instead of K i.i.d. paths.
        method: One of `METHODS`. "auto" chooses by the draft distribution: the closed form for one path and for a fixed
            tree, the rank-quantile program (theory 2.4) for any number of i.i.d. paths, also below a stem, and leaf
            orders (theory 9.1) for the rest. "leaf-orders" and "transport" take every draft distribution, the others
            i.i.d. paths. "transport", "antichain", "cutting-planes" and "dense" are references for small sizes.
        tolerance: Certified gap, in tokens, to stop at. None: 1e-9, for leaf orders 1e-7.
        time_limit: Seconds for each K; the bounds are valid when it is reached.
        exact: For rational problems: also prove the optimum as a Fraction where that is possible (i.i.d. paths, about
            100 nodes, up to 400), and give rational bounds elsewhere (`LpSolution.exact`, `LpSolution.exact_bounds`).
        progress: Called after every refinement step.

    Returns:
        The solution; a list of solutions if ``num_paths`` is not one integer.

    Raises:
        InputError: No problem; an unknown method or draft distribution, one that does not fit, or ``exact`` on floats.
        SizeError: The method refuses the size.

    >>> round(solve("coin-2", 2).value, 6), [round(one.value, 6) for one in solve("coin-2", [1, 2])]
    (2.5944, [2.16, 2.5944])
    >>> round(solve("coin-2", draft="distinct-children:2,1").value, 6)
    2.8375

    Thomas and Pal, arXiv 2602.16961, for the program; the rank-quantile and leaf-order formulations are this project's.
    """
    if num_paths is not None and not hasattr(num_paths, "__index__"):
        options = Options(
            draft=draft, method=method, tolerance=tolerance, time_limit=time_limit, exact=exact, progress=progress
        )
        return [solve(one, **options) for one in as_problems(problem, num_paths)]
    began = time.perf_counter()
    law = None if draft is None else draft_distribution(draft)
    if law is not None and num_paths is not None:
        raise errors.fail("num_paths", got=f"{num_paths} beside {law.spec}", expected="one of them")
    if isinstance(law, IidPaths):
        num_paths, law = law.num_paths, None
    [task] = as_problems(problem, num_paths)
    pair, paths = task.pair, task.num_paths
    errors.choice("method", method, METHODS)
    if tolerance is not None:
        errors.number("tolerance", tolerance, above=0)
    if time_limit is not None:
        errors.number("time_limit", time_limit, min=0)
    if exact and not pair.rational:
        raise errors.fail("exact solution", got="a problem with float entries", expected="rational probabilities")
    refinement = Refinement(tolerance=tolerance or TOLERANCE, time_limit=time_limit, progress=progress)
    if law is not None:
        law.check(pair)
        return _with_exact_bounds(pair, _solve_draft(pair, law, method, tolerance, refinement), exact, began)
    if method == "closed-form" and paths > 1:
        raise errors.fail("method", got=f"'closed-form' with {paths} paths", expected="1 path, or another method")
    if method == "closed-form" or (method == "auto" and paths == 1):
        return single_path.solve(pair)
    if method == "one-step":
        return one_step.solve(pair, paths)
    if method in ("leaf-orders", "transport"):
        return _solve_draft(pair, IidPaths(paths), method, tolerance, refinement)
    if method in REFERENCES:
        solution = REFERENCES[method](pair.floats, paths)
    else:
        refine = dense.solve if method == "dense" else quantile.solve
        solution = refine(pair.floats, paths, **refinement)
    if exact:
        limit = {} if time_limit is None else {"time_limit": max(1.0, time_limit - (time.perf_counter() - began))}
        certificate = solution.certificate
        assert certificate is None or isinstance(certificate, Certificate)
        proved = rational.exact_optimum(pair, paths, certificate, **limit)
        both, seconds = f"{solution.method}, then {proved.method}", time.perf_counter() - began
        solution = replace(proved, method=both, refinement_steps=solution.refinement_steps, seconds=seconds)
    return solution


class Refinement(TypedDict):
    """What iterative methods take."""

    tolerance: float
    time_limit: float | None
    progress: Callable[[RefinementStep], None] | None


def _solve_draft(
    pair: ModelPair, draft: DraftDistribution, method: str, tolerance: float | None, refinement: Refinement
) -> LpSolution:
    """The optimum of a draft distribution that may be any, by the method that fits it."""
    if method == "transport":
        return reference.solve_flow(pair.floats, draft)
    if method in ("auto", "closed-form") and isinstance(draft, TopNodes):
        return draft_certificate.solve_fixed_tree(pair, draft)
    if method in ("auto", "quantile") and isinstance(draft, ConcaveCoverage):
        return quantile.solve(pair.floats, draft, **refinement)
    if method in ("auto", "quantile") and isinstance(draft, Delayed):
        return stems.solve(pair, draft, **refinement)
    if method in ("auto", "leaf-orders") and draft.full_depth:
        return leaf_orders.solve(pair, draft, **(refinement | {"tolerance": tolerance or leaf_orders.TOLERANCE}))
    fitting = ["auto", "transport", *(["leaf-orders"] if draft.full_depth else [])]
    expected = f"one of {', '.join(fitting)} for {draft.spec}"
    raise errors.fail("method", got=errors.shown(method), expected=expected)


def _with_exact_bounds(pair: ModelPair, solution: LpSolution, exact: bool, began: float) -> LpSolution:
    """The solution, if asked for with the bounds that its certificate proves in Fractions."""
    if not exact or solution.exact_bounds is not None:
        return solution
    if solution.certificate is None:
        expected = "a method with a certificate"
        raise errors.fail("exact solution", got=f"the method {solution.method}", expected=expected)
    checked = certify.check(pair, solution.certificate, exact=True)
    fields = {name: getattr(solution, name) for name in ("status", "certificate", "refinement_steps", "details")}
    method = f"{solution.method}, then rational bounds"
    return certify.bounded(checked.lower_bound, checked.upper_bound, method=method, began=began, **fields)
