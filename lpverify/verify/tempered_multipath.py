"""TGBV, tempered multi-path block verification: GBV that skews a node only as far as its budget gains (THEORY 5.1).

Every drafted path draws a rank from the measure that the tempered splits along it leave to its leaf; the path of
smallest rank is selected and block verified with the rows q* of its law. At each node one number lambda mixes GBV's
split with none, the smallest maximiser of sum_x min(w p(x|c), q*(x|c)). For p = q it accepts everything, as BV does.
"""

from __future__ import annotations

from lpverify.verify._blocks import MOST_BLOCKS
from lpverify.verify._selection import SelectedPathLaw
from lpverify.verify._tempered import tempered_split
from lpverify.verify.base import Verifier


def verifier(blocks: int | None = MOST_BLOCKS) -> Verifier:
    """The verifier ``tgbv``. ``blocks``: larger vocabularies are merged into so many blocks (None: never)."""
    return Verifier("tgbv", SelectedPathLaw(tempered_split, blocks), path_order=False)
