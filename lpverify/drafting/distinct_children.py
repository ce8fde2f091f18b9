"""Distinct children: every node draws children without replacement, as Gumbel top-k does (theory 9.1)."""

from __future__ import annotations

from dataclasses import dataclass

from lpverify.drafting.child_sets import ChildSets
from lpverify.numerics import Array, divide


@dataclass(frozen=True)
class DistinctChildren(ChildSets):
    """A node of depth i draws ``child_counts[i]`` children one after the other from what is left of its draft row.

    All children of positive probability are drafted where there are no more than that.

    >>> DistinctChildren((2, 1)).spec
    'distinct-children:2,1'
    """

    kind = "distinct-children"
    help = "distinct-children:k1,..,kL, a node of depth i draws k different children"
    provides = frozenset({"any tree", "a path", "distinct children"})

    def next_child(self, row: Array, drawn: tuple[int, ...], count: int) -> Array:
        return without(row, drawn)


def without(row: Array, drawn: tuple[int, ...]) -> Array:
    """``row`` (V,) given that the tokens ``drawn`` are not drawn again; all zero where nothing is left."""
    left = row.copy()
    left[list(drawn)] *= 0
    return divide(left, left.sum(), where_zero=0 * left)
