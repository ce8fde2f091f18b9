"""The only place that talks to HiGHS: a linear program in, its optimal point and multipliers out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import highspy
import numpy as np
import numpy.typing as npt
from scipy import sparse

Vector = npt.NDArray[np.float64]
Method = Literal["simplex", "ipm", "pdlp"]


class SolverError(RuntimeError):
    """HiGHS returned no usable point; the message carries its model status."""


@dataclass(frozen=True)
class LinearProgram:
    """maximise ``objective @ x``  subject to  ``row_lower <= matrix @ x <= row_upper``, ``lower <= x <= upper``.

    Shapes: ``matrix`` (m, n), row bounds (m,), the rest (n,). Infinite bounds are ``-inf`` / ``inf``.
    """

    objective: Vector
    matrix: sparse.sparray
    row_lower: Vector
    row_upper: Vector
    lower: Vector
    upper: Vector


@dataclass(frozen=True)
class LpPoint:
    """What HiGHS found.

    ``row_duals[i]`` is the derivative of the optimum with respect to the bound that row i touches: nonnegative at an
    upper bound, nonpositive at a lower one, as textbooks have it for a maximum. ``basic_columns`` and ``basic_rows``
    mark the basis of a vertex (all False when there is none, for instance without crossover).

    ``status`` is ``"optimal"``; or ``"time_limit"``, ``"iteration_limit"`` or ``"imprecise"``, and then the vectors are
    the last iterate, to be repaired and certified before anybody believes them.
    """

    status: str
    objective: float
    x: Vector
    row_duals: Vector
    column_duals: Vector
    basic_columns: npt.NDArray[np.bool_]
    basic_rows: npt.NDArray[np.bool_]


_STATUS = {
    highspy.HighsModelStatus.kOptimal: "optimal",
    highspy.HighsModelStatus.kTimeLimit: "time_limit",
    highspy.HighsModelStatus.kIterationLimit: "iteration_limit",
    highspy.HighsModelStatus.kUnknown: "imprecise",
}


class _QuietHighs(highspy.Highs):
    """HiGHS without its banner, which ``Highs()`` prints to standard output before an option can be set.

    The constructor calls this method, hence the place.
    """

    def enableCallbacks(self) -> None:
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


class Model:
    """A program held by HiGHS, to which rows and columns may be added between solves (simplex then starts warm)."""

    def __init__(
        self,
        program: LinearProgram,
        *,
        method: Method = "simplex",
        crossover: bool = True,
        time_limit: float | None = None,
        tolerance: float | None = None,
        threads: int | None = None,
    ) -> None:
        """``tolerance`` sets the primal, dual and optimality tolerances together (HiGHS's own default is 1e-7)."""
        self._highs = _QuietHighs()  # type: ignore[no-untyped-call]
        self._set("solver", method)
        self._set("run_crossover", "on" if crossover else "off")
        if threads is not None:
            self._set("threads", threads)
        if tolerance is not None:
            for option in (
                "primal_feasibility_tolerance",
                "dual_feasibility_tolerance",
                "ipm_optimality_tolerance",
                "pdlp_optimality_tolerance",
            ):
                self._set(option, tolerance)
        self._time_limit = time_limit
        self._check("passModel", self._highs.passModel(_model(program)))

    def add_rows(self, matrix: sparse.sparray, row_lower: Vector, row_upper: Vector) -> None:
        """Append rows; ``matrix`` (r, n)."""
        rows = sparse.csr_array(matrix)
        self._check(
            "addRows",
            self._highs.addRows(
                rows.shape[0],
                np.asarray(row_lower, dtype=np.float64),
                np.asarray(row_upper, dtype=np.float64),
                rows.nnz,
                rows.indptr[:-1].astype(np.int32),
                rows.indices.astype(np.int32),
                rows.data.astype(np.float64),
            ),
        )

    def add_columns(self, objective: Vector, matrix: sparse.sparray, lower: Vector, upper: Vector) -> None:
        """Append variables; ``matrix`` (m, r)."""
        columns = sparse.csc_array(matrix)
        self._check(
            "addCols",
            self._highs.addCols(
                columns.shape[1],
                np.asarray(objective, dtype=np.float64),
                np.asarray(lower, dtype=np.float64),
                np.asarray(upper, dtype=np.float64),
                columns.nnz,
                columns.indptr[:-1].astype(np.int32),
                columns.indices.astype(np.int32),
                columns.data.astype(np.float64),
            ),
        )

    def start_from(self, basic_columns: npt.NDArray[np.bool_], basic_rows: npt.NDArray[np.bool_]) -> None:
        """Start simplex from a basis; what is not basic stands at its lower bound (columns) or upper bound (rows)."""
        basis = highspy.HighsBasis()
        status = highspy.HighsBasisStatus
        basis.col_status = [status.kBasic if basic else status.kLower for basic in basic_columns]
        basis.row_status = [status.kBasic if basic else status.kUpper for basic in basic_rows]
        self._check("setBasis", self._highs.setBasis(basis))

    def solve(self, *, time_limit: float | None = None) -> LpPoint:
        """Run HiGHS. Raises SolverError when it ends without a point (infeasible, unbounded, failed).

        ``time_limit`` (else the model's own) is in seconds for this call alone.
        """
        limit = self._time_limit if time_limit is None else time_limit
        if limit is not None:  # HiGHS's clock runs on over the solves of one model
            self._set("time_limit", self._highs.getRunTime() + limit)
        self._highs.run()
        status = self._highs.getModelStatus()
        solution = self._highs.getSolution()
        if status not in _STATUS or not solution.value_valid or not solution.dual_valid:
            raise SolverError(f"HiGHS ended with status {self._highs.modelStatusToString(status)} and no point to use")
        basis = self._highs.getBasis()
        basic = highspy.HighsBasisStatus.kBasic
        columns, rows = self._highs.getNumCol(), self._highs.getNumRow()
        return LpPoint(
            status=_STATUS[status],
            objective=float(self._highs.getInfo().objective_function_value),
            x=np.array(solution.col_value),
            row_duals=np.array(solution.row_dual),
            column_duals=np.array(solution.col_dual),
            basic_columns=_marked(basis.col_status, basic, columns) if basis.valid else np.zeros(columns, bool),
            basic_rows=_marked(basis.row_status, basic, rows) if basis.valid else np.zeros(rows, bool),
        )

    def _set(self, option: str, value: bool | int | float | str) -> None:
        self._check(f"option {option}", self._highs.setOptionValue(option, value))

    @staticmethod
    def _check(what: str, status: highspy.HighsStatus) -> None:
        if status == highspy.HighsStatus.kError:
            raise SolverError(f"HiGHS refused {what}")


def solve(
    program: LinearProgram,
    *,
    method: Method = "simplex",
    crossover: bool = True,
    time_limit: float | None = None,
    tolerance: float | None = None,
    threads: int | None = None,
) -> LpPoint:
    """Solve once.

    >>> program = LinearProgram(np.array([1.0, 2.0]), sparse.csr_array(np.array([[1.0, 1.0]])), np.array([-np.inf]),
    ...                         np.array([1.0]), np.zeros(2), np.full(2, np.inf))
    >>> point = solve(program)
    >>> point.status, point.objective, point.x.tolist(), point.row_duals.tolist()
    ('optimal', 2.0, [0.0, 1.0], [2.0])
    """
    model = Model(
        program, method=method, crossover=crossover, time_limit=time_limit, tolerance=tolerance, threads=threads
    )
    return model.solve()


def _model(program: LinearProgram) -> highspy.HighsLp:
    matrix = sparse.csc_array(program.matrix)
    rows, columns = matrix.shape
    assert program.objective.shape == program.lower.shape == program.upper.shape == (columns,)
    assert program.row_lower.shape == program.row_upper.shape == (rows,)
    lp = highspy.HighsLp()
    lp.num_col_ = columns
    lp.num_row_ = rows
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = program.objective
    lp.col_lower_ = program.lower
    lp.col_upper_ = program.upper
    lp.row_lower_ = program.row_lower
    lp.row_upper_ = program.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = matrix.indptr
    lp.a_matrix_.index_ = matrix.indices
    lp.a_matrix_.value_ = matrix.data
    return lp


def _marked(statuses: list[highspy.HighsBasisStatus], which: object, count: int) -> npt.NDArray[np.bool_]:
    return np.fromiter((status == which for status in statuses), dtype=bool, count=count)
