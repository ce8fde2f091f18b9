r"""The multi-path optimum as a fraction, proved (theory 2.1-2.4).

HiGHS finds an optimal basis of

    maximise  sum_c f(c)   s.t.  f(root) = 1,  0 <= f(cx) <= p(x|c) f(c)  [lambda],  f(A) <= phi(Q(A)) for A in a pool,

and everything after that is exact: the basis is solved in Fractions for f and for lambda; `coverage.hull` shows that f
violates no antichain at all (or the violated ones join the pool and the basis is improved), so ``sum f`` is a lower
bound; `certify.upper_bound` turns lambda into an upper bound. When the two fractions are equal they are the optimum,
whatever the floating-point solver did on the way. When they differ, they are rational bounds all the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.core.results import Certificate, LpSolution
from lpverify.drafting.iid_paths import phi
from lpverify.lp import certify, highs, reference
from lpverify.lp.coverage import hull
from lpverify.lp.elimination import Row, solve_square
from lpverify.lp.single_path import split_levels
from lpverify.numerics import Array, Levels, as_float, total, zeros

MAX_VERTEX_NODES = 400  # beyond, the basis is not solved exactly
MAX_VERTICES = 30  # bases that are solved exactly in one search; two or three are usual
REACH = 1e7  # a scaled quantity beyond this is far from changing its sign in one refinement

Mask = npt.NDArray[np.bool_]


def exact_optimum(
    pair: ModelPair, num_paths: int, start: Certificate | None = None, *, time_limit: float = 300.0
) -> LpSolution:
    """The optimum of a rational pair as a fraction where it can be proved, else rational lower and upper bounds.

    ``start``: certificate of a good float solution; shortens the search, and is needed beyond 400 nodes, where it gives
    the bounds. ``time_limit``: seconds after which no further basis is tried.

    ``exact`` of the solution is set only when lower and upper bound are equal fractions; ``exact_bounds`` always is.
    ``details`` holds the exact ``prefix_acceptance`` and ``multipliers`` that the search found, which
    `certify.check_coverage` checks without any solver. Raises InputError for a float pair or K < 1, SizeError beyond
    400 nodes without a start.

    >>> coin = ModelPair.from_levels([[[Fraction(1, 4), Fraction(3, 4)]]], [[[Fraction(3, 5), Fraction(2, 5)]]])
    >>> exact_optimum(coin, 2).exact
    Fraction(189, 100)
    """
    began = time.perf_counter()
    errors.integer("num_paths (K)", num_paths, min=1)
    if not pair.rational:
        raise errors.fail("exact optimum", got="a problem in floating point", expected="rational probabilities")
    lower, upper = Fraction(1), Fraction(pair.depth + 1)
    method, details = "rational bounds of a certificate", None
    if start is not None:
        checked = certify.check(pair, start, exact=True)
        assert checked.valid, checked.violations
        lower, upper = checked.lower_bound, checked.upper_bound
    if pair.nodes <= MAX_VERTEX_NODES:
        rows = CoverageRows(pair, num_paths)
        if start is not None:
            rows.add(level_sets(pair, start.multipliers))
        method = "exact vertex"
        lower, upper, details = _search(rows, lower, upper, began + time_limit)
    elif start is None:
        instead = "pass the certificate of a float solution for rational bounds"
        size, limit = f"{pair.nodes} nodes", f"{MAX_VERTEX_NODES}"
        raise errors.too_large("exact optimum", size=size, limit=limit, instead=instead)
    fields: dict[str, Any] = {"certificate": start, "details": details or None}
    status = "optimal" if lower == upper else "stalled"
    return certify.bounded(lower, upper, status=status, method=method, began=began, **fields)


def _search(
    rows: CoverageRows, lower: Fraction, upper: Fraction, deadline: float
) -> tuple[Fraction, Fraction, dict[str, Levels]]:
    """Improve both bounds by exact vertices until they meet, no basis can be improved, or time is up.

    The third result holds the exact f and lambda that prove the bounds, as far as they were improved.
    """
    pair, num_paths = rows.pair, rows.num_paths
    proof: dict[str, Levels] = {}
    point = _converge(rows, deadline)
    for _ in range(MAX_VERTICES):
        vertex = rows.vertex(point.basic_columns, point.basic_rows)
        if vertex is None:
            break
        acceptance = split_levels(vertex.x, pair, Fraction(1))
        vertices = hull(pair.draft_paths, acceptance)
        excess = vertices.height - phi(vertices.mass, num_paths)
        feasible = reference.lowered(pair, acceptance, excess.max())
        flat = zeros(pair.nodes, rows.target)  # lambda, negative entries cut off
        flows = vertex.tight < pair.nodes
        flat[vertex.tight[flows]] = np.maximum(vertex.duals[flows], 0 * vertex.duals[flows])
        multipliers = split_levels(flat, pair, Fraction(0))
        value, bound = total(feasible), certify.upper_bound(pair, multipliers, num_paths)
        if value >= lower:
            lower, proof["prefix_acceptance"] = value, feasible
        if bound <= upper:
            upper, proof["multipliers"] = bound, multipliers
        if lower == upper or time.perf_counter() > deadline:
            break
        rows.add(np.concatenate(vertices.antichain(int(k))[1:]) for k in np.flatnonzero(excess > 0))
        basic_rows = np.ones(pair.nodes + len(rows.pool), dtype=bool)
        basic_rows[vertex.tight] = False
        model = highs.Model(rows.refined(vertex), tolerance=1e-10)
        model.start_from(point.basic_columns, basic_rows)
        try:
            point = model.solve()
        except highs.SolverError:  # the scaled program is too hard for floats: keep the bounds
            break
    return lower, upper, proof


def _converge(rows: CoverageRows, deadline: float) -> highs.LpPoint:
    """Cutting planes in floating point, until no antichain is violated beyond the solver's tolerance."""
    model = highs.Model(rows.program(), tolerance=1e-10)
    draft = as_float(rows.draft)
    while True:
        point = model.solve()
        acceptance = split_levels(point.x, rows.pair, 1.0)
        cuts, violation = reference.violated(rows.pair.floats, acceptance, rows.num_paths)
        new = rows.add(cuts.toarray() > 0) if violation > reference.VIOLATION else 0
        if not new or time.perf_counter() > deadline:
            return point
        added = sparse.csr_array(np.array(rows.pool[-new:], dtype=np.float64))
        model.add_rows(added, phi(added @ draft, rows.num_paths))


def level_sets(pair: ModelPair, multipliers: Levels) -> Mask:
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


@dataclass(frozen=True)
class Vertex:
    """Primal and dual solution of a basis, exact, feasible or not."""

    x: Array  # f of the nodes below the root, (nodes,)
    tight: npt.NDArray[np.int64]  # the nonbasic rows
    duals: Array  # their multipliers z, (len(tight),)


class CoverageRows:
    """The program ``maximise sum x``, x >= 0, over the nodes below the root (breadth-first), with exact rows.

    First ``x(c) - p(c) x(parent) <= [parent is the root] p(c)`` for every node c, then ``x(A) <= phi(Q(A))`` for every
    antichain of a growing pool, which starts with the single nodes.
    """

    def __init__(self, pair: ModelPair, num_paths: int) -> None:
        assert pair.rational
        self.pair, self.num_paths = pair, num_paths
        self.draft = np.concatenate(pair.draft_paths[1:])
        self.target = np.concatenate([rows.reshape(-1) for rows in pair.target])
        self.pool: list[Mask] = []
        self._known: set[bytes] = set()
        self.add(np.eye(pair.nodes, dtype=bool))

    def add(self, masks: Iterable[Mask]) -> int:
        """Put antichains into the pool and return how many of them were new."""
        before = len(self.pool)
        for mask in masks:
            if mask.any() and mask.tobytes() not in self._known:
                self._known.add(mask.tobytes())
                self.pool.append(mask)
        return len(self.pool) - before

    def program(self) -> highs.LinearProgram:
        """All rows in floating point."""
        rows = sparse.csr_array(np.array(self.pool, dtype=np.float64))
        program = reference.coverage_program(self.pair.floats, rows, self.num_paths)
        return replace(program, upper=np.where(self.draft == 0, 0.0, np.inf))

    def entries(self, row: int) -> Row:
        """Coefficients of a row."""
        nodes = self.pair.nodes
        if row >= nodes:
            return dict.fromkeys(np.flatnonzero(self.pool[row - nodes]).tolist(), Fraction(1))
        parent = row // self.pair.vocab_size - 1
        return {row: Fraction(1)} if parent < 0 else {row: Fraction(1), parent: -self.target[row]}

    def right(self, row: int) -> Fraction:
        """Right side of a row."""
        nodes = self.pair.nodes
        if row >= nodes:
            return Fraction(phi(self.draft[self.pool[row - nodes]].sum(), self.num_paths))
        return Fraction(self.target[row]) if row < self.pair.vocab_size else Fraction(0)

    def vertex(self, basic_columns: Mask, basic_rows: Mask) -> Vertex | None:
        """Solve ``B x = b`` and ``B^T z = 1``, B the nonbasic rows and basic columns; None if B is singular."""
        basic, tight = np.flatnonzero(basic_columns), np.flatnonzero(~basic_rows)
        if len(tight) != len(basic):
            return None
        position = {column: k for k, column in enumerate(basic.tolist())}
        rows = [{position[j]: v for j, v in self.entries(row).items() if j in position} for row in tight.tolist()]
        columns = [{i: row[j] for i, row in enumerate(rows) if j in row} for j in position.values()]
        primal = solve_square(rows, [self.right(row) for row in tight.tolist()])
        dual = solve_square(columns, [Fraction(1)] * len(basic))
        if primal is None or dual is None:
            return None
        x = zeros(self.pair.nodes, self.target)
        x[basic] = primal
        return Vertex(x, tight, np.array(dual, dtype=object))

    def refined(self, vertex: Vertex) -> highs.LinearProgram:
        """The program in the correction ``S (x - vertex)``, rescaled so that small infeasibilities become visible.

        A float solver does not see infeasibility below its tolerance. Here the exact slacks of the vertex, many of them
        0, are multiplied by S (iterative refinement: Gleixner, Steffy and Wolter 2016). The objective is ``1 - B^T z``
        plus each row of uncertain multiplier times that multiplier, rescaled too. Rows of clearly positive multiplier
        become equations; columns of clearly negative reduced cost stay 0.
        """
        program = self.program()
        small = np.flatnonzero(program.row_upper - program.matrix @ as_float(vertex.x) < 1e-6)  # the others: no limit
        slack = {
            row: self.right(row) - sum((v * vertex.x[j] for j, v in self.entries(row).items()), start=Fraction(0))
            for row in small.tolist()
        }
        scale = _magnification([*slack.values(), *vertex.x])
        cost = np.full(self.pair.nodes, Fraction(1), dtype=object) - self.combine(vertex.tight, vertex.duals)
        closed = self.draft == 0  # x = 0 whatever its cost
        cost[closed] = Fraction(0)
        cost_scale = _magnification([*vertex.duals, *-cost])
        sure = as_float(vertex.duals) * float(cost_scale) > REACH
        fixed = (as_float(cost) * float(cost_scale) < -REACH) | closed
        gain = as_float((cost + self.combine(vertex.tight[~sure], vertex.duals[~sure])) * cost_scale)
        room = np.full(program.row_upper.size, np.inf)
        for row, value in slack.items():
            room[row] = float(value * scale)
        equation = np.zeros(room.size, dtype=bool)
        equation[vertex.tight[sure]] = True
        below = -as_float(vertex.x * scale)
        row_upper = np.where(equation, 0.0, np.where(room > REACH, np.inf, room))
        lower = np.where(fixed, 0.0, np.where(below < -REACH, -np.inf, below))
        bounds = np.where(equation, 0.0, -np.inf), row_upper, lower, np.where(fixed, 0.0, np.inf)
        return highs.LinearProgram(np.where(fixed, 0.0, gain), program.matrix, *bounds)

    def combine(self, rows: npt.NDArray[np.int64], weights: Array) -> Array:
        """``sum_i weights[i] * row i`` as a vector over the nodes."""
        result = zeros(self.pair.nodes, self.target)
        for row, weight in zip(rows.tolist(), weights, strict=True):
            for column, value in self.entries(row).items():
                result[column] += weight * value
        return result


def _magnification(values: list[Fraction]) -> Fraction:
    """The scale at which the most negative value is -1; 1 if none is negative."""
    worst = min(map(float, values))
    return Fraction(-1 / worst) if worst < 0 else Fraction(1)
