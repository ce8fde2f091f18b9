"""One entry to every method for the multi-path optimum."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from lpverify import errors
from lpverify.core.problem import VerifyProblem
from lpverify.core.results import LpSolution, RefinementStep
from lpverify.lp import dense, one_step, quantile, rational, reference, single_path

METHODS = ("auto", "closed-form", "one-step", "quantile", "dense", "transport", "antichain", "cutting-planes")


def solve(
    problem: VerifyProblem,
    *,
    method: str = "auto",
    tolerance: float = 1e-9,
    time_limit: float | None = None,
    exact: bool = False,
    progress: Callable[[RefinementStep], None] | None = None,
) -> LpSolution:
    """The optimal block efficiency of any lossless verifier with K i.i.d. draft paths, between certified bounds.

    ``method`` is one of `METHODS`; "auto" takes the closed form for K = 1 and the rank-quantile program otherwise
    (its answer carries a certificate, which the one-step closed form of L = 1 does not need). The others are
    reference formulations for small sizes.

    ``exact`` (rational problems only) also proves the optimum as a fraction where that is possible (about 100 nodes,
    up to 400), and gives rational bounds beyond: see `LpSolution.exact` and `LpSolution.exact_bounds`.

    ``tolerance`` is the certified gap to stop at, ``time_limit`` in seconds; bounds are valid whatever the ``status``.

    Raises InputError for an unknown method, a method that does not fit, or ``exact`` on floats; SizeError when the
    method refuses the size.

    >>> from lpverify.core.model_pair import ModelPair
    >>> coin = ModelPair.from_levels([[[0.25, 0.75]], [[0.25, 0.75]] * 2], [[[0.6, 0.4]], [[0.6, 0.4]] * 2])
    >>> round(solve(VerifyProblem(coin, num_paths=2)).value, 6)
    2.5944
    """
    began = time.perf_counter()
    pair, paths = problem.pair, problem.num_paths
    errors.choice("method", method, METHODS)
    if not tolerance > 0:
        raise errors.fail("tolerance", got=tolerance, expected="a positive number")
    if exact and not pair.rational:
        raise errors.fail("exact solution", got="a problem with float entries", expected="rational probabilities")
    if method == "closed-form" and paths > 1:
        raise errors.fail("method", got=f"'closed-form' with {paths} paths", expected="1 path, or another method")
    if method == "closed-form" or (method == "auto" and paths == 1):
        return single_path.solve(pair)
    if method == "one-step":
        return one_step.solve(pair, paths)
    floats = pair.floats
    if method == "dense":
        solution = dense.solve(floats, paths, tolerance=tolerance, time_limit=time_limit, progress=progress)
    elif method == "transport":
        solution = reference.solve_flow(floats, paths)
    elif method == "antichain":
        solution = reference.solve_antichains(floats, paths)
    elif method == "cutting-planes":
        solution = reference.solve_by_cuts(floats, paths)
    else:
        solution = quantile.solve(floats, paths, tolerance=tolerance, time_limit=time_limit, progress=progress)
    if exact:
        start = solution.certificate
        left = None if time_limit is None else max(1.0, time_limit - (time.perf_counter() - began))
        limit = {} if left is None else {"time_limit": left}
        proved = rational.exact_optimum(pair, paths, start, **limit)
        solution = replace(
            proved,
            method=f"{solution.method}, then {proved.method}",
            refinement_steps=solution.refinement_steps,
            seconds=time.perf_counter() - began,
        )
    return solution
