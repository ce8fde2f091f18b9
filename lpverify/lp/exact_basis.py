"""Exact solution of a basis that HiGHS found, and the scaled program that repairs a basis which is not quite right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy import sparse

from lpverify.core.model_pair import ModelPair
from lpverify.lp.antichain import coverage_program
from lpverify.lp.coverage import phi
from lpverify.lp.elimination import Row, solve_square
from lpverify.lp.highs import LinearProgram
from lpverify.numerics import Array, as_float, zeros

Mask = npt.NDArray[np.bool_]

REACH = 1e7
"""A scaled quantity beyond this is far from changing its sign in one refinement."""


@dataclass(frozen=True)
class Vertex:
    """Primal and dual solution of a basis, exact, feasible or not."""

    budgets: Array  # x, (nodes,)
    tight: npt.NDArray[np.int64]  # the nonbasic rows
    duals: Array  # their multipliers z, (len(tight),)


class CoverageRows:
    """The program ``maximise sum x``, x >= 0, over the nodes below the root (breadth-first), with exact rows.

    First ``x(c) - p(c) x(parent) <= [parent is the root] p(c)`` for every node c, then ``x(A) <= phi(Q(A))`` for every
    antichain of a growing pool, at first the single nodes.
    """

    def __init__(self, pair: ModelPair, paths: int) -> None:
        assert pair.rational
        self.pair, self.paths = pair, paths
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

    def program(self) -> LinearProgram:
        """All rows in floating point."""
        rows = sparse.csr_array(np.array(self.pool, dtype=np.float64))
        program = coverage_program(self.pair.floats, rows, self.paths)
        program.upper[self.draft == 0] = 0.0
        return program

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
            return Fraction(phi(self.draft[self.pool[row - nodes]].sum(), self.paths))
        return Fraction(self.target[row]) if row < self.pair.vocab_size else Fraction(0)

    def vertex(self, basic_columns: Mask, basic_rows: Mask) -> Vertex | None:
        """Solve ``B x = b`` and ``B^T z = 1``, B the nonbasic rows and basic columns; None if B is singular."""
        basic, tight = np.flatnonzero(basic_columns), np.flatnonzero(~basic_rows)
        if len(tight) != len(basic):
            return None
        place = {int(column): k for k, column in enumerate(basic)}
        rows = [{place[j]: v for j, v in self.entries(row).items() if j in place} for row in tight.tolist()]
        columns: list[Row] = [{} for _ in basic]
        for i, row in enumerate(rows):
            for j, value in row.items():
                columns[j][i] = value
        primal = solve_square(rows, [self.right(row) for row in tight.tolist()])
        dual = solve_square(columns, [Fraction(1)] * len(basic))
        if primal is None or dual is None:
            return None
        budgets = zeros(self.pair.nodes, self.target)
        budgets[basic] = primal
        return Vertex(budgets, tight, np.array(dual, dtype=object))

    def refined(self, vertex: Vertex) -> LinearProgram:
        """The program in the correction ``S (x - vertex)``, scaled so that what is wrong with the vertex shows.

        A float solver does not see infeasibility below its tolerance. Here the exact slacks of the vertex, many of them
        0, are multiplied by S. The objective is ``1 - B^T z`` plus the rows of uncertain multiplier times it, all
        scaled too; rows of clearly positive multiplier become equations, columns of clearly negative reduced cost
        stay 0. Iterative refinement: Gleixner, Steffy and Wolter 2016.
        """
        program = self.program()
        slack = self._slacks(vertex, program)
        wrong = [float(v) for v in (*slack.values(), *vertex.budgets) if v < 0]
        scale = Fraction(-1 / min(wrong)) if wrong else Fraction(1)
        cost = np.full(self.pair.nodes, Fraction(1), dtype=object) - self._combine(vertex.tight, vertex.duals)
        closed = self.draft == 0  # no draft goes there: x = 0 whatever its cost
        cost[closed] = Fraction(0)
        wrong = [float(v) for v in (*vertex.duals, *-cost) if v < 0]
        cost_scale = Fraction(-1 / min(wrong)) if wrong else Fraction(1)
        sure = as_float(vertex.duals) * float(cost_scale) > REACH
        fixed = (as_float(cost) * float(cost_scale) < -REACH) | closed
        gain = as_float((cost + self._combine(vertex.tight[~sure], vertex.duals[~sure])) * cost_scale)
        room = np.full(program.row_upper.size, np.inf)
        for row, value in slack.items():
            room[row] = float(value * scale)
        equation = np.zeros(room.size, dtype=bool)
        equation[vertex.tight[sure]] = True
        below = -as_float(vertex.budgets * scale)
        return LinearProgram(
            objective=np.where(fixed, 0.0, gain),
            matrix=program.matrix,
            row_lower=np.where(equation, 0.0, -np.inf),
            row_upper=np.where(equation, 0.0, np.where(room > REACH, np.inf, room)),
            lower=np.where(fixed, 0.0, np.where(below < -REACH, -np.inf, below)),
            upper=np.where(fixed, 0.0, np.inf),
        )

    def _slacks(self, vertex: Vertex, program: LinearProgram) -> dict[int, Fraction]:
        """Exact slack of every row that has little in floating point."""
        budgets = vertex.budgets
        little = np.flatnonzero(program.row_upper - program.matrix @ as_float(budgets) < 1e-6)
        return {
            row: self.right(row)
            - sum((value * budgets[j] for j, value in self.entries(row).items()), start=Fraction(0))
            for row in little.tolist()
        }

    def _combine(self, rows: npt.NDArray[np.int64], weights: Array) -> Array:
        """``sum_i weights[i] * row i`` as a vector over the nodes."""
        result = zeros(self.pair.nodes, self.target)
        for row, weight in zip(rows.tolist(), weights, strict=True):
            for column, value in self.entries(row).items():
                result[column] += weight * value
        return result
