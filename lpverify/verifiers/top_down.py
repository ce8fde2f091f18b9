"""Top-down tree verification: from the root, couple one target token with the drafted children (theory 6).

At a node with k paths that continue a rule turns the k drafted tokens into a distribution of one token y whose average
over drafts is the target row. If y was drafted, verification descends to that child, else it stops and emits y.

Two forms of the same thing: `verify_offers` for rules that accept the drafted children one after the other with
probabilities known at the drafted tokens (SpecInfer, SpecTr, NSS), which touch long rows as little as possible, and
`verify_by_rule` for any `NodeRule` in host memory (OT, rules under audit).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpverify.core.draft_tree import DraftTree, Topology
from lpverify.numerics import Array, one, zero, zeros
from lpverify.verifiers.base import NodeRule, StopDistribution
from lpverify.verifiers.residual import positive_part, residual_distribution
from lpverify.verifiers.rows import HostRows, ResidualRows


@dataclass(frozen=True, eq=False)
class SequentialRule:
    """Accept the k drafted tokens one after the other, the j-th with ``accept[j, token]``; if none, y ~ ``otherwise``.

    ``accept`` is (k, V), ``otherwise`` (V,).
    """

    accept: Array
    otherwise: Array

    def conditional(self, drafted: Any) -> Array:
        """Distribution of y for each row of ``drafted`` (T, k), shape (T, V)."""
        drafted = np.asarray(drafted)
        chosen = zeros((len(drafted), len(self.otherwise)), self.otherwise)
        alive = chosen[:, 0] + 1
        for accept, tokens in zip(self.accept, drafted.T, strict=False):
            accepted = alive * accept[tokens]
            chosen[np.arange(len(drafted)), tokens] += accepted
            alive = alive - accepted
        together: Array = chosen + alive[:, None] * self.otherwise
        return together


@dataclass(frozen=True, eq=False)
class Offers:
    """The drafted tokens of every inner node in path order, repeats kept: who is offered as the j-th."""

    child: Any  # (m, k) the node that the j-th offer of each inner node leads to; 0 where there are fewer than k
    real: Any  # (m, k) is there a j-th offer
    count: Any  # (m,) how many offers there are

    def of_edges(self, values: Array) -> Any:
        """Values (n-1,) of nodes 1..n-1 as values of offers, (m, k); arbitrary where there is none."""
        return values[np.clip(self.child - 1, 0, None)]


def offers_of(tree: Topology) -> Offers:
    """The offers of ``tree``.

    >>> from lpverify.core.draft_tree import topology
    >>> offers_of(topology([[5, 7], [5, 7], [4, 7]])).child.tolist()
    [[1, 1, 2], [3, 3, 0], [4, 0, 0]]
    """
    offered: list[list[int]] = [[] for _ in tree.inner_nodes]
    rows = tree.draft_row.tolist()
    for nodes in tree.node_of.tolist():
        for above, node in zip(nodes, nodes[1:], strict=False):
            if node != above:
                offered[rows[above]].append(node)
    count = np.array([len(nodes) for nodes in offered], dtype=np.int64)
    most = int(count.max(initial=0))
    child = np.array([nodes + [0] * (most - len(nodes)) for nodes in offered], dtype=np.int64).reshape(-1, most)
    return Offers(child, np.arange(most) < count[:, None], count)


def verify_offers(
    rows: HostRows, offers: Offers, accept: Any, extra: Any, next_token: ResidualRows
) -> StopDistribution:
    """The stop distribution of accepting the offers of every node one after the other.

    ``accept`` (m, k): probability of every offer given that the earlier ones were rejected, 0 where there is none.
    ``extra`` (n-1,): probability of the last token of nodes 1..n-1 after all offers of its parent were rejected; None:
    0, a rejected token is never drawn again. Both where the rows are. ``next_token``: the distribution after a stop.
    """
    tree, xp, inner = rows.tree, rows.xp, len(rows.tree.inner_nodes)
    nodes, used = tree.node_of, np.arange(tree.node_of.shape[1]) <= tree.lengths[:, None]
    some_path = np.empty(tree.size, dtype=np.int64)
    some_path[nodes[used]] = np.flatnonzero(used.reshape(-1))  # some path through every node, at its depth
    child, above, on_paths, some_path, place, units, root = rows.upload(
        offers.child.reshape(-1),
        tree.draft_row[tree.parent[1:]],
        nodes.reshape(-1),
        some_path,
        np.where(tree.draft_row >= 0, tree.draft_row, inner),
        np.ones((inner, 1), dtype=rows.dtype) * one(accept),
        (np.arange(tree.size) == 0) * one(accept),
    )
    alive = xp.cumulative_prod(1 - accept, axis=1)
    before = xp.concat([units, alive[:, :-1]], axis=1)
    edge = root + rows.add_up(child, xp.reshape(accept * before, (-1,)), tree.size)
    stay = alive[:, -1]
    if extra is not None:
        edge = edge + xp.concat([root[1:2], rows.take(stay, above) * extra])
        stay = stay * positive_part(1 - rows.add_up(above, extra, inner))
    steps = xp.reshape(rows.take(edge, on_paths), nodes.shape)
    if not used.all():
        steps = xp.where(rows.upload(used), steps, units[0])
    reach = xp.reshape(xp.cumulative_prod(steps, axis=1), (-1,))
    stays = xp.concat([stay, units[0]])
    return StopDistribution(tree, rows.take(reach, some_path) * rows.take(stays, place), next_token)


def verify_by_rule(tree: DraftTree, node_rule: Callable[[Array, Array, int], NodeRule]) -> StopDistribution:
    """The stop distribution with the given rule at every node; rows in host memory."""
    reach: list[Any] = [tree.target[0, 0] * 0 + 1] + [None] * (tree.size - 1)
    stop: list[Any] = list(reach)
    undrafted: dict[int, Array] = {}
    for node in tree.inner_nodes.tolist():
        drafted = tree.drafted(node)
        chosen = node_rule(tree.target[node], tree.draft[tree.draft_row[node]], len(drafted)).conditional([drafted])[0]
        children = tree.children(node)
        tokens = tree.token[children].tolist()
        for child, token in zip(children, tokens, strict=True):
            reach[child] = reach[node] * chosen[token]
        chosen[tokens] = zero(chosen)
        undrafted[node] = chosen
        stop[node] = reach[node] * chosen.sum()
    for node in np.flatnonzero(tree.draft_row < 0).tolist():
        stop[node] = reach[node]

    def rows(node: int) -> Array:
        target = tree.target[node]
        return residual_distribution(undrafted[node], target) if node in undrafted else target

    return StopDistribution(tree, np.array(stop, dtype=tree.target.dtype), rows)
