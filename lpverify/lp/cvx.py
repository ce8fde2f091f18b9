r"""The same programs as cvxpy problems, to change in a notebook: add a constraint, replace the objective, solve again.

    from lpverify.lp import cvx
    program = cvx.multi_path_program("skewed-3", num_paths=2, bins=16)
    program.solve()                                               # about the optimum
    first = program.variables["prefix_acceptance"][1]             # f of the one-token prefixes
    program.with_constraints([first[0] <= 0.1]).solve()           # what if token 0 may pass at most 10% of the time?

Everything is by level, like the tables of a pair. cvxpy is imported only when a program is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.core.problem import ProblemLike, as_problem
from lpverify.lp.coverage import phi_mean_slope

if TYPE_CHECKING:
    import cvxpy

__all__ = ["CvxProgram", "multi_path_program", "single_path_program"]

MAX_TABLE = 1_000_000  # leaves x bins of `multi_path_program`; the quantile solver keeps its tables sparse


@dataclass(frozen=True)
class CvxProgram:
    """A ``cvxpy.Problem`` with its parts by name.

    ``variables["prefix_acceptance"]`` is a tuple of one ``(V**i,)`` variable per level 0..L: f on the prefixes of
    length i. The multi-path program adds ``variables["ranks"]``, shape (leaves, bins), and ``variables["selected"]``,
    expressions for Q* by level. ``constraints`` maps a name to one constraint or to a tuple with one per level; their
    ``dual_value`` is the multiplier.
    """

    problem: cvxpy.Problem
    variables: dict[str, Any]
    constraints: dict[str, Any]

    def solve(self, **options: Any) -> float:
        """Block efficiency; ``options`` go to cvxpy (``solver="CLARABEL"``, ...). NaN when the solver finds nothing."""
        value = self.problem.solve(**options)  # type: ignore[no-untyped-call]
        return float("nan") if value is None else float(value)

    def with_constraints(self, extra: Sequence[Any]) -> CvxProgram:
        """The program with more constraints, on the same variables; they are kept under the name ``"extra"``."""
        problem = import_module("cvxpy").Problem(self.problem.objective, [*self.problem.constraints, *extra])
        every = (*self.constraints.get("extra", ()), *extra)
        return replace(self, problem=problem, constraints={**self.constraints, "extra": every})


def single_path_program(problem: ProblemLike) -> CvxProgram:
    r"""One draft path (theory 1).

    maximise  sum_c f(c)   s.t.  f(root) = 1 ("root"),  f >= 0,
                                 f(cx) <= p(x|c) f(c) ("target"),  f(c) <= Q(c) ("draft")

    >>> round(single_path_program("one-position").solve(), 6)
    1.6
    """
    pair = as_problem(problem).pair.floats
    return _program(pair, pair.draft_paths, {}, {})


def multi_path_program(
    problem: ProblemLike, num_paths: int | None = None, bins: int | Sequence[float] = 16
) -> CvxProgram:
    r"""K paths, rank-quantile formulation (theory 2.4): any bins give a policy, hence a lower bound on the optimum.

    maximise  sum_c f(c)   s.t.  f(root) = 1 ("root"),  f >= 0,  f(cx) <= p(x|c) f(c) ("target"),
                                 f(c) <= Q*(c) ("draft"),  Q*(c) = sum_x Q*(cx),  Q*(leaf) = sum_b phibar_b T(leaf, b),
                                 sum_b T(leaf, b) = Q(leaf) ("rows"),  T >= 0,
                                 sum_leaf T(leaf, b) = width_b ("columns")

    Args:
        problem: what `as_problem` takes; floats are used.
        num_paths: K; None: the problem's.
        bins: a number of bins, whose edges have equal ``phi`` (the smallest of K ranks is as likely in each), or the
            edges from 0 to 1.

    Raises:
        InputError: bad edges, or K < 1. SizeError: more than 10^6 table entries.
    """
    cvxpy: Any = import_module("cvxpy")
    checked = as_problem(problem, num_paths)
    pair, num_paths = checked.pair.floats, checked.num_paths
    if isinstance(bins, int):
        count = errors.integer("bins", bins, min=1)
        edges = 1 - (1 - np.linspace(0, 1, count + 1)) ** (1 / num_paths)
    else:
        edges = np.asarray(bins, dtype=np.float64)
        if edges.ndim != 1 or edges.size < 2 or edges[0] != 0 or edges[-1] != 1 or not (np.diff(edges) > 0).all():
            raise errors.fail("bins", got=f"{bins}", expected="a number or rising edges from 0 to 1")
    leaf_mass, widths = pair.draft_paths[-1], np.diff(edges)
    if leaf_mass.size * widths.size > MAX_TABLE:
        size = f"{leaf_mass.size} leaves x {widths.size} bins"
        instead = "use fewer bins or the rank-quantile solver (method 'quantile')"
        raise errors.too_large("cvxpy program", size=size, limit=f"{MAX_TABLE}", instead=instead)
    ranks = cvxpy.Variable((leaf_mass.size, widths.size), nonneg=True, name="ranks")
    selected = [ranks @ phi_mean_slope(edges[:-1], widths, num_paths)]
    for _ in range(pair.depth):
        selected.insert(0, cvxpy.sum(cvxpy.reshape(selected[0], (-1, pair.vocab_size), order="C"), axis=1))
    rows = cvxpy.sum(ranks, axis=1) == leaf_mass
    columns = cvxpy.sum(ranks, axis=0) == widths * leaf_mass.sum()  # float rows may miss a sum of 1
    return _program(pair, selected, {"ranks": ranks, "selected": tuple(selected)}, {"rows": rows, "columns": columns})


def _program(pair: ModelPair, caps: Sequence[Any], variables: dict[str, Any], more: dict[str, Any]) -> CvxProgram:
    """maximise sum f with f <= ``caps`` by level, and ``more`` constraints on more ``variables``."""
    cvxpy: Any = import_module("cvxpy")
    acceptance = tuple(
        cvxpy.Variable(pair.vocab_size**i, nonneg=True, name=f"prefix_acceptance[{i}]") for i in range(pair.depth + 1)
    )
    target = tuple(
        cvxpy.reshape(below, rows.shape, order="C") <= cvxpy.multiply(rows, cvxpy.reshape(f, (len(rows), 1), order="C"))
        for f, below, rows in zip(acceptance, acceptance[1:], pair.target, strict=False)
    )
    draft = tuple(f <= cap for f, cap in zip(acceptance[1:], caps[1:], strict=True))
    constraints = {"root": acceptance[0] == 1, "target": target, "draft": draft, **more}
    every = [c for part in constraints.values() for c in (part if isinstance(part, tuple) else (part,))]
    problem = cvxpy.Problem(cvxpy.Maximize(cvxpy.sum(cvxpy.hstack(list(acceptance)))), every)
    return CvxProgram(problem, {"prefix_acceptance": acceptance, **variables}, constraints)


def __dir__() -> list[str]:
    return __all__
