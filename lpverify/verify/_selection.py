"""Selecting the drafted path of smallest rank, and block verification of it (THEORY 5).

Every path draws its rank from its leaf's measure, normalised, independently of the others. The probabilities that a
leaf's paths have the smallest rank are integrals of products of survival functions: on every interval of the common
refinement of all leaves' pieces a survival function is linear, so they are sums of integrals of polynomials with
coefficients >= 0, exact in Fractions and without cancellation in floats.

The selected path follows the draft law with rows q*, so block verification with q* in the place of q is valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpverify._array import Array, as_index, divide, in_double, namespace, one, ones, sums_after, zero, zeros
from lpverify.dist.view import TreeView
from lpverify.verify._blocks import in_blocks
from lpverify.verify._ranks import RankMeasure, whole
from lpverify.verify._residual import BlockPath, acceptance, block_path
from lpverify.verify._splits import SplitRule
from lpverify.verify.base import StopLaw


@dataclass(frozen=True)
class SelectedPathLaw:
    """Block verification of the path that ``split`` selects; tokens in at most ``blocks`` blocks (None: no blocks)."""

    split: SplitRule
    blocks: int | None

    def __call__(self, view: TreeView) -> StopLaw:
        return selected_path_law(view, in_blocks(self.split, self.blocks))


def selected_path_law(view: TreeView, split: SplitRule) -> StopLaw:
    """Stop and next-token law of block verification on the path that ``split`` selects."""
    depth, paths = view.paths.shape[1], len(view.paths)
    first = np.searchsorted(view.depth, range(depth + 2)).tolist()
    xp = namespace(view.draft)
    target, draft = in_double(view.target), in_double(view.draft)
    measure, weight = whole(1, draft), ones((1,), draft)
    rows, ranks = [], [()] * len(view.parent)
    for i in range(depth):
        here, below = slice(first[i], first[i + 1]), range(first[i + 1], first[i + 2])
        done = split(measure, target[here], draft[here], weight, paths)
        rows.append(done.q_star)
        parents, tokens = (as_index(view.draft, x) for x in (view.parent[below] - first[i], view.token[below]))
        measure = done.children(parents, tokens)
        weight = acceptance(weight[parents] * view.at_edges(target, below), done.q_star[parents, tokens])
        for node, place in zip(below, done.place[parents, tokens].tolist(), strict=True):
            ranks[node] = (*ranks[view.parent[node]], (place, int(view.token[node])))
    q_star = xp.concat(rows, axis=0)

    leaves = sorted(range(first[depth], first[depth + 1]), key=lambda node: ranks[node])
    ordered = measure[as_index(view.draft, np.array(leaves) - first[depth])]
    chance = smallest_rank(ordered, view.multiplicity[leaves].tolist())
    if xp is not np:
        q_star, chance = (xp.astype(values, view.draft.dtype, copy=False) for values in (q_star, chance))
    return block_law_of_selected(view, q_star, leaves, chance)


def block_law_of_selected(view: TreeView, q_star: Array, leaves: Sequence[int], chance: Array) -> StopLaw:
    """Block verification of one drafted path, which is that of ``leaves[i]`` with probability ``chance[i]``.

    ``q_star`` (inner, V): the draft law of the selected path, q*(x|c) at every node with children.
    """
    stop = zeros(len(view.parent), q_star)
    through: dict[int, BlockPath] = {}
    for leaf, probability in zip(leaves, chance, strict=True):
        nodes = view.node_of[np.argmax(view.node_of[:, -1] == leaf)].tolist()
        on_target, on_draft = view.at_edges(view.target, nodes[1:]), view.at_edges(q_star, nodes[1:])
        block = block_path(view.target[nodes], q_star[nodes[:-1]], on_target, on_draft)
        stop[nodes] = stop[nodes] + probability * block.stop
        through.update(dict.fromkeys(nodes, block))
    return StopLaw(view, stop, lambda node: through[node].rows(int(view.depth[node])))


def smallest_rank(leaves: RankMeasure, multiplicity: Sequence[int]) -> Array:
    """Probability of each leaf that one of its paths has the smallest rank of all paths, (n,); sums to 1.

    ``leaves``: the n leaves' measures, each of which ``multiplicity`` paths draw from. Pieces that begin and end at the
    same double count as points, and equal points in the order of the leaves.

    >>> twice = RankMeasure(*np.array([[[0.5], [0.0]], [[0.5], [0.5]], [[1.0], [1.0]]]), np.ones(2))
    >>> smallest_rank(twice, [1, 1]).tolist(), smallest_rank(whole(2, np.ones(1)), [2, 1]).tolist()
    ([1.0, 0.0], [0.6666666666666666, 0.3333333333333333])
    """
    return smallest_in(refinement(leaves), multiplicity)


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
        return xp.take_along_axis(xp.take_along_axis(values, by_place, axis=-1), current, axis=-1)

    inside = started & (here(place[:, :, 1]) > slot)
    covered = xp.where(inside, length[None, :], zero(points))
    share = divide(covered, here(begin - end), where_zero=one(points))
    part = xp.where(inside, here(leaves.mass) * share, zero(points))
    complete: Array = part / xp.sum(part, axis=-1, keepdims=True)  # pieces may overlap by an ulp
    return complete
