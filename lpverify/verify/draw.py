"""The only place where a verifier's randomness is drawn: from a `StopLaw` to one (node, next token).

Inverse transform with strict comparisons: index i is drawn when S_{i-1} <= u S < S_i for the partial sums S_i of the
weights, S their last, and u in [0, 1), so that no entry of weight 0 is ever drawn, u = 0 included, and the last
positive entry takes what rounding leaves over.
"""

from __future__ import annotations

from typing import Protocol

from lpverify import _check
from lpverify._array import Array, namespace, to_host
from lpverify.verify.base import StopLaw


class Uniforms(Protocol):
    """A source of uniforms, such as ``numpy.random.Generator``."""

    def random(self) -> float:
        """The next uniform in [0, 1)."""


def draw(law: StopLaw, generator: Uniforms) -> tuple[int, int]:
    """One (stop node, next token) from ``law``: two uniforms, the first for the node, the second for the token."""
    node = pick(law.stop, generator.random())
    return node, pick(law.next_law(node), generator.random())


def pick(weights: Array, uniform: float) -> int:
    """The index that ``uniform`` in [0, 1) selects from ``weights`` (n,), which need not sum to 1.

    Raises InputError when no weight is positive or ``uniform`` is not in [0, 1).

    >>> import numpy as np
    >>> [pick(np.array([0.0, 0.25, 0.75, 0.0]), u) for u in (0.0, 0.2499, 0.25, 1 - 2**-53)]
    [1, 1, 2, 2]
    """
    if not 0 <= uniform < 1:
        raise _check.fail("uniform", got=uniform, expected="a number in [0, 1)")
    xp = namespace(weights)
    sums = xp.cumulative_sum(weights, axis=0)
    last = (sums < sums[-1]).sum()  # where the whole mass is reached first: the last positive weight
    index = xp.minimum((sums <= uniform * sums[-1]).sum(), last)
    chosen, usable = to_host(xp.stack([index, index * 0 + (sums[-1] > 0)])).tolist()  # one transfer
    if not usable:
        raise _check.fail("weights", got=f"a sum of {sums[-1]}", expected="a positive weight")
    return int(chosen)
