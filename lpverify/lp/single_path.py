r"""One draft path: the linear program whose optimum is block verification (THEORY 1).

f(c) is the probability that the accepted prefix passes through c. Losslessness needs ``f(cx) <= p(x|c) f(c)`` (the
extra token's law after a stop at c is proportional to ``p(x|c) f(c) - f(cx)``), one draft path needs ``f(c) <=
Q(c)``:

    maximise  sum_c f(c)   s.t.  f(root) = 1,  0 <= f(cx) <= p(x|c) f(c),  f(c) <= Q(c)
    minimise  1 + sum_x p(x|root) lambda(x) + sum_{c != root} Q(c) y(c)
              s.t.  lambda, y >= 0,  lambda(c) + y(c) - sum_x p(x|c) lambda(cx) >= 1     (no sum at a leaf)

The top-down pass ``f(cx) = min(p(x|c) f(c), Q(cx))`` is the coordinate-wise largest feasible point, hence optimal.
Given f, one bottom-up pass gives optimal multipliers: with ``d(c) = 1 + sum_x p(x|c) lambda(cx)`` put ``lambda(c) =
d(c), y(c) = 0`` where p f binds and ``lambda(c) = 0, y(c) = d(c)`` where Q binds; complementary slackness holds.

Reference: Sun et al. 2024 (arXiv 2403.10444), block verification; Thomas & Pal 2026 (arXiv 2602.16961), the program.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from lpverify import errors
from lpverify.core import prefix_tree as tree
from lpverify.core.model_pair import ModelPair
from lpverify.core.results import Certificate, LpSolution, RankTable
from lpverify.lp import certify, highs
from lpverify.lp.coverage import capped_budgets
from lpverify.numerics import Array, Levels, ones, total, zeros

MAX_LP_NODES = 20_000
"""Largest tree that `solve_as_lp` takes; the closed form has no limit."""


def solve(pair: ModelPair) -> LpSolution:
    """The optimum in closed form, exact for a rational pair.

    >>> pair = ModelPair.from_levels([[[0.2, 0.5, 0.3]]], [[[0.6, 0.3, 0.1]]])
    >>> round(solve(pair).value, 12)
    1.6
    """
    start = time.perf_counter()
    budgets = capped_budgets(pair, pair.draft_paths)
    multipliers = optimal_multipliers(pair, budgets)
    lower, upper = total(budgets), certify.upper_bound(pair, multipliers, 1)
    assert not pair.rational or lower == upper
    return LpSolution(
        value=float(lower),
        lower_bound=float(lower),
        upper_bound=max(float(lower), float(upper)),
        status="optimal",
        method="closed form",
        seconds=time.perf_counter() - start,
        certificate=Certificate(1, one_bin(pair), pair.draft_paths, budgets, multipliers),
        exact=lower if pair.rational else None,
        exact_bounds=(lower, upper) if pair.rational else None,
    )


def optimal_multipliers(pair: ModelPair, budgets: Levels) -> Levels:
    """Optimal lambda for the ``budgets`` of the closed form, one array per level (0 at the root)."""
    below = [zeros(budgets[-1].size, budgets[0])]  # sum_x p(x|c) lambda(cx) for the nodes of the current level
    multipliers = []
    for depth in range(pair.depth, 0, -1):
        binds = budgets[depth] < pair.draft_paths[depth]
        level = np.where(binds, 1 + below[-1], 0 * below[-1])
        multipliers.append(level)
        below.append((pair.target[depth - 1] * level.reshape(-1, pair.vocab_size)).sum(axis=1))
    return (zeros(1, budgets[0]), *reversed(multipliers))


def solve_as_lp(pair: ModelPair) -> LpSolution:
    """The same optimum from the explicit program, by HiGHS; certified like the closed form."""
    start = time.perf_counter()
    if pair.nodes > MAX_LP_NODES:
        raise errors.too_large(
            "single-path program",
            size=f"{pair.nodes} nodes",
            limit=f"{MAX_LP_NODES}",
            instead="use the closed form (single_path.solve)",
        )
    pair = pair.floats
    point = highs.solve(
        highs.LinearProgram(
            objective=np.ones(pair.nodes),
            matrix=flow_matrix(pair),
            row_lower=np.full(pair.nodes, -np.inf),
            row_upper=flow_bounds(pair),
            lower=np.zeros(pair.nodes),
            upper=np.concatenate(pair.draft_paths[1:]),
        ),
        tolerance=1e-10,
    )
    multipliers = split_levels(np.maximum(point.row_duals, 0.0), pair, 0.0)
    certificate, lower, upper = certify.certify(pair, one_bin(pair), multipliers, 1)
    return LpSolution(
        value=1 + point.objective,
        lower_bound=lower.value,
        upper_bound=max(upper, lower.value),
        status=point.status,
        method="HiGHS",
        seconds=time.perf_counter() - start,
        certificate=certificate,
    )


def one_bin(pair: ModelPair) -> RankTable:
    """The rank table that selects a path blindly (one bin), the only one that matters for K = 1."""
    like = pair.draft[0]
    leaf_mass = pair.draft_paths[-1]
    return RankTable(
        edges=np.concatenate([zeros(1, like), ones(1, like)]),
        leaf=np.arange(leaf_mass.size),
        bin=np.zeros(leaf_mass.size, dtype=np.int64),
        mass=leaf_mass,
    )


def flow_matrix(pair: ModelPair) -> sparse.csr_array:
    """Rows ``f(cx) - p(x|c) f(c) <= p(x|root) [c = root]``: one row and one column per node below the root.

    >>> pair = ModelPair.from_levels([[[0.25, 0.75]], [[0.5, 0.5], [1.0, 0.0]]], [[[0.5, 0.5]], [[0.5, 0.5]] * 2])
    >>> flow_matrix(pair).toarray()[2:4].tolist()  # nodes "00" and "01", children of "0"
    [[-0.5, 0.0, 1.0, 0.0, 0.0, 0.0], [-0.5, 0.0, 0.0, 1.0, 0.0, 0.0]]
    """
    vocab_size = pair.vocab_size
    nodes = np.arange(pair.nodes)
    below = nodes[vocab_size:]
    parents = below // vocab_size - 1  # breadth-first numbers below the root: the children of n start at (n+1) V
    target = np.concatenate([rows.reshape(-1) for rows in pair.target[1:]]) if pair.depth > 1 else np.zeros(0)
    values = np.concatenate([np.ones(pair.nodes), -target])
    places = np.concatenate([nodes, below]), np.concatenate([nodes, parents])
    matrix = sparse.coo_array((values, places), shape=(pair.nodes, pair.nodes)).tocsr()
    matrix.eliminate_zeros()
    return matrix


def flow_bounds(pair: ModelPair) -> npt.NDArray[np.float64]:
    """Right sides of `flow_matrix`: p(x|root) for the root's children, 0 elsewhere."""
    bounds = np.zeros(pair.nodes)
    bounds[: pair.vocab_size] = pair.target[0][0]
    return bounds


def split_levels(flat: Array, pair: ModelPair, root: Any) -> Levels:
    """A breadth-first vector over the nodes below the root as levels 0..L, with ``root`` as the root's entry."""
    ends = np.cumsum([tree.level_size(pair.vocab_size, depth) for depth in range(1, pair.depth)])
    first = zeros(1, flat)
    first[0] = root
    return (first, *np.split(flat, ends))
