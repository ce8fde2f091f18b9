r"""Identity test: is a sample drawn from a known distribution, with stated error probabilities?

n independent sequences of D tokens are drawn, M sequences are possible, P is their distribution. Two tests share the
false-alarm probability ``alpha`` equally:

* total variation: for any set A of sequences Hoeffding gives Pr(Phat(A) - P(A) >= t) <= exp(-2 n t^2). Total
  variation is the largest difference over the 2^M sets, so (Bretagnolle-Huber-Carol)

      Pr(TV(Phat, P) >= t) <= 2^M exp(-2 n t^2) <= alpha/2     for  t = sqrt((M ln 2 + ln(2/alpha)) / (2 n));

* every prefix: the number of draws that begin with it is binomial. The test uses two-sided exact tails; each prefix
  gets an equal share of alpha/2. A single sequence of probability 0 rejects.

If the sample's distribution is at total variation delta from P, some set A has Phat(A) - P(A) >= delta - s except with
probability exp(-2 n s^2). So every delta >= t + sqrt(ln 100 / (2 n)) is detected with probability 0.99
(`smallest_found`). The second test often detects much smaller differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt

import numpy as np
import numpy.typing as npt
from scipy import special

from lpverify.numerics import up_the_tree

Counts = npt.NDArray[np.int64]
Distribution = npt.NDArray[np.float64]

MISSED = 0.01
"""Probability of missing a difference of `smallest_found`."""


@dataclass(frozen=True)
class IdentityTest:
    """``total_variation`` of the sample, rejected from ``threshold`` on.

    ``prefix``: (length, index among the prefixes of that length) of the first rejected prefix; None when not rejected.
    """

    total_variation: float
    threshold: float
    prefix: tuple[int, int] | None


def threshold(cells: int, draws: int, alpha: float) -> float:
    """Total variation that a sample from the right distribution reaches with probability <= alpha/2.

    Args:
        cells: number M of possible sequences.
        draws: sample size n.
        alpha: false-alarm probability of both tests together.

    >>> round(threshold(9, 100_000, 1e-6), 4)
    0.0102
    """
    return sqrt((cells * log(2) + log(2 / alpha)) / (2 * draws))


def smallest_found(cells: int, draws: int, alpha: float) -> float:
    """Smallest total variation between the sample's distribution and P that is detected with probability 0.99.

    >>> round(smallest_found(9, 100_000, 1e-6), 4)
    0.015
    """
    return threshold(cells, draws, alpha) + sqrt(log(1 / MISSED) / (2 * draws))


def identity_test(counts: Counts, expected: Distribution, vocab_size: int, length: int, alpha: float) -> IdentityTest:
    """Test whether sequences of D = ``length`` tokens were drawn from a distribution.

    ``counts`` (V**D,): how often each was drawn. ``expected`` (V**D,): P. ``alpha``: false-alarm probability.
    """
    draws = int(counts.sum())
    levels = list(zip(*(up_the_tree(of, vocab_size, length) for of in (counts, expected)), strict=True))[1:]
    share = alpha / 2 / sum(len(seen) for seen, _ in levels)
    prefix = None
    for depth, (seen, probability) in enumerate(levels, start=1):
        chance = np.minimum(probability, 1.0)
        tails = 2 * np.minimum(special.bdtr(seen, draws, chance), special.bdtrc(seen - 1, draws, chance))
        if tails.min() <= share:
            prefix = (depth, int(np.argmin(tails)))
            break
    difference = abs(counts / draws - expected)
    distance, limit = float(difference.sum() / 2), threshold(int((expected > 0).sum()), draws, alpha)
    if prefix is None and distance >= limit:
        prefix = (length, int(np.argmax(difference)))
    return IdentityTest(distance, limit, prefix)
