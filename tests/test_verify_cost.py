"""What makes verification cheap changes no law: shortcuts against the general construction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lpverify.core.draft_tree import DraftTree, topology
from lpverify.numerics import as_float
from lpverify.verifiers import verifier
from lpverify.verifiers.pbv import proportional_split
from lpverify.verifiers.rank_selection import selected_path_law
from lpverify.verifiers.splits import ordered_split
from lpverify.verifiers.tgbv import tempered_split
from lpverify.verifiers.token_buckets import in_blocks

BLOCKS = 16
SHAPES = [(3, 4, 3), (40, 3, 4), (1500, 4, 5)]
"""(V, K, L); above 1,024 tokens the order by p/q is that of integer keys."""


def drafted_view(vocab_size: int, paths: int, depth: int, seed: int) -> DraftTree:
    """Peaked rows, zeros among them, and K paths drawn from them; paths of one prefix share its row."""
    rng = np.random.default_rng(seed)
    rows: dict[tuple[int, ...], Any] = {}

    def draft_row(prefix: tuple[int, ...]) -> Any:
        if prefix not in rows:
            rows[prefix] = rng.dirichlet(np.full(vocab_size, 0.1))
        return rows[prefix]

    drafted: list[list[int]] = []
    for _ in range(paths):
        path: list[int] = []
        for _ in range(depth):
            path.append(int(rng.choice(vocab_size, p=draft_row(tuple(path)))))
        drafted.append(path)
    tree = topology(drafted)
    prefixes: list[tuple[int, ...]] = [()]
    for parent, token in zip(tree.parent[1:].tolist(), tree.token[1:].tolist(), strict=True):
        prefixes.append((*prefixes[parent], token))
    draft = np.stack([draft_row(prefix) for prefix in prefixes if len(prefix) < depth])
    noise = rng.lognormal(0, 0.7, (len(prefixes), vocab_size))
    target = noise * np.concatenate([draft, rng.dirichlet(np.full(vocab_size, 0.1), len(prefixes) - len(draft))])
    return DraftTree.build(drafted, target / target.sum(axis=1, keepdims=True), draft)


def on_torch(view: DraftTree) -> DraftTree:
    torch = pytest.importorskip("torch")
    return DraftTree.build(view.paths, torch.tensor(view.target), torch.tensor(view.draft))


def assert_same_law(law: Any, expected: Any) -> None:
    np.testing.assert_allclose(as_float(law.stop), as_float(expected.stop), rtol=0, atol=1e-12)
    for node in np.flatnonzero(as_float(expected.stop) > 1e-3).tolist():
        np.testing.assert_allclose(
            as_float(law.next_token(node)), as_float(expected.next_token(node)), rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(5))
def test_greedy_law_of_the_best_path_alone(shape: tuple[int, int, int], seed: int) -> None:
    """GBV looks at one path's rows; the general construction splits every node and integrates over all ranks."""
    view = drafted_view(*shape, seed)
    expected = selected_path_law(view, ordered_split)
    assert_same_law(verifier("gbv")(view), expected)
    assert_same_law(verifier("gbv")(on_torch(view)), expected)


@pytest.mark.parametrize("split", [ordered_split, tempered_split, proportional_split])
@pytest.mark.parametrize("seed", range(5))
def test_blocks_for_all_nodes_at_once(split: Any, seed: int) -> None:
    """Merging tokens before the splits is merging them inside every split."""
    view = drafted_view(1500, 4, 5, seed)
    expected = selected_path_law(view, in_blocks(split, BLOCKS))
    assert_same_law(selected_path_law(view, split, BLOCKS), expected)
    assert_same_law(selected_path_law(on_torch(view), split, BLOCKS), expected)


@pytest.mark.parametrize("paths", [[[0, 0], [1, 0]], [[1, 0], [0, 0]], [[2, 1], [2, 0]], [[1, 2], [1, 0]]])
def test_ranks_that_coincide_in_doubles_go_by_the_order_of_the_children(paths: list[list[int]]) -> None:
    """Tokens 0 and 1 have 1e-20 of the draft each and the best ranks: both intervals begin and end at rank 0."""
    draft = np.array([[1e-20, 1e-20, 1.0]] * 3)
    target = np.array([[0.5, 0.3, 0.2]] * 5)
    nodes = len(topology(paths).parent)
    view = DraftTree.build(paths, target[:nodes], draft[: nodes - 2])
    for rows in (view, on_torch(view)):
        assert_same_law(selected_path_law(rows, ordered_split), verifier("gbv")(view))
