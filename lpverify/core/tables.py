"""Whole-tree tables from short descriptions: the same row everywhere, or a row that depends on the last token."""

from __future__ import annotations

import numpy as np

from lpverify import errors
from lpverify.core.model_pair import MAX_TABLE_ENTRIES
from lpverify.numerics import Array

MAX_DEPTH = 1000
"""Largest draft depth of any problem; only a vocabulary of one token comes near it before MAX_TABLE_ENTRIES."""

SMALLER = "use a smaller vocabulary or depth"


def check_size(what: str, vocab_size: int, depth: int) -> None:
    """Refuse tables of more than MAX_TABLE_ENTRIES entries, V + V^2 + ... + V^L, before any is built.

    >>> check_size("problem", 100, 3)
    >>> check_size("problem", 100, 4)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    lpverify.errors.SizeError: problem: got a table of at least 101010100 entries, expected at most 50000000...
    """
    if depth > MAX_DEPTH:
        raise errors.too_large(what, size=f"a depth of {depth}", limit=str(MAX_DEPTH), instead=SMALLER)
    entries, level = 0, 1
    for _ in range(depth):
        level *= vocab_size
        entries += level
        if entries > MAX_TABLE_ENTRIES:
            size = f"a table of at least {entries} entries"
            raise errors.too_large(what, size=size, limit=str(MAX_TABLE_ENTRIES), instead=SMALLER)


def iid_levels(row: Array, depth: int) -> list[Array]:
    """The same ``row`` of shape (V,) at every prefix: one ``(V**i, V)`` array for each i < depth.

    >>> [level.shape for level in iid_levels(np.array([0.5, 0.5]), 3)]
    [(1, 2), (2, 2), (4, 2)]
    """
    return [np.tile(row, (len(row) ** i, 1)) for i in range(depth)]


def markov_levels(initial: Array, transition: Array, depth: int) -> list[Array]:
    """Next token depends on the last one: ``initial`` (V,) at the root, row x of ``transition`` (V, V) after token x.

    One ``(V**i, V)`` array for each i < depth. The last token of node n is n mod V, so level i repeats the transition
    rows V^(i-1) times.

    >>> markov_levels(np.array([0.5, 0.5]), np.array([[0.9, 0.1], [0.2, 0.8]]), 3)[2][:, 0].tolist()
    [0.9, 0.2, 0.9, 0.2]
    """
    return [initial[None, :]] + [np.tile(transition, (len(initial) ** (i - 1), 1)) for i in range(1, depth)]
