"""The token rule: speculative sampling one token at a time (theory 1, 3).

Along the first path accept token x_i with probability min(1, p(x_i|.) / q(x_i|.)) and stop at the first rejection: the
next token is then from max(p - q, 0) normalised, and from p after L accepted tokens.

Reference: Leviathan et al., Fast inference from transformers via speculative decoding, arXiv 2211.17192, algorithm 1.
"""

from __future__ import annotations

from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import one, zeros
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.residual import acceptance
from lpverify.verifiers.rows import ResidualRows, rows_of


def verify_first_path(tree: DraftTree) -> StopDistribution:
    """Stop distribution of the token rule on the first path."""
    rows = rows_of(tree)
    edges = rows.observe()
    accept = acceptance(edges.target_edge, edges.draft_edge)
    stop = zeros(tree.size, accept)
    reached = one(accept)
    nodes = tree.node_of[0, : tree.lengths[0] + 1].tolist()
    for above, node in zip(nodes, nodes[1:], strict=False):
        stop[above] = reached * (1 - accept[node - 1])
        reached = reached * accept[node - 1]
    stop[nodes[-1]] = reached
    return StopDistribution(tree, rows.upload(stop), ResidualRows(rows))


def verifier() -> Verifier:
    """The verifier ``token``."""
    text = "token rule: accept drafted tokens one by one along the first path"
    source = "Leviathan et al., arXiv 2211.17192, algorithm 1"
    return Verifier("token", verify_first_path, text, source, needs="a path", first_path_only=True, closed_form="token")
