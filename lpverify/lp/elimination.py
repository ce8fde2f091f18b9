"""Square sparse linear systems in Fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Row = dict[int, Fraction]


def solve_square(rows: Sequence[Row], right: Sequence[Fraction]) -> list[Fraction] | None:
    """Solve ``sum_j rows[i][j] x_j = right[i]``, i, j < n, by Gaussian elimination.

    The pivot is in a shortest row, and there in the rarest column (Markowitz). This removes the two-entry rows
    ``f(cx) = p f(c)`` of a prefix tree before anything fills in.

    Args:
        rows: nonzero entries by column, n of them.
        right: right sides, (n,).

    Returns:
        x, (n,), or None when the matrix is singular.

    >>> solve_square([{0: Fraction(2), 1: Fraction(1)}, {0: Fraction(1)}], [Fraction(4), Fraction(1)])
    [Fraction(1, 1), Fraction(2, 1)]
    """
    size = len(rows)
    work = [{j: value for j, value in row.items() if value} for row in rows]
    values = list(right)
    holders: list[set[int]] = [set() for _ in range(size)]
    for i, row in enumerate(work):
        for j in row:
            holders[j].add(i)
    open_rows = set(range(size))
    pivots: list[tuple[int, int]] = []
    while open_rows:
        at = min(open_rows, key=lambda i: len(work[i]))
        if not work[at]:
            return None
        column = min(work[at], key=lambda j: len(holders[j]))
        open_rows.remove(at)
        pivots.append((at, column))
        pivot = work[at]
        for j in pivot:
            holders[j].discard(at)
        for i in list(holders[column]):
            factor = work[i].pop(column) / pivot[column]
            holders[column].discard(i)
            for j, value in pivot.items():
                if j == column:
                    continue
                entry = work[i].get(j, 0) - factor * value
                if entry:
                    work[i][j] = entry
                    holders[j].add(i)
                elif j in work[i]:
                    del work[i][j]
                    holders[j].discard(i)
            values[i] -= factor * values[at]
    solution = [Fraction(0)] * size
    for at, column in reversed(pivots):
        others = sum((value * solution[j] for j, value in work[at].items() if j != column), start=Fraction(0))
        solution[column] = (values[at] - others) / work[at][column]
    return solution
