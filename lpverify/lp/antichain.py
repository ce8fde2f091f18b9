r"""The multi-path program with its coverage constraints written out (THEORY 2.2a), and by cutting planes (2.3).

    maximise  sum_c f(c)   s.t.  f(root) = 1,  0 <= f(cx) <= p(x|c) f(c),
                                 f(A) <= phi(Q(A))  for every antichain A below the root,   phi(s) = 1 - (1-s)^K

Their number grows doubly exponentially: a subtree of depth i has a_i of them, the empty one included, with a_0 = 2
and ``a_{i+1} = 1 + a_i^V``. `solve` writes all of them, for tiny trees and for teaching. `solve_by_cuts` adds
violated ones only, found exactly by `coverage.hull`; it is correct at any size but needs many rounds beyond some
hundred nodes, where the rank-quantile formulation (`lpverify.lp.quantile`) is the method of choice.

Reference: Thomas & Pal 2026 (arXiv 2602.16961).
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
from scipy import sparse

from lpverify import errors
from lpverify.core import prefix_tree as tree
from lpverify.core.model_pair import ModelPair
from lpverify.core.results import LpSolution, Round
from lpverify.lp import certify, highs
from lpverify.lp.coverage import capped_budgets, hull, phi
from lpverify.lp.single_path import flow_bounds, flow_matrix, split_levels
from lpverify.numerics import Levels, total

MAX_ANTICHAINS = 100_000
MAX_CUT_NODES = 5_000
CUTS_PER_ROUND = 200
VIOLATION = 2e-10
"""Cutting planes stop when no antichain is violated by more than this; the solver's own tolerance is 1e-10."""


def antichain_count(vocab_size: int, depth: int) -> int:
    """Number of antichains below the root, the empty one included.

    >>> antichain_count(2, 2), antichain_count(2, 3), antichain_count(3, 2)
    (25, 676, 729)
    """
    subtree = 2
    for _ in range(depth - 1):
        subtree = 1 + subtree**vocab_size
    return int(subtree**vocab_size)


def antichains(vocab_size: int, depth: int) -> sparse.csr_array:
    """All nonempty antichains below the root as rows over the nodes (breadth-first).

    >>> antichains(2, 1).toarray().astype(int).tolist()
    [[0, 1], [1, 0], [1, 1]]
    """
    # rows of one subtree, over its own nodes level by level; the single node of a leaf's subtree is in or out
    levels = [np.array([[0], [1]], dtype=np.int8)]
    for height in range(depth):
        levels = _siblings(levels, vocab_size)
        if height < depth - 1:
            size = levels[0].shape[0]
            own = np.zeros((size + 1, 1), dtype=np.int8)
            own[-1] = 1
            levels = [own, *(np.vstack([level, np.zeros((1, level.shape[1]), np.int8)]) for level in levels)]
    return sparse.csr_array(np.hstack(levels)[1:].astype(np.float64))


def solve(pair: ModelPair, paths: int) -> LpSolution:
    """The optimum with every constraint explicit. Raises SizeError beyond 100,000 antichains."""
    start = time.perf_counter()
    errors.integer("paths (K)", paths, least=1)
    _refuse_large(pair)
    pair = pair.floats
    program = coverage_program(pair, antichains(pair.vocab_size, pair.depth), paths)
    point = highs.solve(program, tolerance=1e-9)
    multipliers = split_levels(np.maximum(point.row_duals[: pair.nodes], 0.0), pair, 0.0)
    value = 1 + point.objective
    return LpSolution(
        value=value,
        lower_bound=value,
        upper_bound=max(value, float(certify.upper_bound(pair, multipliers, paths))),
        status=point.status,
        method="antichain program",
        seconds=time.perf_counter() - start,
        details={"antichains": program.matrix.shape[0] - pair.nodes, "budgets": split_levels(point.x, pair, 1.0)},
    )


def coverage_program(pair: ModelPair, rows: sparse.csr_array, paths: int) -> highs.LinearProgram:
    """The program over f (nodes below the root) with the given antichains; the first ``nodes`` rows are f <= p f."""
    draft = np.concatenate(pair.draft_paths[1:])
    return highs.LinearProgram(
        objective=np.ones(pair.nodes),
        matrix=sparse.vstack([flow_matrix(pair), rows], format="csr"),
        row_lower=np.full(pair.nodes + rows.shape[0], -np.inf),
        row_upper=np.concatenate([flow_bounds(pair), phi(rows @ draft, paths)]),
        lower=np.zeros(pair.nodes),
        upper=np.full(pair.nodes, np.inf),  # f <= 1 is implied; a bound here would take a share of the multipliers
    )


def solve_by_cuts(pair: ModelPair, paths: int, *, tolerance: float = 1e-8, max_rounds: int = 500) -> LpSolution:
    """The optimum by cutting planes, with a feasible point and certified bounds in every round.

    Every round's multipliers give an upper bound (`certify.upper_bound`); its budgets, lowered by the worst violation,
    a lower bound. ``status`` is ``"stalled"`` when ``max_rounds`` were not enough.
    """
    start = time.perf_counter()
    errors.integer("paths (K)", paths, least=1)
    if pair.nodes > MAX_CUT_NODES:
        raise errors.too_large(
            "cutting planes",
            size=f"{pair.nodes} nodes",
            limit=f"{MAX_CUT_NODES}",
            instead="use the rank-quantile formulation (method 'quantile')",
        )
    pair = pair.floats
    rows = sparse.csr_array(sparse.eye_array(pair.nodes))  # single nodes: the node relaxation
    model = highs.Model(coverage_program(pair, rows, paths), tolerance=1e-10)
    draft = np.concatenate(pair.draft_paths[1:])
    best_lower, best_upper = 1.0, np.inf
    history: list[Round] = []
    status, multipliers = "stalled", split_levels(np.zeros(pair.nodes), pair, 0.0)
    for _ in range(max_rounds):
        point = model.solve()
        budgets = split_levels(point.x, pair, 1.0)
        prices = split_levels(np.maximum(point.row_duals[: pair.nodes], 0.0), pair, 0.0)
        upper = float(certify.upper_bound(pair, prices, paths))
        if upper < best_upper:
            best_upper, multipliers = upper, prices
        cuts, violation = violated(pair, budgets, paths)
        # taking v off every node takes at least v off every antichain, and keeps f(cx) <= p f(c)
        safe = capped_budgets(pair, tuple(np.maximum(level - violation, 0.0) for level in budgets))
        best_lower = max(best_lower, float(total(safe)))
        history.append(Round(0, point.row_duals.size, best_lower, best_upper, time.perf_counter() - start))
        if best_upper - best_lower <= tolerance or violation <= VIOLATION:
            status = "optimal" if best_upper - best_lower <= tolerance else "stalled"
            break
        model.add_rows(cuts, np.full(cuts.shape[0], -np.inf), phi(cuts @ draft, paths))
    return LpSolution(
        value=best_lower,
        lower_bound=best_lower,
        upper_bound=max(best_lower, best_upper),
        status=status,
        method="cutting planes",
        seconds=time.perf_counter() - start,
        rounds=tuple(history),
        details={"multipliers": multipliers},
    )


def violated(pair: ModelPair, budgets: Levels, paths: int) -> tuple[sparse.csr_array, float]:
    """The most violated antichains among the hull's vertices as rows over the nodes, and the worst violation."""
    vertices = hull(pair.draft_paths, budgets)
    excess = vertices.height - phi(vertices.mass, paths)
    chosen = np.argsort(-excess)[:CUTS_PER_ROUND]
    chosen = chosen[excess[chosen] > 0]
    masks = [np.concatenate(vertices.antichain(int(k))[1:]) for k in chosen]
    rows = sparse.csr_array(np.array(masks, dtype=np.float64).reshape(len(masks), pair.nodes))
    return rows, float(excess.max())


def _siblings(levels: list[npt.NDArray[np.int8]], vocab_size: int) -> list[npt.NDArray[np.int8]]:
    """All combinations of one row per sibling subtree, level by level."""
    choices = tree.level_size(levels[0].shape[0], vocab_size)
    picks = np.array(np.unravel_index(np.arange(choices), (levels[0].shape[0],) * vocab_size))
    return [np.hstack([level[pick] for pick in picks]) for level in levels]


def _refuse_large(pair: ModelPair) -> None:
    subtree, depth = 2, 1
    while depth < pair.depth and subtree < MAX_ANTICHAINS:  # the exact number may have millions of digits
        subtree, depth = 1 + subtree**pair.vocab_size, depth + 1
    if subtree >= MAX_ANTICHAINS or subtree**pair.vocab_size > MAX_ANTICHAINS:
        raise errors.too_large(
            "antichain program",
            size=f"the number of antichains for V = {pair.vocab_size}, L = {pair.depth}",
            limit=f"{MAX_ANTICHAINS}",
            instead="use the rank-quantile formulation (method 'quantile') or cutting planes",
        )
