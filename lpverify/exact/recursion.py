"""Exact evaluation without enumerating drafts: recursion on (node, number of paths through it).

Given that k of the K i.i.d. paths pass through a node, their continuations are k i.i.d. paths of the subtree. So
top-down tree verification depends at each (node, k) on the V^k tuples of drafted children only, and Traversal on the
order in which children are first drafted and how often. Both functions return the emitted masses, one ``(V**i, V)``
array per depth i = 0..L: entry (c, y) is the probability that the verifier stops at c and emits y (theory 6).
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.core import prefix_tree as tree
from lpverify.core.model_pair import ModelPair
from lpverify.drafting import iid_paths
from lpverify.numerics import Array, Levels, one, zero, zeros
from lpverify.verifiers.base import NodeRule
from lpverify.verifiers.residual import acceptance, positive_part
from lpverify.verifiers.traversal import after_rejection

MAX_TUPLES = 2_000_000  # (node, tuple of drafted children) pairs of `top_down_masses`: about 10 seconds in floats
MAX_VISITS = 300_000  # (node, history of rejected siblings) pairs of `traversal_masses`: about 10 seconds
MAX_NESTED = 400  # calls of its functions inside each other, two a level and one for each path


def no_masses(pair: ModelPair) -> Levels:
    """Emitted masses to add to: zeros, one ``(V**i, V)`` array per depth 0..L."""
    size = pair.vocab_size
    return tuple(zeros((tree.level_size(size, i), size), pair.target[0]) for i in range(pair.depth + 1))


def top_down_masses(
    pair: ModelPair, rule: Callable[[Array, Array, int], NodeRule], num_paths: int, *, ordered: bool, max_terms: int
) -> tuple[Levels, int]:
    """Emitted masses of top-down tree verification, and the number of tuples visited; SizeError beyond ``max_terms``.

    ``rule`` is the verifier's node rule; ``ordered``: it looks at the order of the drafted children.
    """
    size = pair.vocab_size
    tuples = [iid_paths.count_draws(size, k, ordered=ordered) for k in range(1, num_paths + 1)]
    nodes = sum(len(level) for level in pair.target)
    terms, tokens = nodes * sum(tuples), nodes * sum(k * count for k, count in enumerate(tuples, 1))
    what, instead = f"recursion on (node, k) with {num_paths} paths", "use fewer paths or a smaller vocabulary"
    if terms > max_terms:
        raise errors.too_large(what, size=f"{terms} tuples of drafted tokens", limit=f"{max_terms}", instead=instead)
    if tokens > 10 * max_terms:
        size_of = f"{tokens} tokens in tuples of drafted tokens"
        raise errors.too_large(what, size=size_of, limit=f"{10 * max_terms}", instead=instead)
    emitted = no_masses(pair)
    arriving = zeros((1, num_paths + 1), pair.target[0])  # (node, k): Pr(accepted here, k paths pass through)
    arriving[0, num_paths] = one(arriving)
    for depth in range(pair.depth):
        below = zeros((len(arriving) * size, num_paths + 1), arriving)
        for node, k in np.argwhere(arriving > 0).tolist():
            target, draft = pair.target[depth][node], pair.draft[depth][node]
            drafted, probability = iid_paths.draws(draft, k, ordered=ordered)
            multiplicity = (drafted[:, :, None] == np.arange(size)).sum(axis=1)  # (tuples, V)
            chosen = rule(target, draft, k).conditional(drafted) * (arriving[node, k] * probability)[:, None]
            children = below[node * size : (node + 1) * size]
            np.add.at(children, (np.broadcast_to(np.arange(size), chosen.shape), multiplicity), chosen)
            emitted[depth][node] += children[:, 0]  # not drafted
            children[:, 0] = zero(chosen)
        arriving = below
    emitted[-1][:] = arriving.sum(axis=1)[:, None] * pair.bonus_rows
    return emitted, terms


def traversal_masses(pair: ModelPair, num_paths: int, max_terms: int = MAX_VISITS) -> tuple[Levels, int]:
    """Emitted masses of Traversal with K = ``num_paths``, and the number of visits; SizeError beyond ``max_terms``.

    At a node with rows p', q' and k paths left, the child drafted first is x with probability q'(x), m - 1 of the
    k - 1 other paths draw it too (binomial), and the k - m paths that do not are i.i.d. from q' without x.
    """
    size, depth = pair.vocab_size, pair.depth
    draftable = max(int((level > 0).sum(axis=1).max()) for level in pair.draft)
    what = f"recursion of traversal with {num_paths} paths"
    if 2 * depth + num_paths > MAX_NESTED:
        size_of, limit = f"2 L + K = {2 * depth + num_paths}", f"{MAX_NESTED}"
        raise errors.too_large(what, size=size_of, limit=limit, instead="use fewer paths or a smaller depth")
    terms = traversal_visits(draftable, depth, num_paths)
    if terms > max_terms:
        instead = "use fewer paths, a smaller depth or fewer draftable tokens"
        raise errors.too_large(what, size=f"{terms} visits", limit=f"{max_terms}", instead=instead)
    emitted = no_masses(pair)
    certain = one(pair.target[0])

    def offer(level: int, node: int, weight: Any, k: int, alive: Any) -> Any:
        """Offer the subtree of a node with k paths, reached with probability ``alive``: Pr(it is rejected)."""
        if not weight > 0:  # all weights below are 0 too: nothing there is accepted
            return alive
        if level == depth:
            return accept(level, node, weight, pair.bonus_rows[node], alive)
        return children(level, node, pair.target[level][node], pair.draft[level][node], weight, k, alive)

    def children(level: int, node: int, target: Array, draft: Array, weight: Any, k: int, alive: Any) -> Any:
        """Offer the children of a node, then the node itself; the arguments are as after earlier rejections."""
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
        """Stop at the node with probability ``weight`` and emit from ``target``: Pr(it is rejected)."""
        stop = alive * weight
        emitted[level][node] += stop * target
        return alive - stop

    offer(0, 0, certain, num_paths, certain)
    return emitted, terms


def traversal_visits(vocab_size: int, depth: int, num_paths: int) -> int:
    """How many nodes `traversal_masses` offers when no probability is 0.

    >>> traversal_visits(2, 1, 1), traversal_visits(3, 4, 3)
    (4, 15861)
    """

    # below[k]: visits of a node with k paths that pass through it, itself included, one level further up each time
    below = [1] * (num_paths + 1)
    for _ in range(depth):
        through = [1] + [0] * num_paths  # with none of its children left
        for left in range(1, vocab_size + 1):
            counts = [left * sum(below[m] + through[k - m] for m in range(1, k + 1)) for k in range(num_paths + 1)]
            through = [1, *counts[1:]]
        below = through
    return below[num_paths]
