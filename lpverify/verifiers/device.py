"""Rows of a drafted tree as tensors: the one file of the verifiers that knows torch (theory 11).

Tensors in host memory are shared with numpy. Tensors on a device stay there: `DeviceRows.observe` is one
synchronisation, drawing the result the other. No operation has a shape that depends on the data. Methods without a
docstring are explained at `HostRows`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import array_api_compat.torch as xp
import numpy as np
import torch

from lpverify.core.draft_tree import DraftTree
from lpverify.verifiers.rows import HostRows, Observation
from lpverify.verifiers.token_buckets import BITS, FINE, LOWEST, Children, cut


def rows_of(tree: DraftTree, *, host: bool) -> HostRows:
    """The rows of a tree of tensors: on their device, unless that is the host or ``host``; float64 ones are shared."""
    if not host and str(tree.target.device) != "cpu":
        return DeviceRows(tree)
    target, draft = (rows.detach().double().cpu().numpy() for rows in (tree.target, tree.draft))
    return HostRows(replace(tree, target=target, draft=draft))


def merged(target: Any, draft: Any, limit: int) -> Children:
    """Tokens put into bins and bins into buckets, as `children_of` does, on the device."""
    leading = (target / draft).to(torch.float32).view(torch.int32) >> (23 - BITS)
    bins = torch.where(draft == 0, FINE, (leading.clamp(LOWEST, LOWEST + FINE - 1) - LOWEST).long())
    empty = draft.new_zeros((len(draft), FINE + 1))
    fine = [empty.scatter_add(1, bins, values) for values in (target, draft)]
    bucket = cut(fine[0] + fine[1], limit, xp)
    p, q = (draft.new_zeros((len(draft), limit + 1)).scatter_add(1, bucket, values) for values in fine)
    return Children(p, q, bins, bucket)


class DeviceRows(HostRows):
    """The rows of a drafted tree on a device, in float64. Vectors that stay with the rows are tensors there."""

    xp: Any = xp

    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree
        self.target, self.draft = tree.target.double(), tree.draft.double()
        self.dtype, self._children = np.dtype(np.float64), None
        self._uploaded: dict[bytes, Any] = {}  # nodes and their draft rows, as `excess` got them
        self._at_node: tuple[Any, Any] = (None, None)  # the last argument of `_at` and its result
        self._lookup: Any = None  # (n, 2) draft row of every node, 0 at a leaf, and whether it has one

    def upload(self, *values: Any) -> Any:
        arrays = [np.ascontiguousarray(one) for one in values]
        packed: list[Any] = [None] * len(arrays)
        for integers in (True, False):
            these = [i for i, one in enumerate(arrays) if (one.dtype.kind in "iub") == integers]
            if not these:
                continue
            kind = np.int64 if integers else np.float64
            flat = torch.tensor(np.concatenate([arrays[i].reshape(-1).astype(kind) for i in these]))
            flat = flat.to(self.target.device, non_blocking=True)
            for i, part in zip(these, torch.split(flat, [arrays[i].size for i in these]), strict=True):
                packed[i] = part.view(arrays[i].shape)
        return packed[0] if len(packed) == 1 else tuple(packed)

    def take(self, values: Any, index: Any) -> Any:
        return values.index_select(0, index)

    def observe(self, split_rows: Any = None, *, blocks: int | None = None) -> Observation:
        rows, tokens = self.edge_rows
        index = self.upload(np.stack([self.tree.parent[1:], rows, tokens]))
        target_edge, draft_edge = self.target[index[0], index[2]], self.draft[index[1], index[2]]
        edges, size = len(tokens), self.tree.size
        parts = [target_edge, draft_edge, self.target[:, 0]]
        if split_rows is None:
            p, q, first = np.split(torch.cat(parts).cpu().numpy(), [edges, 2 * edges])
            return Observation(p, q).checked(first)
        every = len(split_rows) == len(self.draft)
        target = self.target.index_select(0, self.upload(self.tree.inner_nodes[split_rows]))
        draft = self.draft if every else self.draft.index_select(0, self.upload(split_rows))
        seen = Children(target, draft)
        if blocks is not None and draft.shape[1] > blocks:
            self._children = seen = merged(target, draft, blocks)
        parts += [seen.target.reshape(-1), seen.draft.reshape(-1)]
        if every and seen.bins is not None:
            parts.append(seen.of(index[1], index[2]).double())
        sizes = [edges, edges, size, seen.target.numel(), seen.draft.numel()]
        p, q, first, target, draft, of = np.split(torch.cat(parts).cpu().numpy(), np.cumsum(sizes))
        child = of.astype(np.int64) if len(of) else tokens if every else None
        target, draft = (mass.reshape(len(split_rows), -1) for mass in (target, draft))
        return Observation(p, q, target, draft, child).checked(first)

    def along(self, values: Any, index: Any) -> Any:
        return values.gather(1, index)

    def excess(self, nodes: Any, target_scale: Any = None, draft_scale: Any = None, skew: Any = None) -> Any:
        key = nodes.tobytes()
        if key not in self._uploaded:
            self._uploaded[key] = self.upload(nodes, self.tree.draft_row[nodes])
        nodes, rows = self._uploaded[key]
        return self._difference(nodes, rows, target_scale, draft_scale, skew).clamp_min(0).sum(dim=1)

    def _at(self, node: Any) -> tuple[Any, Any, Any]:
        """A node, an int or a tensor on the device, there (1,); its draft row, 0 at a leaf; 1.0, or 0.0 at a leaf."""
        if self._lookup is None:
            row = self.tree.draft_row
            self._lookup = self.upload(np.stack([np.maximum(row, 0), row >= 0], axis=1))
        if self._at_node[0] is not node:
            nodes = node.reshape(1) if isinstance(node, torch.Tensor) else self.upload(np.array([node]))
            lookup = self._lookup.index_select(0, nodes)
            self._at_node = node, (nodes, lookup[:, 0], lookup[:, 1].double())
        at: tuple[Any, Any, Any] = self._at_node[1]
        return at

    def difference(self, node: Any, target_scale: Any = None, draft_scale: Any = None, skew: Any = None) -> Any:
        nodes, rows, inner = self._at(node)
        a, b = (None if scale is None else scale.index_select(0, nodes) for scale in (target_scale, draft_scale))
        return self._difference(nodes, rows, a, inner if b is None else b * inner, skew)[0]

    def at(self, values: Any, node: Any) -> Any:
        return values.index_select(0, self._at(node)[0])[0]

    def add_up(self, index: Any, values: Any, size: int) -> Any:
        return values.new_zeros(size).scatter_add(0, index, values)

    def without_children(self, node: Any, row: Any) -> Any:
        children = [self.tree.token[self.tree.parent == parent] for parent in range(self.tree.size)]
        most = max(map(len, children))
        nodes, _, inner = self._at(node)
        table = np.stack([np.resize(tokens, most) for tokens in children])  # repeats children; 0 at a leaf
        tokens = self.upload(table).index_select(0, nodes)[0]
        return row.scatter(0, tokens, row.gather(0, tokens) * (1 - inner))
