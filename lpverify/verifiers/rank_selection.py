"""Selecting the drafted path of smallest rank, and block verification of it (THEORY 5).

Every path draws its rank from its leaf's measure, normalised, independently of the others. The probabilities that a
leaf's paths have the smallest rank are integrals of products of survival functions: on every interval of the common
refinement of all leaves' pieces a survival function is linear, so they are sums of integrals of polynomials with
coefficients >= 0, exact in Fractions and without cancellation in floats.

The selected path follows the draft law with rows q*, so block verification with q* in the place of q is valid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import (
    Array,
    accumulate_rows,
    as_index,
    divide,
    in_double,
    namespace,
    one,
    ones,
    row_at,
    row_parts,
    sums_after,
    take_in_rows,
    zero,
    zeros,
)
from lpverify.verifiers.base import StopDistribution
from lpverify.verifiers.rank_measure import RankMeasure, compact, whole
from lpverify.verifiers.residual import acceptance, positive_part, residual_law, unless_leaf
from lpverify.verifiers.splits import SplitRule
from lpverify.verifiers.token_buckets import merged


@dataclass(frozen=True)
class SelectedPath:
    """Block verification of the path that ``split`` selects; tokens in at most ``blocks`` blocks (None: no blocks)."""

    split: SplitRule
    blocks: int | None

    def __call__(self, view: DraftTree) -> StopDistribution:
        with np.errstate(invalid="ignore"):  # rows of NaN give a law of NaN
            return selected_path_law(view, self.split, self.blocks)


def selected_path_law(view: DraftTree, split: SplitRule, blocks: int | None = None) -> StopDistribution:
    """Stop and next-token law of block verification on the path that ``split`` selects.

    A larger vocabulary is merged into ``blocks`` blocks. What touches every token is done for all nodes at once; the
    splits themselves see the blocks. Rows on a device stay there: nothing is read from it.
    """
    depth, paths, inner = view.paths.shape[1], len(view.paths), view.inner
    xp = namespace(view.draft)
    target, draft = in_double(view.target[:inner]), in_double(view.draft[:inner])
    edges = range(1, len(view.parent))
    on_target, on_draft = view.at_edges(target, edges), view.at_edges(draft, edges)
    block, child, share = None, view.token[1:], ones((len(edges),), draft)
    p, q = target, draft
    if blocks is not None and view.vocab_size > blocks:
        block, p, q = merged(target, draft, blocks)
        child = view.at_edges(block, edges)
        share = on_draft
    child = as_index(q, child)
    if block is not None:
        share = divide(share, q[as_index(q, view.parent[1:]), child], where_zero=zero(q))  # of the block's mass
    used = slice(None)
    if block is not None and isinstance(q, np.ndarray):
        used = with_mass(p, q)
        p, q, child = p[:, used], q[:, used], np.searchsorted(used, child)

    first = np.searchsorted(view.depth, range(depth + 2)).tolist()
    measure, weight = whole(1, q), ones((1,), q)
    tokens = as_index(q, view.token)
    rank = tokens[:1] * 0
    rows = []
    for i in range(depth):
        here, below = slice(first[i], first[i + 1]), slice(first[i + 1] - 1, first[i + 2] - 1)
        done = split(measure, p[here], q[here], weight, paths)
        rows.append(done.q_star)
        parents, children = as_index(q, view.parent[1:][below] - first[i]), child[below]
        measure = compact(done.children(parents, children))
        weight = acceptance(weight[parents] * on_target[below], done.q_star[parents, children] * share[below])
        order = rank[parents] * q.shape[1] + done.place[parents, children]  # by parent, place and token
        rank = _ranks(order * view.vocab_size + tokens[1:][below])

    chance = smallest_rank(measure, view.multiplicity[first[depth] :].tolist(), rank)
    split_rows = namespace(q).concat(rows, axis=0)
    on_edges = split_rows[as_index(q, view.parent[1:]), child] * share
    if block is not None:
        skew = zeros((inner, blocks or 0), q)
        skew[:, used] = divide(split_rows, q, where_zero=zero(q))  # how much every block is skewed
        split_rows = skew

    def with_rows(values: Array) -> Array:
        there: Array = values if xp is np else xp.astype(values, view.draft.dtype, copy=False)
        return there

    split_rows = with_rows(split_rows)

    def q_star(nodes: Any) -> Array:
        found: Array = split_rows[nodes]
        return found if block is None else view.draft[nodes] * take_in_rows(found, block[nodes])

    return block_law_of_selected(view, q_star, with_rows(on_edges), with_rows(chance))


def with_mass(target: Array, draft: Array) -> Any:
    """Blocks (R, n) that have mass in some row, and the last, that of tokens which are never drafted: indices.

    A block without mass is split like one that is never drafted, so one of them stands for all.
    """
    some = ((target != 0) | (draft != 0)).any(axis=0)
    some[-1] = True
    return np.flatnonzero(some)


def _ranks(keys: Any) -> Any:
    """Place of every one of different integers among them, ascending."""
    xp = namespace(keys)
    return xp.argsort(xp.argsort(keys))


def block_law_of_selected(
    view: DraftTree, q_star: Callable[[Any], Array], on_draft: Array, chance: Array
) -> StopDistribution:
    """Block verification of one drafted path, which is that of the i-th leaf with probability ``chance[i]``.

    The draft law of the selected path, q*(x|c): ``q_star(nodes)`` its rows (R, V) at nodes with children, ``on_draft``
    (n-1,) its probability of every edge. Weights and tests (`BlockPath`) belong to nodes, whichever path is selected,
    so they are computed once.
    """
    xp = namespace(on_draft)
    inner, depth = view.inner, view.paths.shape[1]
    first = np.searchsorted(view.depth, range(depth + 2)).tolist()
    on_target = view.at_edges(view.target, range(1, len(view.parent)))
    weights = [ones((1,), on_draft)]
    for i in range(depth):
        below = slice(first[i + 1] - 1, first[i + 2] - 1)
        parents = as_index(on_draft, view.parent[1:][below] - first[i])
        weights.append(acceptance(weights[-1][parents] * on_target[below], on_draft[below]))
    weight = xp.concat(weights)

    def residual(nodes: Any) -> Array:
        return positive_part(weight[nodes, None] * view.target[nodes] - q_star(nodes))

    mass = xp.concat([xp.sum(residual(nodes), axis=-1) for nodes in row_parts(inner, view.target)])
    tests = divide(mass, mass + (1 - weight[:inner]), where_zero=one(weight))
    tests = xp.concat([weight[:1], tests[1:], weight[inner:]])

    on_path = view.node_of[np.unique(view.node_of[:, -1], return_index=True)[1]]
    later, levels = chance, []
    for i in reversed(range(depth + 1)):
        test = tests[as_index(tests, on_path[:, i])]
        place = as_index(tests, (on_path[:, i] - first[i])[None])
        levels.append(accumulate_rows(place, (later * test)[None], first[i + 1] - first[i])[0])
        later = later * (1 - test)
    stop = xp.concat(levels[::-1])

    def inside(node: Any) -> Array:
        here = as_index(tests, [node]) if isinstance(node, int) else xp.reshape(node, (1,))
        return residual_law(residual(here)[0], row_at(view.target, node))

    return StopDistribution(view, stop, lambda node: unless_leaf(node, inner, inside, view.target))


def smallest_rank(leaves: RankMeasure, multiplicity: Sequence[int], order: Any = None) -> Array:
    """Probability of each leaf that one of its paths has the smallest rank of all paths, (n,); sums to 1.

    ``leaves``: the n leaves' measures, each of which ``multiplicity`` paths draw from. Pieces that begin and end at the
    same double count as points, and equal points in the order of the leaves: ``order[i]`` is the place of leaf i, i
    itself where it is not given.

    >>> twice = RankMeasure(*np.array([[[0.5], [0.0]], [[0.5], [0.5]], [[1.0], [1.0]]]), np.ones(2))
    >>> smallest_rank(twice, [1, 1]).tolist(), smallest_rank(whole(2, np.ones(1)), [2, 1]).tolist()
    ([1.0, 0.0], [0.6666666666666666, 0.3333333333333333])
    """
    if order is None:
        return smallest_in(refinement(leaves), multiplicity)
    by_place = namespace(order).argsort(order)
    return smallest_in(refinement(leaves[by_place])[order], multiplicity)


def smallest_in(part: Array, multiplicity: Sequence[int]) -> Array:
    """`smallest_rank` of leaves with ``part`` (n, m) of their mass, uniformly spread, on m common intervals in order.

    >>> smallest_in(np.array([[0.5, 0.5], [0.0, 1.0]]), [1, 1]).tolist()
    [0.75, 0.25]
    """
    xp = namespace(part)
    later = sums_after(part)
    index = xp.arange(len(multiplicity), device=part.device)[:, None]
    polynomial = ones((*part.shape, 1), part)  # in the share of the interval that is still to come
    none = zeros((*part.shape, 1), part)
    for leaf, copies in enumerate(multiplicity):
        for copy in range(copies):
            itself = (index == leaf) & (copy == 0)  # the path that is to come first
            constant = xp.where(itself, one(part), later[leaf][None, :])[:, :, None]
            linear = xp.where(itself, zero(part), part[leaf][None, :])[:, :, None]
            polynomial = xp.concat([constant * polynomial, none], axis=-1) + xp.concat(
                [none, linear * polynomial], axis=-1
            )
    integral = sum((polynomial[:, :, k] / (k + 1) for k in range(1, polynomial.shape[-1])), start=polynomial[:, :, 0])
    first = xp.sum(part * integral, axis=-1)
    chance: Array = xp.stack([first[leaf] * copies for leaf, copies in enumerate(multiplicity)])
    return chance


def refinement(leaves: RankMeasure) -> Array:
    """Mass of each of n leaves on the intervals of the common refinement of their m pieces, (n, 2nm), in rank order."""
    xp = namespace(leaves.mass)
    count, pieces = leaves.mass.shape
    scale = leaves.scale[:, None]
    begin, end = (leaves.above + leaves.width) * scale, leaves.above * scale
    points = xp.reshape(xp.stack([begin, end], axis=-1), (-1,))
    order = xp.argsort(-points, axis=-1, stable=True)
    place = xp.reshape(xp.argsort(order, axis=-1, stable=True), (count, pieces, 2))
    points = points[order]
    length = points - xp.concat([points[1:], points[-1:]], axis=-1)

    slot = xp.arange(2 * count * pieces, device=points.device)[None, :]
    owner = xp.arange(count, device=points.device)[:, None]
    begins = (order // (2 * pieces) == owner) & (order % 2 == 0)
    current = xp.cumulative_sum(xp.astype(begins, xp.int64), axis=-1) - 1
    started, current = current >= 0, xp.clip(current, 0, None)
    by_place = xp.argsort(place[:, :, 0], axis=-1, stable=True)

    def here(values: Any) -> Any:
        return take_in_rows(take_in_rows(values, by_place), current)

    inside = started & (here(place[:, :, 1]) > slot)
    covered = xp.where(inside, length[None, :], zero(points))
    share = divide(covered, here(begin - end), where_zero=one(points))
    part = xp.where(inside, here(leaves.mass) * share, zero(points))
    complete: Array = part / xp.sum(part, axis=-1, keepdims=True)  # pieces may overlap by an ulp
    return complete
