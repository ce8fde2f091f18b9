"""The only interface to the solver HiGHS: a linear program in, its optimal point and multipliers out."""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt
from scipy import sparse

Vector = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class SolverError(RuntimeError):
    """HiGHS returned no usable point; the message carries its model status."""


@dataclass(frozen=True)
class LinearProgram:
    """maximise ``objective @ x``  subject to  ``row_lower <= matrix @ x <= row_upper``, ``lower <= x <= upper``.

    Shapes: ``matrix`` (m, n), row bounds (m,), the others (n,); a number is a bound that all share. Infinite bounds are
    ``-inf`` / ``inf``.
    """

    objective: Vector
    matrix: sparse.sparray
    row_lower: Vector | float
    row_upper: Vector
    lower: Vector | float = 0.0
    upper: Vector | float = np.inf


@dataclass(frozen=True)
class LpPoint:
    """The point that HiGHS returned; unless ``status`` is "optimal" its last iterate, to be repaired and certified.

    ``row_duals[i]`` is the derivative of the optimum with respect to the bound that row i touches: nonnegative at an
    upper bound, nonpositive at a lower one, as in textbooks for a maximum. ``basic_columns`` and ``basic_rows`` mark
    the basis of a vertex; the interior-point method has none, all are False.
    """

    status: str  # "optimal", "iteration_limit" or "imprecise"
    objective: float
    x: Vector
    row_duals: Vector
    basic_columns: Flags
    basic_rows: Flags


_STATUS = {
    highspy.HighsModelStatus.kOptimal: "optimal",
    highspy.HighsModelStatus.kIterationLimit: "iteration_limit",
    highspy.HighsModelStatus.kUnknown: "imprecise",
}


class _QuietHighs(highspy.Highs):
    """HiGHS without its banner, which ``Highs()`` prints to standard output before an option can be set."""

    def enableCallbacks(self) -> None:
        """Called by the constructor, before it prints."""
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


class Model:
    """A program held by HiGHS. Rows may be added between solves; the simplex method then starts warm."""

    def __init__(self, program: LinearProgram, *, method: str = "simplex", tolerance: float | None = None) -> None:
        """Pass the program to HiGHS. Raises SolverError when it refuses the program or an option.

        ``method``: "simplex", or "ipm", an interior-point method that does not end in a vertex. ``tolerance``: of
        primal and dual feasibility and optimality; None keeps HiGHS's.
        """
        self._highs = _QuietHighs()  # type: ignore[no-untyped-call]
        options: dict[str, str | float] = {"solver": method, "run_crossover": "off"}
        if tolerance is not None:
            names = ("primal_feasibility_tolerance", "dual_feasibility_tolerance", "ipm_optimality_tolerance")
            options |= dict.fromkeys(names, tolerance)
        for option, value in options.items():
            self._check(f"option {option}", self._highs.setOptionValue(option, value))
        matrix = sparse.csc_array(program.matrix)
        rows, columns = matrix.shape
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = columns, rows
        lp.sense_ = highspy.ObjSense.kMaximize
        lp.col_cost_ = program.objective
        lp.col_lower_, lp.col_upper_ = (np.broadcast_to(x, columns) for x in (program.lower, program.upper))
        lp.row_lower_, lp.row_upper_ = (np.broadcast_to(x, rows) for x in (program.row_lower, program.row_upper))
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.indptr, matrix.indices, matrix.data
        self._check("passModel", self._highs.passModel(lp))

    def add_rows(self, matrix: sparse.sparray, row_upper: Vector) -> None:
        """Append rows ``matrix @ x <= row_upper``; ``matrix`` (r, n)."""
        rows = sparse.csr_array(matrix)
        start, index = rows.indptr[:-1].astype(np.int32), rows.indices.astype(np.int32)
        lower = np.full(len(row_upper), -np.inf)
        status = self._highs.addRows(len(row_upper), lower, row_upper, rows.nnz, start, index, rows.data)
        self._check("addRows", status)

    def start_from(self, basic_columns: Flags, basic_rows: Flags) -> None:
        """Start simplex from a basis; nonbasic columns stand at their lower, nonbasic rows at their upper bound."""
        basis = highspy.HighsBasis()
        status = highspy.HighsBasisStatus
        basis.col_status = [status.kBasic if basic else status.kLower for basic in basic_columns]
        basis.row_status = [status.kBasic if basic else status.kUpper for basic in basic_rows]
        self._check("setBasis", self._highs.setBasis(basis))

    def solve(self) -> LpPoint:
        """Run HiGHS. Raises SolverError when it ends without a point (infeasible, unbounded, failed)."""
        self._highs.run()
        status = self._highs.getModelStatus()
        solution, basis = self._highs.getSolution(), self._highs.getBasis()
        if status not in _STATUS or not solution.value_valid or not solution.dual_valid:
            raise SolverError(f"HiGHS ended with status {self._highs.modelStatusToString(status)} and no point to use")
        basic_columns, basic_rows = (
            np.array([basis.valid and s == highspy.HighsBasisStatus.kBasic for s in statuses], dtype=bool)
            for statuses in (basis.col_status, basis.row_status)
        )
        objective = float(self._highs.getInfo().objective_function_value)
        x, row_duals = np.array(solution.col_value), np.array(solution.row_dual)
        return LpPoint(_STATUS[status], objective, x, row_duals, basic_columns, basic_rows)

    @staticmethod
    def _check(what: str, status: highspy.HighsStatus) -> None:
        if status == highspy.HighsStatus.kError:
            raise SolverError(f"HiGHS refused {what}")


def solve(program: LinearProgram, *, method: str = "simplex", tolerance: float | None = None) -> LpPoint:
    """Solve once, with the options of `Model`.

    >>> point = solve(LinearProgram(np.array([1.0, 2.0]), sparse.csr_array(np.ones((1, 2))), -np.inf, np.ones(1)))
    >>> point.status, point.objective, point.x.tolist(), point.row_duals.tolist()
    ('optimal', 2.0, [0.0, 1.0], [2.0])
    """
    return Model(program, method=method, tolerance=tolerance).solve()
