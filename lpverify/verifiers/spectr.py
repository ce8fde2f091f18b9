"""SpecTr: K-SEQ selection (THEORY 6).

At a node with k drafted children accept them in order, each with min(1, p(x) / (rho q(x))), else y is drawn from
max(p - gamma min(q, p/rho), 0) normalised, where

    beta(rho) = sum_x min(q(x), p(x)/rho),   gamma = (1 - (1-beta)^k) / beta = sum_{i<k} (1-beta)^i.

The rule is lossless for every rho in [1, k] with gamma <= rho, since then the residual is nowhere negative; gamma grows
with rho and acceptance 1 - (1-beta)^k falls, so the best rho is the root of gamma(rho) = rho. y may be a drafted token;
the walk then goes on there. The root is irrational in general: with Fraction rows a rational just above it that
satisfies gamma <= rho is used, so that the law is exact and the value agrees with the float one to about 1e-14.

Reference: Sun et al., SpecTr, arXiv 2310.15141, algorithm 2 and theorem 2.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, as_float, is_exact, namespace
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.residual import acceptance, positive_part, residual_law
from lpverify.verifiers.top_down import SequentialRule, walk_law

BISECTIONS = 56
"""Halvings of [1, k]: to the last bit of rho for k <= 16."""


def node_rule(target: Array, draft: Array, count: int) -> SequentialRule:
    """The acceptance row of K-SEQ with its best rho, repeated ``count`` times, and its residual law."""
    rho = best_rho(target, draft, count)
    accept = acceptance(target, rho * draft)
    share = accept * draft  # min(q, p/rho)
    residual = positive_part(target - _gamma(share.sum(), count) * share)
    return SequentialRule(namespace(target).stack([accept] * count), residual_law(residual, target))


def best_rho(target: Array, draft: Array, count: int) -> Any:
    """The smallest rho in [1, count] with gamma(rho) <= rho, up to rounding from above.

    >>> import numpy as np
    >>> round(float(best_rho(np.array([0.2, 0.4, 0.4]), np.array([0.6, 0.3, 0.1]), 3)), 4)
    1.9395
    """
    if is_exact(target):
        return _rational_rho(target, draft, count)
    xp = namespace(target)
    low = target[0] * 0 + 1
    if count == 1:
        return low
    high = xp.where(_fits(target, draft, count, low), low, low * count)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        found = _fits(target, draft, count, middle)
        low, high = xp.where(found, low, middle), xp.where(found, middle, high)
    return high


def _rational_rho(target: Array, draft: Array, count: int) -> Fraction:
    if _fits(target, draft, count, Fraction(1)):
        return Fraction(1)
    rho = Fraction(float(best_rho(as_float(target), as_float(draft), count)))
    step = Fraction(count, 2**52)
    while not _fits(target, draft, count, rho):  # rho = count does
        rho, step = min(rho + step, Fraction(count)), 2 * step
    return rho


def _fits(target: Array, draft: Array, count: int, rho: Any) -> Any:
    """gamma(rho) <= rho: the residual is nowhere negative."""
    return _gamma(namespace(target).minimum(draft, target / rho).sum(), count) <= rho


def _gamma(beta: Any, count: int) -> Any:
    """sum_{i<count} (1 - beta)^i, free of the cancellation in (1 - (1-beta)^count) / beta."""
    total = power = 1 - beta * 0
    for _ in range(count - 1):
        power = power * (1 - beta)
        total = total + power
    return total


def spectr_law(view: DraftTree) -> StopDistribution:
    """Stop and next-token law of SpecTr."""
    return walk_law(view, node_rule)


def verifier() -> Verifier:
    """The verifier ``spectr``."""
    return Verifier(
        "spectr",
        spectr_law,
        "K-SEQ: accept children in order with probability min(1, p / (rho q))",
        "Sun et al., arXiv 2310.15141, algorithm 2",
        node_rule=node_rule,
    )
