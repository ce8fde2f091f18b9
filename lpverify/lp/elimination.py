"""Square sparse linear systems in Fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Row = dict[int, Fraction]


def solve_square(rows: Sequence[Row], right: Sequence[Fraction]) -> list[Fraction] | None:
    """Solve ``sum_j rows[i][j] x_j = right[i]``, i, j < n, by Gaussian elimination; None when the matrix is singular.

    The pivot is in a shortest row, and there in the rarest column (Markowitz). This removes the two-entry rows
    ``f(cx) = p f(c)`` of a prefix tree before anything fills in.

    >>> solve_square([{0: Fraction(2), 1: Fraction(1)}, {0: Fraction(1)}], [Fraction(4), Fraction(1)])
    [Fraction(1, 1), Fraction(2, 1)]
    """
    work, values = [{j: entry for j, entry in row.items() if entry} for row in rows], list(right)
    left = list(range(len(work)))
    pivots: list[tuple[int, int]] = []
    while left:
        at = min(left, key=lambda i: len(work[i]))
        left.remove(at)
        if not work[at]:
            return None
        column = min(work[at], key=lambda j: sum(j in work[i] for i in left))
        pivots.append((at, column))
        for i in left:
            if column in work[i]:
                factor = work[i][column] / work[at][column]
                changed = {j: work[i].get(j, 0) - factor * entry for j, entry in work[at].items()}
                work[i] = {j: entry for j, entry in (work[i] | changed).items() if entry}
                values[i] -= factor * values[at]
    solution = [Fraction(0)] * len(work)
    for at, column in reversed(pivots):
        others = sum((entry * solution[j] for j, entry in work[at].items() if j != column), start=Fraction(0))
        solution[column] = (values[at] - others) / work[at][column]
    return solution
