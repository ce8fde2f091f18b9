"""Draft distributions: what is enumerated, sampled, covered and counted is one distribution."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from lp_cases import random_pair, rational_pair
from scipy.stats import chisquare

from lpverify.core import prefix_tree
from lpverify.drafting.base import DraftDistribution
from lpverify.drafting.iid_paths import IidPaths
from lpverify.errors import InputError

DISTRIBUTIONS: list[DraftDistribution] = [IidPaths(1), IidPaths(2), IidPaths(3)]
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


@pytest.mark.parametrize("draft", DISTRIBUTIONS[:2], ids=lambda draft: draft.spec)
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


def test_no_path_is_refused() -> None:
    with pytest.raises(InputError, match="num_paths"):
        IidPaths(0)
