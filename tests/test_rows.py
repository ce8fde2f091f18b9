"""What makes verification cheap changes no distribution: buckets, ragged trees and shared rows against definitions."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from lpverify.core import families as make
from lpverify.core.draft_tree import DraftTree, level_index, topology
from lpverify.drafting.iid_paths import mean_density
from lpverify.errors import InputError
from lpverify.exact.evaluate import emitted_law
from lpverify.exact.recursion import no_masses
from lpverify.numerics import as_float
from lpverify.verifiers import names, token_buckets, verifier
from lpverify.verifiers.pbv import proportional_split
from lpverify.verifiers.rank_selection import SelectedPath
from lpverify.verifiers.splits import ordered_split
from lpverify.verifiers.tgbv import tempered_split
from lpverify.verifiers.token_buckets import FINE, children_of, in_blocks

BLOCKS = 16
SHAPES = [(3, 4, 3), (40, 3, 4), (1500, 4, 5)]
"""(V, K, L)."""


def drafted_tree(vocab_size: int, paths: int, depth: int, seed: int) -> DraftTree:
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


def on_torch(tree: DraftTree) -> DraftTree:
    torch = pytest.importorskip("torch")
    return DraftTree.build(tree.paths, torch.tensor(tree.target), torch.tensor(tree.draft))


def assert_same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(as_float(found.stop), as_float(expected.stop), rtol=0, atol=1e-12)
    for node in np.flatnonzero(as_float(expected.stop) > 1e-3).tolist():
        np.testing.assert_allclose(
            as_float(found.next_token(node)), as_float(expected.next_token(node)), rtol=1e-9, atol=1e-12
        )


def greedy_on_the_best_path(tree: DraftTree) -> Any:
    """GBV by its own formula: the path that is best by (p/q, token), and BV on it with the skewed rows (theory 4)."""
    count, depth = tree.paths.shape
    rows = {}
    for node in tree.inner_nodes.tolist():
        p, q = tree.target[node], tree.draft[tree.draft_row[node]]
        with np.errstate(divide="ignore", invalid="ignore"):
            order = sorted(range(len(q)), key=lambda x: (-(p[x] / q[x]) if q[x] > 0 else 1.0, x))
        after = np.zeros(len(q))
        after[order] = [sum(q[y] for y in order[i + 1 :]) for i in range(len(order))]
        rows[node] = after, {token: place for place, token in enumerate(order)}
    best = min(
        range(count), key=lambda k: [rows[int(tree.node_of[k, i])][1][int(tree.paths[k, i])] for i in range(depth)]
    )
    nodes = tree.node_of[best].tolist()
    end, length, weight, tests, q_star = 0.0, 1.0, 1.0, [], []
    for i, node in enumerate(nodes[:-1]):
        after, _ = rows[node]
        p, q, token = tree.target[node], tree.draft[tree.draft_row[node]], int(tree.paths[best, i])
        low = end + length * after
        skewed = q * mean_density(low, low + length * q, count)
        q_star.append(skewed / skewed.sum())
        excess = np.maximum(weight * p - q_star[-1], 0).sum()
        tests.append(1.0 if i == 0 or excess + 1 - weight == 0 else excess / (excess + 1 - weight))
        weight = min(1.0, weight * p[token] / q_star[-1][token])
        end, length = end + length * after[token], length * q[token]
        end, length = end / (end + length), length / (end + length)
    stop, alive = np.zeros(tree.size), 1.0
    for node, test in zip(reversed(nodes), reversed([*tests, weight]), strict=True):
        stop[node] = alive * test
        alive *= 1 - test
    return stop


@pytest.mark.parametrize("shape", SHAPES[:2])
@pytest.mark.parametrize("seed", range(5))
def test_gbv_is_block_verification_of_the_best_path(shape: tuple[int, int, int], seed: int) -> None:
    """By its own formula it looks at one path; the general construction integrates over all ranks."""
    tree = drafted_tree(*shape, seed)
    expected = greedy_on_the_best_path(tree)
    for drafted in (tree, on_torch(tree)):
        np.testing.assert_allclose(verifier("gbv", blocks=None)(drafted).stop, expected, atol=1e-12)


@pytest.mark.parametrize("split", [ordered_split, tempered_split, proportional_split])
@pytest.mark.parametrize("seed", range(5))
def test_buckets_for_all_nodes_at_once(split: Any, seed: int) -> None:
    """Merging tokens before the splits is merging them inside every split."""
    tree = drafted_tree(1500, 4, 5, seed)
    expected = SelectedPath(in_blocks(split, BLOCKS), None)(tree)
    assert_same(SelectedPath(split, BLOCKS)(tree), expected)
    assert_same(SelectedPath(split, BLOCKS)(on_torch(tree)), expected)


@pytest.mark.parametrize("paths", [[[0, 0], [1, 0]], [[1, 0], [0, 0]], [[2, 1], [2, 0]], [[1, 2], [1, 0]]])
def test_ranks_that_coincide_in_doubles_go_by_the_order_of_the_children(paths: list[list[int]]) -> None:
    """Tokens 0 and 1 have 1e-20 of the draft each and the best ranks: both intervals begin and end at rank 0."""
    draft = np.array([[1e-20, 1e-20, 1.0]] * 3)
    target = np.array([[0.5, 0.3, 0.2]] * 5)
    nodes = topology(paths).size
    tree = DraftTree.build(paths, target[:nodes], draft[: nodes - 2])
    for rows in (tree, on_torch(tree)):
        np.testing.assert_allclose(verifier("gbv")(rows).stop, greedy_on_the_best_path(tree), atol=1e-12)


@pytest.mark.parametrize("limit", [3, 16, 64])
def test_buckets_are_intervals_of_the_ratio_with_exact_masses(limit: int) -> None:
    rng = np.random.default_rng(limit)
    target, draft = (rng.dirichlet(np.full(2000, 0.2), 3) for _ in range(2))
    draft[:, :50] = 0
    children = children_of(target, draft, limit)
    assert children.bins is not None
    assert children.draft.shape == (3, limit + 1)
    for row in range(3):
        bucket = children.of(row, np.arange(2000))
        drafted = draft[row] > 0
        assert (bucket[~drafted] == limit).all()
        assert bucket[drafted].max() < limit
        for side, masses in ((target, children.target), (draft, children.draft)):
            np.testing.assert_allclose(np.bincount(bucket, side[row], limit + 1), masses[row], atol=1e-15)
        ratio = (target[row] / np.where(drafted, draft[row], 1)).astype(np.float32)
        inside = drafted & (ratio > 2.0**-8) & (ratio < 2.0**8)
        order = np.argsort(ratio[inside], kind="stable")
        bins = children.bins[row][inside][order]
        assert (np.diff(bins) >= 0).all()
        assert (np.diff(bucket[inside][order]) >= 0).all()
        assert len(np.unique(bucket[drafted])) >= 0.9 * limit  # none is wasted


@pytest.mark.parametrize("scale", [0.05, 1.0])
def test_compiled_buckets_have_the_same_bits(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    rng = np.random.default_rng(7)
    target, draft = (rng.dirichlet(np.full(5000, scale), 3) for _ in range(2))
    target[:, :40], draft[:, 20:60], draft[:, 60] = 0, 0, 1e-310
    compiled_ = children_of(target, draft)
    monkeypatch.setattr(token_buckets, "compiled", lambda function: None)
    plain = children_of(target, draft)
    assert compiled_.bins is not None
    assert plain.bins is not None
    assert (compiled_.bins == plain.bins).all()
    assert (compiled_.draft == plain.draft).all()
    assert (compiled_.target == plain.target).all()


def test_a_small_vocabulary_is_not_merged() -> None:
    rows = np.full((1, 64), 1 / 64)
    assert children_of(rows, rows).bins is None
    assert children_of(rows, rows, limit=None).bins is None
    assert children_of(rows, rows, limit=63).bins is not None
    assert FINE == 1024


def goes_on(prefix: tuple[int, ...]) -> bool:
    """Paths end early after a token 0: whether one goes on depends on its prefix only."""
    return len(prefix) < 2 and 0 not in prefix


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("num_paths", [1, 2, 3])
def test_paths_of_different_lengths_are_verified_without_loss(name: str, num_paths: int) -> None:
    """Exactly, in Fractions: the (L+1)-token distribution over all drafts whose paths end where the prefix says so."""
    pair = make.rational(3, 2, seed=4, denominator=6)
    prefixes: list[tuple[tuple[int, ...], Any]] = [((), Fraction(1))]
    leaves = []
    while prefixes:
        prefix, mass = prefixes.pop()
        if not goes_on(prefix):
            leaves.append((prefix, mass))
            continue
        index = sum(token * 3 ** (len(prefix) - 1 - i) for i, token in enumerate(prefix))
        row = pair.draft[len(prefix)][index]
        prefixes += [((*prefix, x), mass * row[x]) for x in range(3) if row[x] > 0]
    check, emitted = verifier(name), no_masses(pair)
    for chosen in product(leaves, repeat=num_paths):
        tree = DraftTree.from_pair(pair, [list(path) for path, _ in chosen])
        probability = prod(mass for _, mass in chosen)
        distribution = check(tree)
        index = level_index(tree, 3)
        assert sum(distribution.stop) == 1
        for node in np.flatnonzero(distribution.stop > 0).tolist():
            share = probability * distribution.stop[node]
            emitted[tree.depth[node]][index[node]] += share * distribution.next_token(node)
    paths = pair.target_paths[-1]
    expected = (paths[:, None] * pair.bonus_rows).reshape(-1)
    assert (emitted_law(pair, emitted) == expected).all()


@pytest.mark.parametrize("name", names(closed_form=True))
def test_a_path_that_ends_where_another_goes_on(name: str) -> None:
    rows = [[0.5, 0.5]] * 3
    tree = DraftTree.build([[0, 1], [0]], rows, [[0.5, 0.5]] * 2)
    if verifier(name).split is None:
        assert verifier(name)(tree).stop.sum() == pytest.approx(1)
    else:
        with pytest.raises(InputError, match="a path that ends where another continues"):
            verifier(name)(tree)


@pytest.mark.parametrize("name", names())
def test_nothing_drafted(name: str) -> None:
    tree = DraftTree.build([[], []], [[0.25, 0.75]], np.zeros((0, 2)))
    distribution = verifier(name)(tree)
    assert distribution.stop.tolist() == [1]
    assert distribution.next_token(0).tolist() == [0.25, 0.75]
