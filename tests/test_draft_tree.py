"""The drafted tree as a verifier sees it, and the law of K drafts."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lp_cases import iid_pair, random_pair

from lpverify.core import families as make
from lpverify.core import prefix_tree as tree
from lpverify.core.draft_tree import DraftTree, topology
from lpverify.errors import InputError

PATHS = st.integers(1, 4).flatmap(
    lambda length: st.lists(st.lists(st.integers(0, 2), min_size=length, max_size=length), min_size=1, max_size=5)
)


@given(PATHS)
def test_nodes_are_the_distinct_prefixes(paths: list[list[int]]) -> None:
    """Ordered by depth, then by first appearance; multiplicities count the paths."""
    found = topology(paths)
    count, length = len(paths), len(paths[0])
    prefixes = [tuple(path[:i]) for i in range(length + 1) for path in paths]
    assert [spell(found, node) for node in range(len(found.parent))] == list(dict.fromkeys(prefixes))
    assert [Counter(prefixes)[spell(found, node)] for node in range(len(found.parent))] == [
        count * (length + 1) if node == 0 and length == 0 else int(m) for node, m in enumerate(found.multiplicity)
    ]
    for k, path in enumerate(paths):
        assert [spell(found, node) for node in found.node_of[k]] == [tuple(path[:i]) for i in range(length + 1)]


def spell(found: Any, node: int) -> tuple[int, ...]:
    """The prefix that a node stands for, by walking up."""
    return () if node == 0 else (*spell(found, int(found.parent[node])), int(found.token[node]))


@given(PATHS, st.integers(0, 5))
def test_rows_come_from_the_node_of_the_table(paths: list[list[int]], seed: int) -> None:
    pair = random_pair(3, len(paths[0]), seed, alpha=2.0)
    view = DraftTree.from_pair(pair, paths)
    rows = (*pair.target, pair.bonus_rows)
    for node in range(len(view.parent)):
        prefix = spell(view, node)
        index = tree.index_of(prefix, 3)
        assert (view.target[node] == rows[len(prefix)][index]).all()
        if node < len(view.inner_nodes):
            assert (view.draft[node] == pair.draft[len(prefix)][index]).all()
            assert [int(view.token[c]) for c in view.children(node)] == list(dict.fromkeys(view.drafted(node)))
            assert len(view.drafted(node)) == view.multiplicity[node]
        else:
            assert len(prefix) == len(paths[0])
            assert not view.children(node)
    again = DraftTree.build(paths, view.target, view.draft)
    assert again.paths.tolist() == paths
    assert (again.target == view.target).all()


def test_leaves_at_any_depth() -> None:
    tree = DraftTree.build([[0, 1], [0], [2, 2]], P3[:1] * 5, Q3[:1] * 3)
    assert tree.paths.tolist() == [[0, 1], [0, -1], [2, 2]]
    assert tree.node_of.tolist() == [[0, 1, 3], [0, 1, 1], [0, 2, 4]]
    assert (tree.multiplicity.tolist(), tree.ends.tolist()) == ([3, 2, 1, 1, 1], [0, 1, 0, 1, 1])
    assert (tree.inner_nodes.tolist(), tree.draft_row.tolist()) == ([0, 1, 2], [0, 1, 2, -1, -1])
    assert tree.ends[tree.inner_nodes].any()
    assert [tree.drafted(node) for node in range(5)] == [(0, 0, 2), (1,), (2,), (), ()]
    assert tree.lengths.tolist() == [2, 1, 2]
    by_node = DraftTree.build([[0], [2, 2]], P3[:1] * 4, [[k, 0.5 - k, 0.5] for k in (0.1, 0.2, 0.3, 0.4)])
    assert by_node.draft[:, 0].tolist() == [0.1, 0.3]  # rows of leaves are ignored


def test_smallest_tree() -> None:
    view = DraftTree.build([[0]], [[1.0], [1.0]], [[1.0]])
    assert (view.vocab_size, len(view.inner_nodes), view.node_of.tolist()) == (1, 1, [[0, 1]])


def test_topology_is_read_only_and_paths_are_copied() -> None:
    paths = np.array([[0, 1]])
    view = DraftTree.from_pair(iid_pair([0.5, 0.5], [0.5, 0.5], 2), paths)
    paths[0, 0] = 1
    assert view.paths.tolist() == [[0, 1]]
    with pytest.raises(ValueError, match="read-only"):
        view.multiplicity[0] = 2


P3, Q3 = [[0.7, 0.3, 0.0]] * 3, [[0.2, 0.3, 0.5]] * 2


@pytest.mark.parametrize(
    ("paths", "target", "draft", "message"),
    [
        ([[1, -1]], P3, Q3, "path 0 position 1: got token -1, expected a token"),  # S4: placeholder ids
        ([[1, 3]], P3, Q3, "path 0 position 1: got token 3"),
        (np.array([[1, -1]]), P3, Q3, "path 0 position 1: got token -1, expected a token id"),
        ([[1, 2], [1]], P3[:2], Q3, r"target: got rows of shape \(2, 3\), expected \(3 nodes, V\)"),
        ([[]], P3, Q3, r"target: got rows of shape \(3, 3\), expected \(1 nodes, V\)"),
        ([], P3, Q3, r"paths: got an array of shape \(0,\)"),
        ([1, 2], P3, Q3, "expected K lists of tokens"),
        ([[[1], [2]]], P3, Q3, r"paths: got an array of shape \(1, 2, 1\)"),
        ([[1.0, 2.0]], P3, Q3, "paths: got entries of type float64"),
        ([[1, 2]], P3[:2], Q3, r"target: got rows of shape \(2, 3\), expected \(3 nodes, V\)"),
        ([[1, 2]], P3, [row[:2] for row in Q3], r"draft: got rows of shape \(2, 2\)"),  # S10: other vocabulary
        ([[1, 2]], P3, Q3[:1], r"draft: got rows of shape \(1, 3\)"),
        ([[1, 2]], P3[0], Q3, r"target: got an array of shape \(3,\)"),
        ([[1, 2]], [[np.nan, 0.3, 0.0]] * 3, Q3, "target rows: got a negative or NaN entry"),  # S6
        ([[1, 2]], P3, [[0.2, np.nan, 0.5]] * 2, "draft rows: got a negative or NaN entry"),
        ([[1, 2]], P3, [[-0.2, 0.7, 0.5]] * 2, "draft rows: got a negative or NaN entry"),
        ([[1, 2]], P3, [[0.5, 0.5, 0.0]] * 2, "draft at depth 1: got a drafted token 2 of draft probability 0"),  # S2
        ([[1, 2]], P3, [[Fraction(1, 3)] * 3] * 2, "rows: got Fraction and float rows"),
    ],
)
def test_bad_trees_are_refused(paths: Any, target: Any, draft: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DraftTree.build(paths, target, draft)


def test_bad_paths_of_a_table_are_refused() -> None:
    pair = iid_pair([0.5, 0.5], [1.0, 0.0], 2)
    with pytest.raises(InputError, match="paths: got 3 tokens each, expected at most 2"):
        DraftTree.from_pair(pair, [[0, 0, 0]])
    with pytest.raises(InputError, match="token 2, expected a token in 0..1"):
        DraftTree.from_pair(pair, [[0, 2]])
    with pytest.raises(InputError, match="drafted token 1 of draft probability 0"):
        DraftTree.from_pair(pair, [[0, 1]])


def test_a_chain_goes_on_after_a_leaf_by_its_last_token() -> None:
    pair = make.markov(3, 2, seed=0)
    view = DraftTree.from_pair(pair, [[2, 1], [0, 2]])
    assert [spell(view, node) for node in (3, 4)] == [(2, 1), (0, 2)]
    assert view.target[3:].tolist() == pair.target[1][[1, 2]].tolist() == pair.bonus_rows[[7, 2]].tolist()
