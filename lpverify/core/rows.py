"""Probability rows: conversion from whatever holds numbers, and validation."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.numerics import Array, is_exact

ROW_SUM_TOLERANCE = 1e-9  # of the sum of a float row, from 1 (tables are written with 6 to 12 digits)
MAX_NUMBER = 1e300  # largest entry of a table, so that sums of a row cannot overflow
# A number written as a string: ``1/3``, ``0.2``, ``2e-3``.
NUMBER = re.compile(r"[+-]?(\d{1,400}/\d{1,400}|(\d{1,400}\.?\d{0,400}|\.\d{1,400})(e[+-]?\d{1,3})?)", re.A | re.I)


def number(entry: Any) -> Fraction | float:
    """An entry of a table: strings and integers as Fractions, floats as they are. Raises ValueError that describes it.

    >>> number("1/3"), number(0.5), number(1)
    (Fraction(1, 3), 0.5, Fraction(1, 1))
    """
    if isinstance(entry, (float, np.floating)):
        return float(entry)
    shown = errors.shown(entry)
    if isinstance(entry, bool) or not isinstance(entry, str | int | np.integer | Fraction | Decimal):
        raise ValueError(shown)
    if isinstance(entry, str) and not NUMBER.fullmatch(entry):
        raise ValueError(f"{shown}, which is no number like 0.2 or 1/3")
    try:
        value = Fraction(int(entry) if isinstance(entry, np.integer) else entry)
    except ZeroDivisionError:
        raise ValueError(f"{shown}, a division by zero") from None
    except OverflowError:  # an infinite Decimal
        raise ValueError(shown) from None
    if abs(value) > MAX_NUMBER:
        raise ValueError(f"{shown}, a number too large")
    return value


def as_rows(name: str, values: Any) -> Array:
    """Rows of float64, int64 or Fractions, shape (n, V), from anything that holds numbers; a row (V,) becomes (1, V).

    Raises InputError for other shapes and entries; ``name`` starts the message.

    >>> as_rows("target", ["1/3", "2/3"]).tolist()
    [[Fraction(1, 3), Fraction(2, 3)]]
    """
    array = _as_array(name, values)
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or 0 in array.shape:
        raise errors.fail(name, got=f"an array of shape {array.shape}", expected="rows of shape (n, V)")
    return array


def _as_array(name: str, values: Any) -> Array:
    if hasattr(values, "detach"):  # a torch tensor; numpy knows neither gradients, nor devices, nor bfloat16
        values = values.detach().cpu().double().numpy()
    elif hasattr(values, "to_numpy"):  # a pandas frame
        values = values.to_numpy()
    elif isinstance(values, list | tuple) and any(hasattr(row, "detach") for row in values):
        values = [_as_array(name, row) for row in values]
    try:
        array = np.asarray(values)
        if array.dtype.kind in "USO":
            array = np.array(values, dtype=object)
    except (ValueError, TypeError):
        raise errors.fail(name, got="rows of different lengths", expected="rows of one length") from None
    if array.dtype.kind == "f":
        return array.astype(np.float64, copy=False)
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    if array.dtype.kind != "O":
        raise errors.fail(name, got=f"entries of type {array.dtype}", expected="numbers, Fractions or strings")
    entries = []
    for i, entry in enumerate(array.flat):
        try:
            entries.append(number(entry))
        except ValueError as error:
            got = "rows of different lengths" if isinstance(entry, list | tuple) else str(error)
            index = ", ".join(str(index) for index in np.unravel_index(i, array.shape))
            raise errors.fail(f"{name} entry {index}", got=got, expected="a probability") from None
    kinds = set(map(type, entries))
    if kinds == {float, Fraction}:
        raise errors.fail(name, got="Fractions in some entries and floats in others", expected="one kind of number")
    result = np.empty(len(entries), dtype=np.float64 if kinds == {float} else object)
    result[:] = entries
    return result.reshape(array.shape)


def check_rows(
    rows: Array, position: Callable[[int], str], tokens: Sequence[str], normalize: bool, option: str = "normalize=True"
) -> Array:
    """Rows of probabilities (n, V), float64 or Fractions, validated; a copy.

    Messages call row i ``position(i)``. ``normalize`` divides every row by its sum; ``option`` is how to ask for that.
    Raises InputError for an entry that is NaN, negative or above MAX_NUMBER and for a sum that is not 1, or 0 or
    infinite with ``normalize``.
    """
    rows = rows.copy() if is_exact(rows) else rows + 0.0  # no negative zeros
    bad = ~((rows >= 0) & (rows <= MAX_NUMBER))
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        value = rows[row, column]
        kind = "a negative number, " if value < 0 else "a number too large, " if value > 0 else ""
        got = f"{kind}{value if isinstance(value, Fraction) else float(value)}"
        what = f"{position(row)} entry {column} (token {errors.shown(tokens[column])})"
        raise errors.fail(what, got=got, expected="a probability")
    sums = rows.sum(axis=1)
    if normalize:
        wrong, expected = (sums <= 0) | (sums > MAX_NUMBER), "a positive finite sum to divide by"
    else:
        tolerance = 0 if is_exact(rows) else ROW_SUM_TOLERANCE
        wrong, expected = abs(sums - 1) > tolerance, f"a sum of 1 ({option} rescales rows)"
    if wrong.any():
        row = int(np.argmax(wrong))
        short = isinstance(sums[row], Fraction) and len(str(sums[row])) < 40
        total = str(sums[row]) if short else f"{float(sums[row]):.12g}"
        raise errors.fail(position(row), got=f"a sum of {total}", expected=expected)
    return rows / sums[:, None] if normalize else rows


def softmax(name: str, logits: Any, temperature: float) -> Array:
    """Rows softmax(logits / T) in float64; at T = 0 the first of the largest logits has probability 1.

    Raises InputError for logits that are NaN or +inf and for rows of -inf.

    >>> softmax("logits", [[0.0, 0.0, float("-inf")]], 0.5).tolist()
    [[0.5, 0.5, 0.0]]
    """
    values = as_rows(name, logits).astype(np.float64)
    largest = values.max(axis=1, keepdims=True)
    if not np.isfinite(largest).all():
        row = int(np.argmin(np.isfinite(largest)))
        raise errors.fail(f"{name} row {row}", got=f"a largest logit of {largest[row, 0]}", expected="a finite number")
    if temperature == 0:
        return np.asarray(np.eye(values.shape[1])[values.argmax(axis=1)])
    with np.errstate(over="ignore"):  # a tiny temperature: the quotient is -inf, its weight 0
        weights = np.exp((values - largest) / temperature)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def check_tokens(what: str, tokens: Sequence[Any] | None, size: int) -> tuple[str, ...]:
    """``size`` different labels of valid Unicode as a tuple; without any, the numbers 0..V-1. Raises InputError."""
    if tokens is None:
        return tuple(map(str, range(size)))
    if len(tokens) != size:
        raise errors.fail(what, got=f"{len(tokens)} labels", expected=f"{size}, one for each token")
    first: dict[str, int] = {}
    for i, label in enumerate(tokens):
        if first.setdefault(check_text(f"{what}[{i}]", label), i) != i:
            expected = f"another label than {what.split(': ')[-1]}[{first[label]}]"
            raise errors.fail(f"{what}[{i}]", got=f"{errors.shown(label)} again", expected=expected)
    return tuple(tokens)


def check_text(what: str, value: Any) -> str:
    """``value`` if it is a string that can be written to a file. Raises InputError."""
    if not isinstance(value, str):
        raise errors.fail(what, got=errors.shown(value), expected="a string")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise errors.fail(what, got=f"{errors.shown(value)}, half of a surrogate pair", expected="valid Unicode")
    return value
