"""Branching: every node draws children independently from its draft row, repeats merged (theory 9.1)."""

from __future__ import annotations

from dataclasses import dataclass

from lpverify.drafting.child_sets import ChildSets
from lpverify.numerics import Array


@dataclass(frozen=True)
class Branching(ChildSets):
    """A node of depth i makes ``child_counts[i]`` i.i.d. draws; a child that is drawn twice is one child.

    >>> Branching((2, 1)).spec
    'branching:2,1'
    """

    kind = "branching"
    help = "branching:k1,..,kL, a node of depth i draws k children independently; repeats are merged"
    provides = frozenset({"any tree", "a path", "distinct children"})

    def next_child(self, row: Array, drawn: tuple[int, ...], count: int) -> Array:
        return row
