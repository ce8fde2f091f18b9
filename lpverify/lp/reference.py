r"""Reference formulations of the multi-path program, for small trees and for teaching (theory 2.2, 2.3).

Two formulations that share no code for the coverage of draft paths and must agree. Both maximise ``sum_c f(c)``
subject to ``f(root) = 1`` and ``0 <= f(cx) <= p(x|c) f(c)``:

* `solve_antichains`: ``f(A) <= phi(Q(A))`` for every antichain A below the root, ``phi(s) = 1 - (1-s)^K``. A subtree of
  depth i has a_i antichains, the empty one included: a_0 = 2, ``a_{i+1} = 1 + a_i^V``. `solve_by_cuts` adds the
  violated ones only, found exactly by `coverage.hull`; correct at any size, but slow beyond some hundred nodes.
* `solve_flow`: a flow from every multiset of K drafted leaves to the nodes where it may stop; about V^(L K) variables.

Reference: Thomas & Pal 2026 (arXiv 2602.16961).
"""

from __future__ import annotations

import time
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from lpverify import errors
from lpverify.core import prefix_tree as tree
from lpverify.core.model_pair import ModelPair
from lpverify.core.results import LpSolution, RefinementStep
from lpverify.drafting import DraftLike, draft_distribution
from lpverify.drafting.base import ConcaveCoverage
from lpverify.drafting.iid_paths import phi
from lpverify.lp import certify, draft_certificate, highs
from lpverify.lp.coverage import hull, prefix_acceptance
from lpverify.lp.single_path import child_matrix, flow_bounds, flow_matrix, flow_multipliers, split_levels
from lpverify.numerics import Levels, total

MAX_ANTICHAINS = 100_000
MAX_CUT_NODES = 5_000
MAX_FLOWS = 200_000  # estimated as drafts x expected nodes
INSTEAD = "use the rank-quantile formulation (method 'quantile')"

CUTS_PER_ROUND = 200
VIOLATION = 2e-10
"""Cutting planes stop when no antichain is violated by more than this; the solver's own tolerance is 1e-10."""

Ints = npt.NDArray[np.int64]


def solve_antichains(pair: ModelPair, num_paths: int) -> LpSolution:
    """The optimum with every antichain constraint written out, by HiGHS.

    ``details`` of the solution holds the number of ``antichains`` and ``prefix_acceptance``, f by level. Raises
    InputError for K < 1, SizeError beyond 100,000 antichains.

    >>> coin = ModelPair.from_levels([[[0.25, 0.75]]], [[[0.6, 0.4]]])
    >>> round(solve_antichains(coin, 2).value, 9), round(solve_flow(coin, 2).value, 9)
    (1.89, 1.89)
    """
    began = time.perf_counter()
    errors.integer("num_paths (K)", num_paths, min=1)
    subtree, depth = 2, 1
    while depth < pair.depth and subtree < MAX_ANTICHAINS:  # the exact number may have millions of digits
        subtree, depth = 1 + subtree**pair.vocab_size, depth + 1
    if subtree >= MAX_ANTICHAINS or subtree**pair.vocab_size > MAX_ANTICHAINS:
        size = f"the number of antichains for V = {pair.vocab_size}, L = {pair.depth}"
        instead = f"{INSTEAD} or cutting planes"
        raise errors.too_large("antichain program", size=size, limit=f"{MAX_ANTICHAINS}", instead=instead)
    pair = pair.floats
    program = coverage_program(pair, antichains(pair.vocab_size, pair.depth), num_paths)
    point = highs.solve(program, tolerance=1e-9)
    details: dict[str, Any] = {"antichains": program.matrix.shape[0] - pair.nodes}
    details["prefix_acceptance"] = split_levels(point.x, pair, 1.0)
    upper = certify.upper_bound(pair, flow_multipliers(pair, point), num_paths)
    fields = {"status": point.status, "method": "antichain program", "details": details}
    return certify.bounded(1 + point.objective, upper, began=began, **fields)


def antichains(vocab_size: int, depth: int) -> sparse.csr_array:
    """All nonempty antichains below the root as 0-1 rows over the nodes (breadth-first), shape (antichains, nodes).

    >>> antichains(2, 1).toarray().astype(int).tolist()
    [[0, 1], [1, 0], [1, 1]]
    """
    levels = [np.array([[0], [1]], dtype=np.int8)]  # of the subtree of a leaf: the leaf is out or in
    for height in range(depth):
        # All combinations of one antichain per sibling subtree, level by level of the subtrees.
        count = len(levels[0])
        picks = np.unravel_index(np.arange(tree.level_size(count, vocab_size)), (count,) * vocab_size)
        levels = [np.hstack([level[pick] for pick in picks]) for level in levels]
        if height < depth - 1:  # or the parent of these siblings alone
            parent_alone = np.arange(len(levels[0]) + 1)[:, None] == len(levels[0])
            levels = [parent_alone, *(np.vstack([level, np.zeros((1, level.shape[1]), np.int8)]) for level in levels)]
    return sparse.csr_array(np.hstack(levels)[1:].astype(np.float64))


def coverage_program(pair: ModelPair, rows: sparse.csr_array, num_paths: int) -> highs.LinearProgram:
    """The program over f (nodes below the root) with the antichains ``rows``; its first ``nodes`` rows are f <= p f."""
    draft = np.concatenate(pair.draft_paths[1:])
    upper = np.concatenate([flow_bounds(pair), phi(rows @ draft, num_paths)])
    # f <= 1 is implied; a bound on the columns would take a share of the multipliers
    return highs.LinearProgram(np.ones(pair.nodes), sparse.vstack([flow_matrix(pair), rows]), -np.inf, upper)


def solve_by_cuts(pair: ModelPair, num_paths: int, *, tolerance: float = 1e-8, max_rounds: int = 500) -> LpSolution:
    """The optimum by cutting planes, with certified bounds in every round: its multipliers, its f `lowered`.

    It stops at a gap of ``tolerance``, or as "stalled" after ``max_rounds``. ``details`` of the solution holds the
    ``multipliers`` of the upper bound by level. Raises InputError for K < 1, SizeError beyond 5,000 nodes.
    """
    began = time.perf_counter()
    errors.integer("num_paths (K)", num_paths, min=1)
    if pair.nodes > MAX_CUT_NODES:
        limit = f"{MAX_CUT_NODES}"
        raise errors.too_large("cutting planes", size=f"{pair.nodes} nodes", limit=limit, instead=INSTEAD)
    pair = pair.floats
    rows = sparse.csr_array(sparse.eye_array(pair.nodes))  # single nodes: the node relaxation
    model = highs.Model(coverage_program(pair, rows, num_paths), tolerance=1e-10)
    draft = np.concatenate(pair.draft_paths[1:])
    lower, upper = 1.0, np.inf
    history: list[RefinementStep] = []
    for _ in range(max_rounds):
        point = model.solve()
        acceptance = split_levels(point.x, pair, 1.0)
        multipliers = flow_multipliers(pair, point)
        proved = float(certify.upper_bound(pair, multipliers, num_paths))
        if proved < upper:
            upper, best = proved, multipliers
        cuts, violation = violated(pair, acceptance, num_paths)
        lower = max(lower, float(total(lowered(pair, acceptance, violation))))
        history.append(RefinementStep(0, point.row_duals.size, lower, upper, time.perf_counter() - began))
        if upper - lower <= tolerance or violation <= VIOLATION:
            break
        model.add_rows(cuts, phi(cuts @ draft, num_paths))
    status = "optimal" if upper - lower <= tolerance else "stalled"
    proof: dict[str, Any] = {"refinement_steps": tuple(history), "details": {"multipliers": best}}
    return certify.bounded(lower, upper, status=status, method="cutting planes", began=began, **proof)


def violated(pair: ModelPair, acceptance: Levels, num_paths: int) -> tuple[sparse.csr_array, float]:
    """The most violated antichains among the hull's vertices as rows over the nodes, and the worst violation."""
    vertices = hull(pair.draft_paths, acceptance)
    excess = vertices.height - phi(vertices.mass, num_paths)
    chosen = np.argsort(-excess)[:CUTS_PER_ROUND]
    masks = [np.concatenate(vertices.antichain(int(k))[1:]) for k in chosen[excess[chosen] > 0]]
    rows = sparse.csr_array(np.array(masks, dtype=np.float64).reshape(len(masks), pair.nodes))
    return rows, float(excess.max())


def lowered(pair: ModelPair, acceptance: Levels, violation: object) -> Levels:
    """A feasible point near f: ``violation`` off every node is at least that off every antichain; keeps f <= p f."""
    return prefix_acceptance(pair.target, [np.maximum(level - violation, 0 * level) for level in acceptance])


def solve_flow(pair: ModelPair, draft: DraftLike) -> LpSolution:
    """The optimum of the flow program, by HiGHS, for any draft distribution; ``draft`` may be K, for K i.i.d. paths.

    ``details`` of the solution holds the number of ``drafts`` and ``prefix_acceptance``, f by level. Raises InputError
    for no draft distribution of the pair, SizeError beyond 200,000 flow variables.
    """
    began = time.perf_counter()
    law = draft_distribution(draft)
    law.check(pair)
    pair = pair.floats
    flows = ceil(law.count(pair, ordered=False) * law.expected_nodes(pair))
    if flows > MAX_FLOWS:
        size = f"about {flows} flow variables for V = {pair.vocab_size}, L = {pair.depth}, {law.spec}"
        instead = INSTEAD if isinstance(law, ConcaveCoverage) else "use the method 'auto'"
        raise errors.too_large("transport program", size=size, limit=f"{MAX_FLOWS}", instead=instead)
    drafts = list(law.enumerate(pair, ordered=False))
    covered, vocab_size = set(), pair.vocab_size
    for number, one in enumerate(drafts):
        prefixes = {path[:length] for path in one.paths for length in range(1, len(path) + 1)}
        covered |= {(number, tree.node_count(vocab_size, len(c) - 1) + tree.index_of(c, vocab_size)) for c in prefixes}
    draft_of, node = np.array(sorted(covered), dtype=np.int64).reshape(-1, 2).T
    probability = np.array([one.probability for one in drafts])
    point = highs.solve(flow_program(pair, probability, draft_of, node), tolerance=1e-9)
    details: dict[str, Any] = {
        "drafts": len(drafts),
        "prefix_acceptance": split_levels(point.x[: pair.nodes], pair, 1.0),
    }
    upper = draft_certificate.upper_bound(pair, law, monotone_multipliers(pair, point))
    fields = {"status": point.status, "method": "transport program", "details": details}
    return certify.bounded(1 + point.objective, upper, began=began, **fields)


def flow_program(pair: ModelPair, probability: npt.NDArray[np.float64], draft: Ints, node: Ints) -> highs.LinearProgram:
    """Columns: f, then one flow(m, c) per (draft m, node c). Rows, after ``f <= p f``: ``f(c) - sum_x f(cx) = sum_m
    flow(m, c)`` for every node below the root, ``sum_c flow(m, c) <= Pr(m)``; the rest of Pr(m) stops at the root."""
    flows, drafts, nodes = len(draft), len(probability), pair.nodes
    stops = sparse.eye_array(nodes) - child_matrix(pair)
    into = sparse.coo_array((np.ones(flows), (node, np.arange(flows))), shape=(nodes, flows))
    supply = sparse.coo_array((np.ones(flows), (draft, np.arange(flows))), shape=(drafts, flows))
    lower = np.repeat([-np.inf, 0.0, -np.inf], [nodes, nodes, drafts])
    upper = np.concatenate([flow_bounds(pair), np.zeros(nodes), probability])
    rows = [[flow_matrix(pair), None], [stops, -into], [None, supply]]
    return highs.LinearProgram(np.repeat([1.0, 0.0], [nodes, flows]), sparse.block_array(rows), lower, upper)


def monotone_multipliers(pair: ModelPair, point: highs.LpPoint) -> Levels:
    """Multipliers lambda of f <= p f for `certify.upper_bound`, from a solution of the flow program.

    Dual feasibility is ``lambda(c) + w(c) - w(parent) - sum_x p(x|c) lambda(cx) >= 1``, w the price of flow into a
    node (0 at the root), so y(c) = w(c) - w(parent). A draft pays the dearest node it covers. Hence w may be replaced
    by its maximum W along the path from the root, which makes y >= 0; adding the parent's W - w to lambda keeps
    feasibility and value.
    """
    price = split_levels(point.row_duals[pair.nodes : 2 * pair.nodes], pair, 0.0)
    multipliers = flow_multipliers(pair, point)
    highest, raised = [price[0]], [multipliers[0]]
    for depth in range(1, pair.depth + 1):
        raised.append(multipliers[depth] + np.repeat(highest[-1] - price[depth - 1], pair.vocab_size))
        highest.append(np.maximum(price[depth], np.repeat(highest[-1], pair.vocab_size)))
    return tuple(raised)
