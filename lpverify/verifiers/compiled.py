"""Compiled inner loops of the splits, for trees of a language model.

The extra ``decode`` brings numba. At V = 49,152 the numpy steps of EBV's coupling take six times as long. Toys never
wait for the compiler: kernels are used inside `kernels` only, which `lpverify.verifiers.rank_selection` enters for
long rows. They compute what the numpy functions of the same names do, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import numpy as np

LONG = 1024  # rows of at least so many tokens are worth the compiler

_in_use: ContextVar[bool] = ContextVar("compiled kernels in use", default=False)


@cache
def compiled(function: Callable[..., None]) -> Callable[..., None] | None:
    """``function``, compiled and cached on disk, or None without numba."""
    try:
        import numba
    except ImportError:
        return None
    kernel: Callable[..., None] = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return kernel


@contextmanager
def kernels(use: bool) -> Iterator[None]:
    """Inside, `in_use` gives compiled functions if ``use``."""
    before = _in_use.set(use)
    try:
        yield
    finally:
        _in_use.reset(before)


def in_use(function: Callable[..., None]) -> Callable[..., None] | None:
    """``function``, compiled, inside `kernels`; None elsewhere and without numba."""
    return compiled(function) if _in_use.get() else None


def bin_row(target: Any, draft: Any, ratio: Any, bins: Any, masses: Any, shift: int, lowest: int, count: int) -> None:
    """Bins of the tokens of one row, and the masses p and q of the bins, (2, count + 1); see `token_buckets`.

    ``ratio`` (V,) float32 is scratch, ``bins`` (V,) int16 and ``masses``, which is 0 before, are results.
    One pass over a row instead of eight takes half the time of the numpy steps, with the same bits.
    """
    for token in range(target.size):
        ratio[token] = target[token] / draft[token]
    bits = ratio.view(np.int32)
    for token in range(target.size):
        number = count
        if draft[token] != 0:
            number = min(max((bits[token] >> shift) - lowest, 0), count - 1)
        bins[token] = number
        masses[0, number] += target[token]
        masses[1, number] += draft[token]


def minorant_rows(shares: Any, target: Any, slack: float, group: Any, slope: Any) -> None:
    """`lpverify.verifiers.pbv.minorant_groups`; ``group`` and ``slope`` (R, V) are results."""
    rows, size = shares.shape
    first, up, across, steep = np.empty(size, np.int64), np.empty(size), np.empty(size), np.empty(size)
    for row in range(rows):
        last = -1
        for child in range(size):
            start, rise, run = child, shares[row, child], target[row, child]
            ratio = rise / run if run > 0 else np.inf
            while last >= 0 and ratio <= steep[last] * slack:
                start, rise, run = first[last], rise + up[last], run + across[last]
                ratio = rise / run if run > 0 else np.inf
                last -= 1
            last += 1
            first[last], up[last], across[last], steep[last] = start, rise, run, ratio
        end = size
        for segment in range(last, -1, -1):
            group[row, first[segment] : end] = first[segment]
            slope[row, first[segment] : end] = steep[segment]
            end = first[segment]


def couple_groups(masses: Any, densities: Any, drafts: Any, wanted: Any, limits: tuple[Any, ...], result: Any) -> None:
    """`lpverify.verifiers.ebv.coupling`, group by group; ``result`` (B, V, n).

    ``limits``: START_STEPS, STEPS, PATIENCE, CLIPPED, SMALLEST, ROUNDING.
    """
    start_steps, steps, patience, tolerated, smallest, rounding = limits
    groups, children, cells = result.shape
    table, change, factor = np.empty((children, cells)), np.empty((children, cells)), np.empty((2 * children, cells))
    goal, needed, lower, off = np.empty(children), np.empty(children), np.empty((children, 3)), np.empty(2 * children)
    feature, base, scale, column = np.empty(cells), np.empty(cells), np.empty(cells), np.empty(cells)
    for group in range(groups):
        mu, phi, q = masses[group], densities[group], drafts[group]
        mean, variance = 0.0, 0.0
        for u in range(cells):
            mean += mu[u] * phi[u]
        for u in range(cells):
            variance += mu[u] * (phi[u] - mean) ** 2
        spread = np.sqrt(variance) if np.sqrt(variance) > rounding * mean else np.inf
        inside = 1.0
        for x in range(children):
            goal[x] = (wanted[group, x] - mean * q[x]) / spread if q[x] > 0 else 0.0
            needed[x] = goal[x] / q[x] if q[x] > 0 else 0.0
            inside -= goal[x] * needed[x]
        inside = max(inside, 0.1)
        for u in range(cells):
            feature[u] = (phi[u] - mean) / spread if mu[u] > 0 else 0.0
            base[u] = np.log(mu[u]) - (1 - inside) / inside * feature[u] ** 2 / 2 if mu[u] > 0 else -np.inf
            scale[u] = 1 / mu[u] if mu[u] > smallest else 0.0
        for x in range(children):  # the start
            row, tilt = table[x], min(max(needed[x] / inside, -40.0), 40.0)
            for step in range(start_steps + 1):
                top = -np.inf
                for u in range(cells):
                    row[u] = tilt * feature[u] + base[u]
                    top = max(top, row[u])
                zeroth, first, second = 0.0, 0.0, 0.0
                for u in range(cells):
                    row[u] = np.exp(row[u] - top)
                    zeroth += row[u]
                    first += row[u] * feature[u]
                    second += row[u] * feature[u] * feature[u]
                average = first / zeroth
                if step < start_steps:
                    left = max(second / zeroth - average * average, 1e-4)
                    tilt += min(max((needed[x] - average) / left, -2.0), 2.0)
            for u in range(cells):
                row[u] *= q[x] / zeroth
        best, since = np.inf, 0
        for step in range(steps + 1):
            column[:] = 0.0
            for x in range(children):
                for u in range(cells):
                    column[u] += table[x, u]
            for x in range(children):
                for u in range(cells):
                    if column[u] > smallest:
                        table[x, u] *= mu[u] / column[u]
                    else:
                        table[x, u] = q[x] * mu[u]
            for x in range(children):  # Newton's step, as `newton_step`
                zeroth, first, second = 0.0, 0.0, 0.0
                for u in range(cells):
                    zeroth += table[x, u]
                    first += table[x, u] * feature[u]
                    second += table[x, u] * feature[u] * feature[u]
                determinant = max(zeroth * second - first * first, 1e-10 * zeroth * max(second, zeroth))
                l00, l01, l11 = 0.0, 0.0, 0.0
                if q[x] > 0 and determinant > 0:
                    l11 = np.sqrt(zeroth / determinant)
                    l00, l01 = np.sqrt(1 / zeroth), -first / zeroth * l11
                lower[x, 0], lower[x, 1], lower[x, 2] = l00, l01, l11
                off[x] = l00 * (zeroth - q[x])
                off[children + x] = l01 * (zeroth - q[x]) + l11 * (first - goal[x])
                for u in range(cells):
                    root = table[x, u] * np.sqrt(scale[u])
                    factor[x, u] = root * l00
                    factor[children + x, u] = root * (l11 * feature[u] + l01)
            matrix = -(factor.T @ factor)
            for u in range(cells):
                matrix[u, u] += 1 + 1e-10
            solution = off + factor @ np.linalg.solve(matrix, off @ factor)
            column[:] = 0.0
            for x in range(children):
                shift = lower[x, 0] * solution[x] + lower[x, 1] * solution[children + x]
                slope = lower[x, 2] * solution[children + x]
                for u in range(cells):
                    change[x, u] = -shift - slope * feature[u]
                    column[u] += table[x, u] * change[x, u] * scale[u]
            clipped = 0.0
            for x in range(children):
                for u in range(cells):
                    change[x, u] -= column[u]
                    clipped -= min(table[x, u] * (1 + change[x, u]), 0.0)
            since = 0 if clipped <= 0.9 * best else since + 1
            best = min(best, clipped)
            if clipped <= tolerated or since >= patience or step == steps:
                for x in range(children):
                    for u in range(cells):
                        result[group, x, u] = max(table[x, u] * (1 + change[x, u]), 0.0)
                break
            for x in range(children):
                for u in range(cells):
                    up = change[x, u]
                    table[x, u] *= 1 + up if up > 0 else 1 / (1 - up)
