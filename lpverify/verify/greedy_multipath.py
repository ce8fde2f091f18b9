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

from lpverify._array import as_index, in_double, is_exact, namespace, ones, row_at
from lpverify.dist.view import TreeView
from lpverify.verify._ranks import ratio_keys, whole
from lpverify.verify._residual import block_path, law_on_path
from lpverify.verify._selection import SelectedPathLaw
from lpverify.verify._splits import ordered_split
from lpverify.verify.base import StopLaw, Verifier


def greedy_law(view: TreeView) -> StopLaw:
    """Stop and next-token law of block verification on the best path; nothing is read from the device."""
    xp = namespace(view.draft)
    path = best_path(view)
    nodes, tokens = (row_at(as_index(view.draft, table), path) for table in (view.node_of, view.paths))
    target, draft = view.target[nodes], in_double(view.draft[nodes[:-1]])
    measure, one = whole(1, draft), ones((1,), draft)
    rows = []
    for i in range(len(tokens)):
        split = ordered_split(measure, in_double(target[i : i + 1]), draft[i : i + 1], one, len(view.paths))
        rows.append(split.q_star[0])
        measure = split.children(0 * tokens[:1], tokens[i : i + 1])
    q_star = xp.stack(rows)
    if not is_exact(q_star):
        q_star = xp.astype(q_star, view.draft.dtype, copy=False)
    place = xp.arange(len(tokens), device=view.draft.device)
    block = block_path(target, q_star, target[place, tokens], q_star[place, tokens])
    return law_on_path(view, path, block.stop, block.rows)


def best_path(view: TreeView) -> Any:
    """The path that comes first when the children of every node are ranked by p/q: an integer on the rows' device.

    >>> best_path(TreeView.build([[0], [1]], [[0.5, 0.5]] * 3, [[0.9, 0.1]]))
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
    law = greedy_law if blocks is None else SelectedPathLaw(ordered_split, blocks)
    return Verifier("gbv", law, path_order=False)
