"""PBV, proportional multi-path block verification: a selected law that follows the target (THEORY 5.2).

Every drafted path draws a rank from the measure that the proportional splits along it leave to its leaf; the path of
smallest rank is selected and block verified with the rows q* of its law. Where the coverage of K paths allows, q* is
proportional to the target row. At depth 1 it is a closed-form optimal-transport rule whenever the split is exact.
"""

from __future__ import annotations

from lpverify.dist.view import TreeView
from lpverify.verify._blocks import MOST_BLOCKS, in_blocks
from lpverify.verify._proportional import proportional_split
from lpverify.verify._selection import selected_path_law
from lpverify.verify.base import StopLaw, Verifier


def verifier(blocks: int | None = MOST_BLOCKS) -> Verifier:
    """The verifier ``pbv``. ``blocks``: larger vocabularies are merged into so many blocks (None: never)."""
    split = in_blocks(proportional_split, blocks)

    def law(view: TreeView) -> StopLaw:
        return selected_path_law(view, split)

    return Verifier("pbv", law, path_order=False)
