"""Residual laws and the block recursion: the only copy, shared by all verifiers.

The functions take rows of any arithmetic (`lpverify.numerics`) and leave them unchanged. Derived limits, no epsilon:
h = 0/0 is 1; a residual that is zero can be reached only because rounded rows miss a sum of 1 by an ulp, target and
draft then being equal up to rounding, and the token comes from the target row: never one of target probability 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, as_index, divide, is_exact, namespace, one, row_at, zero, zeros
from lpverify.verifiers.base import StopDistribution


def positive_part(row: Array) -> Array:
    """max(row, 0), entry by entry."""
    xp = namespace(row)
    positive: Array = xp.where(row > 0, row, zero(row)) if is_exact(row) else xp.clip(row, 0, None)
    return positive


def acceptance(target: Array, draft: Array) -> Array:
    """min(1, target / draft), entry by entry, without overflow; 0 where both are 0 (never drafted)."""
    return divide(namespace(target).minimum(target, draft), draft, where_zero=zero(draft))


def residual_law(residual: Array, target: Array) -> Array:
    """``residual`` divided by its sum; ``target`` where it is all zero (unreachable but for rounding)."""
    return divide(residual, residual.sum(), where_zero=target)


@dataclass(frozen=True, eq=False)
class BlockPath:
    """Block verification along one drafted path x_1..x_L (THEORY 1).

    * ``weights`` (L+1,): w_0 = 1, w_i = min(1, w_{i-1} p(x_i|.) / q(x_i|.)).
    * ``tests`` (L+1,): h_i = R_i / (R_i + 1 - w_i), h_L = w_L, h_0 = 1; R_i = sum_y max(w_i p(y|.) - q(y|.), 0).
    * ``stop`` (L+1,): probability that i is the largest position whose test passes, h_i prod_{j>i} (1 - h_j).
    """

    target: Array | list[Array]  # L+1 rows (V,)
    draft: Array | list[Array]  # L rows (V,)
    weights: Array
    tests: Array
    stop: Array

    def rows(self, position: Any) -> Array:
        """Law of the token after ``position`` accepted tokens: p at the leaf, else max(w p - q, 0) normalised."""

        def before_leaf(position: Any) -> Array:
            row = row_at(self.target, position)
            left = row_at(self.weights, position) * row - row_at(self.draft, position)
            return residual_law(positive_part(left), row)

        return unless_leaf(position, len(self.draft), before_leaf, self.target)


def block_path(target: Array | list[Array], draft: Array | list[Array], on_target: Array, on_draft: Array) -> BlockPath:
    """Block verification of one path.

    ``target`` (L+1) and ``draft`` (L) are the rows (V,) along the path, ``on_target`` and ``on_draft`` (L,) the
    probabilities p(x_{i+1}|.), q(x_{i+1}|.) of its tokens. ``draft`` may be any law that the path has, such as the
    skewed law of a selected path.
    """
    xp = namespace(on_target)
    length = len(on_target)
    weight = on_target[0] * 0 + 1
    weights, tests = [weight], []
    for i in range(length):
        residual = positive_part(weight * target[i] - draft[i]).sum()
        tests.append(divide(residual, residual + (1 - weight), where_zero=one(weight)))
        weight = acceptance(weight * on_target[i], on_draft[i])
        weights.append(weight)
    tests[0] = weights[0]
    tests.append(weight)
    return BlockPath(target, draft, xp.stack(weights), xp.stack(tests), last_passing(tests))


def unless_leaf(place: Any, inner: int, inside: Callable[[Any], Array], target: Array | list[Array]) -> Array:
    """``inside(place)`` where ``place < inner``, else the target row there; ``place`` may be on the device of rows."""
    if isinstance(place, int | np.integer):
        return inside(place) if place < inner else row_at(target, place)
    xp = namespace(place)
    row: Array = xp.where(place < inner, inside(xp.clip(place, None, inner - 1)), row_at(target, place))
    return row


def last_passing(tests: list[Any]) -> Array:
    """Probability that i is the largest index whose independent test passes: h_i prod_{j>i} (1 - h_j).

    >>> import numpy as np
    >>> last_passing([np.float64(1), np.float64(0.5), np.float64(0.25)]).tolist()
    [0.375, 0.375, 0.25]
    """
    none_later = tests[-1] * 0 + 1
    stop = []
    for test in reversed(tests):
        stop.append(none_later * test)
        none_later = none_later * (1 - test)
    law: Array = namespace(stop[0]).stack(stop[::-1])
    return law


def law_on_path(view: DraftTree, path: Any, stop: Array, rows: Any) -> StopDistribution:
    """The `StopDistribution` of a rule that stops on one path only: ``stop`` (L+1,) and ``rows(position)`` along it.

    ``path``, and the node and position that `StopDistribution.rows` gets, may be integers on the device of the rows.
    """
    everywhere = zeros(len(view.parent), stop)
    everywhere[row_at(as_index(stop, view.node_of), path)] = stop
    return StopDistribution(view, everywhere, lambda node: rows(row_at(as_index(stop, view.depth), node)))
