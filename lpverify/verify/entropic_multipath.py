"""EBV, entropic multi-path block verification: PBV with less skew where there is slack, and ranks spread evenly.

As PBV (THEORY 5.2) it selects the drafted path of smallest rank and block verifies it with the rows q* of the selected
law; only the split of ranks among the children of a node differs (`lpverify.verify._entropic`). At depth 1 it is, up to
the accuracy of Newton's method, an optimal-transport rule for every pair of rows, also where PBV's pooling is not.
"""

from __future__ import annotations

from lpverify.verify._blocks import MOST_BLOCKS
from lpverify.verify._entropic import entropic_split
from lpverify.verify._selection import SelectedPathLaw
from lpverify.verify.base import Verifier


def verifier(blocks: int | None = MOST_BLOCKS) -> Verifier:
    """The verifier ``ebv``. ``blocks``: larger vocabularies are merged into so many blocks (None: never)."""
    return Verifier("ebv", SelectedPathLaw(entropic_split, blocks), path_order=False)
