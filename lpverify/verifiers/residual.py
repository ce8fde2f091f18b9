"""Acceptance and residual distributions: the only copy, shared by all verifiers (theory 1).

The functions take vectors or rows of any arithmetic, in host memory or on a device. Derived limits, no epsilon: a
residual that is all zero can be reached only because rounded rows miss a sum of 1 by an ulp, target and draft then
being equal up to rounding, and the token comes from the target row: never one of target probability 0.
"""

from __future__ import annotations

from lpverify.numerics import Array, divide, is_exact, namespace, zero


def positive_part(row: Array) -> Array:
    """max(row, 0), entry by entry."""
    xp = namespace(row)
    positive: Array = xp.where(row > 0, row, zero(row)) if is_exact(row) else xp.clip(row, 0, None)
    return positive


def acceptance(target: Array, draft: Array) -> Array:
    """min(1, target / draft), entry by entry, without overflow; 0 where both are 0 (never drafted).

    >>> import numpy as np
    >>> acceptance(np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.3, 0.1])).round(3).tolist()
    [0.333, 1.0, 1.0]
    """
    return divide(namespace(target).minimum(target, draft), draft, where_zero=zero(draft))


def residual_distribution(residual: Array, target: Array) -> Array:
    """``residual`` divided by its sum; ``target`` where it is all zero (unreachable but for rounding)."""
    return divide(residual, residual.sum(), where_zero=target)
