r"""Draft depth 1: the multi-path optimum in closed form (theory 2.6).

At L = 1 an antichain is a set H of tokens, and by polymatroid duality the optimum is ``1 + min over H of [1 - p(H) +
phi(q(H))]``, ``phi(s) = 1 - (1-s)^K``. phi is concave, so the minimum is at a prefix H of the tokens ordered by p/q
descending: sorting gives the value, and the multipliers ``lambda(x) = 1`` outside H, 0 inside prove it.

Reference: Khisti et al. 2024 (arXiv 2410.18234); Thomas & Pal 2025 (arXiv 2511.15898), one-step optimal transport.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.core.results import LpSolution
from lpverify.drafting.iid_paths import phi
from lpverify.lp import certify
from lpverify.numerics import Array, divide, zeros


def best_set(target: Array, draft: Array, num_paths: int) -> tuple[Any, npt.NDArray[np.int64]]:
    """``min over H of [1 - p(H) + phi(q(H))]``, the optimal acceptance probability, and the tokens of a minimising H.

    ``target`` and ``draft``: rows p and q, (V,), float64 or Fraction.

    >>> value, tokens = best_set(np.array([0.2, 0.4, 0.4]), np.array([0.6, 0.3, 0.1]), 2)
    >>> round(float(value), 12), tokens.tolist()
    (0.79, [2])
    """
    ratio = divide(target, draft, where_zero=np.inf)
    ratio = np.where((target == 0) & (draft == 0), 0 * target, ratio)
    order = np.argsort(-ratio, kind="stable")
    start = zeros(1, target)
    inside, covered = (np.concatenate([start, np.cumsum(row[order])]) for row in (target, draft))
    values = 1 - inside + phi(covered, num_paths)
    best = int(np.argmin(values))
    return values[best], order[:best]


def solve(pair: ModelPair, num_paths: int) -> LpSolution:
    """The optimum for L = 1, exact for a rational pair. Raises InputError for a deeper pair or K < 1.

    >>> coin = ModelPair.from_levels([[[0.25, 0.75]]], [[[0.6, 0.4]]])
    >>> round(solve(coin, 2).value, 12)
    1.89
    """
    began = time.perf_counter()
    errors.integer("num_paths (K)", num_paths, min=1)
    if pair.depth != 1:
        raise errors.fail("depth for the one-step closed form", got=pair.depth, expected="1")
    value = 1 + best_set(pair.target[0][0], pair.draft[0][0], num_paths)[0]
    return certify.bounded(value, value, status="optimal", method="one-step closed form", began=began)
