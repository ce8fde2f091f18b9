"""The only place where a verifier's randomness is drawn: from a `StopDistribution` to one (node, next token).

Inverse transform with strict comparisons: for u in [0, 1) the first index i of positive weight with S_i > u S is drawn,
S_i the partial sums of the weights and S the last of them. So no entry of weight 0 is ever drawn, u = 0 included, even
where a parallel sum is not monotone, and the last positive entry takes what rounding leaves over.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from lpverify import errors
from lpverify.numerics import Array, is_exact, namespace, on_cpu, to_host
from lpverify.verifiers.base import StopDistribution


class Uniforms(Protocol):
    """A source of uniforms, such as ``numpy.random.Generator``."""

    def random(self) -> float:
        """The next uniform in [0, 1)."""


def sample(law: StopDistribution, generator: Uniforms) -> tuple[int, int]:
    """One (stop node, next token) from ``law``: two uniforms, the first for the node, the second for the token.

    Both come to the host in one transfer. Raises InputError as `pick`.
    """
    node, token = to_host(drawn(law, generator)).tolist()
    for name, chosen in (("stops", node), (f"next tokens at node {node}", token)):
        if chosen < 0:
            raise errors.fail(f"law of {name}", got="no positive weight, or NaN", expected="probabilities")
    return node, token


def drawn(law: StopDistribution, generator: Uniforms) -> Array:
    """`sample` on the device of ``law``: two integers, -1 where `pick_each` gives it. No synchronisation."""
    xp = namespace(law.stop)
    uniforms = [generator.random() for _ in range(2)]
    for uniform in uniforms:
        _check_uniform(uniform)
    first, second = (xp.asarray([uniform], dtype=xp.float64, device=law.stop.device) for uniform in uniforms)
    node = pick_each(law.stop[None], first)
    place = xp.clip(node, 0, None)[0]
    if isinstance(law.stop, np.ndarray) or on_cpu(law.stop):
        place = int(place)
    both: Array = xp.concat([node, pick_each(law.rows(place)[None], second)])
    return both


def pick(weights: Array, uniform: float) -> int:
    """The index that ``uniform`` in [0, 1) selects from ``weights`` (n,), which need not sum to 1.

    Raises InputError when no weight is positive or ``uniform`` is not in [0, 1).

    >>> import numpy as np
    >>> [pick(np.array([0.0, 0.25, 0.75, 0.0]), u) for u in (0.0, 0.2499, 0.25, 1 - 2**-53)]
    [1, 1, 2, 2]
    """
    _check_uniform(uniform)
    xp = namespace(weights)
    chosen = int(pick_each(weights[None], xp.asarray([uniform], dtype=xp.float64, device=weights.device))[0])
    if chosen < 0:
        raise errors.fail("weights", got=f"a sum of {weights.sum()}", expected="a positive weight")
    return chosen


def pick_each(weights: Array, uniforms: Array) -> Array:
    """`pick` for every row of ``weights`` (R, n), on their device: ``uniforms`` (R,) to indices (R,).

    -1 where no weight is positive or their sum is not a number. For inner loops: nothing is validated, and nothing is
    brought to the host.
    """
    xp = namespace(weights)
    possible = weights > 0
    wide = None if is_exact(weights) else xp.float64  # in single precision the uniform would lose its last 29 bits
    sums = xp.cumulative_sum(weights, axis=-1, dtype=wide)
    size = weights.shape[-1]
    index = xp.arange(size, device=weights.device)[None, :]
    first = xp.min(xp.where(possible & (sums > uniforms[:, None] * sums[:, -1:]), index, size), axis=-1)
    last = xp.max(xp.where(possible, index, -1), axis=-1)
    chosen: Array = xp.where(sums[:, -1] == sums[:, -1], xp.minimum(first, last), -1)
    return chosen


def _check_uniform(uniform: float) -> None:
    if not 0 <= uniform < 1:
        raise errors.fail("uniform", got=uniform, expected="a number in [0, 1)")
