"""Block verification: the best single-path rule (theory 1).

Accept the longest prefix whose test passes, with chance h = R / (R + 1 - w) at weight w and R = sum_y max(w p - q, 0),
and w at the end of the path. With K > 1 the first path is verified, or one that was selected among several, with its
rows q* in the place of q (`lpverify.verifiers.rank_selection`).

Reference: Sun et al., Block verification accelerates speculative decoding, arXiv 2403.10444, algorithm 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, divide, one, zeros
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.residual import acceptance
from lpverify.verifiers.rows import HostRows, ResidualRows, rows_of


def block_verification(rows: HostRows, weight: Array, paths: Any, chance: Array, skew: Any = None) -> StopDistribution:
    """Block verification of one drafted path, which is path ``paths[i]`` with probability ``chance[i]``, (r,) each.

    ``weight`` (n,) is w of the nodes of those paths, on the host; 1 at the root, whose test always passes. Weights and
    tests belong to nodes, whichever path is verified. ``skew``: q*/q as from `HostRows.skew`; None: q* = q.
    """
    tree, xp = rows.tree, rows.xp
    possible = np.flatnonzero(chance != 0)
    paths = np.asarray(paths)[possible]
    nodes, used = tree.node_of[paths], np.arange(tree.node_of.shape[1]) <= tree.lengths[paths][:, None]
    # A node of weight 1 passes for sure, 0/0 included, so nodes before it on its path are never stopped at.
    sure = used & (weight[nodes] == 1)
    sure_from_here = np.logical_or.accumulate(sure[:, ::-1], axis=1)[:, ::-1]
    tested = np.unique(nodes[used & ~sure_from_here & (tree.draft_row[nodes] >= 0)])
    position = np.arange(tree.size)
    position[tested] = tree.size + np.arange(len(tested))
    on_paths = nodes.reshape(-1)
    w, likely, place, on_paths, tested_there = rows.upload(
        weight, chance[possible], position[on_paths], on_paths, tested
    )
    w_tested = rows.take(w, tested_there)
    excess = rows.excess(tested, w_tested, None, skew)
    passing = divide(excess, excess + (1 - w_tested), where_zero=one(w_tested))
    tests = xp.concat([w, passing])  # at a leaf the test is the weight
    passes = xp.reshape(rows.take(tests, place), nodes.shape)
    if not used.all():
        passes = passes * rows.upload(used * one(weight))
    fails = xp.flip(1 - passes[:, 1:], axis=1)
    none_later = xp.concat([xp.flip(xp.cumulative_prod(fails, axis=1), axis=1), passes[:, :1] * 0 + 1], axis=1)
    stops = likely[:, None] * passes * none_later
    stop = rows.add_up(on_paths, xp.reshape(stops, (-1,)), tree.size)
    return StopDistribution(tree, stop, ResidualRows(rows, w, skew=skew))


def verify_first_path(tree: DraftTree) -> StopDistribution:
    """Stop distribution of block verification on the first path."""
    rows = rows_of(tree)
    edges = rows.observe()
    weight = zeros(tree.size, edges.target_edge)
    weight[0] = one(weight)
    nodes = tree.node_of[0, : tree.lengths[0] + 1].tolist()
    for above, node in zip(nodes, nodes[1:], strict=False):
        weight[node] = acceptance(weight[above] * edges.target_edge[node - 1], edges.draft_edge[node - 1])
    return block_verification(rows, weight, [0], weight[:1])


def verifier() -> Verifier:
    """The verifier ``bv``."""
    text = "block verification of the first path, the single-path optimum"
    source = "Sun et al., arXiv 2403.10444, algorithm 2"
    return Verifier("bv", verify_first_path, text, source, needs="a path", first_path_only=True, closed_form="block")
