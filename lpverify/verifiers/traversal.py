"""Traversal: verification of the distinct drafted nodes from the leaves to the root (theory 6).

All p' of a node have the form max(a p - b q, 0) / w, and a rejection takes one sum over the vocabulary. The weight of a
node depends on such a sum only through children that are not the first of their parent: w along first children is a
running minimum. So sums are taken in at most K waves, not one for every level.

Reference: Weng et al., Traversal Verification for Speculative Tree Decoding, arXiv 2505.12398, algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from lpverify.core.draft_tree import DraftTree, Topology
from lpverify.numerics import Array, divide, is_exact, one, zero
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.residual import positive_part, residual_distribution
from lpverify.verifiers.rows import ResidualRows, rows_of

LARGEST_RATIO = 1e300  # products of p/q along first children are cut here: they are compared with 1


def after_rejection(target: Array, draft: Array, weight: Any, token: int) -> tuple[Array, Array, Any]:
    """p', q', w' of one node after its child ``token`` failed, as rows (V,): the definition, for exact recursion."""
    residual = positive_part(weight * target - draft)
    mass, remaining = residual.sum(), draft.copy()
    remaining[token] = zero(draft)
    return (
        residual_distribution(residual, target),
        divide(remaining, remaining.sum(), where_zero=zero(draft)),
        divide(mass, mass + (1 - weight), where_zero=one(target)),
    )


@dataclass(frozen=True, eq=False)
class Visit:
    """The order in which a drafted tree of n nodes is verified."""

    sibling: Any  # (n,) how many children of the same parent are offered before the node
    wave: Any  # (n,) number of sums over rows, one after the other, that its weight depends on
    branch: Any  # (n,) the nearest ancestor, or the node itself, that is not a first child; the root has itself
    post_order: Any  # the nodes in the order in which they are offered


def visit_of(tree: Topology) -> Visit:
    """The visit of ``tree``.

    >>> from lpverify.core.draft_tree import topology
    >>> visit = visit_of(topology([[5, 7], [5, 8], [4, 7]]))
    >>> visit.post_order.tolist(), visit.wave.tolist()
    ([3, 4, 1, 5, 2, 0], [0, 0, 1, 0, 1, 1])
    """
    children: list[list[int]] = [[] for _ in range(tree.size)]
    sibling, wave, branch = [0] * tree.size, [0] * tree.size, list(range(tree.size))
    for node, above in enumerate(tree.parent[1:].tolist(), 1):
        sibling[node] = len(children[above])
        wave[node] = wave[above] + sibling[node]
        branch[node] = branch[above] if sibling[node] == 0 else node
        children[above].append(node)
    order: list[int] = []
    stack = [0]
    while stack:  # children last to first, each before its parent, read backwards
        node = stack.pop()
        order.append(node)
        stack.extend(children[node])
    return Visit(*(np.array(values, dtype=np.int64) for values in (sibling, wave, branch, order[::-1])))


@dataclass(frozen=True, eq=False)
class Turn:
    """What happens between two sums over rows: r branches and s nodes get their weights, then children of t nodes fail.

    A state is (w, a, b) of a node after some failed children; states are numbered as they are computed.
    """

    state: Any  # (r,) of the parent of each branch
    p: Any  # (r,) and q: of the branch's token
    q: Any
    offer: Any  # (r,) q without the failed siblings, renormalised
    branch: Any  # (s,) of each new node among those
    cap: Any  # (s,) the node's weight is min(cap, factor w(branch))
    factor: Any
    nothing: Any  # (s,) zeros
    before: Any  # (t,) states of the nodes of which a child fails
    scale: Any  # (t,) C_j
    failing: Any  # (t,) those nodes


def turns_of(tree: Topology, visit: Visit, p: Array, q: Array) -> tuple[list[Turn], Any]:
    """The turns of a verification, on the host, and the last state of every node, (n,).

    ``p``, ``q`` (n,): probabilities of the last token of every node, 1 at the root.
    """
    unit = one(p)
    count = np.bincount(tree.parent[1:], minlength=tree.size)  # children of every node
    failed, scale, cap, factor = (np.full(tree.size, value, dtype=p.dtype) for value in (zero(p), unit, unit, unit))
    for node, above in enumerate(tree.parent[1:].tolist(), 1):
        left = max(unit - failed[above], q[node])  # what is left of q includes the token itself
        scale[node] = unit / left if is_exact(p) else min(1 / float(left), LARGEST_RATIO)
        failed[above] += q[node]
        if visit.branch[node] != node:
            ratio = p[node] / q[node] if is_exact(p) else min(float(p[node]) / float(q[node]), LARGEST_RATIO)
            cap[node] = min(unit, cap[above] * ratio)
            factor[node] = factor[above] * ratio if is_exact(p) else min(factor[above] * ratio, LARGEST_RATIO)
    child_of = {at: node for node, at in enumerate(zip(tree.parent.tolist(), visit.sibling.tolist(), strict=True))}
    latest, states = np.zeros(tree.size, dtype=np.int64), 0
    failing = np.zeros(0, dtype=np.int64)
    turns = []
    for turn in range(int((visit.wave + count).max())):
        nodes = np.flatnonzero(visit.wave == turn)
        branches = np.unique(visit.branch[nodes])
        parents = latest[tree.parent[branches]]
        latest[nodes] = states + np.arange(len(nodes))
        states += len(nodes)
        failing = np.concatenate([failing, nodes[count[nodes] > 0]])
        number = turn - visit.wave[failing]  # of the child that fails now
        child = [child_of[key] for key in zip(failing.tolist(), number.tolist(), strict=True)]
        turns.append(
            Turn(
                state=parents,
                p=p[branches],
                q=q[branches],
                offer=q[branches] * scale[branches],
                branch=np.searchsorted(branches, visit.branch[nodes]),
                cap=cap[nodes],
                factor=factor[nodes],
                nothing=cap[nodes] * 0,
                before=latest[failing],
                scale=scale[child],
                failing=failing,
            )
        )
        latest[failing] = states + np.arange(len(failing))
        states += len(failing)
        failing = failing[number + 1 < count[failing]]
    return turns, latest


def verify(tree: DraftTree) -> StopDistribution:
    """Stop distribution of Traversal."""
    rows = rows_of(tree)
    seen = rows.observe()
    xp, visit, unit = rows.xp, visit_of(tree), one(seen.target_edge)
    p, q = (np.concatenate([values[:1] * 0 + unit, values]) for values in (seen.target_edge, seen.draft_edge))
    turns, latest = turns_of(tree, visit, p, q)
    names = [field.name for field in fields(Turn) if field.name != "failing"]
    order, leaf = visit.post_order, tree.draft_row < 0
    is_leaf = np.stack([~leaf, leaf]) * unit
    place, final, back, is_leaf, *parts = rows.upload(
        latest[order], latest, np.argsort(order), is_leaf, *(getattr(turn, name) for turn in turns for name in names)
    )
    states: Any = None  # rows (w, a, b)
    for i, turn in enumerate(turns):
        at = replace(turn, **dict(zip(names, parts[i * len(names) :], strict=False)))
        if states is None:
            offered = at.p  # the root: weight 1
        elif len(turn.state):
            parent = rows.take(states, at.state)
            offered = xp.minimum(positive_part(parent[:, 1] * at.p - parent[:, 2] * at.q), at.offer) / at.offer
        if len(turn.branch):
            weight = xp.minimum(at.cap, rows.take(offered, at.branch) * at.factor)
            new = xp.stack([weight, weight, at.nothing], axis=1)
            states = new if states is None else xp.concat([states, new])
        if len(turn.failing) == 0:
            continue
        before = rows.take(states, at.before)
        a, b = before[:, 1], before[:, 2] + at.scale
        excess = rows.excess(turn.failing, a, b)
        total = excess + (1 - before[:, 0])
        agree = total == 0  # draft and target agree: the next child is accepted for sure
        total = total + agree
        states = xp.concat([states, xp.stack([excess + agree, a, b], axis=1) / total[:, None]])
    offered = rows.take(states[:, 0], place)
    alive = xp.cumulative_prod(1 - offered, axis=0)
    stop = rows.take(offered * xp.concat([alive[:1] * 0 + 1, alive[:-1]]), back)
    last = rows.take(states, final)
    a = last[:, 1] * is_leaf[0] + is_leaf[1]  # at a leaf the next token is from the target
    return StopDistribution(tree, stop, ResidualRows(rows, a, last[:, 2]))


def verifier() -> Verifier:
    """The verifier ``traversal``."""
    text, source = "Traversal: offer leaves first, then their parents", "Weng et al., arXiv 2505.12398, algorithm 2"
    return Verifier("traversal", verify, text, source, needs="distinct children", leaf_to_root=True)
