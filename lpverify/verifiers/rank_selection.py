"""Selecting the drafted path of smallest rank, and block verification of it (theory 5).

A split divides the rank measure of a node among its children, level by level down to the leaves. The path of smallest
rank is distributed as one draft path with rows q*, so block verification with q* in the place of q is valid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lpverify import errors
from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, divide, is_exact, ones, zero, zeros
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.block import block_verification
from lpverify.verifiers.compiled import LONG, kernels
from lpverify.verifiers.rank_measure import RankMeasure, compact, stacked, whole
from lpverify.verifiers.residual import acceptance
from lpverify.verifiers.rows import Observation, rows_of
from lpverify.verifiers.smallest_rank import smallest_rank
from lpverify.verifiers.splits import SplitRule


@dataclass(frozen=True)
class SelectedPath:
    """Block verification of the path that ``split`` selects; ``blocks`` as in `selecting_verifier`."""

    split: SplitRule
    blocks: int | None

    def __call__(self, tree: DraftTree) -> StopDistribution:
        """The stop distribution. Raises InputError where a path ends at a node at which another continues."""
        if tree.ends[tree.inner_nodes].any():
            expected = "paths that all continue, or all end, at a node: selection by rank needs it"
            raise errors.fail("drafted tree", got="a path that ends where another continues", expected=expected)
        rows = rows_of(tree)
        seen = rows.observe(np.arange(len(tree.inner_nodes)), blocks=self.blocks)
        with kernels(tree.target.shape[1] >= LONG and not is_exact(seen.draft)):
            q_star, weight, chance, ends = selection(tree, seen, self.split)
        skew = rows.skew(divide(q_star, seen.draft, where_zero=zero(q_star)))
        path_of = {int(node): path for path, node in enumerate(tree.node_of[:, -1])}
        return block_verification(rows, weight, [path_of[node] for node in ends], chance, skew)


def selection(tree: DraftTree, seen: Observation, split: SplitRule) -> tuple[Array, Array, Array, list[int]]:
    """Split rank measures down the drafted tree; ``seen`` with the C children that the split sees.

    Returns q* of those children at the inner nodes (m, C), the weights w of block verification (n,), the probability
    that the selected path is at each leaf (r,), and those r leaves.
    """
    p, q, child = seen.target, seen.draft, seen.child
    q_star, weight = zeros(q.shape, q), ones(tree.size, q)
    order: list[tuple[int, ...]] = [()] * tree.size  # place and token along the path: decides between equal ranks
    leaves: list[int] = []
    measures: list[RankMeasure] = []
    measure, nodes = whole(1, q), np.array([0])
    starts = tree.level_starts
    for depth in range(tree.paths.shape[1]):
        row = tree.draft_row[nodes]
        divided = split(measure, p[row], q[row], weight[nodes], len(tree.paths))
        q_star[row] = divided.q_star
        below = np.arange(starts[depth + 1], starts[depth + 2])
        above = np.searchsorted(nodes, tree.parent[below])  # position of the parent
        kind = child[below - 1]
        measure = divided.children(above, kind)
        share = divide(seen.draft_edge[below - 1], q[row[above], kind], where_zero=zero(q))  # of a bucket's draft mass
        drafted = divided.q_star[above, kind] * share
        weight[below] = acceptance(weight[nodes[above]] * seen.target_edge[below - 1], drafted)
        places = divided.place[above, kind].tolist()
        for node, parent, place in zip(below.tolist(), nodes[above].tolist(), places, strict=True):
            order[node] = (*order[parent], place, int(tree.token[node]))
        inner = tree.draft_row[below] >= 0
        if not inner.all():
            leaves += below[~inner].tolist()
            measures.append(measure[~inner])
        if not inner.any():
            break
        measure, nodes = compact(measure[inner]), below[inner]
    ranks = np.empty(len(leaves), dtype=np.int64)
    ranks[sorted(range(len(leaves)), key=lambda i: order[leaves[i]])] = np.arange(len(leaves))
    together = compact(measures[0] if len(measures) == 1 else stacked(measures))
    return q_star, weight, smallest_rank(together, tree.ends[leaves].tolist(), ranks), leaves


def selecting_verifier(name: str, split: SplitRule, blocks: int | None, text: str, source: str) -> Verifier:
    """The verifier of the path that ``split`` selects; larger vocabularies are merged into ``blocks`` (None: never)."""
    stop = SelectedPath(split, blocks)
    return Verifier(name, stop, text, source, path_order=False, closed_form="block", split=split, blocks=blocks)
