r"""The multi-path optimum as a fraction, proved (THEORY 2.1-2.4).

HiGHS finds an optimal basis of

    maximise  sum_c f(c)   s.t.  f(root) = 1,  0 <= f(cx) <= p(x|c) f(c)  [lambda],  f(A) <= phi(Q(A)) for A in a pool,

and everything after that is exact: the basis is solved in Fractions for f and for lambda; `coverage.separate` shows
that f violates no antichain at all (or the violated ones join the pool and the basis is improved), so ``sum f`` is a
lower bound; `certify.upper_bound` turns lambda into an upper bound. When the two fractions are equal they are the
optimum, whatever the floating-point solver did on the way. When they are not, they are still rational bounds.
"""

from __future__ import annotations

import time
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.core.results import Certificate, LpSolution
from lpverify.lp import antichain, certify, highs
from lpverify.lp.coverage import capped_budgets, hull, phi
from lpverify.lp.exact_basis import CoverageRows, Vertex
from lpverify.lp.single_path import split_levels
from lpverify.numerics import Levels, as_float, total, zeros

MAX_VERTEX_NODES = 400
"""Beyond this the basis is not solved exactly; the start's certificate is turned into rational bounds instead."""

MAX_VERTICES = 30
"""Bases that are solved exactly in one search; two or three are usual."""


def exact_optimum(
    pair: ModelPair, paths: int, start: Certificate | None = None, *, time_limit: float = 300.0
) -> LpSolution:
    """The optimum of a rational pair as a fraction where it can be proved, else rational lower and upper bounds.

    ``start`` (a certificate of a good float solution) shortens the search and is needed beyond 400 nodes. ``exact`` of
    the result is set only when lower and upper bound are equal fractions; ``exact_bounds`` always is. ``details`` holds
    the exact ``budgets`` and ``multipliers`` found, which `certify.check_coverage` checks without any solver.

    Raises InputError for a float pair, SizeError beyond 400 nodes without a start.

    >>> coin = ModelPair.from_levels([[[Fraction(1, 4), Fraction(3, 4)]]], [[[Fraction(3, 5), Fraction(2, 5)]]])
    >>> exact_optimum(coin, 2).exact
    Fraction(189, 100)
    """
    began = time.perf_counter()
    errors.integer("paths (K)", paths, least=1)
    if not pair.rational:
        raise errors.fail("exact optimum", got="a problem in floating point", expected="rational probabilities")
    lower, upper = Fraction(1), Fraction(pair.depth + 1)
    details: dict[str, Any] = {}
    if start is not None:
        checked = certify.check(pair, start, exact=True)
        assert checked.valid, checked.violations
        lower, upper = checked.lower_bound, checked.upper_bound
    if pair.nodes <= MAX_VERTEX_NODES:
        rows = CoverageRows(pair, paths)
        if start is not None:
            rows.add(level_sets(pair, start.multipliers))
        lower, upper, details = _search(rows, lower, upper, began + time_limit)
    elif start is None:
        raise errors.too_large(
            "exact optimum",
            size=f"{pair.nodes} nodes",
            limit=f"{MAX_VERTEX_NODES}",
            instead="pass the certificate of a float solution for rational bounds",
        )
    proved = lower == upper
    return LpSolution(
        value=float(lower),
        lower_bound=float(lower),
        upper_bound=float(upper),
        status="optimal" if proved else "stalled",
        method="exact vertex" if pair.nodes <= MAX_VERTEX_NODES else "rational bounds of a certificate",
        seconds=time.perf_counter() - began,
        certificate=start,
        exact=lower if proved else None,
        exact_bounds=(lower, upper),
        details=details or None,
    )


def _search(
    rows: CoverageRows, lower: Fraction, upper: Fraction, deadline: float
) -> tuple[Fraction, Fraction, dict[str, Any]]:
    """Improve both bounds by exact vertices until they meet, no basis can be improved, or time is up.

    The third result holds the exact f and lambda that prove the bounds, as far as they were found here.
    """
    proof: dict[str, Any] = {}
    point = _converge(rows, deadline)
    for _ in range(MAX_VERTICES):
        vertex = rows.vertex(point.basic_columns, point.basic_rows)
        if vertex is None:
            break
        budgets = split_levels(vertex.budgets, rows.pair, Fraction(1))
        vertices = hull(rows.pair.draft_paths, budgets)
        excess = vertices.height - phi(vertices.mass, rows.paths)
        feasible, multipliers = _lowered(rows.pair, budgets, excess.max()), _multipliers(rows, vertex)
        value, bound = total(feasible), certify.upper_bound(rows.pair, multipliers, rows.paths)
        if value >= lower:
            lower, proof["budgets"] = value, feasible
        if bound <= upper:
            upper, proof["multipliers"] = bound, multipliers
        if lower == upper or time.perf_counter() > deadline:
            break
        rows.add(np.concatenate(vertices.antichain(int(k))[1:]) for k in np.flatnonzero(excess > 0))
        basic_rows = np.ones(rows.pair.nodes + len(rows.pool), dtype=bool)
        basic_rows[vertex.tight] = False
        model = highs.Model(rows.refined(vertex), tolerance=1e-10)
        model.start_from(point.basic_columns, basic_rows)
        try:
            point = model.solve()
        except highs.SolverError:  # too rough a scale: the bounds stand as they are
            break
    return lower, upper, proof


def _converge(rows: CoverageRows, deadline: float) -> highs.LpPoint:
    """Cutting planes in floating point, until no antichain is violated beyond the solver's tolerance."""
    model = highs.Model(rows.program(), tolerance=1e-10)
    draft = as_float(rows.draft)
    while True:
        point = model.solve()
        cuts, violation = antichain.violated(rows.pair.floats, split_levels(point.x, rows.pair, 1.0), rows.paths)
        new = rows.add(cuts.toarray() > 0) if violation > antichain.VIOLATION else 0
        if not new or time.perf_counter() > deadline:
            return point
        added = sparse.csr_array(np.array(rows.pool[-new:], dtype=np.float64))
        model.add_rows(added, np.full(new, -np.inf), phi(added @ draft, rows.paths))


def _lowered(pair: ModelPair, budgets: Levels, excess: Fraction) -> Levels:
    """A feasible point near ``budgets``: ``excess`` off every node is at least that off every antichain."""
    return capped_budgets(pair, tuple(np.maximum(level - excess, 0 * level) for level in budgets))


def _multipliers(rows: CoverageRows, vertex: Vertex) -> Levels:
    """The vertex's lambda, negative ones cut off."""
    flat = zeros(rows.pair.nodes, rows.target)
    flows = vertex.tight < rows.pair.nodes
    flat[vertex.tight[flows]] = np.maximum(vertex.duals[flows], 0 * vertex.duals[flows])
    return split_levels(flat, rows.pair, Fraction(0))


def level_sets(pair: ModelPair, multipliers: Levels) -> npt.NDArray[np.bool_]:
    """The antichains that carry the dual: for each value t > 0 the nodes where the summed prices first reach t.

    Shape (antichains, nodes), nodes breadth-first; at most one antichain per node.
    """
    along = [np.zeros(1)]
    for level in certify.path_prices(pair.floats, tuple(as_float(level) for level in multipliers))[1:]:
        along.append(np.repeat(along[-1], level.size // along[-1].size) + level)
    upto = np.concatenate(along[1:])
    before = np.concatenate([np.repeat(level, pair.vocab_size) for level in along[:-1]])
    steps = np.unique(upto)
    return np.array([(before < t) & (t <= upto) for t in steps[steps > 0]], dtype=bool).reshape(-1, pair.nodes)
