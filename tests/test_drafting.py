"""Draft distributions: what is enumerated, sampled, covered and counted is one distribution."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from lp_cases import random_pair, rational_pair
from scipy.stats import chisquare

from lpverify.core import prefix_tree
from lpverify.core.model_pair import ModelPair
from lpverify.drafting import DRAFTS, draft_distribution
from lpverify.drafting.base import DraftDistribution
from lpverify.drafting.random_paths import PoissonPaths
from lpverify.errors import InputError, SizeError

SPECS = (
    "iid:1",
    "iid:2",
    "iid:3",
    "distinct-paths:1",
    "distinct-paths:2",
    "distinct-paths:3",
    "branching:2,1",
    "branching:1,3",
    "distinct-children:2,1",
    "distinct-children:2,2",
    "greedy-plus-one:2,1",
    "delayed:0,2",
    "delayed:1,2",
    "random-paths:0=1/4,1=1/4,2=1/2",
)
DISTRIBUTIONS = [draft_distribution(spec) for spec in (*SPECS, "top:3")]
FALSE_ALARM = 1e-6


def prefixes(paths: Any) -> set[tuple[int, ...]]:
    return {path[:i] for path in paths for i in range(1, len(path) + 1)}


@pytest.mark.parametrize("draft", DISTRIBUTIONS, ids=lambda draft: draft.spec)
def test_both_enumerations_are_the_same_distribution(draft: DraftDistribution) -> None:
    """In Fractions, total 1; leaves that are never drafted are left out."""
    pair = rational_pair(2, 2, seed=3)
    ordered, multisets = list(draft.enumerate(pair)), list(draft.enumerate(pair, ordered=False))
    assert len(ordered) == draft.count(pair)
    assert len(multisets) == draft.count(pair, ordered=False)
    merged: Counter[Any] = Counter()
    for one in ordered:
        merged[tuple(sorted(one.paths))] += one.probability
    assert dict(merged) == {one.paths: one.probability for one in multisets}
    assert sum(merged.values()) == 1


@pytest.mark.parametrize("draft", [draft_distribution(spec) for spec in SPECS], ids=lambda draft: draft.spec)
@pytest.mark.parametrize("pair", [rational_pair(3, 2, seed=1), random_pair(3, 2, seed=4)], ids=["exact", "floats"])
def test_the_first_drafted_leaf_of_an_order_is_that_of_the_enumeration(draft: DraftDistribution, pair: Any) -> None:
    """Of all leaves and of a part of them; the masses are the steps of the coverage of nested sets."""
    every = list(draft.enumerate(pair, ordered=False))
    for seed, size in ((0, 9), (1, 9), (2, 4)):
        order = np.random.default_rng(seed).permutation(9)[:size]
        leaves = [prefix_tree.prefix_of(int(leaf), 2, 3) for leaf in order]
        expected = [
            sum(one.probability for one in every if leaf in one.paths and not set(leaves[:k]) & set(one.paths))
            for k, leaf in enumerate(leaves)
        ]
        first = draft.first_drafted(pair, order)
        if pair.rational:
            assert first.tolist() == expected
        assert np.allclose(first.astype(float), np.array(expected, dtype=float), rtol=0, atol=1e-14)


@pytest.mark.parametrize("draft", DISTRIBUTIONS, ids=lambda draft: draft.spec)
def test_coverage_and_expected_nodes_are_those_of_the_enumeration(draft: DraftDistribution) -> None:
    pair = rational_pair(2, 2, seed=3)
    every = [(prefixes(one.paths), one.probability) for one in draft.enumerate(pair)]
    assert draft.expected_nodes(pair) == sum(len(nodes) * probability for nodes, probability in every)
    leaves = list(prefix_tree.prefixes(2, 2))
    antichains = [*([(x,)] for x in range(2)), *(list(c) for n in range(1, 5) for c in combinations(leaves, n))]
    antichains += [[(0,), (1, 0)], [(0,), (1, 1)], [(0, 0), (1,)]]
    for nodes in antichains:
        assert draft.coverage(pair, nodes) == sum(p for drafted, p in every if drafted & set(nodes)), nodes


def sampled(draft: DraftDistribution, pair: Any, count: int, seed: int) -> Counter[Any]:
    rng = np.random.default_rng(seed)
    return Counter(tuple(map(tuple, draft.sample(pair, rng).paths.tolist())) for _ in range(count))


@pytest.mark.parametrize("draft", DISTRIBUTIONS[1:-1], ids=lambda draft: draft.spec)
def test_samples_follow_the_enumeration(draft: DraftDistribution) -> None:
    """False alarm 1e-6; a draft of another pair fails the same test."""
    pair, other = random_pair(2, 2, seed=1), random_pair(2, 2, seed=2)
    expected = {one.paths: one.probability for one in draft.enumerate(pair)}
    values = []
    for drawn_from in (pair, other):
        counts = sampled(draft, drawn_from, 4000, seed=5)
        observed = [counts[paths] for paths in expected]
        values.append(chisquare(observed, 4000 * np.array(list(expected.values()))).pvalue)
    assert values[0] > FALSE_ALARM
    assert values[1] < FALSE_ALARM


def test_every_spec_is_read_back() -> None:
    for spec in (*SPECS, "top:3", "poisson:2.5"):
        assert draft_distribution(spec).spec == spec
    assert {spec.partition(":")[0] for spec in (*SPECS, "top:3", "poisson:1")} == set(DRAFTS)
    assert draft_distribution(3).spec == draft_distribution(np.int64(3)).spec == "iid:3"


WRONG = (
    "iid:0", "iid:", "iid:1,2", "iid:-1", "iid:1.5", "iid", "", ":", "nosuch:1", "branching:2,", "branching:0,1",
    "branching:", "delayed:1", "delayed:1,0", "top:0", "top:x", "distinct-paths:", "poisson:0", "poisson:nan",
    "poisson:x", "random-paths:1=1/2", "random-paths:1=1/2,1=1/2", "random-paths:1=1/0", "random-paths:1", 0, -1, 1.5,
    None, True, "iid:99999999999999999999", "iid:\u0663",
)  # fmt: skip


@pytest.mark.parametrize("spec", WRONG)
def test_another_spec_is_refused(spec: Any) -> None:
    with pytest.raises(InputError, match="expected"):
        draft_distribution(spec)


def test_a_spec_that_does_not_fit_the_problem_is_refused() -> None:
    pair = random_pair(2, 2, seed=1)
    for spec in ("branching:2", "distinct-children:2,1,1", "delayed:2,2", "greedy-plus-one:1"):
        draft = draft_distribution(spec)
        for call in (draft.count, draft.node_coverage, lambda pair, draft=draft: list(draft.enumerate(pair))):
            with pytest.raises(InputError, match=spec):
                call(pair)


def test_too_many_sets_of_children_are_refused() -> None:
    pair = random_pair(40, 1, seed=1)
    with pytest.raises(SizeError, match="distinct-children:20"):
        draft_distribution("distinct-children:20").node_coverage(pair)
    with pytest.raises(SizeError, match="distinct draws"):
        list(draft_distribution("distinct-paths:20").enumerate(pair, ordered=False))


def test_poisson_paths_are_the_limit_of_mixtures() -> None:
    """Leaves are drafted independently: the mean of K i.i.d. paths over K, and sampled frequencies."""
    pair, poisson = random_pair(2, 2, seed=1), PoissonPaths(1.5)
    weights = [math.exp(-1.5) * 1.5**k / math.factorial(k) for k in range(40)]
    order = np.array([2, 0, 3, 1])
    mixed = sum(weight * draft_distribution(k).first_drafted(pair, order) for k, weight in enumerate(weights) if k > 0)
    assert np.allclose(poisson.first_drafted(pair, order), mixed, rtol=0, atol=1e-14)
    rng = np.random.default_rng(3)
    sizes = [poisson.sample(pair, rng).size - 1 for _ in range(4000)]
    assert abs(np.mean(sizes) - poisson.expected_nodes(pair)) < 5 * np.std(sizes) / math.sqrt(4000)


def test_more_draws_than_outcomes_draft_everything() -> None:
    pair = ModelPair.iid([0.5, 0.5, 0.0], [0.5, 0.5, 0.0], depth=2)
    for spec in ("distinct-paths:9", "distinct-children:3,3", "greedy-plus-one:3,2"):
        [draft] = draft_distribution(spec).enumerate(pair, ordered=False)
        assert draft.paths == ((0, 0), (0, 1), (1, 0), (1, 1)), spec
        assert draft.probability == 1.0
        assert draft_distribution(spec).expected_nodes(pair) == pytest.approx(6.0, abs=1e-12)


def test_a_leaf_of_tiny_probability_is_covered_with_its_own_accuracy() -> None:
    """Without replacement a token of mass 1e-18 is drafted almost surely once the likely ones are gone."""
    pair = ModelPair.iid([0.5, 0.5, 0.0], [0.5, 0.5 - 1e-18, 1e-18], depth=1)
    distinct = draft_distribution("distinct-paths:2").node_coverage(pair)[1]
    assert distinct[2] == pytest.approx(3e-18, rel=1e-9)
    everything = draft_distribution("distinct-paths:3").node_coverage(pair)[1]
    assert np.allclose(everything, 1.0, rtol=0, atol=1e-12)
