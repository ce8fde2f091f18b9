"""PBV, proportional multi-path block verification: a selected law that follows the target (THEORY 5.2).

Every drafted path draws a rank from the measure that the proportional splits along it leave to its leaf; the path of
smallest rank is selected and block verified with the rows q* of its law. Where the coverage of K paths allows, q* is
proportional to the target row. At depth 1 it is a closed-form optimal-transport rule whenever the split is exact.
"""

from __future__ import annotations

from lpverify.verify._blocks import MOST_BLOCKS
from lpverify.verify._proportional import proportional_split
from lpverify.verify._selection import SelectedPathLaw
from lpverify.verify.base import Verifier


def verifier(blocks: int | None = MOST_BLOCKS) -> Verifier:
    """The verifier ``pbv``. ``blocks``: larger vocabularies are merged into so many blocks (None: never)."""
    return Verifier("pbv", SelectedPathLaw(proportional_split, blocks), path_order=False)
