"""GBV, greedy multi-path block verification (THEORY 4).

Rank the children of every node by p/q descending (ties to the smaller token id); this orders the leaves
lexicographically. Select the best of the K paths. With better(c) the draft mass of all paths ranked before every path
through c the selected path has the law

    Q*(c) = (1 - better(c))^K - (1 - better(c) - Q(c))^K,      q*(x|c) = Q*(cx) / Q*(c),

and block verification of it with the rows q* is valid. It needs the rows on drafted nodes only. Neither monotone in K
nor better than BV on every instance.

Reference: Thomas and Pal, arXiv 2602.16961.
"""

from __future__ import annotations

from lpverify.verify._selection import SelectedPathLaw
from lpverify.verify._splits import ordered_split
from lpverify.verify.base import Verifier


def verifier(blocks: int | None = None) -> Verifier:
    """The verifier ``gbv``. ``blocks``: tokens are merged into at most so many (None: never merged)."""
    return Verifier("gbv", SelectedPathLaw(ordered_split, blocks), path_order=False)
