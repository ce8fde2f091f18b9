"""The few array operations that differ between float64 arrays and object arrays of Fraction.

Everything on whole prefix trees is written once, for numpy arrays of either dtype: ``+ - *``, ``minimum``, ``cumsum``
and ``sum`` are the same for both. What differs is collected here.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]  # float64, or object holding Fraction
Levels = tuple[Array, ...]  # one array per depth


def is_exact(array: Array) -> bool:
    """True for an array of Fraction."""
    return array.dtype == object


def one(like: Array) -> Any:
    """The number 1 in the arithmetic of ``like``."""
    return Fraction(1) if is_exact(like) else 1.0


def zeros(shape: int | tuple[int, ...], like: Array) -> Array:
    """Zeros in the arithmetic of ``like``."""
    if is_exact(like):
        return np.full(shape, Fraction(0), dtype=object)
    return np.zeros(shape)


def ones(shape: int | tuple[int, ...], like: Array) -> Array:
    """Ones in the arithmetic of ``like``."""
    if is_exact(like):
        return np.full(shape, Fraction(1), dtype=object)
    return np.ones(shape)


def divide(numerator: Array, denominator: Array, *, where_zero: Any) -> Array:
    """``numerator / denominator``, and the derived value ``where_zero`` where the denominator is 0."""
    numerator, denominator = np.broadcast_arrays(numerator, denominator)
    zero = denominator == 0
    safe = np.where(zero, one(denominator), denominator)
    return np.where(zero, where_zero, numerator / safe)


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
    return np.vectorize(Fraction, otypes=[object])(array)
