"""GBV, greedy multi-path block verification (THEORY 4).

Rank the children of every node by p/q descending (ties to the smaller token id); this orders the leaves
lexicographically. Select the best of the K paths. With better(c) the draft mass of all paths ranked before every path
through c the selected path has the law

    Q*(c) = (1 - better(c))^K - (1 - better(c) - Q(c))^K,      q*(x|c) = Q*(cx) / Q*(c),

and block verification of it with the rows q* is valid. It needs the rows on the selected path only. Neither monotone
in K nor better than BV on every instance.

Reference: Thomas and Pal, arXiv 2602.16961.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import (
    Array,
    as_index,
    divide,
    in_double,
    inverse_in_rows,
    is_exact,
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
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.rank_measure import mean_density, ratio_keys, ratio_order
from lpverify.verifiers.rank_selection import SelectedPath
from lpverify.verifiers.residual import block_path, law_on_path
from lpverify.verifiers.splits import ordered_split


def greedy_law(view: DraftTree) -> StopDistribution:
    """Stop and next-token law of block verification on the best path; nothing is read from the device."""
    xp = namespace(view.draft)
    path = best_path(view)
    nodes, tokens = (row_at(as_index(view.draft, table), path) for table in (view.node_of, view.paths))
    target = view.target[nodes]
    q_star = skewed_rows(in_double(target[:-1]), in_double(view.draft[nodes[:-1]]), tokens, len(view.paths))
    if not is_exact(q_star):
        q_star = xp.astype(q_star, view.draft.dtype, copy=False)
    depth = xp.arange(len(tokens), device=view.draft.device)
    block = block_path(target, q_star, target[depth, tokens], q_star[depth, tokens])
    return law_on_path(view, path, block.stop, block.rows)


def skewed_rows(target: Array, draft: Array, tokens: Any, paths: int) -> Array:
    """q*(x|c) at the nodes of a path with rows ``target``, ``draft`` (L, V) and ``tokens`` (L,), shape (L, V).

    Ranks of the paths through a node fill one interval (`RankMeasure` with one piece): a length ``above`` is ranked
    after it, ``width`` is its own. Both are kept relative to their sum, as only ratios of q* matter.
    """
    xp = namespace(draft)
    parts = row_parts(len(draft), draft)
    mass = xp.concat([draft[rows] / xp.sum(draft[rows], axis=-1, keepdims=True) for rows in parts])
    after = xp.concat([_mass_ranked_after(target[rows], mass[rows]) for rows in parts])
    depth = xp.arange(len(tokens), device=draft.device)
    own, later = mass[depth, tokens], after[depth, tokens]
    above, width = [zeros((), own)], [ones((), own)]
    for i in range(len(tokens) - 1):
        end, length = above[i] + width[i] * later[i], width[i] * own[i]
        above.append(divide(end, end + length, where_zero=one(own)))
        width.append(divide(length, end + length, where_zero=zero(own)))
    ends, lengths = (xp.stack(values)[:, None] for values in (above, width))
    q_star = []
    for rows in parts:
        low = ends[rows] + lengths[rows] * after[rows]
        unscaled = mass[rows] * mean_density(low, low + lengths[rows] * mass[rows], paths)
        q_star.append(unscaled / xp.sum(unscaled, axis=-1, keepdims=True))
    law: Array = xp.concat(q_star)
    return law


def _mass_ranked_after(target: Array, draft: Array) -> Array:
    """Draft mass of the tokens that come after each one in the order by p/q, (R, V)."""
    order = ratio_order(target, draft)
    return take_in_rows(sums_after(take_in_rows(draft, order)), inverse_in_rows(order))


def best_path(view: DraftTree) -> Any:
    """The path that comes first when the children of every node are ranked by p/q: an integer on the rows' device.

    >>> best_path(DraftTree.build([[0], [1]], [[0.5, 0.5]] * 3, [[0.9, 0.1]]))
    1
    """
    xp = namespace(view.draft)
    edges = range(1, len(view.parent))
    target, draft = (in_double(view.at_edges(rows, edges)) for rows in (view.target, view.draft))
    keys = ratio_keys(target, draft, view.vocab_size)[as_index(view.draft, view.node_of[:, 1:] - 1)]
    tokens = as_index(view.draft, view.paths)
    left = tokens[:, 0] == tokens[:, 0]
    for i in range(view.paths.shape[1]):
        for column in (keys[:, i], tokens[:, i]):
            left = left & (column == xp.min(xp.where(left, column, xp.max(column))))
    first = xp.argmax(xp.astype(left, xp.int64), axis=-1)
    return int(first) if xp is np else first


def verifier(blocks: int | None = None) -> Verifier:
    """The verifier ``gbv``. ``blocks``: tokens are merged into at most so many (None: never merged)."""
    law = greedy_law if blocks is None else SelectedPath(ordered_split, blocks)
    return Verifier(
        "gbv",
        law,
        "greedy multi-path: block verification of the best path by p/q",
        "Thomas and Pal, arXiv 2602.16961",
        path_order=False,
        closed_form="block",
        split=ordered_split,
        blocks=blocks,
    )
