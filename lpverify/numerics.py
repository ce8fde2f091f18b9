"""The few array operations that differ between float64 arrays, object arrays of Fraction and torch tensors.

Everything on whole prefix trees is written once, for numpy arrays of either dtype: ``+ - *``, ``minimum``, ``cumsum``
and ``sum`` are the same for both. What differs is collected here. Verifiers also take torch tensors on any device: they
ask for `namespace` of their rows, which never imports torch by itself.
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

LONG = 4096
"""Entries from which on a row is worth a loop of its own (see `row_parts`)."""


def is_exact(array: Any) -> bool:
    """True for an array of Fraction, or a Fraction."""
    return isinstance(array, Fraction) or getattr(array, "dtype", None) == np.dtype(object)


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
    """Zeros in the arithmetic of ``like``, on its device."""
    if is_exact(like):
        return np.full(shape, Fraction(0), dtype=object)
    if isinstance(like, np.ndarray | np.generic):
        return np.zeros(shape)
    tensor: Array = namespace(like).zeros(shape, dtype=like.dtype, device=like.device)
    return tensor


def ones(shape: int | tuple[int, ...], like: Array) -> Array:
    """Ones in the arithmetic of ``like``, on its device."""
    array: Array = zeros(shape, like) + one(like)
    return array


def divide(numerator: Array, denominator: Array, *, where_zero: Any) -> Array:
    """``numerator / denominator``, and the derived value ``where_zero`` where the denominator is 0."""
    xp = namespace(denominator)
    undefined = denominator == 0
    quotient: Array = xp.where(undefined, where_zero, numerator / xp.where(undefined, one(denominator), denominator))
    return quotient


def sums_before(array: Array, axis: int = -1) -> Array:
    """Sum of the entries before each one along ``axis``; `sums_after` of those after it, added from the far end.

    >>> sums_before(np.array([1.0, 2.0, 4.0])).tolist(), sums_after(np.array([1.0, 2.0, 4.0])).tolist()
    ([0.0, 1.0, 3.0], [6.0, 4.0, 0.0])
    """
    xp = namespace(array)
    sums = xp.moveaxis(xp.cumulative_sum(xp.moveaxis(array, axis, -1), axis=-1), -1, axis)
    none = (slice(None),) * (axis % array.ndim)
    shifted: Array = xp.concat([zeros_like(sums[(*none, slice(0, 1))]), sums[(*none, slice(0, -1))]], axis=axis)
    return shifted


def sums_after(array: Array, axis: int = -1) -> Array:
    """Mirror image of `sums_before`."""
    xp = namespace(array)
    mirrored: Array = xp.flip(sums_before(xp.flip(array, axis=axis), axis), axis=axis)
    return mirrored


def zeros_like(array: Array) -> Array:
    """Zeros of the same shape, arithmetic and device."""
    return zeros(tuple(array.shape), array)


def as_index(like: Array, integers: Any) -> Any:
    """Host-side integers as an index into ``like``: themselves for numpy, else a tensor on its device."""
    xp = namespace(like)
    if xp is np:
        return np.asarray(integers)
    if isinstance(integers, np.ndarray) and not integers.flags.writeable:
        integers = integers.copy()  # tensors cannot share memory that is not to be written
    return xp.asarray(integers, device=like.device)


def row_at(rows: Array | Sequence[Array], place: Any) -> Array:
    """``rows[place]``; ``place`` may be an integer on the device of the rows, which stays there."""
    if isinstance(place, int | np.integer):
        return rows[int(place)]
    xp = namespace(place)
    stacked = xp.stack(rows) if isinstance(rows, list) else rows
    taken: Array = xp.take(stacked, xp.reshape(place, (1,)), axis=0)[0]  # an index without axes would be read
    return taken


def row_parts(count: int, like: Array) -> list[slice]:
    """Slices of ``count`` rows like those of ``like`` (R, V) to go through one after the other.

    A long row of a numpy array by itself, so that what is computed from it stays in the processor's cache; else all.
    """
    if isinstance(like, np.ndarray) and not is_exact(like) and like.shape[-1] >= LONG:
        return [slice(row, row + 1) for row in range(count)]
    return [slice(0, count)]


def in_double(array: Array) -> Array:
    """Tensors of lower precision in float64; anything else as it is."""
    xp = namespace(array)
    double: Array = array if xp is np else xp.astype(array, xp.float64, copy=False)
    return double


def on_cpu(array: Any) -> bool:
    """Is ``array`` a tensor in the host's memory; False for numpy arrays."""
    return not isinstance(array, np.ndarray) and str(array.device) == "cpu"


def sharing(tensor: Any) -> Array:
    """A tensor in the host's memory as a numpy array of doubles, sharing it where they are doubles already."""
    return np.asarray(in_double(tensor.detach()))


def ignoring_overflow() -> Any:
    """Context in which a quotient beyond the largest double is infinity without a warning."""
    return np.errstate(over="ignore")


def total(levels: Sequence[Array]) -> Any:
    """Sum over all nodes of all levels."""
    return sum((level.sum() for level in levels[1:]), start=levels[0].sum())


def as_float(array: Array) -> npt.NDArray[np.float64]:
    """A float64 copy (correctly rounded for Fraction)."""
    return np.asarray(array, dtype=np.float64)


def as_fractions(array: Array) -> Array:
    """An object array of the exact rational values that the floats have."""
    if is_exact(array):
        return array
    fractions: Array = np.vectorize(Fraction, otypes=[object])(array)
    return fractions


def accumulate(index: npt.NDArray[np.int64], values: Array, size: int) -> Array:
    """``result[i] = sum of values[e] over index[e] == i``, i < ``size``."""
    if is_exact(values):
        return add_rows(index, values, size)
    return np.bincount(index, weights=values, minlength=size)


def take_in_rows(values: Array, index: Any) -> Array:
    """``values[r, index[r, i]]`` for (R, n) ``values`` and integers (R, m) on their device, shape (R, m)."""
    if isinstance(values, np.ndarray):  # take_along_axis is several times slower, in torch too
        flat: Array = values.take(_flat(index, values.shape[1]))
        return flat
    tensor: Any = values
    taken: Array = tensor.gather(1, index)
    return taken


def _flat(index: Any, size: int) -> Any:
    """Places (R, m) in rows of ``size`` entries as places in all rows one after the other."""
    return index if len(index) == 1 else index + size * np.arange(len(index))[:, None]


def inverse_in_rows(order: Any) -> Any:
    """``place`` with ``place[r, order[r, i]] = i``, the inverse of every row's permutation."""
    if isinstance(order, np.ndarray):
        place = np.empty_like(order)
        np.put_along_axis(place, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), axis=1)
        return place
    tensor: Any = order
    index: Any = namespace(order).arange(order.shape[1], device=tensor.device)
    return tensor.scatter(1, tensor, index.expand(tensor.shape))


def sort_rows(keys: Any) -> Any:
    """Rows of different integers, each ascending."""
    if isinstance(keys, np.ndarray):
        return np.sort(keys, axis=-1)
    if on_cpu(keys):  # numpy's sort is several times faster
        return namespace(keys).asarray(np.sort(np.asarray(keys), axis=-1))
    return namespace(keys).sort(keys, axis=-1)


def accumulate_rows(index: Any, values: Array, size: int) -> Array:
    """`accumulate` in every row: ``index`` and ``values`` (R, n) to (R, size); tensors stay on their device."""
    if not isinstance(values, np.ndarray):
        if on_cpu(values):  # several times faster than scatter_add
            return on_device(accumulate_rows(np.asarray(index), np.asarray(values), size), values)
        tensor: Any = zeros((len(values), size), values)
        sums: Array = tensor.scatter_add(1, index, values)
        return sums
    return accumulate(_flat(index, size).reshape(-1), values.reshape(-1), len(values) * size).reshape(-1, size)


def add_rows(index: Any, values: Array, count: int) -> Array:
    """``result[i] = sum of values[e] over index[e] == i``, i < ``count``: `accumulate` of arrays (E, ...)."""
    shape = (count, *values.shape[1:])
    if isinstance(values, np.ndarray):
        sums = zeros(shape, values)
        np.add.at(sums, index, values)
        return sums
    tensor: Any = zeros(shape, values)
    added: Array = tensor.index_add(0, index, values)
    return added


def solve_each(matrices: Array, right: Array) -> Array:
    """Solutions of B regular systems (B, n, n) x = (B, n, m); tensors stay on their device."""
    xp = namespace(matrices)
    if xp is np:
        return np.linalg.solve(matrices, right)
    solution: Array = xp.linalg.solve_ex(matrices, right)[0]  # the check for a singular matrix would wait
    return solution


def up_the_tree(leaves: Array, vocab_size: int, depth: int) -> Levels:
    """The node function whose value at a node is the sum over the leaves below it, levels 0..depth."""
    levels = [leaves]
    for _ in range(depth):
        levels.append(levels[-1].reshape(-1, vocab_size).sum(axis=1))
    return tuple(reversed(levels))


def down_the_tree(levels: Sequence[Array]) -> Array:
    """For every leaf the sum of ``levels`` along its path, the root's value included."""
    along = levels[0]
    for level in levels[1:]:
        along = np.repeat(along, level.size // along.size) + level
    return along


def to_host(array: Any) -> Array:
    """``array`` as a numpy array (itself when it is one)."""
    if isinstance(array, np.ndarray):
        return array
    return np.asarray(array_api_compat.to_device(array, "cpu"))


def on_device(array: Array, like: Any) -> Array:
    """The numpy ``array`` in the library, number type and device of ``like``."""
    if isinstance(like, np.ndarray):
        return array
    moved: Array = namespace(like).asarray(array, dtype=like.dtype, device=like.device)
    return moved
