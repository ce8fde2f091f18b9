"""Tree attention: positions and mask with which one pass scores a whole drafted tree.

Node c attends to all that was fed before the tree, to its ancestors and to itself, and stands at the position its depth
says. So its row is that of a plain pass over its own prefix.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch


def ancestors(parent: Sequence[int]) -> npt.NDArray[np.bool_]:
    """(n, n): is column an ancestor of row, or row itself; ``parent[0]`` is not looked at.

    >>> ancestors([-1, 0, 0, 1]).astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]
    """
    related = np.eye(len(parent), dtype=bool)
    for node in range(1, len(parent)):
        related[node] |= related[parent[node]]
    return related


def attention_mask(
    parent: Sequence[int], before: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Additive mask (1, 1, n, before + n): 0 where a node may look, the most negative number elsewhere."""
    hidden = ~torch.from_numpy(ancestors(parent)).to(device)
    mask = torch.zeros((1, 1, len(parent), before + len(parent)), dtype=dtype, device=device)
    mask[0, 0, :, before:].masked_fill_(hidden, torch.finfo(dtype).min)
    return mask


def position_ids(depth: Sequence[int], before: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """(1, n): the pending token stands at ``before``, every node its depth after it."""
    return torch.tensor([[before + level for level in depth]], device=device)
