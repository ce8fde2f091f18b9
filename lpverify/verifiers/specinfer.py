"""SpecInfer: recursive rejection sampling with replacement (THEORY 6).

At a node with k drafted children x_1..x_k, repeats kept, and p_1 = p:

    accept x_j with min(1, p_j(x_j) / q(x_j)),   else p_{j+1} = max(p_j - q, 0) normalised;   at the end y ~ p_{k+1}.

The p_j do not depend on what was drafted. A repeated child is offered again: merging repeats would skip a rejection
step and break the law.

Reference: Miao et al., SpecInfer, arXiv 2305.09781, algorithm 2 (multi-step speculative sampling).
"""

from __future__ import annotations

from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, namespace
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.residual import acceptance, positive_part, residual_law
from lpverify.verifiers.top_down import SequentialRule, walk_law


def node_rule(target: Array, draft: Array, count: int) -> SequentialRule:
    """The acceptance tables of ``count`` rejection steps and the last residual law."""
    accept = []
    law = target
    for _ in range(count):
        accept.append(acceptance(law, draft))
        law = residual_law(positive_part(law - draft), law)
    return SequentialRule(namespace(target).stack(accept), law)


def specinfer_law(view: DraftTree) -> StopDistribution:
    """Stop and next-token law of SpecInfer."""
    return walk_law(view, node_rule)


def verifier() -> Verifier:
    """The verifier ``specinfer``."""
    return Verifier(
        "specinfer",
        specinfer_law,
        "recursive rejection: offer the drafted children one after the other",
        "Miao et al., arXiv 2305.09781, algorithm 2",
        node_rule=node_rule,
    )
