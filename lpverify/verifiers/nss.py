"""NSS, naive speculative sampling: draw y ~ p and descend while y happens to be drafted (theory 6).

The baseline of top-down tree verification: it never looks at the draft distribution, so a node with k drafted children
accepts with probability sum_x p(x) (1 - (1 - q(x))^k). "Accept if equal to the target's own sample" is this rule; it is
exact because that very sample is emitted. It is the optimal verifier of a fixed tree.
"""

from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, zeros
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.rows import ResidualRows, rows_of
from lpverify.verifiers.top_down import SequentialRule, offers_of, verify_offers


def node_rule(target: Array, draft: Array, count: int) -> SequentialRule:
    """y ~ p whatever was drafted."""
    return SequentialRule(zeros((count, len(target)), target), target)


def verify(tree: DraftTree) -> StopDistribution:
    """Stop distribution of NSS."""
    rows = rows_of(tree)
    target = rows.observe().target_edge
    offers = offers_of(tree)
    target, nothing, accept = rows.upload(target, zeros(tree.size, target), zeros(offers.child.shape, target))
    return verify_offers(rows, offers, accept, target, ResidualRows(rows, None, nothing, keeps_children=False))


def verifier() -> Verifier:
    """The verifier ``nss``."""
    text = "naive: sample from the target, descend while the sample is drafted"
    source = "folklore; exact match in serving engines"
    return Verifier("nss", verify, text, source, needs="any tree", path_order=False, node_rule=node_rule)
