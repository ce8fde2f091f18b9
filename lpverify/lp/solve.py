"""One entry to every method for the multi-path optimum."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypedDict, Unpack, overload

from lpverify import errors
from lpverify.core.problem import ProblemLike, as_problems
from lpverify.core.results import LpSolution, RefinementStep
from lpverify.lp import dense, one_step, quantile, rational, reference, single_path

REFERENCES = {
    "transport": reference.solve_flow,
    "antichain": reference.solve_antichains,
    "cutting-planes": reference.solve_by_cuts,
}
METHODS = ("auto", "closed-form", "one-step", "quantile", "dense", *REFERENCES)


class Options(TypedDict, total=False):
    """The keywords of `solve`."""

    method: str
    tolerance: float
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
    method: str = "auto",
    tolerance: float = 1e-9,
    time_limit: float | None = None,
    exact: bool = False,
    progress: Callable[[RefinementStep], None] | None = None,
) -> LpSolution | list[LpSolution]:
    """The optimal block efficiency of any lossless verifier with K i.i.d. draft paths, between certified bounds.

    With f(c) the probability that the accepted prefix passes through c, phi(s) = 1 - (1 - s)^K, and Q(A) the draft
    probability of a set A of nodes of which none is an ancestor of another (theory 2.1), the program is::

        maximise  sum_c f(c)   s.t.  f(root) = 1,  0 <= f(cx) <= p(x|c) f(c),  sum_{c in A} f(c) <= phi(Q(A)) for all A

    Args:
        problem: A problem or what can become one: a name, a file, a pair, a document (`lpverify.as_problem`).
        num_paths: K, or several; None: that of the problem.
        method: One of `METHODS`. "auto" is the closed form for K = 1 and the rank-quantile program (theory 2.4)
            otherwise, whose answer carries a certificate. The others are reference formulations for small sizes.
        tolerance: Certified gap, in tokens, to stop at.
        time_limit: Seconds for each K; the bounds are valid when it is reached.
        exact: For rational problems: also prove the optimum as a Fraction where that is possible (about 100 nodes, up
            to 400), and give rational bounds beyond (`LpSolution.exact`, `LpSolution.exact_bounds`).
        progress: Called after every refinement step.

    Returns:
        The solution; a list of solutions if ``num_paths`` is not one integer.

    Raises:
        InputError: No problem; an unknown method, one that does not fit, or ``exact`` on floats.
        SizeError: The method refuses the size.

    >>> round(solve("coin-2", 2).value, 6), [round(one.value, 6) for one in solve("coin-2", [1, 2])]
    (2.5944, [2.16, 2.5944])

    Thomas and Pal, arXiv 2602.16961, for the program; the rank-quantile formulation is this project's.
    """
    if num_paths is not None and not hasattr(num_paths, "__index__"):
        options = Options(method=method, tolerance=tolerance, time_limit=time_limit, exact=exact, progress=progress)
        return [solve(one, **options) for one in as_problems(problem, num_paths)]
    began = time.perf_counter()
    [task] = as_problems(problem, num_paths)
    pair, paths = task.pair, task.num_paths
    errors.choice("method", method, METHODS)
    errors.number("tolerance", tolerance, above=0)
    if time_limit is not None:
        errors.number("time_limit", time_limit, min=0)
    if exact and not pair.rational:
        raise errors.fail("exact solution", got="a problem with float entries", expected="rational probabilities")
    if method == "closed-form" and paths > 1:
        raise errors.fail("method", got=f"'closed-form' with {paths} paths", expected="1 path, or another method")
    if method == "closed-form" or (method == "auto" and paths == 1):
        return single_path.solve(pair)
    if method == "one-step":
        return one_step.solve(pair, paths)
    if method in REFERENCES:
        solution = REFERENCES[method](pair.floats, paths)
    else:
        refine = dense.solve if method == "dense" else quantile.solve
        solution = refine(pair.floats, paths, tolerance=tolerance, time_limit=time_limit, progress=progress)
    if exact:
        limit = {} if time_limit is None else {"time_limit": max(1.0, time_limit - (time.perf_counter() - began))}
        proved = rational.exact_optimum(pair, paths, solution.certificate, **limit)
        both, seconds = f"{solution.method}, then {proved.method}", time.perf_counter() - began
        solution = replace(proved, method=both, refinement_steps=solution.refinement_steps, seconds=seconds)
    return solution
