r"""One draft path: the linear program whose optimum is block verification (theory 1).

f(c) is the probability that the accepted prefix passes through c. Losslessness needs ``f(cx) <= p(x|c) f(c)`` (after
a stop at c the next token has a distribution proportional to ``p(x|c) f(c) - f(cx)``); one draft path needs
``f(c) <= Q(c)``:

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
from lpverify.core.results import LpSolution, RankTable
from lpverify.lp import certify, highs
from lpverify.lp.coverage import prefix_acceptance
from lpverify.numerics import Array, Levels, ones, total, zeros

MAX_LP_NODES = 20_000
"""Largest tree that `solve_as_lp` takes; the closed form has no limit."""


def solve(pair: ModelPair) -> LpSolution:
    """The optimum in closed form, with its certificate; exact for a rational pair.

    >>> pair = ModelPair.from_levels([[[0.2, 0.5, 0.3]]], [[[0.6, 0.3, 0.1]]])
    >>> round(solve(pair).value, 12)
    1.6
    """
    began = time.perf_counter()
    acceptance = prefix_acceptance(pair.target, pair.draft_paths)
    sums = zeros(acceptance[-1].size, pair.target[0])  # sum_x p(x|c) lambda(cx) of the nodes c of a level
    multipliers = []
    for depth in range(pair.depth, 0, -1):
        target_binds = acceptance[depth] < pair.draft_paths[depth]
        level = np.where(target_binds, 1 + sums, 0 * sums)
        multipliers.append(level)
        sums = (pair.target[depth - 1] * level.reshape(-1, pair.vocab_size)).sum(axis=1)
    multipliers.append(zeros(1, pair.target[0]))
    solution = _solution(pair, tuple(multipliers[::-1]), status="optimal", method="closed form", began=began)
    assert not pair.rational or solution.exact is not None
    return solution


def solve_as_lp(pair: ModelPair) -> LpSolution:
    """The same optimum from the explicit program, by HiGHS; certified like the closed form.

    Raises SizeError beyond 20,000 nodes.
    """
    began = time.perf_counter()
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
    return _solution(pair, multipliers, status=point.status, method="HiGHS", began=began)


def _solution(pair: ModelPair, multipliers: Levels, **fields: Any) -> LpSolution:
    certificate = certify.certificate_of(pair, one_bin(pair), multipliers, 1)
    upper = certify.upper_bound(pair, multipliers, 1)
    return certify.bounded(total(certificate.prefix_acceptance), upper, certificate=certificate, **fields)


def one_bin(pair: ModelPair) -> RankTable:
    """The rank table with one bin: it selects a path blindly, which is all there is to choose for K = 1."""
    like, leaf_mass = pair.draft[0], pair.draft_paths[-1]
    edges = np.concatenate([zeros(1, like), ones(1, like)])
    return RankTable(edges, np.arange(leaf_mass.size), np.zeros(leaf_mass.size, dtype=np.int64), leaf_mass)


def flow_matrix(pair: ModelPair) -> sparse.csr_array:
    """Rows ``f(cx) - p(x|c) f(c) <= p(x|root) [c = root]``: one row and one column per node below the root.

    >>> pair = ModelPair.from_levels([[[0.25, 0.75]], [[0.5, 0.5], [1.0, 0.0]]], [[[0.5, 0.5]], [[0.5, 0.5]] * 2])
    >>> flow_matrix(pair).toarray()[2:4].tolist()  # nodes "00" and "01", children of "0"
    [[-0.5, 0.0, 1.0, 0.0, 0.0, 0.0], [-0.5, 0.0, 0.0, 1.0, 0.0, 0.0]]
    """
    target = np.concatenate([rows.reshape(-1) for rows in pair.target])
    matrix = sparse.csr_array(sparse.eye_array(pair.nodes) - child_matrix(pair).T.multiply(target[:, None]))
    matrix.eliminate_zeros()
    return matrix


def child_matrix(pair: ModelPair) -> sparse.csr_array:
    """Row c has ones at the children of c (none for a leaf), nodes below the root breadth-first, shape (nodes, nodes).

    >>> child_matrix(ModelPair.from_levels([[[1.0]]] * 2, [[[1.0]]] * 2)).toarray().tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    children = np.arange(pair.vocab_size, pair.nodes)
    parents = children // pair.vocab_size - 1  # the children of node n start at (n+1) V
    return sparse.csr_array((np.ones(children.size), (parents, children)), shape=(pair.nodes, pair.nodes))


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
