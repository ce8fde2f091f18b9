"""Greedy plus one: the most probable children, and one drawn from the rest.

Reference: Hu et al., arXiv 2502.18779; theory 9.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lpverify.drafting.child_sets import ChildSets
from lpverify.drafting.distinct_children import without
from lpverify.numerics import Array, one


@dataclass(frozen=True)
class GreedyPlusOne(ChildSets):
    """A node of depth i drafts the ``child_counts[i]`` - 1 most probable children and draws one from the others.

    Of equally probable tokens the smaller one comes first.

    >>> GreedyPlusOne((3, 1)).spec
    'greedy-plus-one:3,1'
    """

    kind = "greedy-plus-one"
    help = "greedy-plus-one:k1,..,kL, a node of depth i has its k - 1 best children and one random one"

    def next_child(self, row: Array, drawn: tuple[int, ...], count: int) -> Array:
        left = without(row, drawn)
        if count == 1 or not (left > 0).any():
            return left
        best = 0 * left
        best[int(np.argmax(left))] += one(left)
        return best
