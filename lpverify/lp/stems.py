r"""The optimum of delayed branching, stem by stem (theory 9.1).

One path of M tokens, the stem, is drafted with certainty, so down to level M the single-path pass
``f(cx) = min(p(x|c) f(c), Q(cx))`` is optimal. Below a stem s, everything divided by Q(s), the rank-quantile program of
K i.i.d. paths remains, with ``f(s)/Q(s) <= 1`` in the place of ``f(root) = 1``:

    optimum = sum over nodes c down to level M of f(c)  +  sum over stems s of Q(s) (value of s - 1).

With value to go ``d(c) = 1 + sum_x p(x|c) lambda(cx)`` and the multipliers of the stems' programs below them, the
multipliers of the stems and above are ``lambda(c) = d(c)`` where p f binds and 0 where Q binds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from lpverify.core.model_pair import ModelPair
from lpverify.core.results import Certificate, LpSolution, RankTable, RefinementStep
from lpverify.drafting.delayed import Delayed
from lpverify.lp import certify, draft_certificate, quantile
from lpverify.lp.coverage import prefix_acceptance
from lpverify.numerics import Array, total


def solve(
    pair: ModelPair,
    draft: Delayed,
    *,
    tolerance: float,
    time_limit: float | None = None,
    progress: Callable[[RefinementStep], None] | None = None,
) -> LpSolution:
    """The optimum of ``draft`` with its certificate. The arguments are those of `lpverify.lp.quantile.solve`.

    >>> coin = ModelPair.iid([0.25, 0.75], [0.6, 0.4], depth=2)
    >>> round(solve(coin, Delayed(1, 2), tolerance=1e-9).value, 6)
    2.256
    """
    began = time.perf_counter()
    draft.check(pair)
    pair, stem_level = pair.floats, draft.stem
    above = prefix_acceptance(pair.target[:stem_level], pair.draft_paths[: stem_level + 1]) if stem_level else None
    accepted = above[-1] if above is not None else np.ones(1)
    levels = [np.zeros(level.size) for level in pair.draft_paths]
    tables: dict[int, RankTable] = {}
    status = "optimal"
    for stem in np.flatnonzero(pair.draft_paths[stem_level] > 0).tolist():
        below = draft.below(pair, stem)
        share = min(1.0, accepted[stem] / pair.draft_paths[stem_level][stem])
        scaled = ModelPair((share * below.target[0], *below.target[1:]), below.draft, below.bonus, below.tokens)
        left = None if time_limit is None else max(0.0, time_limit - (time.perf_counter() - began))
        solution = quantile.solve(scaled, draft.num_paths, tolerance=tolerance, time_limit=left, progress=progress)
        status = status if solution.status == "optimal" else solution.status
        assert isinstance(solution.certificate, Certificate)
        tables[stem] = solution.certificate.ranks
        for depth, level in enumerate(solution.certificate.multipliers[1:], 1):
            levels[stem_level + depth][stem * level.size : (stem + 1) * level.size] = level
    for depth in range(stem_level, 0, -1):
        assert above is not None
        value = 1 + (pair.target[depth] * levels[depth + 1].reshape(-1, pair.vocab_size)).sum(axis=1)
        levels[depth] = np.where(above[depth] < pair.draft_paths[depth], value, np.zeros_like(value))
    multipliers: tuple[Array, ...] = tuple(levels)
    proof = draft_certificate.certificate_of(pair, draft, tables, multipliers)
    upper = draft_certificate.upper_bound(pair, draft, multipliers)
    lower = total(proof.prefix_acceptance)
    return certify.bounded(
        lower, upper, certificate=proof, status=status, method="rank-quantile below stems", began=began
    )
