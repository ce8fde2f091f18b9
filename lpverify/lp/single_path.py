r"""One draft path: the linear program whose optimum is block verification (theory 1).

    maximise  sum_c f(c)   s.t.  f(root) = 1,  0 <= f(cx) <= p(x|c) f(c),  f(c) <= Q(c)

The top-down pass ``f(cx) = min(p(x|c) f(c), Q(cx))`` is the coordinate-wise largest feasible point, hence optimal. One
bottom-up pass gives multipliers of equal value: with ``d(c) = 1 + sum_x p(x|c) lambda(cx)`` put ``lambda(c) = d(c)``
where p f binds and 0 where Q binds.

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

MAX_LP_NODES = 20_000  # of `solve_as_lp`; the closed form has no limit


def solve(pair: ModelPair) -> LpSolution:
    """The optimum in closed form, with its certificate; exact for a rational pair.

    >>> pair = ModelPair.from_levels([[[0.2, 0.5, 0.3]]], [[[0.6, 0.3, 0.1]]])
    >>> round(solve(pair).value, 12)
    1.6
    """
    began = time.perf_counter()
    acceptance = prefix_acceptance(pair.target, pair.draft_paths)
    sums = zeros(acceptance[-1].size, pair.target[0])  # sum_x p(x|c) lambda(cx) of the nodes c of a level
    multipliers: list[Array] = []
    for depth in range(pair.depth, 0, -1):
        multipliers.insert(0, np.where(acceptance[depth] < pair.draft_paths[depth], 1 + sums, 0 * sums))
        sums = (pair.target[depth - 1] * multipliers[0].reshape(-1, pair.vocab_size)).sum(axis=1)
    multipliers.insert(0, zeros(1, pair.target[0]))
    solution = _solution(pair, tuple(multipliers), status="optimal", method="closed form", began=began)
    assert not pair.rational or solution.exact is not None
    return solution


def solve_as_lp(pair: ModelPair) -> LpSolution:
    """The same optimum from the explicit program, by HiGHS, and certified. Raises SizeError beyond 20,000 nodes."""
    began = time.perf_counter()
    if pair.nodes > MAX_LP_NODES:
        instead = "use the closed form (single_path.solve)"
        raise errors.too_large(
            "single-path program", size=f"{pair.nodes} nodes", limit=f"{MAX_LP_NODES}", instead=instead
        )
    pair = pair.floats
    draft = np.concatenate(pair.draft_paths[1:])
    program = highs.LinearProgram(np.ones(pair.nodes), flow_matrix(pair), -np.inf, flow_bounds(pair), upper=draft)
    point = highs.solve(program, tolerance=1e-10)
    return _solution(pair, flow_multipliers(pair, point), status=point.status, method="HiGHS", began=began)


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
    return np.concatenate([pair.target[0][0], np.zeros(pair.nodes - pair.vocab_size)])


def flow_multipliers(pair: ModelPair, point: highs.LpPoint) -> Levels:
    """lambda >= 0 by level from a program whose first rows are those of `flow_matrix`."""
    return split_levels(np.maximum(point.row_duals[: pair.nodes], 0.0), pair, 0.0)


def split_levels(flat: Array, pair: ModelPair, root: Any) -> Levels:
    """A breadth-first vector over the nodes below the root as levels 0..L, with ``root`` as the root's entry."""
    ends = np.cumsum([tree.level_size(pair.vocab_size, depth) for depth in range(1, pair.depth)])
    return (np.array([root], dtype=flat.dtype), *np.split(flat, ends))
