"""NSS, naive speculative sampling: draw y ~ p and walk on while y happens to be drafted (THEORY 6).

The baseline of all walkers: it ignores the draft's law, so its acceptance is sum_x p(x) (1 - (1 - q(x))^k) at a node.
"Accept if equal to the target's own sample" is this rule; it is exact because that very sample is emitted.
"""

from __future__ import annotations

from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, zeros
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.top_down import SequentialRule, walk_law


def node_rule(target: Array, draft: Array, count: int) -> SequentialRule:
    """y ~ p whatever was drafted."""
    return SequentialRule(zeros((count, len(target)), target), target)


def nss_law(view: DraftTree) -> StopDistribution:
    """Stop and next-token law of NSS."""
    return walk_law(view, node_rule)


def verifier() -> Verifier:
    """The verifier ``nss``."""
    return Verifier(
        "nss",
        nss_law,
        "naive: sample from the target, descend while the sample is drafted",
        "folklore; exact match of engines",
        path_order=False,
        node_rule=node_rule,
    )
