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

import numpy as np
import numpy.typing as npt

from lpverify.core import prefix_tree as tree
from lpverify.core.model_pair import ModelPair
from lpverify.numerics import Array

Path = tuple[int, ...]


@dataclass(frozen=True)
class Draft:
    """K paths (K, L) and the probability of drawing them, as a tuple or as a multiset."""

    paths: tuple[Path, ...]
    probability: Any  # float or Fraction


def draws(masses: Array, num_paths: int, *, ordered: bool) -> tuple[npt.NDArray[np.int64], Array]:
    """All results of K i.i.d. draws, as ordered tuples or as multisets, with their probabilities.

    Args:
        masses: probability of each outcome, (n,), float64 or Fraction; outcomes of probability 0 are left out.
        num_paths: K.
        ordered: list ordered tuples, of probability prod q; else multisets (ascending), K! / prod m! times that.

    Returns:
        Outcomes drawn (T, K) and probabilities (T,).

    >>> drawn, probability = draws(np.array([0.5, 0.5]), 2, ordered=False)
    >>> drawn.tolist(), probability.tolist()
    ([[0, 0], [0, 1], [1, 1]], [0.25, 0.5, 0.25])
    """
    support = np.flatnonzero(masses > 0).tolist()
    every = product(support, repeat=num_paths) if ordered else combinations_with_replacement(support, num_paths)
    drawn = np.array(list(every), dtype=np.int64).reshape(-1, num_paths)
    probability: Array = masses[drawn].prod(axis=1)
    if not ordered:
        orders = np.full(len(drawn), factorial(num_paths), dtype=object)  # of the tuples of one multiset
        run = np.ones(len(drawn), dtype=np.int64)
        for k in range(1, num_paths):  # a run of m equal outcomes divides by 2, 3, ..., m
            run = np.where(drawn[:, k] == drawn[:, k - 1], run + 1, 1)
            orders //= run
        probability = (orders * probability).astype(masses.dtype)
    return drawn, probability


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
