"""One drafted tree as a verifier sees it: paths, the tree of their prefixes, target and draft rows at its nodes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.numerics import Array, is_exact

Ints = npt.NDArray[np.int64]

NO_TOKEN = -1  # in ``paths`` after the end of a path that is shorter than the longest one, and for the root's token


@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """The tree of the distinct prefixes of K drafted paths: the integer part of a `DraftTree`.

    Nodes are ordered by depth and inside a depth by first appearance among the paths; node 0 is the root. Paths may
    have different lengths, and one may end where another continues. If all have one length, the nodes with children
    are the first m.

    >>> tree = topology([[5, 7], [5, 8], [5]])
    >>> tree.node_of.tolist(), tree.multiplicity.tolist(), tree.ends.tolist(), tree.inner_nodes.tolist()
    ([[0, 1, 2], [0, 1, 3], [0, 1, 1]], [3, 3, 1, 1], [0, 1, 1, 1], [0, 1])
    """

    paths: Ints  # (K, L) the drafted tokens, repeated paths kept; `NO_TOKEN` after the end of a shorter path
    parent: Ints  # (n,) parent node, -1 at the root
    token: Ints  # (n,) last token
    depth: Ints  # (n,) number of tokens
    node_of: Ints  # (K, L+1) the node of path k at depth i; after the end of a path its last node
    multiplicity: Ints  # (n,) how many of the K paths pass through the node or end there
    ends: Ints  # (n,) how many end there
    inner_nodes: Ints  # (m,) the nodes with drafted children, ascending
    draft_row: Ints  # (n,) the position of a node among them, -1 for a leaf

    def __repr__(self) -> str:
        paths = [path[:length].tolist() for path, length in zip(self.paths[:9], self.lengths[:9], strict=True)]
        return f"{type(self).__name__}({self.size} nodes, {len(self.paths)} paths, {errors.shown(paths)})"

    @property
    def size(self) -> int:
        """Number of nodes n, the root included."""
        return len(self.parent)

    @property
    def lengths(self) -> Ints:
        """Number of tokens of every path, (K,)."""
        lengths: Ints = self.depth[self.node_of[:, -1]]
        return lengths

    @property
    def level_starts(self) -> list[int]:
        """First node of every depth 0..L, then the number of nodes: L+2 numbers."""
        starts: list[int] = np.searchsorted(self.depth, range(self.paths.shape[1] + 2)).tolist()
        return starts

    @property
    def first_paths(self) -> list[list[int]]:
        """For every depth 0..L the first path through each node of that depth, in node order."""
        firsts = []
        for depth, column in enumerate(self.node_of.T):
            nodes, paths = np.unique(column, return_index=True)
            firsts.append(paths[self.depth[nodes] == depth].tolist())  # a path that has ended repeats its last node
        return firsts

    def children(self, node: int) -> list[int]:
        """The distinct drafted children of ``node``, in order of first appearance."""
        return np.flatnonzero(self.parent == node).tolist()

    def drafted(self, node: int) -> tuple[int, ...]:
        """The tokens that the paths through ``node`` continue with, in path order, repeats kept."""
        depth = int(self.depth[node])
        if depth == self.paths.shape[1]:
            return ()
        tokens = self.paths[self.node_of[:, depth] == node, depth]
        return tuple(tokens[tokens != NO_TOKEN].tolist())


@dataclass(frozen=True, eq=False, repr=False)
class DraftTree(Topology):
    """K drafted paths and the next-token distributions at every distinct prefix of them.

    The topology is host-side integers; rows are float64, Fraction (object arrays) or tensors on any device.

    >>> tree = DraftTree.build([[0, 1], [0, 0]], [[0.5, 0.5]] * 4, [[0.9, 0.1]] * 2)
    >>> tree.parent.tolist(), tree.token.tolist(), tree.multiplicity.tolist()
    ([-1, 0, 1, 1], [-1, 0, 1, 0], [2, 2, 1, 1])
    """

    target: Any  # (n, V) the target's next-token distribution after every node, leaves included
    draft: Any  # (m, V) the draft's at ``inner_nodes``, the one the children were drawn from

    @classmethod
    def build(cls, paths: Any, target: Any, draft: Any) -> DraftTree:
        """Validate paths and rows.

        Args:
            paths: (K, L) tokens, or K lists of tokens of any lengths.
            target: (n, V) rows for the nodes in the order of `Topology`; array, tensor or nested lists.
            draft: (m, V) rows of the nodes that have children, or (n, V), rows of leaves then being ignored.

        Raises:
            InputError: a token outside the vocabulary (a placeholder -1 too), rows of the wrong shape, NaN or negative
                rows, or a drafted token of draft probability 0: the declared draft is not what was sampled.
        """
        tree = topology(paths)
        target, draft = _rows("target", target), _rows("draft", draft)
        nodes, inner, vocab_size = tree.size, len(tree.inner_nodes), int(target.shape[1])
        if vocab_size < 1 or target.shape[0] != nodes:
            raise errors.fail("target", got=f"rows of shape {tuple(target.shape)}", expected=f"({nodes} nodes, V)")
        if draft.shape[1] != vocab_size or draft.shape[0] not in (inner, nodes):
            expected = f"({inner}, {vocab_size}) (nodes with children, tokens), or a row for each of {nodes} nodes"
            raise errors.fail("draft", got=f"rows of shape {tuple(draft.shape)}", expected=expected)
        if is_exact(target) != is_exact(draft):
            raise errors.fail("rows", got="Fraction and float rows", expected="one arithmetic for all rows")
        _check_tokens(tree.paths, tree.paths >= vocab_size, f"a token in 0..{vocab_size - 1}")
        if len(draft) != inner:
            draft = draft[tree.inner_nodes.tolist()]
        for name, rows in (("target", target), ("draft", draft)):
            if len(rows) and not bool(rows.min() >= 0):  # false for NaN too
                raise errors.fail(f"{name} rows", got="a negative or NaN entry", expected="probabilities")
        return _with_possible_drafts(tree, target, draft)

    @classmethod
    def from_pair(cls, pair: ModelPair, paths: Any) -> DraftTree:
        """The tree of paths of at most ``pair.depth`` tokens, rows from ``pair``. Raises InputError as `build`."""
        tree = topology(paths)
        if tree.paths.shape[1] > pair.depth:
            raise errors.fail("paths", got=f"{tree.paths.shape[1]} tokens each", expected=f"at most {pair.depth}")
        _check_tokens(tree.paths, tree.paths >= pair.vocab_size, f"a token in 0..{pair.vocab_size - 1}")
        index, starts = level_index(tree, pair.vocab_size), tree.level_starts
        target, draft = [], []
        for depth, (start, end) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
            nodes = index[start:end]
            if depth == pair.depth:  # V rows: by the leaf's last token
                bonus = pair.bonus if pair.bonus.ndim == 2 else pair.bonus_rows
                target.append(bonus[nodes % len(bonus)])
                break
            target.append(pair.target[depth][nodes])
            draft.append(pair.draft[depth][nodes[tree.draft_row[start:end] >= 0]])
        return _with_possible_drafts(tree, np.concatenate(target), np.concatenate(draft))

    @classmethod
    def of(cls, tree: Topology, target: Any, draft: Any) -> DraftTree:
        """``tree`` with rows as `build` takes them, unchecked: for rows and paths of our own drafter."""
        return cls(**{field.name: getattr(tree, field.name) for field in fields(Topology)}, target=target, draft=draft)

    def restricted(self, num_paths: int, depth: int) -> DraftTree:
        """The first ``depth`` tokens of the first ``num_paths`` paths: what a smaller K and L would have drafted.

        Paths are i.i.d. and drafted front to back, so it is distributed as a draft of this shape. Raises InputError
        beyond the drafted shape.

        >>> tree = DraftTree.build([[0, 1], [0, 0]], [[0.5, 0.5]] * 4, [[0.9, 0.1]] * 2)
        >>> tree.restricted(2, 1).paths.tolist(), tree.restricted(1, 2).token.tolist()
        ([[0], [0]], [-1, 0, 1])
        """
        max_paths, max_depth = self.paths.shape
        errors.integer("num_paths (K)", num_paths, min=1, max=max_paths)
        errors.integer("depth (L)", depth, min=1, max=max_depth)
        if (num_paths, depth) == (max_paths, max_depth):
            return self
        tree = _topology(self.paths[:num_paths, :depth])
        old = np.empty(tree.size, dtype=np.int64)
        old[tree.node_of] = self.node_of[:num_paths, : depth + 1]
        inner = self.draft_row[old[tree.inner_nodes]]
        return DraftTree.of(tree, self.target[old.tolist()], self.draft[inner.tolist()])

    @property
    def vocab_size(self) -> int:
        return int(self.target.shape[1])


def topology(paths: Any) -> Topology:
    """The distinct prefixes of K >= 1 paths, numbered as in `Topology`.

    ``paths`` is a (K, L) array of integers, or K sequences of integers of any lengths. Raises InputError for others.
    """
    array, inside = paths, np.ones((1, 1), dtype=bool)
    if not isinstance(paths, np.ndarray):
        try:
            lists = [list(path) for path in paths]
            longest = max(map(len, lists), default=0)
            array = np.array([path + [NO_TOKEN] * (longest - len(path)) for path in lists])
        except (TypeError, ValueError):
            raise errors.fail("paths", got=errors.shown(paths), expected="K lists of tokens") from None
        if array.size == 0 and lists:
            array = np.zeros((len(lists), 0), dtype=np.int64)
        inside = np.arange(longest) < np.array(list(map(len, lists)))[:, None]
    if array.ndim != 2 or len(array) == 0:
        raise errors.fail("paths", got=f"an array of shape {array.shape}", expected="(K, L), K at least 1")
    if array.dtype.kind not in "iu":
        raise errors.fail("paths", got=f"entries of type {array.dtype}", expected="integer token ids")
    _check_tokens(array, (array < 0) & inside, "a token id, which is not negative")
    return _topology(array)


def _topology(array: npt.NDArray[Any]) -> Topology:
    parent, token, depth, multiplicity, columns = [-1], [NO_TOKEN], [0], [len(array)], [[0] * len(array)]
    for i, drafted in enumerate(array.T.tolist(), start=1):
        seen: dict[tuple[int, int], int] = {}
        column = []
        for above, last in zip(columns[-1], drafted, strict=True):
            node = above if last == NO_TOKEN else seen.setdefault((above, last), len(parent))
            if node == len(parent):
                parent.append(above)
                token.append(last)
                depth.append(i)
                multiplicity.append(0)
            if last != NO_TOKEN:
                multiplicity[node] += 1
            column.append(node)
        columns.append(column)
    inner, ends, draft_row = sorted(set(parent[1:])), [0] * len(parent), [-1] * len(parent)
    for node in columns[-1]:
        ends[node] += 1
    for row, node in enumerate(inner):
        draft_row[node] = row
    parts = (array, parent, token, depth, np.transpose(columns), multiplicity, ends, inner, draft_row)
    arrays = [np.array(part, dtype=np.int64) for part in parts]
    for one in arrays:
        one.setflags(write=False)
    return Topology(*arrays)


def level_index(tree: Topology, vocab_size: int) -> Ints:
    """Index of every node among the prefixes of its length (`lpverify.core.prefix_tree`); the root's is 0."""
    index = [0]
    for above, last in zip(tree.parent[1:].tolist(), tree.token[1:].tolist(), strict=True):
        index.append(index[above] * vocab_size + last)
    return np.array(index, dtype=np.int64)


def _check_tokens(paths: npt.NDArray[Any], bad: npt.NDArray[np.bool_], expected: str) -> None:
    if bad.any():
        path, position = np.argwhere(bad)[0].tolist()
        raise errors.fail(f"path {path} position {position}", got=f"token {paths[path, position]}", expected=expected)


def _with_possible_drafts(tree: Topology, target: Any, draft: Any) -> DraftTree:
    """The tree, if every drafted token has positive draft probability. Raises InputError."""
    rows, tokens = tree.draft_row[tree.parent[1:]].tolist(), tree.token[1:].tolist()
    possible = (draft[rows, tokens] > 0).tolist() if rows else []
    if not all(possible):
        node = possible.index(False) + 1
        got = f"a drafted token {tree.token[node]} of draft probability 0"
        expected = "the distribution that the paths were sampled from"
        raise errors.fail(f"draft at depth {tree.depth[node] - 1}", got=got, expected=expected)
    return DraftTree.of(tree, target, draft)


def _rows(name: str, rows: Any) -> Array:
    if not hasattr(rows, "device"):  # tensors stay what they are
        rows = np.asarray(rows)
    if isinstance(rows, np.ndarray) and not is_exact(rows):
        rows = rows.astype(np.float64, copy=False)
    if rows.ndim != 2:
        raise errors.fail(name, got=f"an array of shape {tuple(rows.shape)}", expected="(nodes, tokens)")
    return cast(Array, rows)
