r"""Is a sample from a known law? A test with a stated false-alarm bound and a stated smallest difference that it finds.

n independent draws of sequences of D tokens, M sequences possible, law P. Two tests, each with half of ``alpha``:

* total variation: for any set A of sequences Hoeffding gives Pr(Phat(A) - P(A) >= t) <= exp(-2 n t^2), and total
  variation is the largest difference over the 2^M sets, so (Bretagnolle-Huber-Carol)

      Pr(TV(Phat, P) >= t) <= 2^M exp(-2 n t^2) <= alpha/2     for  t = sqrt((M ln 2 + ln(2/alpha)) / (2 n));

* every prefix: the number of draws that begin with it is binomial; two-sided exact tails, each prefix with its share
  of alpha/2 (so a sequence of probability 0 is a finding at once).

If the law sampled from is at total variation delta, some set A has Phat(A) - P(A) >= delta - s but for a probability
exp(-2 n s^2): so every delta >= t + sqrt(ln 100 / (2 n)) is found with probability 0.99 (`smallest_found`). The second
test is there for what it often finds far below that.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt

import numpy as np
import numpy.typing as npt
from scipy import stats

from lpverify.numerics import up_the_tree

Counts = npt.NDArray[np.int64]
Law = npt.NDArray[np.float64]

MISSED = 0.01
"""Probability with which a difference of `smallest_found` may be missed."""


@dataclass(frozen=True)
class IdentityTest:
    """``total_variation`` of the sample to the law against ``threshold``; ``prefix_index`` says where it was rejected:
    (length, index among the prefixes of that length), None when it was not.
    """

    total_variation: float
    threshold: float
    prefix: tuple[int, int] | None


def threshold(cells: int, draws: int, alpha: float) -> float:
    """Total variation that ``draws`` from a law with ``cells`` possible outcomes exceed with probability <= alpha/2.

    >>> round(threshold(9, 100_000, 1e-6), 4)
    0.0102
    """
    return sqrt((cells * log(2) + log(2 / alpha)) / (2 * draws))


def smallest_found(cells: int, draws: int, alpha: float) -> float:
    """Smallest total variation of the law sampled from that is found with probability 0.99.

    >>> round(smallest_found(9, 100_000, 1e-6), 4)
    0.015
    """
    return threshold(cells, draws, alpha) + sqrt(log(1 / MISSED) / (2 * draws))


def identity_test(counts: Counts, law: Law, vocab_size: int, length: int, alpha: float) -> IdentityTest:
    """Test ``counts`` (V**D,) of sequences of D = ``length`` tokens against ``law`` (V**D,)."""
    draws = int(counts.sum())
    levels = list(zip(up_the_tree(counts, vocab_size, length), up_the_tree(law, vocab_size, length), strict=True))[1:]
    share = alpha / 2 / sum(len(seen) for seen, _ in levels)
    prefix = None
    for depth, (seen, expected) in enumerate(levels, start=1):
        chance = np.minimum(expected, 1.0)
        tails = 2 * np.minimum(stats.binom.cdf(seen, draws, chance), stats.binom.sf(seen - 1, draws, chance))
        if prefix is None and tails.min() <= share:
            prefix = (depth, int(np.argmin(tails)))
    distance = float(abs(counts / draws - law).sum() / 2)
    limit = threshold(int((law > 0).sum()), draws, alpha)
    if prefix is None and distance >= limit:
        prefix = (length, int(np.argmax(abs(counts / draws - law))))
    return IdentityTest(distance, limit, prefix)
