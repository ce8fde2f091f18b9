"""What touches every token of a drafted tree, behind one interface for host memory and devices (theory 11).

A verifier works in three steps. `Rows.observe` reduces the rows to a few numbers a node and brings them to the host:
the probabilities of the drafted tokens and, where a split needs them, bucket masses. The verifier decides on those
numbers, in float64 or Fraction. Back at the rows, `Rows.excess` sums residuals and `ResidualRows` is the next-token
distribution of any node. `HostRows` is the numpy implementation; `lpverify.verifiers.device` holds the one for tensors
on a device, where `observe` is one synchronisation and drawing the result is the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, add_rows, is_exact, zero
from lpverify.verifiers.compiled import LONG
from lpverify.verifiers.residual import positive_part
from lpverify.verifiers.token_buckets import Children, children_of


@dataclass(frozen=True, eq=False)
class Observation:
    """What the host knows of a drafted tree with n nodes, m of them inner.

    * ``target_edge``, ``draft_edge`` (n-1,): p and q of the last token of nodes 1..n-1, given the parent.
    * ``target``, ``draft`` (r, C): masses of the children that a split sees; None unless asked for.
    * ``child`` (n-1,): the one of them that the last token of each node belongs to, if every inner node is split.
    * ``first_entries`` (n,): the target's probability of token 0 at every node; NaN where a row is not made of numbers,
      as a softmax of logits with a NaN is NaN throughout.
    """

    target_edge: Array
    draft_edge: Array
    target: Array | None = None
    draft: Array | None = None
    child: Any = None
    first_entries: Array | None = None


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
        self._children: Children | None = None

    @property
    def edge_rows(self) -> tuple[Any, Any]:
        """Inner row of the parent and last token of nodes 1..n-1, two integer vectors (n-1,)."""
        return self.tree.draft_row[self.tree.parent[1:]], self.tree.token[1:]

    def observe(self, split_rows: Any = None, *, blocks: int | None = None) -> Observation:
        """Drafted probabilities, and the children that a split sees.

        Args:
            split_rows: (r,) positions of the inner nodes that are to be split; None: no children are needed.
            blocks: a larger vocabulary is merged into so many buckets, see `children_of`.

        Raises:
            InputError: rows that are not numbers.
        """
        rows, tokens = self.edge_rows
        target_edge, draft_edge = self.target[self.tree.parent[1:], tokens], self.draft[rows, tokens]
        first = self.target[:, 0]
        if split_rows is None:
            return checked(Observation(target_edge, draft_edge, first_entries=first))
        every = len(split_rows) == len(self.draft)
        nodes, draft = self.tree.inner_nodes[split_rows], self.draft if every else self.draft[split_rows]
        merges = blocks is not None and draft.shape[1] > blocks
        target = [self.target[node] for node in nodes] if merges else self.target[nodes]  # long rows are not copied
        self._children = children = children_of(target, draft, blocks)
        child = children.of(rows, tokens) if every else None
        return checked(Observation(target_edge, draft_edge, children.target, children.draft, child, first))

    @property
    def merged(self) -> bool:
        """Were tokens merged into buckets by `observe`."""
        return self._children is not None and self._children.bins is not None

    def upload(self, *values: Any) -> Any:
        """Host vectors to where the rows are, all in one copy; one vector is returned as it is, several as a tuple."""
        return values[0] if len(values) == 1 else values

    def take(self, values: Any, index: Any) -> Any:
        """``values[index]``, both where the rows are; ``index`` one-dimensional."""
        return values[index]

    def skew(self, factor: Array) -> Any:
        """Factors q*/q of the children (m, C) in the form that `excess` and `ResidualRows` take."""
        return factor if self._children is None else self._children.by_bin(factor)

    def excess(self, nodes: Any, target_scale: Any = None, draft_scale: Any = None, skew: Any = None) -> Any:
        """sum_x max(a p(x) - b s(x) q(x), 0) at inner nodes.

        Args:
            nodes: (r,) inner nodes, integers on the host.
            target_scale, draft_scale: a and b, (r,), where the rows are; None: 1.
            skew: s by child, (m, .) from `skew`; None: 1.

        Returns:
            (r,) sums.
        """
        if self.target.shape[1] < LONG or is_exact(self.target):
            sums: Array = positive_part(self._difference(nodes, target_scale, draft_scale, skew)).sum(axis=1)
            return sums
        ones = [None] * len(nodes)
        scales = (ones if scale is None else scale for scale in (target_scale, draft_scale))
        each = zip(nodes.tolist(), *scales, strict=True)  # a long row at a time stays in the cache
        return np.array([positive_part(self._difference(node, a, b, skew)).sum() for node, a, b in each])

    def difference(self, node: int, target_scale: Any = None, draft_scale: Any = None, skew: Any = None) -> Any:
        """a p - b s q at ``node``, (V,), of scales (n,); a p at a leaf."""
        a, b = (None if scale is None else scale[node] for scale in (target_scale, draft_scale))
        if self.tree.draft_row[node] < 0:
            return self.target[node] if a is None else self.target[node] * a
        return self._difference(node, a, b, skew)

    def _difference(self, node: Any, a: Any, b: Any, skew: Any) -> Any:
        """a p - b s q at one node, (V,), or at nodes (r,) with a, b (r,), as (r, V)."""
        row = self.tree.draft_row[node]
        a, b = (x[:, None] if np.ndim(node) and x is not None else x for x in (a, b))
        target, draft = self.target[node], self.draft[row]
        if skew is not None:
            scales = skew[row] if b is None else skew[row] * b
            bins = None if self._children is None else self._children.bins
            if bins is not None:
                scales = np.take_along_axis(scales, bins[row], axis=1) if np.ndim(node) else scales.take(bins[row])
            draft = scales * draft
        elif b is not None:
            draft = draft * b
        return (target if a is None else target * a) - draft

    def floor_of(self, node: int, scale: Any) -> Array:
        """c p at ``node``, (V,), of scales (n,)."""
        row: Array = self.target[node] * scale[node]
        return row

    def add_up(self, index: Any, values: Any, size: int) -> Any:
        """``result[i] = sum of values[e] over index[e] == i``, (size,); ``index`` where the rows are."""
        return add_rows(index, values, size)

    def without_children(self, node: int, row: Array) -> Array:
        """``row`` with 0 at the drafted children of ``node``."""
        row = row.copy()
        row[self.tree.token[self.tree.parent == node]] = zero(row)
        return row

    def target_row(self, node: int) -> Any:
        """p at ``node``, (V,)."""
        return self.target[node]


def checked(seen: Observation) -> Observation:
    """The observation, if it is made of numbers. Raises InputError."""
    sides = {"target": (seen.target_edge, seen.target, seen.first_entries), "draft": (seen.draft_edge, seen.draft)}
    for name, vectors in sides.items():
        for values in vectors:
            if values is not None and not is_exact(values) and np.isnan(values).any():
                raise errors.fail(f"{name} rows", got="NaN", expected="probabilities (are all logits finite?)")
    return seen


@dataclass(frozen=True, eq=False)
class ResidualRows:
    """The next-token distribution after stopping at a node, max(a p - b s q, c p) normalised.

    * ``target_scale``, ``draft_scale`` (n,): a and b, where the rows are; None: 1. At leaves b is 0.
    * ``skew``: s, as from `HostRows.skew`. ``floor`` (n,): c; None: 0.
    * ``keeps_children``: False where the drafted children of the node are left out, as they would be descended to.

    Where the residual is all zero it can be reached only through rounding, target and draft then being equal up to
    rounding, and the token comes from the target row: never one of target probability 0.
    """

    rows: HostRows
    target_scale: Any = None
    draft_scale: Any = None
    skew: Any = None
    floor: Any = None
    keeps_children: bool = True

    def weights(self, node: Any) -> Any:
        """The distribution before it is divided by its sum, (V,)."""
        row = positive_part(self.rows.difference(node, self.target_scale, self.draft_scale, self.skew))
        if self.floor is not None:
            row = self.rows.xp.maximum(row, self.rows.floor_of(node, self.floor))
        if not self.keeps_children:
            row = self.rows.without_children(node, row)
        return row + self.rows.target_row(node) * (row.sum() == 0)

    def __call__(self, node: Any) -> Array:
        row = self.weights(node)
        normalised: Array = row / row.sum()
        return normalised


def on_host(tree: DraftTree) -> DraftTree:
    """The tree with its rows as numpy arrays of float64 or Fraction: itself, or one synchronisation."""
    if isinstance(tree.target, np.ndarray):
        return tree
    from lpverify.verifiers import device

    return device.on_host(tree)


def rows_of(tree: DraftTree) -> HostRows:
    """The rows of ``tree`` with the operations of the memory they lie in; tensors of the host are shared with numpy."""
    if isinstance(tree.target, np.ndarray):
        return HostRows(tree)
    from lpverify.verifiers import device

    return device.rows_of(tree)
