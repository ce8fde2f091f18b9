"""Exact evaluation without enumerating drafts: recursion on (node, number of paths through it).

Given that k of the K i.i.d. paths pass through a node, their continuations are k i.i.d. paths of the subtree. So for
tree walkers only the V^k tuples of drafted children matter at each (node, k); for Traversal only which children are
drafted first and how often. Both return the emitted masses, one ``(V**i, V)`` array per depth i = 0..L: entry (c, y) is
the probability that the verifier stops at c and emits y.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from math import comb
from typing import Any

import numpy as np

from lpverify import _check
from lpverify._array import Array, Levels, one, zeros
from lpverify.dist import tree
from lpverify.dist.pair import DistPair
from lpverify.verify._residual import acceptance, positive_part
from lpverify.verify.base import NodeRule
from lpverify.verify.traversal import after_rejection

MAX_TUPLES = 1_000_000
"""Most (node, tuple of drafted children) pairs that a walker's recursion visits."""
MAX_VISITS = 200_000
"""Most (node, history of rejected siblings) pairs that Traversal's recursion visits."""


def no_masses(pair: DistPair) -> Levels:
    """Emitted masses of nothing yet: zeros, one ``(V**i, V)`` array per depth 0..L."""
    size = pair.vocab_size
    return tuple(zeros((tree.level_size(size, i), size), pair.target[0]) for i in range(pair.depth + 1))


def walker_masses(
    pair: DistPair, rule: Callable[[Array, Array, int], NodeRule], paths: int, max_terms: int = MAX_TUPLES
) -> tuple[Levels, int]:
    """Emitted masses of the walker with node rule ``rule``, and the number of tuples visited. Raises SizeError."""
    size = pair.vocab_size
    terms = sum(len(level) for level in pair.target) * sum(size**k for k in range(1, paths + 1))
    if terms > max_terms:
        raise _check.too_large(
            f"recursion on (node, k) with {paths} paths",
            size=f"{terms} tuples of drafted tokens",
            limit=str(max_terms),
            instead="use fewer paths or a smaller vocabulary",
        )
    emitted = no_masses(pair)
    arriving = zeros((1, paths + 1), pair.target[0])  # (node of the level, k): Pr(the walk comes here with k paths)
    arriving[0, paths] = one(arriving)
    for depth in range(pair.depth):
        below = zeros((len(arriving) * size, paths + 1), arriving)
        for node, k in np.argwhere(arriving > 0).tolist():
            target, draft = pair.target[depth][node], pair.draft[depth][node]
            drafted = np.array(list(product(np.flatnonzero(draft > 0).tolist(), repeat=k)))
            chosen = rule(target, draft, k).conditional(drafted)
            chosen = chosen * (arriving[node, k] * draft[drafted].prod(axis=1))[:, None]
            multiplicity = (drafted[:, :, None] == np.arange(size)).sum(axis=1)  # (tuples, V)
            for count in range(k + 1):
                mass = np.where(multiplicity == count, chosen, chosen * 0).sum(axis=0)
                if count:
                    below[node * size : (node + 1) * size, count] += mass
                else:
                    emitted[depth][node] += mass
        arriving = below
    emitted[-1][:] = arriving.sum(axis=1)[:, None] * pair.bonus_rows
    return emitted, terms


def traversal_masses(pair: DistPair, paths: int, max_terms: int = MAX_VISITS) -> tuple[Levels, int]:
    """Emitted masses of Traversal, and the number of visits. Raises SizeError.

    The child drafted first at a node with rows p', q' and k paths left is x with probability q'(x), m - 1 of the k - 1
    other paths draw it too (binomial), and the k - m paths that do not are i.i.d. from q' without x.
    """
    size, depth = pair.vocab_size, pair.depth
    terms = traversal_visits(size, depth, paths)
    if terms > max_terms:
        raise _check.too_large(
            f"recursion of traversal with {paths} paths",
            size=f"{terms} visits",
            limit=str(max_terms),
            instead="use fewer paths, a smaller depth or a smaller vocabulary",
        )
    emitted = no_masses(pair)
    certain = one(pair.target[0])

    def offer(level: int, node: int, weight: Any, k: int, alive: Any) -> Any:
        """Offer the subtree of a node that k paths pass through; the mass that fails, out of ``alive``."""
        if level == depth:
            return accept(level, node, weight, pair.bonus_rows[node], alive)
        return children(level, node, pair.target[level][node], pair.draft[level][node], weight, k, alive)

    def children(level: int, node: int, target: Array, draft: Array, weight: Any, k: int, alive: Any) -> Any:
        if k == 0:
            return accept(level, node, weight if level else certain, target, alive)
        failed = alive * 0
        for x in np.flatnonzero(draft > 0).tolist():
            step = acceptance(weight * target[x], draft[x])
            rejected = after_rejection(target, draft, weight, x)
            others = positive_part(1 - draft[x])
            for m in range(1, k + 1):
                mass = alive * comb(k - 1, m - 1) * draft[x] ** m * others ** (k - m)
                if mass > 0:
                    left = offer(level + 1, node * size + x, step, m, mass)
                    if left > 0:
                        failed += children(level, node, *rejected, k - m, left)
        return failed

    def accept(level: int, node: int, weight: Any, target: Array, alive: Any) -> Any:
        stop = alive * weight
        emitted[level][node] += stop * target
        return alive - stop

    offer(0, 0, certain, paths, certain)
    return emitted, terms


def traversal_visits(vocab_size: int, depth: int, paths: int) -> int:
    """How many nodes `traversal_masses` offers when no probability is 0.

    >>> traversal_visits(2, 1, 1), traversal_visits(3, 4, 3)
    (4, 15861)
    """

    @cache
    def visits(level: int, k: int, left: int) -> int:
        """Visits at and below a node with k paths to place on ``left`` children."""
        if level == depth or k == 0:
            return 1
        return left * sum(visits(level + 1, m, vocab_size) + visits(level, k - m, left - 1) for m in range(1, k + 1))

    return visits(0, paths, vocab_size)
