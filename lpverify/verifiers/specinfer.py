"""SpecInfer: recursive rejection sampling with replacement (theory 6).

Offer the k drafted children in order, repeats kept, the j-th with min(1, p_j(x_j)/q(x_j)). The target that is left has
a closed form, p_j = max(p - t_j q, 0) / R_j with t_1 = 0, R_1 = 1, t_{j+1} = t_j + R_j, R_j = sum_x max(p - t_j q, 0),
so the rows are summed once for every rejection that can be followed by another offer. A repeated child is offered
again: merging repeats would skip a rejection and be lossy. A rejected token has p_{j+1} = 0 from then on.

Reference: Miao et al., SpecInfer, arXiv 2305.09781, algorithm 2 (multi-step speculative sampling).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, one, ones, zero, zeros
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.residual import acceptance, positive_part, residual_distribution
from lpverify.verifiers.rows import ResidualRows, rows_of
from lpverify.verifiers.top_down import SequentialRule, offers_of, verify_offers


def node_rule(target: Array, draft: Array, count: int) -> SequentialRule:
    """The acceptance tables of ``count`` rejections and the last residual distribution."""
    accept = []
    threshold, excess = zero(target), one(target)
    for _ in range(count):
        accept.append(acceptance(positive_part(target - threshold * draft), excess * draft))
        threshold = threshold + excess
        threshold, excess = next_residual(threshold, positive_part(target - threshold * draft).sum())
    return SequentialRule(np.stack(accept), residual_distribution(positive_part(target - threshold * draft), target))


def next_residual(threshold: Any, excess: Any) -> tuple[Any, Any]:
    """t_j and R_j; where R_j = 0, reached only through rounding, the residual is the target row: t_j = 0, R_j = 1."""
    return threshold * (excess != 0), excess + (excess == 0)


def verify(tree: DraftTree) -> StopDistribution:
    """Stop distribution of SpecInfer."""
    rows = rows_of(tree)
    seen = rows.observe()
    offers = offers_of(tree)
    xp, inner, unit = rows.xp, len(tree.inner_nodes), one(seen.target_edge)
    offered_again = [offers.count > j + 1 for j in range(offers.child.shape[1])]
    again = [np.flatnonzero(nodes) for nodes in offered_again]
    position = [np.where(nodes, inner - 1 + nodes.cumsum(), np.arange(inner)) for nodes in offered_again]
    p, q, real, threshold, excess, place, *indices = rows.upload(
        offers.of_edges(seen.target_edge),
        offers.of_edges(seen.draft_edge),
        offers.real * unit,
        zeros(inner, seen.target_edge),
        ones(inner, seen.target_edge),
        np.where(tree.draft_row >= 0, tree.draft_row, inner),
        *again,
        *position,
    )
    accept = []
    for j, later in enumerate(again):
        residual = positive_part(p[:, j] - threshold * q[:, j])
        accept.append(acceptance(residual, excess * q[:, j]) * real[:, j])
        threshold = threshold + excess * real[:, j]
        if len(later):
            sums = rows.excess(tree.inner_nodes[later], None, rows.take(threshold, indices[j]))
            excess = rows.take(xp.concat([excess, sums]), indices[len(again) + j])
            threshold, excess = next_residual(threshold, excess)
    scale = rows.take(xp.concat([threshold, threshold[:1] * 0]), place)
    next_token = ResidualRows(rows, None, scale, keeps_children=False)
    return verify_offers(rows, offers, xp.stack(accept, axis=1), None, next_token)


def verifier() -> Verifier:
    """The verifier ``specinfer``."""
    text = "recursive rejection: offer the drafted children one after the other"
    source = "Miao et al., arXiv 2305.09781, algorithm 2"
    return Verifier("specinfer", verify, text, source, needs="independent children", node_rule=node_rule)
