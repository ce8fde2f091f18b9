"""Index arithmetic on the complete prefix tree.

A node at depth i is a prefix of i tokens and has the index ``sum_j token_j * V**(i-1-j)`` among the V**i nodes of its
level (lexicographic order). The children of node ``n`` are ``n*V .. n*V+V-1`` of the next level, row n of that level
reshaped to ``(V**i, V)``. A function on the tree is a list of one array per level; there are no pointers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product


def level_size(vocab_size: int, depth: int) -> int:
    """Number of prefixes of ``depth`` tokens."""
    return int(vocab_size**depth)


def node_count(vocab_size: int, depth: int) -> int:
    """Number of nodes below the root, the size that the LPs are quoted by.

    >>> node_count(10, 3)
    1110
    """
    return sum(level_size(vocab_size, i) for i in range(1, depth + 1))


def index_of(prefix: Sequence[int], vocab_size: int) -> int:
    """Index of a prefix within its level.

    >>> index_of((1, 2), 3)
    5
    """
    return reduce(lambda index, token: index * vocab_size + token, prefix, 0)


def prefix_of(index: int, depth: int, vocab_size: int) -> tuple[int, ...]:
    """Inverse of `index_of`.

    >>> prefix_of(5, 2, 3)
    (1, 2)
    """
    return tuple(index // vocab_size**i % vocab_size for i in reversed(range(depth)))


def prefixes(vocab_size: int, depth: int) -> Iterator[tuple[int, ...]]:
    """All prefixes of one level in index order."""
    return product(range(vocab_size), repeat=depth)
