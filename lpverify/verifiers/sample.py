"""The only place where a verifier's randomness is drawn: from a `StopDistribution` to one (node, next token).

Inverse transform with strict comparisons: for u in [0, 1) the first index i of positive weight with S_i > u S is drawn,
S_i the partial sums of the weights and S the last of them. So no entry of weight 0 is ever drawn, u = 0 included, even
where a parallel sum is not monotone, and the last positive entry takes what rounding leaves over.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lpverify import errors
from lpverify.drafting.base import Uniforms
from lpverify.numerics import is_exact, namespace
from lpverify.verifiers.base import StopDistribution

BELOW_ONE = 1 - 2.0**-53  # the largest double below 1: times a double it is less than that


def sample(distribution: StopDistribution, generator: Uniforms) -> tuple[int, int]:
    """One (stop node, next token): two uniforms, the first for the node, the second for the token.

    On a device both are drawn there, one synchronisation. Raises InputError where a distribution has no positive weight
    or is not a number, or a uniform is not in [0, 1).

    >>> from lpverify.core.draft_tree import DraftTree
    >>> from lpverify.verifiers import verifier
    >>> tree = DraftTree.build([[0]], [[0.2, 0.8], [0.5, 0.5]], [[0.9, 0.1]])
    >>> sample(verifier("bv")(tree), np.random.default_rng(0))
    (0, 1)
    """
    first, second = generator.random(), generator.random()
    _check_uniforms(first, second)
    stop, weights = distribution.stop, getattr(distribution.rows, "weights", distribution.rows)  # without their sum
    if isinstance(stop, np.ndarray):
        node = _pick(stop, first)
        token = _pick(weights(node), second) if node >= 0 else -1
    else:
        xp = namespace(stop)
        chosen = pick_each(stop[None], xp.asarray([first], dtype=xp.float64, device=stop.device))
        row = weights(xp.clip(chosen, 0, None))
        next_token = pick_each(row[None], xp.asarray([second], dtype=xp.float64, device=stop.device))
        node, token = xp.concat([chosen, next_token]).tolist()
    for name, index in (("stops", node), (f"next tokens at node {node}", token)):
        if index < 0:
            raise errors.fail(f"distribution of {name}", got="no positive weight, or NaN", expected="probabilities")
    return node, token


def pick(weights: Any, uniform: float) -> int:
    """The index that ``uniform`` selects from ``weights`` (n,), which need not sum to 1. Raises InputError as `sample`.

    >>> [pick(np.array([0.0, 0.25, 0.75, 0.0]), u) for u in (0.0, 0.2499, 0.25, 1 - 2**-53)]
    [1, 1, 2, 2]
    """
    _check_uniforms(uniform)
    index = _pick(weights, uniform)
    if index < 0:
        raise errors.fail("weights", got=f"a sum of {weights.sum()}", expected="a positive weight")
    return index


def _pick(weights: Any, uniform: float) -> int:
    """`pick` for one row in host memory; -1 where no weight is positive or their sum is NaN."""
    if not isinstance(weights, np.ndarray):
        return int(pick_each(weights[None], namespace(weights).asarray([uniform], dtype=namespace(weights).float64))[0])
    sums = np.cumsum(weights, dtype=None if is_exact(weights) else np.float64)
    beyond = (weights > 0) & (sums > uniform * sums[-1])
    first = int(beyond.argmax())
    if beyond[first]:
        return first
    possible = np.flatnonzero(weights > 0)  # rounding left nothing beyond
    return int(possible[-1]) if len(possible) and sums[-1] == sums[-1] else -1


def pick_each(weights: Any, uniforms: Any) -> Any:
    """`pick` for every row of ``weights`` (R, n), where they are: ``uniforms`` (R,) to indices (R,).

    -1 where no weight is positive or a weight is NaN. Nothing is validated, and there is no synchronisation.
    """
    xp = namespace(weights)
    sums = xp.cumulative_sum(weights, axis=-1, dtype=xp.float64) * (weights > 0)
    total = xp.max(sums, axis=-1)
    threshold = xp.minimum(uniforms * total, total * BELOW_ONE)
    first = xp.argmax(xp.astype(sums > threshold[:, None], xp.int8), axis=-1)
    return xp.where(total > 0, first, -1)


def _check_uniforms(*uniforms: float) -> None:
    for uniform in uniforms:
        if not 0 <= uniform < 1:
            raise errors.fail("uniform", got=uniform, expected="a number in [0, 1)")
