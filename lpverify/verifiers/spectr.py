"""SpecTr: K-SEQ selection (theory 6).

Accept the k drafted children in order, each with min(1, p(x) / (rho q(x))), else draw from max(p - gamma min(q, p/rho),
0) normalised: with beta = sum_x min(q, p/rho) and gamma = (1 - (1-beta)^k) / beta lossless for every rho in [1, k] with
gamma <= rho. The best is the root of gamma(rho) = rho. It is irrational in general: with Fraction rows a rational just
above it is used, so that the distribution is exact and the value agrees with the float one to about 1e-14. At a large
vocabulary the root is found on bins of tokens and improved by a Newton step on the rows.

Reference: Sun et al., SpecTr, arXiv 2310.15141, algorithm 2 and theorem 2.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, as_float, is_exact, one
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.residual import acceptance, positive_part, residual_distribution
from lpverify.verifiers.rows import ResidualRows, rows_of
from lpverify.verifiers.sample import BELOW_ONE
from lpverify.verifiers.token_buckets import FINE
from lpverify.verifiers.top_down import SequentialRule, offers_of, verify_offers

BISECTIONS = 56  # halvings of [1, k]: to the last bit of rho for k <= 16
STEP = 1e-3  # relative step of the difference quotient in `slope_at`


def node_rule(target: Array, draft: Array, count: int) -> SequentialRule:
    """The acceptance row of K-SEQ with its best rho, repeated ``count`` times, and its residual distribution."""
    rho = best_rho(target, draft, count)
    accept = acceptance(target, rho * draft)
    share = accept * draft  # min(q, p/rho)
    residual = positive_part(target - _gamma(share.sum(), count) * share)
    return SequentialRule(np.stack([accept] * count), residual_distribution(residual, target))


def best_rho(target: Array, draft: Array, count: int) -> Any:
    """The smallest rho in [1, count] with gamma(rho) <= rho, up to rounding from above.

    >>> round(float(best_rho(np.array([0.2, 0.4, 0.4]), np.array([0.6, 0.3, 0.1]), 3)), 4)
    1.9395
    """
    if count == 1 or _fits(target, draft, count, one(target)):
        return one(target)
    if is_exact(target):
        rho, step = Fraction(best_rho(as_float(target), as_float(draft), count)), Fraction(count, 2**52)
        while not _fits(target, draft, count, rho):  # rho = count does
            rho, step = min(rho + step, Fraction(count)), 2 * step
        return rho
    low, high = 1.0, float(count)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if _fits(target, draft, count, middle):
            high = middle
        else:
            low = middle
    return high


def _fits(target: Array, draft: Array, count: int, rho: Any) -> bool:
    """gamma(rho) <= rho: the residual is nowhere negative."""
    return bool(_gamma(np.minimum(draft, target / rho).sum(), count) <= rho)


def _gamma(beta: Any, count: int) -> Any:
    """sum_{i<count} (1 - beta)^i, free of the cancellation in (1 - (1-beta)^count) / beta."""
    total = power = 1 - beta * 0
    for _ in range(count - 1):
        power = power * (1 - beta)
        total = total + power
    return total


def image(excess: Any, count: Any, xp: Any) -> Any:
    """S(E) = (1 - E) / (1 - E^(1/k)), elementwise; E below 1."""
    logarithm = xp.log(xp.clip(excess, 1e-300, BELOW_ONE))
    return xp.expm1(logarithm) / xp.expm1(logarithm / count)


def slope_at(target: Array, draft: Array, count: int, rho: float) -> float:
    """The slope of rho - S(E(rho)) at ``rho``, at least 1, from masses of buckets."""
    step = STEP * rho
    ends = [r - float(image(positive_part(target - r * draft).sum(), count, np)) for r in (rho - step, rho + step)]
    return max(1.0, (ends[1] - ends[0]) / (2 * step))


def verify(tree: DraftTree) -> StopDistribution:
    """Stop distribution of SpecTr."""
    rows = rows_of(tree)
    offers = offers_of(tree)
    several = np.flatnonzero(offers.count > 1)  # with one offer rho = gamma = 1
    count = offers.count[several]
    seen = rows.observe(several, blocks=FINE)
    xp, inner, unit = rows.xp, len(tree.inner_nodes), one(seen.target_edge)
    masses = list(zip(seen.target, seen.draft, count.tolist(), strict=True))
    roots = [best_rho(p, q, k) for p, q, k in masses]
    slopes = [slope_at(p, q, k, rho) for (p, q, k), rho in zip(masses, roots, strict=True)] if rows.merged else roots
    position = np.full(inner, len(several))  # of every inner node among those with several offers
    position[several] = np.arange(len(several))
    rho, slope, counts, single, p, q, real, p_edge, q_edge, node_at, edge_at, all_at = rows.upload(
        np.array(roots, dtype=rows.dtype),
        np.array(slopes, dtype=rows.dtype),
        count if rows.dtype == object else count.astype(np.float64),
        np.array([[unit, unit, unit]]),
        offers.of_edges(seen.target_edge),
        offers.of_edges(seen.draft_edge),
        offers.real * unit,
        seen.target_edge,
        seen.draft_edge,
        position,
        position[tree.draft_row[tree.parent[1:]]],
        np.where(tree.draft_row >= 0, position[tree.draft_row], len(several)),
    )
    table = single  # rows (rho, gamma, (1 - beta)^k) of the nodes with several offers, then of any other
    if len(several):
        nodes = tree.inner_nodes[several]
        if rows.merged:  # the root of the buckets is near the root of the tokens
            rho = xp.clip(rho - (rho - image(rows.excess(nodes, None, rho), counts, xp)) / slope, 1.0, None)
            rho = xp.maximum(rho, image(rows.excess(nodes, None, rho), counts, xp))
        beta = (1 - rows.excess(nodes, None, rho)) / rho
        mass = (1 - beta) ** counts
        gamma = (1 - mass) / (beta + (beta == 0))
        table = xp.concat([xp.stack([rho, gamma, mass], axis=1), single])
    offered = rows.take(table[:, 0], node_at)[:, None] * q
    accept = xp.minimum(p, offered) / offered * real
    at_edge = rows.take(table, edge_at)
    left = positive_part(p_edge - at_edge[:, 1] * xp.minimum(p_edge / at_edge[:, 0], q_edge))
    extra = left / (at_edge[:, 2] + (at_edge[:, 2] == 0))
    everywhere = rows.take(table, all_at)  # leaves ignore it
    floor = 1 - everywhere[:, 1] / everywhere[:, 0]
    next_token = ResidualRows(rows, None, everywhere[:, 1], floor=floor, keeps_children=False)
    return verify_offers(rows, offers, accept, extra, next_token)


def verifier() -> Verifier:
    """The verifier ``spectr``."""
    text = "K-SEQ: accept children in order with probability min(1, p / (rho q))"
    source = "Sun et al., arXiv 2310.15141, algorithm 2"
    return Verifier("spectr", verify, text, source, needs="independent children", node_rule=node_rule)
