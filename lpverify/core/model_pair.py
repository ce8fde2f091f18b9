"""A target and a draft on the same prefix tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.core import prefix_tree as tree
from lpverify.numerics import Array, Levels, as_float, is_exact, one, ones

ROW_SUM_TOLERANCE = 1e-9
"""A float row may miss a sum of 1 by this much (tables are written with 6 to 12 digits), a rational row not at all."""

MAX_TABLE_ENTRIES = 50_000_000
"""Largest V + V^2 + ... + V^L of one table that is ever built (0.4 GB in float64)."""


@dataclass(frozen=True)
class ModelPair:
    """Conditional next-token laws of target and draft for every prefix shorter than ``depth``.

    Build one with `from_levels`, which validates. Fields:

    * ``target[i]``, ``draft[i]``: shape ``(V**i, V)``, row n = law of the next token after node n of level i, for
      ``i = 0 .. depth-1``. Both float64 or both object arrays of Fraction; read-only.
    * ``bonus``: shape ``(V,)``, ``(V, V)`` (row x: after a leaf that ends in x) or ``(V**depth, V)``: the target's law
      after a leaf. No value or bound depends on it (a leaf emits from it whatever the verifier does); it only completes
      the (L+1)-token law, and is uniform where none is given.
    * ``tokens``: V labels for display.
    """

    target: Levels
    draft: Levels
    bonus: Array
    tokens: tuple[str, ...]

    @classmethod
    def from_levels(
        cls,
        target: Sequence[Any],
        draft: Sequence[Any],
        *,
        bonus: Any = None,
        tokens: Sequence[str] | None = None,
    ) -> ModelPair:
        """Validate tables given as one ``(V**i, V)`` array-like per level.

        Entries are numbers, or Fraction in every row of both tables for exact arithmetic. Raises InputError for a
        wrong shape, a row that does not sum to 1, or an entry that is negative, NaN or infinite.
        """
        if len(target) != len(draft):
            raise errors.fail("draft", got=f"{len(draft)} levels", expected=f"{len(target)} as in the target")
        if not target:
            raise errors.fail("target", got="no level", expected="a depth of at least 1")
        vocab_size = np.asarray(target[0]).shape[-1] if np.asarray(target[0]).ndim else 0
        errors.integer("vocabulary size", vocab_size, min=1)
        checked_target = tuple(_level(f"target level {i}", rows, i, vocab_size) for i, rows in enumerate(target))
        checked_draft = tuple(_level(f"draft level {i}", rows, i, vocab_size) for i, rows in enumerate(draft))
        exact = {is_exact(level) for level in checked_target + checked_draft}
        if len(exact) == 2:
            raise errors.fail("tables", got="Fraction and float rows", expected="one arithmetic for all rows")
        labels = tuple(tokens) if tokens is not None else tuple(str(x) for x in range(vocab_size))
        if len(labels) != vocab_size or len(set(labels)) != vocab_size:
            raise errors.fail("tokens", got=f"{len(set(labels))} different labels", expected=str(vocab_size))
        if bonus is None:
            bonus_rows = ones(vocab_size, checked_target[0]) / (one(checked_target[0]) * vocab_size)
        else:
            bonus_rows = np.asarray(bonus)
            shapes = ((vocab_size,), (vocab_size, vocab_size), (vocab_size ** len(target), vocab_size))
            if bonus_rows.shape not in shapes:
                raise errors.fail(
                    "target after a leaf", got=f"an array of shape {bonus_rows.shape}", expected=f"one of {shapes}"
                )
            bonus_rows = _rows("target after a leaf", bonus_rows, vocab_size)
        bonus_rows.setflags(write=False)
        return cls(checked_target, checked_draft, bonus_rows, labels)

    @property
    def vocab_size(self) -> int:
        return int(self.target[0].shape[1])

    @property
    def depth(self) -> int:
        return len(self.target)

    @property
    def nodes(self) -> int:
        """Nodes below the root."""
        return tree.node_count(self.vocab_size, self.depth)

    @property
    def rational(self) -> bool:
        """True when the rows are Fractions, so that every closed form is exact."""
        return is_exact(self.target[0])

    @cached_property
    def floats(self) -> ModelPair:
        """The same pair in float64 (itself when it is already)."""
        if not self.rational:
            return self
        return ModelPair(
            tuple(_frozen(as_float(level)) for level in self.target),
            tuple(_frozen(as_float(level)) for level in self.draft),
            _frozen(as_float(self.bonus)),
            self.tokens,
        )

    @cached_property
    def target_paths(self) -> Levels:
        """P(c) for every node, one array of length V**i per level i = 0..depth."""
        return path_probabilities(self.target)

    @cached_property
    def draft_paths(self) -> Levels:
        """Q(c) for every node, one array of length V**i per level i = 0..depth."""
        return path_probabilities(self.draft)

    @property
    def bonus_rows(self) -> Array:
        """The target's rows after the leaves, shape ``(V**depth, V)``."""
        leaves = tree.level_size(self.vocab_size, self.depth)
        if self.bonus.ndim == 1:
            return np.broadcast_to(self.bonus, (leaves, self.vocab_size))
        return self.bonus if len(self.bonus) == leaves else np.tile(self.bonus, (leaves // len(self.bonus), 1))


def path_probabilities(levels: Sequence[Array]) -> Levels:
    """Products of conditional rows along every path: level 0 is ``[1]``, level i has V**i entries."""
    result = [ones(1, levels[0])]
    for rows in levels:
        result.append((result[-1][:, None] * rows).reshape(-1))
    return tuple(result)


def _frozen(array: Array) -> Array:
    array.setflags(write=False)
    return array


def _level(what: str, rows: Any, depth: int, vocab_size: int) -> Array:
    array = np.asarray(rows)
    expected = (tree.level_size(vocab_size, depth), vocab_size)
    if array.shape != expected:
        raise errors.fail(what, got=f"an array of shape {array.shape}", expected=f"{expected} (rows, tokens)")
    return _rows(what, array, vocab_size)


def _rows(what: str, array: Array, vocab_size: int) -> Array:
    """A validated read-only copy of probability rows."""
    if array.shape[-1:] != (vocab_size,):
        raise errors.fail(what, got=f"rows of length {array.shape[-1:]}", expected=str(vocab_size))
    array = array.copy() if is_exact(array) else np.array(array, dtype=np.float64)
    flat = array.reshape(-1, vocab_size)
    floats = as_float(flat)
    for problem, bad in (
        ("NaN", np.isnan(floats)),
        ("an infinite entry", np.isinf(floats)),
        ("a negative entry", floats < 0),
    ):
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            raise errors.fail(
                f"{what} row {row} entry {column}",
                got=f"{problem} ({flat[row, column]})",
                expected="a probability",
            )
    sums = flat.sum(axis=1)
    wrong = sums != 1 if is_exact(array) else np.abs(sums - 1) > ROW_SUM_TOLERANCE
    if wrong.any():
        row = int(np.argmax(wrong))
        raise errors.fail(f"{what} row {row}", got=f"a sum of {sums[row]}", expected="a sum of 1")
    return _frozen(array)
