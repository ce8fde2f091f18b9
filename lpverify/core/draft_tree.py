"""One drafted tree as a verifier sees it: K paths, the tree of their prefixes, target and draft rows at its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.numerics import Array, as_index, is_exact, namespace

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class DraftTree:
    """K drafted paths of L tokens and the laws at every distinct prefix of them.

    Nodes are the distinct prefixes, ordered by depth and inside a depth by first appearance among the paths; node 0 is
    the root, and nodes ``0 .. inner-1`` are the ones that have children. Topology is host-side integers; rows are
    float64, Fraction (object arrays) or tensors of any array-API library on any device, all nodes in one array.

    * ``paths`` (K, L): the drafted tokens, repeated paths kept.
    * ``parent``, ``token``, ``depth`` (n,): parent node and last token of every node (-1 at the root), its length.
    * ``node_of`` (K, L+1): the node of path k at depth i; column 0 is the root.
    * ``multiplicity`` (n,): how many of the K paths pass through the node.
    * ``target`` (n, V): the target's next-token law after every node, leaves included.
    * ``draft`` (>= inner, V): the draft's next-token law; rows of leaves, if there are any, are never looked at.

    >>> view = DraftTree.build([[0, 1], [0, 0]], [[0.5, 0.5]] * 4, [[0.9, 0.1]] * 2)
    >>> view.parent.tolist(), view.token.tolist(), view.multiplicity.tolist()
    ([-1, 0, 1, 1], [-1, 0, 1, 0], [2, 2, 1, 1])
    """

    paths: Ints
    parent: Ints
    token: Ints
    depth: Ints
    node_of: Ints
    multiplicity: Ints
    target: Array
    draft: Array

    @classmethod
    def build(cls, paths: Any, target: Any, draft: Any) -> DraftTree:
        """Validate rows given for the nodes in the order of the class docstring (see `topology`).

        Raises InputError for a token outside the vocabulary (a placeholder -1 too), rows of the wrong shape, NaN or
        negative rows, and a drafted token whose draft probability is 0: the declared draft is not what was sampled.
        """
        tree = topology(paths)
        target, draft = _rows("target", target), _rows("draft", draft)
        nodes, inner = len(tree.parent), int(tree.node_of[:, -2].max()) + 1
        vocab_size = int(target.shape[1])
        if vocab_size < 1 or target.shape[0] != nodes:
            raise errors.fail("target", got=f"rows of shape {tuple(target.shape)}", expected=f"({nodes} nodes, V)")
        if draft.shape[1] != vocab_size or draft.shape[0] not in (inner, nodes):
            expected = f"({inner}, {vocab_size}) (nodes with children, tokens), or a row for each of {nodes} nodes"
            raise errors.fail("draft", got=f"rows of shape {tuple(draft.shape)}", expected=expected)
        if is_exact(target) != is_exact(draft):
            raise errors.fail("rows", got="Fraction and float rows", expected="one arithmetic for all rows")
        _check_tokens(tree.paths, vocab_size)
        for name, rows in (("target", target), ("draft", draft[:inner])):
            if not bool((rows >= 0).all()):  # false for NaN too
                raise errors.fail(f"{name} rows", got="a negative or NaN entry", expected="probabilities")
        return cls(*tree.fields, target, draft)._checked()

    @classmethod
    def from_pair(cls, pair: ModelPair, paths: Any) -> DraftTree:
        """The view of K paths of length ``pair.depth`` in the tables of ``pair``. Raises InputError as `build`."""
        tree = topology(paths)
        if tree.paths.shape[1] != pair.depth:
            raise errors.fail("paths", got=f"{tree.paths.shape[1]} tokens each", expected=str(pair.depth))
        _check_tokens(tree.paths, pair.vocab_size)
        index = level_index(tree.parent, tree.token, pair.vocab_size)
        bounds = np.searchsorted(tree.depth, range(pair.depth + 2))
        spans = [slice(a, b) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
        rows = [level[index[span]] for level, span in zip(pair.target, spans, strict=False)]
        bonus = pair.bonus if pair.bonus.ndim == 2 else pair.bonus_rows
        target = np.concatenate([*rows, bonus[index[spans[-1]] % len(bonus)]])  # V rows: by the leaf's last token
        draft = np.concatenate([level[index[span]] for level, span in zip(pair.draft, spans, strict=False)])
        return cls(*tree.fields, target, draft)._checked()

    def restricted(self, paths: int, depth: int) -> DraftTree:
        """The first ``depth`` tokens of the first ``paths`` paths: what would have been drafted with that K and L.

        Paths are i.i.d. and drafted front to back, so its law is that of a draft of this shape. Raises InputError
        beyond the drafted shape.

        >>> view = DraftTree.build([[0, 1], [0, 0]], [[0.5, 0.5]] * 4, [[0.9, 0.1]] * 2)
        >>> view.restricted(2, 1).paths.tolist(), view.restricted(1, 2).token.tolist()
        ([[0], [0]], [-1, 0, 1])
        """
        most, longest = self.paths.shape
        errors.integer("paths (K)", paths, min=1, max=most)
        errors.integer("depth (L)", depth, min=1, max=longest)
        if (paths, depth) == (most, longest):
            return self
        tree = topology(self.paths[:paths, :depth])
        old = np.empty(len(tree.parent), dtype=np.int64)
        old[tree.node_of] = self.node_of[:paths, : depth + 1]
        rows, inner = as_index(self.target, old), as_index(self.draft, old[tree.depth < depth])
        return DraftTree(*tree.fields, self.target[rows], self.draft[inner])

    @property
    def vocab_size(self) -> int:
        return int(self.target.shape[1])

    @property
    def inner(self) -> int:
        """Number of nodes that have children: nodes ``0 .. inner-1``."""
        return int(np.searchsorted(self.depth, self.paths.shape[1]))

    def children(self, node: int) -> list[int]:
        """The distinct drafted children of ``node``, in order of first appearance."""
        return np.flatnonzero(self.parent == node).tolist()

    def drafted(self, node: int) -> tuple[int, ...]:
        """The tokens that the paths through ``node`` continue with, in path order, repeats kept."""
        depth = int(self.depth[node])
        return tuple(self.paths[self.node_of[:, depth] == node, depth].tolist())

    def at_edges(self, rows: Array, nodes: Sequence[int]) -> Array:
        """``rows[parent(c), token(c)]`` for each of ``nodes``: the probability of stepping into it."""
        xp = namespace(rows)
        if xp is np:
            return rows[self.parent[nodes], self.token[nodes]]
        edge = xp.asarray(np.stack([self.parent[nodes], self.token[nodes]]), device=rows.device)
        return cast(Array, rows[edge[0], edge[1]])

    def _checked(self) -> DraftTree:
        for array in (self.paths, self.parent, self.token, self.depth, self.node_of, self.multiplicity):
            array.setflags(write=False)
        if not bool((self.at_edges(self.draft, range(1, len(self.parent))) > 0).all()):
            edges = self.at_edges(self.draft, range(1, len(self.parent)))
            node = next(i for i in range(len(edges)) if not edges[i] > 0) + 1
            raise errors.fail(
                f"draft at depth {self.depth[node] - 1}",
                got=f"a drafted token {self.token[node]} of draft probability 0",
                expected="the law that the paths were sampled from",
            )
        return self


@dataclass(frozen=True, eq=False)
class Topology:
    """The integer part of a `DraftTree`, fields as there."""

    paths: Ints
    parent: Ints
    token: Ints
    depth: Ints
    node_of: Ints
    multiplicity: Ints

    @property
    def fields(self) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
        return self.paths, self.parent, self.token, self.depth, self.node_of, self.multiplicity


def topology(paths: Any) -> Topology:
    """The distinct prefixes of ``paths`` (K, L), numbered as in `DraftTree`.

    Raises InputError when ``paths`` is not a rectangle of at least one row and one column of integers.

    >>> topology([[5, 7], [5, 8]]).node_of.tolist()
    [[0, 1, 2], [0, 1, 3]]
    """
    try:
        array = np.array(paths)
    except ValueError:
        raise errors.fail("paths", got="paths of different lengths", expected="K paths of L tokens") from None
    if array.ndim != 2 or 0 in array.shape:
        raise errors.fail("paths", got=f"an array of shape {array.shape}", expected="(K, L), both at least 1")
    if array.dtype.kind not in "iu":
        raise errors.fail("paths", got=f"entries of type {array.dtype}", expected="integer token ids")
    count, length = array.shape
    parent, token, depth, multiplicity = [-1], [-1], [0], [count]
    columns = [[0] * count]
    for i, drafted in enumerate(array.T.tolist()):
        seen: dict[tuple[int, int], int] = {}
        column = []
        for edge in zip(columns[-1], drafted, strict=True):
            node = seen.get(edge)
            if node is None:
                node = seen[edge] = len(parent)
                parent.append(edge[0])
                token.append(edge[1])
                depth.append(i + 1)
                multiplicity.append(0)
            multiplicity[node] += 1
            column.append(node)
        columns.append(column)
    parts = (array, parent, token, depth, np.transpose(columns), multiplicity)
    return Topology(*(np.array(part, dtype=np.int64) for part in parts))


def level_index(parent: Ints, token: Ints, vocab_size: int) -> Ints:
    """Index of every node among the prefixes of its length (`lpverify.core.prefix_tree`); the root's is 0."""
    index = [0]
    for above, last in zip(parent[1:].tolist(), token[1:].tolist(), strict=True):
        index.append(index[above] * vocab_size + last)
    return np.array(index, dtype=np.int64)


def _check_tokens(paths: Ints, vocab_size: int) -> None:
    bad = (paths < 0) | (paths >= vocab_size)
    if bad.any():
        path, position = (int(i) for i in np.argwhere(bad)[0])
        what = f"path {path} position {position}"
        raise errors.fail(what, got=f"token {paths[path, position]}", expected=f"a token in 0..{vocab_size - 1}")


def _rows(name: str, rows: Any) -> Array:
    if not hasattr(rows, "__array_namespace__") and not hasattr(rows, "device"):
        rows = np.asarray(rows)
    if isinstance(rows, np.ndarray) and not is_exact(rows):
        rows = rows.astype(np.float64, copy=False)
    if rows.ndim != 2:
        raise errors.fail(name, got=f"an array of shape {tuple(rows.shape)}", expected="(nodes, tokens)")
    return cast(Array, rows)
