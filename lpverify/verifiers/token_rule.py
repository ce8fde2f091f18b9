"""The token rule: accept drafted tokens one by one (THEORY 3).

After i accepted tokens accept x_{i+1} with probability min(1, p(x_{i+1}|.) / q(x_{i+1}|.)); at the first rejection
emit from max(p - q, 0) normalised, after L accepted tokens from p. With K > 1 the first path is verified.

Reference: Leviathan, Kalman, Matias, Fast inference from transformers via speculative decoding, ICML 2023.
"""

from __future__ import annotations

from typing import Any

from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, as_index, namespace, row_at
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.residual import acceptance, law_on_path, positive_part, residual_law, unless_leaf


def token_law(view: DraftTree) -> StopDistribution:
    """Stop and next-token law of the token rule on the first path."""
    nodes = view.node_of[0].tolist()
    accept = acceptance(view.at_edges(view.target, nodes[1:]), view.at_edges(view.draft, nodes[1:]))
    reached = [accept[0] * 0 + 1]
    for i in range(len(nodes) - 1):
        reached.append(reached[-1] * accept[i])
    stop = [reached[i] * (1 - accept[i]) for i in range(len(nodes) - 1)]

    def before_leaf(node: Any) -> Array:
        target = row_at(view.target, node)
        return residual_law(positive_part(target - row_at(view.draft, node)), target)

    def rows(position: Any) -> Array:
        node = row_at(as_index(view.target, view.node_of[0]), position)
        return unless_leaf(node, view.inner, before_leaf, view.target)

    return law_on_path(view, 0, namespace(accept).stack([*stop, reached[-1]]), rows)


def verifier() -> Verifier:
    """The verifier ``token``."""
    return Verifier(
        "token",
        token_law,
        "token rule: accept drafted tokens one by one along the first path",
        "Leviathan et al., arXiv 2211.17192, algorithm 1",
        first_path_only=True,
        closed_form="token",
    )
