r"""The multi-path program as a transport from drafts to stop nodes (THEORY 2.2b), for tiny instances.

A draft is a multiset m of K leaves, with multinomial probability Pr(m). It may stop at any node that it covers:

    maximise  sum_c f(c)   s.t.  f(root) = 1,  0 <= f(cx) <= p(x|c) f(c),
              f(c) - sum_x f(cx) = sum_m flow(m, c)      for every node c below the root,
              sum_{c covered by m, not the root} flow(m, c) <= Pr(m),     flow >= 0.

What a draft does not send down stops at the root. By max-flow = min-cut a flow exists exactly when f meets the coverage
constraints of all antichains, so the value is that of `lpverify.lp.antichain`; the two share no code for it.
The number of variables grows like V^(L K).

Reference: Thomas & Pal 2026 (arXiv 2602.16961).
"""

from __future__ import annotations

import time
from itertools import combinations_with_replacement
from math import comb, factorial

import numpy as np
import numpy.typing as npt
from scipy import sparse

from lpverify import errors
from lpverify.core import prefix_tree as tree
from lpverify.core.model_pair import ModelPair
from lpverify.core.results import LpSolution
from lpverify.lp import certify, highs
from lpverify.lp.single_path import flow_bounds, flow_matrix, split_levels
from lpverify.numerics import Levels

MAX_FLOWS = 200_000
"""Largest number of flow variables, counted as multisets x K x L."""

Vector = npt.NDArray[np.float64]


def solve(pair: ModelPair, paths: int) -> LpSolution:
    """The optimum of the transport program. Raises SizeError beyond 200,000 flow variables."""
    start = time.perf_counter()
    errors.integer("paths (K)", paths, least=1)
    leaves = tree.level_size(pair.vocab_size, pair.depth)
    flows = comb(leaves + paths - 1, paths) * paths * pair.depth
    if flows > MAX_FLOWS:
        raise errors.too_large(
            "transport program",
            size=f"{flows} flow variables for V = {pair.vocab_size}, L = {pair.depth}, K = {paths}",
            limit=f"{MAX_FLOWS}",
            instead="use the rank-quantile formulation (method 'quantile')",
        )
    pair = pair.floats
    drafts, probability = multisets(pair.draft_paths[-1], paths)
    draft, node = coverage_pairs(drafts, pair.vocab_size, pair.depth)
    point = highs.solve(transport_program(pair, probability, draft, node), tolerance=1e-9)
    multipliers = monotone_multipliers(pair, point.row_duals)
    value = 1 + point.objective
    return LpSolution(
        value=value,
        lower_bound=value,
        upper_bound=max(value, float(certify.upper_bound(pair, multipliers, paths))),
        status=point.status,
        method="transport program",
        seconds=time.perf_counter() - start,
        details={"drafts": len(probability), "budgets": split_levels(point.x[: pair.nodes], pair, 1.0)},
    )


def monotone_multipliers(pair: ModelPair, duals: Vector) -> Levels:
    """Multipliers lambda of f <= p f that `certify.upper_bound` can use, from the program's row duals.

    Dual feasibility is ``lambda(c) + w(c) - w(parent) - sum_x p(x|c) lambda(cx) >= 1``, w the price of flow into a
    node (0 at the root), so y(c) = w(c) - w(parent). A draft pays its dearest node, hence w may be replaced by its
    maximum W along the path from the root, which makes y >= 0; adding the parent's W - w to lambda keeps
    feasibility and value.
    """
    price = split_levels(duals[pair.nodes : 2 * pair.nodes], pair, 0.0)
    multipliers = split_levels(np.maximum(duals[: pair.nodes], 0.0), pair, 0.0)
    highest, raised = [price[0]], [multipliers[0]]
    for depth in range(1, pair.depth + 1):
        raised.append(multipliers[depth] + np.repeat(highest[-1] - price[depth - 1], pair.vocab_size))
        highest.append(np.maximum(price[depth], np.repeat(highest[-1], pair.vocab_size)))
    return tuple(raised)


def multisets(leaf_mass: Vector, paths: int) -> tuple[npt.NDArray[np.int64], Vector]:
    """All multisets of K leaves of positive mass, shape (M, K), and their probabilities ``K! prod q^n / n!``.

    >>> drafts, probability = multisets(np.array([0.5, 0.5]), 2)
    >>> drafts.tolist(), probability.tolist()
    ([[0, 0], [0, 1], [1, 1]], [0.25, 0.5, 0.25])
    """
    support = np.flatnonzero(leaf_mass)
    drafts = np.array(list(combinations_with_replacement(support.tolist(), paths)), dtype=np.int64)
    orders = np.full(len(drafts), factorial(paths), dtype=np.float64)
    repeats = np.ones(len(drafts))
    for k in range(1, paths):  # the run of equal leaves that ends at position k divides by 2, 3, ...
        repeats = np.where(drafts[:, k] == drafts[:, k - 1], repeats + 1, 1.0)
        orders /= repeats
    return drafts, orders * leaf_mass[drafts].prod(axis=1)


def coverage_pairs(
    drafts: npt.NDArray[np.int64], vocab_size: int, depth: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """All pairs (draft, node below the root that it covers), nodes breadth-first.

    >>> [part.tolist() for part in coverage_pairs(np.array([[0, 1], [3, 3]]), 2, 2)]  # "00" with "01"; "11" twice
    [[0, 0, 0, 1, 1], [0, 2, 3, 1, 5]]
    """
    nodes = []
    for level in range(1, depth + 1):
        first = tree.node_count(vocab_size, level - 1)
        nodes.append(first + drafts // vocab_size ** (depth - level))
    covered = np.concatenate(nodes, axis=1)
    draft = np.repeat(np.arange(len(drafts)), covered.shape[1])
    pairs = np.unique(np.stack([draft, covered.reshape(-1)]), axis=1)
    return pairs[0], pairs[1]


def transport_program(
    pair: ModelPair, probability: Vector, draft: npt.NDArray[np.int64], node: npt.NDArray[np.int64]
) -> highs.LinearProgram:
    """Variables: f, then one flow for each (draft, node); rows: f <= p f, flow into each node, supply of each draft."""
    flows, drafts = len(draft), len(probability)
    vocab_size = pair.vocab_size
    children = np.arange(vocab_size, pair.nodes)
    stops = sparse.eye_array(pair.nodes) - sparse.coo_array(
        (np.ones(len(children)), (children // vocab_size - 1, children)), shape=(pair.nodes, pair.nodes)
    )
    into = sparse.coo_array((np.ones(flows), (node, np.arange(flows))), shape=(pair.nodes, flows))
    supply = sparse.coo_array((np.ones(flows), (draft, np.arange(flows))), shape=(drafts, flows))
    zero = np.zeros(pair.nodes)
    return highs.LinearProgram(
        objective=np.concatenate([np.ones(pair.nodes), np.zeros(flows)]),
        matrix=sparse.block_array([[flow_matrix(pair), None], [stops, -into], [None, supply]], format="csr"),
        row_lower=np.concatenate([np.full(pair.nodes, -np.inf), zero, np.full(drafts, -np.inf)]),
        row_upper=np.concatenate([flow_bounds(pair), zero, probability]),
        lower=np.zeros(pair.nodes + flows),
        upper=np.full(pair.nodes + flows, np.inf),
    )
