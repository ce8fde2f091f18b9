"""The best single ranking: GBV's frame with the best order of all leaves instead of GBV's own.

A ranking is a strict order of the N = V^L leaves; the best ranked of the K drafted paths is block-verified. With
better(x) the draft mass of the leaves ranked before x, the selection distribution of the leaves is
Q*(x) = (1 - better(x))^K - (1 - better(x) - Q(x))^K. These are the vertices of the base of the coverage polymatroid
(theory 2.4): GBV <= best single ranking <= multi-path optimum, and the last gap is the gain from mixing rankings.

Thomas and Pal, arXiv 2602.16961 (GBV is the case of an order by p/q at every node).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from math import factorial

import numpy as np
import numpy.typing as npt

from lpverify.core.model_pair import ModelPair
from lpverify.core.problem import ProblemLike, as_problem
from lpverify.lp.coverage import phi_chord, prefix_acceptance
from lpverify.numerics import divide, up_the_tree

EFFORT = 40_000_000  # maximum number of orders x leaves x K to evaluate, about a second
BATCH = 256  # neighbours of an order that are evaluated together; the search moves to the best one if it is better
PATIENCE = 30  # local search stops after this many batches without a better order

Orders = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RankingResult:
    """The best of the orders that were tried."""

    block_efficiency: float
    order: Orders  # the leaves of positive draft mass, best first
    orders_tried: int
    complete: bool  # whether every order was tried

    def or_better(self, pair: ModelPair, orders: Orders, num_paths: int) -> RankingResult:
        """The best of this order and ``orders``."""
        values, tried = evaluate_orders(pair, orders, num_paths), self.orders_tried + len(orders)
        winner = int(np.argmax(values))
        if values[winner] > self.block_efficiency:
            return replace(self, block_efficiency=float(values[winner]), order=orders[winner], orders_tried=tried)
        return replace(self, orders_tried=tried)


def best_ranking(problem: ProblemLike, *, seed: int = 0, effort: int = EFFORT) -> RankingResult:
    """The best leaf order, in float64.

    All N! orders are tried where that is at most ``effort`` orders x leaves x K (9 leaves of positive mass for
    K <= 12), else a local search with random moves from ``seed`` gives a lower bound of the best.

    >>> round(best_ranking(as_problem("one-position", num_paths=2)).block_efficiency, 12)
    1.84
    """
    problem = as_problem(problem)
    pair = problem.pair.floats
    active = np.flatnonzero(pair.draft_paths[-1] > 0)
    if problem.num_paths == 1:  # nothing to choose from: any order gives block verification
        return RankingResult(float(evaluate_orders(pair, active[None], 1)[0]), active, 1, complete=True)
    allowed = effort // (len(active) * problem.num_paths)
    if len(active) < 12 and factorial(len(active)) <= allowed:
        return _all_orders(pair, problem.num_paths, active)
    return _local_search(pair, problem.num_paths, np.random.default_rng(seed), max(2, allowed))


def selection_of_orders(leaf_mass: Floats, orders: Orders, num_paths: int) -> Floats:
    """Q* of the leaves for every order, (B, N).

    ``leaf_mass`` (N,) is Q of the leaves; ``orders`` (B, n) lists leaves, best first, all that have positive mass.

    >>> selection_of_orders(np.array([0.25, 0.75]), np.array([[0, 1], [1, 0]]), 2)
    array([[0.4375, 0.5625],
           [0.0625, 0.9375]])
    """
    mass = leaf_mass[orders]
    better = np.cumsum(mass, axis=1) - mass
    result = np.zeros((len(orders), len(leaf_mass)))
    np.put_along_axis(result, orders, phi_chord(better, mass, num_paths), axis=1)
    return result


def evaluate_orders(pair: ModelPair, orders: Orders, num_paths: int) -> Floats:
    """Block efficiency of every order, shape ``(B,)``; ``orders`` as in `selection_of_orders`."""
    leaves = selection_of_orders(pair.draft_paths[-1], orders, num_paths)
    levels = up_the_tree(leaves, pair.vocab_size, pair.depth)
    return np.asarray(sum(f.sum(axis=1) for f in prefix_acceptance(pair.target, levels)))


def _all_orders(pair: ModelPair, num_paths: int, active: Orders) -> RankingResult:
    best, count = RankingResult(-1.0, active, 0, complete=True), len(active) - 1
    others = np.array(list(permutations(range(count))), dtype=np.int64).reshape(factorial(count), count)
    for first in range(len(active)):
        best = best.or_better(pair, np.insert(np.delete(active, first)[others], 0, active[first], axis=1), num_paths)
    return best


def greedy_order(pair: ModelPair) -> Orders:
    """GBV's order of all leaves: lexicographic, the children of every node by p/q descending, ties by token id."""
    key = np.zeros(1, dtype=np.int64)
    for target, draft in zip(pair.target, pair.draft, strict=True):
        with np.errstate(over="ignore"):  # a ratio above 1e308 ranks first, as infinity does
            ratio = divide(target, draft, where_zero=0.0)
        rank = np.argsort(np.argsort(-ratio, axis=1, kind="stable"), axis=1)
        key = (key[:, None] * pair.vocab_size + rank).reshape(-1)
    return np.argsort(key)


def _local_search(pair: ModelPair, num_paths: int, rng: np.random.Generator, allowed: int) -> RankingResult:
    """Hill climbing from GBV's order and from the order by P/Q, with batches of random moves; ``allowed`` orders."""
    mass = pair.draft_paths[-1]
    batch = min(BATCH, max(1, allowed // 8))
    with np.errstate(over="ignore"):
        ratio = divide(pair.target_paths[-1], mass, where_zero=0.0)
    starts = [greedy_order(pair), np.argsort(-ratio, kind="stable")]
    orders = np.array([start[mass[start] > 0] for start in starts])
    best, misses = RankingResult(-1.0, orders[0], 0, complete=False), 0
    while misses < PATIENCE:
        before, best = best, best.or_better(pair, orders, num_paths)
        misses = misses + 1 if best.order is before.order else 0
        if best.orders_tried + batch > allowed:
            break
        orders = np.array([_move(best.order, pair, rng) for _ in range(batch)])
    return best


def _move(order: Orders, pair: ModelPair, rng: np.random.Generator) -> Orders:
    """One random neighbour: a leaf moves to another position, or the subtrees of two siblings change their order.

    The leaves of the two subtrees fill the positions that both had together, one subtree after the other.
    """
    if rng.random() < 0.5:
        source, position = rng.integers(len(order), size=2)
        return np.insert(np.delete(order, source), position, order[source])
    height = int(rng.integers(pair.depth))  # subtrees of V**height leaves
    ancestors = order // pair.vocab_size**height
    first = ancestors[rng.integers(len(order))]
    second = first - first % pair.vocab_size + rng.integers(pair.vocab_size)
    positions = np.flatnonzero((ancestors == first) | (ancestors == second))
    leaves = order[positions]
    behind = ancestors[positions] != ancestors[positions[0]]  # in the subtree that is second so far
    moved = order.copy()
    moved[positions] = np.concatenate([leaves[behind], leaves[~behind]])
    return moved
