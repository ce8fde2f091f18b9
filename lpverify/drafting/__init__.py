"""Draft distributions: how the tree of drafted prefixes is drawn. `DRAFTS` is the one table of them.

A spec such as ``iid:4`` names a distribution and its numbers; `draft_distribution` builds from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from lpverify import errors
from lpverify.drafting.base import Draft, DraftDistribution
from lpverify.drafting.branching import Branching
from lpverify.drafting.delayed import Delayed
from lpverify.drafting.distinct_children import DistinctChildren
from lpverify.drafting.distinct_paths import DistinctPaths
from lpverify.drafting.fixed_tree import TopNodes
from lpverify.drafting.greedy_plus_one import GreedyPlusOne
from lpverify.drafting.iid_paths import IidPaths
from lpverify.drafting.random_paths import PoissonPaths, RandomPaths

DRAFTS: Mapping[str, type[DraftDistribution]] = {
    kind.kind: kind
    for kind in (
        IidPaths,
        DistinctPaths,
        Branching,
        DistinctChildren,
        GreedyPlusOne,
        Delayed,
        TopNodes,
        RandomPaths,
        PoissonPaths,
    )
}

DraftLike: TypeAlias = DraftDistribution | str | int  # a distribution, its spec, or K for K i.i.d. paths


def draft_distribution(draft: DraftLike) -> DraftDistribution:
    """The draft distribution that ``draft`` describes: one, a spec, or a number K of i.i.d. paths.

    Raises InputError for anything else; the message lists the specs.

    >>> draft_distribution("distinct-children:3,2,1"), draft_distribution(4).spec
    (DistinctChildren(child_counts=(3, 2, 1)), 'iid:4')
    """
    if isinstance(draft, DraftDistribution):
        return draft
    if isinstance(draft, str):
        kind, _, numbers = draft.strip().partition(":")
        if kind in DRAFTS:
            return DRAFTS[kind].parse(numbers)
    elif hasattr(draft, "__index__"):
        return IidPaths(errors.integer("num_paths (K)", draft, min=1))
    expected = "one of " + ", ".join(f"{kind}:..." for kind in DRAFTS) + " (see lpverify solve --help)"
    raise errors.fail("draft distribution", got=errors.shown(draft), expected=expected)


__all__ = ["DRAFTS", "Draft", "DraftDistribution", "DraftLike", "draft_distribution"]
