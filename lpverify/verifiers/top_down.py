"""Tree walkers: at each node one token is chosen with law p, drafted if possible, until it is not drafted (THEORY 6).

At a node with k paths through it a rule turns the k drafted tokens into a law of the chosen token y whose average over
drafts is the target row. If y was drafted the walk goes on at that child with the paths through it, else it stops and
emits y; at a leaf y comes from p. Losslessness of one node's rule is losslessness of the walk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, is_exact, namespace, row_at, zero, zeros
from lpverify.verifiers.base import NodeRule, StopDistribution
from lpverify.verifiers.residual import residual_law, unless_leaf


@dataclass(frozen=True, eq=False)
class SequentialRule:
    """Accept the k drafted tokens one after the other, the j-th with ``accept[j, token]``; if none, y ~ ``otherwise``.

    ``accept`` is (k, V), ``otherwise`` (V,).
    """

    accept: Array
    otherwise: Array

    def conditional(self, drafted: Any) -> Array:
        """Law of y for each row of ``drafted`` (T, k), shape (T, V)."""
        drafted = np.asarray(drafted)
        tuples, count = drafted.shape
        law: Array = zeros((tuples, len(self.otherwise)), self.otherwise)
        alive = law[:, 0] + 1
        every = list(range(tuples))
        for j in range(count):
            tokens = drafted[:, j].tolist()
            accepted = alive * self.accept[j][tokens]
            law[every, tokens] += accepted
            alive = alive - accepted
        law = law + alive[:, None] * self.otherwise
        return law


def walk_law(view: DraftTree, node_rule: Callable[[Array, Array, int], NodeRule]) -> StopDistribution:
    """Stop and next-token law of the walk with the given rule at every node."""
    nodes, inner = len(view.parent), view.inner
    reach: list[Any] = [view.target[0, 0] * 0 + 1] + [None] * (nodes - 1)
    stop: list[Any] = list(reach)
    undrafted: list[Array] = []
    for node in range(inner):
        drafted = view.drafted(node)
        rest = node_rule(view.target[node], view.draft[node], len(drafted)).conditional([drafted])[0]
        children = view.children(node)
        tokens = view.token[children].tolist()
        for child, token in zip(children, tokens, strict=True):
            reach[child] = reach[node] * rest[token]
        rest[tokens] = zero(rest)
        undrafted.append(rest)
        stop[node] = reach[node] * rest.sum()
    stop[inner:] = reach[inner:]

    def inside(node: Any) -> Array:
        return residual_law(row_at(undrafted, node), row_at(view.target, node))

    def rows(node: Any) -> Array:
        return unless_leaf(node, inner, inside, view.target)

    if is_exact(view.target):
        return StopDistribution(view, np.array(stop, dtype=object), rows)
    return StopDistribution(view, namespace(view.target).stack(stop), rows)
