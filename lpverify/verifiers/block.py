"""Block verification: the best single-path rule (THEORY 1).

On a path x_1..x_L with weights w_i = min(1, w_{i-1} p(x_i|.) / q(x_i|.)) accept the largest i whose independent test

    U_i < h_i,   h_i = R_i / (R_i + 1 - w_i) for i < L,   h_L = w_L,   R_i = sum_y max(w_i p(y|.) - q(y|.), 0),

passes (0 if none), and emit from p after L tokens, else from max(w_i p - q, 0) normalised. The expected accepted
length is the optimum over all valid single-path rules, off-path information included. With K > 1 the first path is
verified.

Reference: Sun et al., Block verification accelerates speculative decoding, arXiv 2403.10444, algorithm 2.
"""

from __future__ import annotations

from lpverify.core.draft_tree import DraftTree
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.residual import block_path, law_on_path


def block_law(view: DraftTree) -> StopDistribution:
    """Stop and next-token law of block verification on the first path."""
    nodes = view.node_of[0].tolist()
    on_target, on_draft = view.at_edges(view.target, nodes[1:]), view.at_edges(view.draft, nodes[1:])
    target, draft = [view.target[node] for node in nodes], [view.draft[node] for node in nodes[:-1]]  # not copied
    block = block_path(target, draft, on_target, on_draft)
    return law_on_path(view, 0, block.stop, block.rows)


def verifier() -> Verifier:
    """The verifier ``bv``."""
    return Verifier(
        "bv",
        block_law,
        "block verification of the first path, the single-path optimum",
        "Sun et al., arXiv 2403.10444, algorithm 2",
        first_path_only=True,
        closed_form="block",
    )
