"""What touches every token of a drafted tree, behind one interface for host memory and devices (theory 11).

A verifier works in three steps. `HostRows.observe` reduces the rows to a few numbers a node and brings them to the
host. The verifier decides on those numbers, in float64 or Fraction. Back at the rows, `HostRows.excess` sums residuals
and `ResidualRows` is the next-token distribution of any node. `HostRows` is the numpy implementation;
`lpverify.verifiers.device` holds the one for tensors on a device, where `observe` is one synchronisation and drawing
the result is the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, accumulate, is_exact, zero
from lpverify.verifiers.residual import positive_part
from lpverify.verifiers.token_buckets import children_of

OUTSIDE_CACHE = 4096  # rows of at least so many tokens are reduced one at a time, so that a row stays in the cache


@dataclass(frozen=True, eq=False)
class Observation:
    """What the host knows of a drafted tree with n nodes, m of them inner."""

    target_edge: Array  # (n-1,), as ``draft_edge``: p and q of the last token of nodes 1..n-1, given the parent
    draft_edge: Array
    target: Any = None  # (r, C), as ``draft``: masses of the children that a split sees; None unless asked for
    draft: Any = None
    child: Any = None  # (n-1,) the one of them that the last token of a node belongs to, if every inner node is split

    def checked(self, first_entries: Array) -> Observation:
        """Itself. Raises InputError where it, or the target's probability of token 0 at any node (n,), is NaN.

        A softmax of logits with a NaN is NaN throughout.
        """
        sides = {"target": (self.target_edge, self.target, first_entries), "draft": (self.draft_edge, self.draft)}
        for name, vectors in sides.items():
            if any(values is not None and not is_exact(values) and np.isnan(values).any() for values in vectors):
                raise errors.fail(f"{name} rows", got="NaN", expected="probabilities (are all logits finite?)")
        return self


class HostRows:
    """The rows of a drafted tree in host memory: float64 or Fraction.

    ``xp`` is the array namespace of vectors that stay with the rows: numpy here.
    """

    xp: Any = np

    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree
        self.target: Any = tree.target
        self.draft: Any = tree.draft
        self.dtype = np.dtype(object) if is_exact(self.target) else np.dtype(np.float64)  # of vectors on the host
        self._children: Any = None  # as from `children_of`, where the rows are

    @property
    def edge_rows(self) -> tuple[Any, Any]:
        """Inner row of the parent and last token of nodes 1..n-1, two integer vectors (n-1,)."""
        return self.tree.draft_row[self.tree.parent[1:]], self.tree.token[1:]

    def observe(self, split_rows: Any = None, *, blocks: int | None = None) -> Observation:
        """Drafted probabilities, and the children that a split sees. Raises InputError for rows that are not numbers.

        ``split_rows`` (r,): positions of the inner nodes that are to be split; None: no children are needed.
        ``blocks``: a larger vocabulary is merged into so many buckets, see `children_of`.
        """
        rows, tokens = self.edge_rows
        edges = self.target[self.tree.parent[1:], tokens], self.draft[rows, tokens]
        if split_rows is None:
            return Observation(*edges).checked(self.target[:, 0])
        every = len(split_rows) == len(self.draft)
        nodes, draft = self.tree.inner_nodes[split_rows], self.draft if every else self.draft[split_rows]
        merges = blocks is not None and draft.shape[1] > blocks
        target = [self.target[node] for node in nodes] if merges else self.target[nodes]  # long rows are not copied
        self._children = children = children_of(target, draft, blocks)
        child = children.of(rows, tokens) if every else None
        return Observation(*edges, children.target, children.draft, child).checked(self.target[:, 0])

    @property
    def merged(self) -> bool:
        """Were tokens merged into buckets by `observe`."""
        return self._children is not None and self._children.bins is not None

    def upload(self, *values: Array) -> Any:
        """Vectors of the host as vectors where the rows are, floats as float64; one alone if it is the only one."""
        return values[0] if len(values) == 1 else values

    def take(self, values: Any, index: Any) -> Any:
        """``values[index]`` for an index vector, both where the rows are."""
        return values[index]

    def at(self, values: Any, node: Any) -> Any:
        """``values[node]`` for ``values`` (n, ...) where the rows are; ``node`` as in `StopDistribution.rows`."""
        return values[node]

    def along(self, values: Any, index: Any) -> Any:
        """``values[r, index[r, i]]``, (R, n), where the rows are; or of vectors."""
        return values.take(index) if values.ndim == 1 else np.take_along_axis(values, index, axis=1)

    def skew(self, factor: Array) -> Any:
        """Factors q*/q of the children (m, C) in the form that `excess` and `ResidualRows` take, by bin if merged."""
        return self.along(self.upload(factor), self._children.bucket) if self.merged else self.upload(factor)

    def excess(self, nodes: Any, target_scale: Any = None, draft_scale: Any = None, skew: Any = None) -> Any:
        """sum_x max(a p(x) - b s(x) q(x), 0) at inner ``nodes`` (r,), integers on the host.

        ``target_scale`` a, ``draft_scale`` b (r,): where the rows are; ``skew`` s: as from `skew`. None: 1.
        """
        rows = self.tree.draft_row[nodes]
        if self.target.shape[1] < OUTSIDE_CACHE or is_exact(self.target):
            return positive_part(self._difference(nodes, rows, target_scale, draft_scale, skew)).sum(axis=1)
        scales = ([None] * len(nodes) if scale is None else scale for scale in (target_scale, draft_scale))
        each = zip(nodes.tolist(), rows, *scales, strict=True)  # a long row at a time stays in the cache
        return np.array([positive_part(self._difference(node, row, a, b, skew)).sum() for node, row, a, b in each])

    def difference(self, node: int, target_scale: Any = None, draft_scale: Any = None, skew: Any = None) -> Any:
        """a p - b s q at ``node``, (V,), of scales (n,); a p at a leaf."""
        a, b = (None if scale is None else scale[node] for scale in (target_scale, draft_scale))
        if self.tree.draft_row[node] < 0:
            return self.target[node] if a is None else self.target[node] * a
        return self._difference(node, self.tree.draft_row[node], a, b, skew)

    def _difference(self, node: Any, row: Any, a: Any, b: Any, skew: Any) -> Any:
        """a p - b s q at a node with draft row ``row``, (V,); or at nodes (r,) with rows, a and b (r,), as (r, V)."""
        a, b = (x[:, None] if np.ndim(node) and x is not None else x for x in (a, b))
        target, draft = self.take(self.target, node), self.take(self.draft, row)
        if skew is not None:
            scales = self.take(skew, row)
            draft = draft * (self.along(scales, self.take(self._children.bins, row)) if self.merged else scales)
        if a is not None:
            target = target * a
        return target - (draft if b is None else draft * b)

    def add_up(self, index: Any, values: Any, size: int) -> Any:
        """``result[i] = sum of values[e] over index[e] == i``, (size,); ``index`` where the rows are."""
        return accumulate(index, values, size)

    def without_children(self, node: int, row: Array) -> Array:
        """``row`` with 0 at the drafted children of ``node``."""
        row = row.copy()
        row[self.tree.token[self.tree.parent == node]] = zero(row)
        return row


@dataclass(frozen=True, eq=False)
class ResidualRows:
    """The next-token distribution after stopping at a node, max(a p - b s q, c p) normalised.

    A residual that is all zero is replaced by the target row (`lpverify.verifiers.residual`).
    """

    rows: HostRows
    target_scale: Any = None  # (n,) a, where the rows are; None: 1
    draft_scale: Any = None  # (n,) b, likewise; at leaves b is 0
    skew: Any = None  # s, as from `HostRows.skew`; None: 1
    floor: Any = None  # (n,) c; None: 0
    keeps_children: bool = True  # False: the drafted children of the node are left out, as they would be descended to

    def weights(self, node: Any) -> Any:
        """The distribution before it is divided by its sum, (V,)."""
        rows = self.rows
        row = positive_part(rows.difference(node, self.target_scale, self.draft_scale, self.skew))
        target = rows.at(rows.target, node)
        if self.floor is not None:
            row = rows.xp.maximum(row, target * rows.at(self.floor, node))
        if not self.keeps_children:
            row = rows.without_children(node, row)
        return row + target * (row.sum() == 0)

    def __call__(self, node: Any) -> Array:
        row = self.weights(node)
        normalised: Array = row / row.sum()
        return normalised


def on_host(tree: DraftTree) -> DraftTree:
    """The tree with its rows as numpy arrays of float64 or Fraction: itself, or one synchronisation."""
    return rows_of(tree, host=True).tree


def rows_of(tree: DraftTree, *, host: bool = False) -> HostRows:
    """The rows of ``tree`` with the operations of the memory they lie in, or in ``host`` memory."""
    if isinstance(tree.target, np.ndarray):
        return HostRows(tree)
    from lpverify.verifiers import device

    return device.rows_of(tree, host=host)
