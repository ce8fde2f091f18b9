"""Traversal verification: the drafted tree from its leaves to the root (THEORY 6).

Each node c carries a weight w(c), w(root) = 1, w(cx) = min(1, w(c) p'(x|c) / q'(x|c)), and rows p', q' that start as
p, q. Nodes are offered depth first, children in the order in which the paths drew them first, a node after all its
children: it is accepted with probability w (the root always). On rejection of cx, at its parent

    p' <- max(w p' - q', 0) normalised,   w <- R / (R + 1 - w),   q' <- q' without x, renormalised,

R the mass of max(w p' - q', 0). An accepted node emits from its p'. Repeated children are merged: distinct tokens in
order of first appearance are draws from q without replacement, which is what the renormalisation of q' accounts for;
ordering children in any other way (by token id, say) breaks the law. For K = 1 it is block verification.

Reference: Weng et al., Traversal Verification for Speculative Tree Decoding, arXiv 2505.12398, algorithm 2.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, divide, is_exact, namespace, one, row_at, zero
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.residual import acceptance, positive_part, residual_law


def after_rejection(target: Array, draft: Array, weight: Any, token: int) -> tuple[Array, Array, Any]:
    """p', q', w of a node after its child ``token`` was rejected."""
    residual = positive_part(weight * target - draft)
    mass = residual.sum()
    remaining = draft + zero(draft)
    remaining[token] = zero(draft)
    return (
        residual_law(residual, target),
        divide(remaining, remaining.sum(), where_zero=zero(draft)),
        divide(mass, mass + (1 - weight), where_zero=one(target)),
    )


def traversal_law(view: DraftTree) -> StopDistribution:
    """Stop and next-token law of Traversal."""
    certain = view.target[0, 0] * 0 + 1
    stop: list[Any] = [None] * len(view.parent)
    emitted: list[Any] = list(view.target)

    def visit(node: int, weight: Any, alive: Any) -> Any:
        """Offer the subtree of ``node``; ``alive`` is the probability that it is offered, returned that it fails."""
        children = view.children(node)
        target = view.target[node]
        draft = view.draft[node] if children else target
        for child in children:
            token = int(view.token[child])
            failed = visit(child, acceptance(weight * target[token], draft[token]), alive)
            alive = failed
            target, draft, weight = after_rejection(target, draft, weight, token)
        emitted[node] = target
        stop[node] = alive * weight if node else alive
        return alive - stop[node]

    visit(0, certain, certain)
    law = np.array(stop, dtype=object) if is_exact(view.target) else namespace(view.target).stack(stop)
    return StopDistribution(view, law, partial(row_at, emitted))


def verifier() -> Verifier:
    """The verifier ``traversal``."""
    return Verifier(
        "traversal",
        traversal_law,
        "Traversal: offer leaves first, then their parents",
        "Weng et al., arXiv 2505.12398, algorithm 2",
        leaf_to_root=True,
    )
