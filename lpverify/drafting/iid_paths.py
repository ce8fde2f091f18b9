"""The law of K i.i.d. draft paths, enumerated: ordered tuples or multisets of leaves with their exact probabilities.

Leaves of draft probability 0 are left out. Paths are tuples of tokens in the order of `lpverify.core.prefix_tree`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from math import comb, factorial, prod
from typing import Any

from lpverify.core import prefix_tree as tree
from lpverify.core.model_pair import ModelPair

Path = tuple[int, ...]


@dataclass(frozen=True)
class Draft:
    """K paths (K, L) and the probability of drawing them, as a tuple or as a multiset."""

    paths: tuple[Path, ...]
    probability: Any  # float or Fraction


def possible_leaves(pair: ModelPair) -> list[tuple[Path, Any]]:
    """The leaves that can be drafted, each with its probability Q."""
    masses = pair.draft_paths[-1].tolist()
    leaves = tree.prefixes(pair.vocab_size, pair.depth)
    return [(leaf, mass) for leaf, mass in zip(leaves, masses, strict=True) if mass > 0]


def ordered_drafts(pair: ModelPair, paths: int) -> Iterator[Draft]:
    """All ordered K-tuples of leaves; probability prod_k Q(leaf_k). They are N^K (`count_ordered`)."""
    for chosen in product(possible_leaves(pair), repeat=paths):
        yield Draft(tuple(leaf for leaf, _ in chosen), prod(mass for _, mass in chosen))


def draft_multisets(pair: ModelPair, paths: int) -> Iterator[Draft]:
    """All multisets of K leaves; probability K! / prod m! * prod Q^m. They are C(N+K-1, K) (`count_multisets`)."""
    for chosen in combinations_with_replacement(possible_leaves(pair), paths):
        leaves = tuple(leaf for leaf, _ in chosen)
        orders = factorial(paths) // prod(factorial(m) for m in Counter(leaves).values())
        yield Draft(leaves, orders * prod(mass for _, mass in chosen))


def count_ordered(leaves: int, paths: int) -> int:
    """Number of ordered K-tuples of ``leaves`` leaves.

    >>> count_ordered(9, 3)
    729
    """
    return int(leaves**paths)


def count_multisets(leaves: int, paths: int) -> int:
    """Number of multisets of K of ``leaves`` leaves.

    >>> count_multisets(9, 3)
    165
    """
    return comb(leaves + paths - 1, paths)
