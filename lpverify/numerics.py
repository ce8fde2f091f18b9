"""The few array operations that differ between float64 arrays and object arrays of Fraction.

Everything on whole prefix trees and on what a verifier decides is written once, for numpy arrays of either dtype:
``+ - *``, ``minimum``, ``cumsum`` and ``sum`` are the same for both. What differs is collected here. The few functions
that are also called with tensors, such as `divide`, ask for the `namespace` of their arrays, which imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import array_api_compat
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]  # float64, or object holding Fraction
Levels = tuple[Array, ...]  # one array per depth
OBJECT = np.dtype(object)


def is_exact(array: Any) -> bool:
    """True for an array of Fraction, or a Fraction."""
    return getattr(array, "dtype", None) is OBJECT or isinstance(array, Fraction)


def one(like: Any) -> Any:
    """The number 1 in the arithmetic of ``like``."""
    return Fraction(1) if is_exact(like) else 1.0


def zero(like: Any) -> Any:
    """The number 0 in the arithmetic of ``like``."""
    return Fraction(0) if is_exact(like) else 0.0


def namespace(array: Any) -> Any:
    """The array-API namespace of ``array``: numpy for numpy arrays and scalars, else that of its own library."""
    if isinstance(array, np.ndarray | np.generic | Fraction | float):
        return np
    return array_api_compat.array_namespace(array)


def zeros(shape: int | tuple[int, ...], like: Array) -> Array:
    """Zeros in the arithmetic of ``like``."""
    return np.full(shape, zero(like))


def ones(shape: int | tuple[int, ...], like: Array) -> Array:
    """Ones in the arithmetic of ``like``."""
    return np.full(shape, one(like))


def divide(numerator: Array, denominator: Array, *, where_zero: Any) -> Array:
    """``numerator / denominator``, and the derived value ``where_zero`` where the denominator is 0."""
    undefined = denominator == 0
    if isinstance(undefined, np.ndarray) and not undefined.any():
        return numerator / denominator
    xp = namespace(denominator)
    quotient: Array = xp.where(undefined, where_zero, numerator / xp.where(undefined, one(denominator), denominator))
    return quotient


def sums_before(array: Array) -> Array:
    """Sum of the entries before each one in its row; `sums_after` of those after it, added from the far end.

    >>> sums_before(np.array([1.0, 2.0, 4.0])).tolist(), sums_after(np.array([1.0, 2.0, 4.0])).tolist()
    ([0.0, 1.0, 3.0], [6.0, 4.0, 0.0])
    """
    sums = np.cumsum(array, axis=-1)
    return np.concatenate([zeros(sums[..., :1].shape, sums), sums[..., :-1]], axis=-1)


def sums_after(array: Array) -> Array:
    """Mirror image of `sums_before`."""
    return sums_before(array[..., ::-1])[..., ::-1]


def total(levels: Sequence[Array]) -> Any:
    """Sum over all nodes of all levels."""
    return sum((level.sum() for level in levels[1:]), start=levels[0].sum())


def as_float(array: Array) -> npt.NDArray[np.float64]:
    """A float64 copy (correctly rounded for Fraction)."""
    return np.asarray(array, dtype=np.float64)


def as_fractions(array: Array) -> Array:
    """An object array of the exact rational values that the floats have."""
    return array if is_exact(array) else np.vectorize(Fraction, otypes=[object])(array)


def accumulate(index: npt.NDArray[np.int64], values: Array, size: int) -> Array:
    """``result[i] = sum of values[e] over index[e] == i``, i < ``size``."""
    if not is_exact(values):
        return np.bincount(index, weights=values, minlength=size)
    sums = zeros(size, values)
    np.add.at(sums, index, values)
    return sums


def take_in_rows(values: Array, index: Any) -> Array:
    """``values[r, index[r, i]]`` for (R, n) ``values`` and integers (R, m), shape (R, m)."""
    taken: Array = values.take(_flat(index, values.shape[1]))  # take_along_axis is several times slower
    return taken


def _flat(index: Any, size: int) -> Any:
    """Places (R, m) in rows of ``size`` entries as places in all rows one after the other."""
    return index if len(index) == 1 else index + size * np.arange(len(index))[:, None]


def inverse_in_rows(order: Any) -> Any:
    """``place`` with ``place[r, order[r, i]] = i``, the inverse of every row's permutation."""
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), axis=1)
    return place


def accumulate_rows(index: Any, values: Array, size: int) -> Array:
    """`accumulate` in every row: ``index`` and ``values`` (R, n) to (R, size)."""
    return accumulate(_flat(index, size).reshape(-1), values.reshape(-1), len(values) * size).reshape(-1, size)


def up_the_tree(leaves: Array, vocab_size: int, depth: int) -> Levels:
    """The node function whose value at a node is the sum over the leaves below it (last axis), levels 0..depth."""
    levels = [leaves]
    for _ in range(depth):
        levels.append(levels[-1].reshape(*leaves.shape[:-1], -1, vocab_size).sum(axis=-1))
    return tuple(reversed(levels))


def down_the_tree(levels: Sequence[Array]) -> Array:
    """For every leaf the sum of ``levels`` along its path, the root's value included."""
    along = levels[0]
    for level in levels[1:]:
        along = np.repeat(along, level.size // along.size) + level
    return along
