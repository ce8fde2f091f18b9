"""Compiled loops for long rows in host memory, with numba where it is installed (the extra ``decode`` brings it).

One pass over a row instead of eight: at V = 49,152 buckets take half the time of the same steps in numpy, and have
the same bits. Only rows of `LONG` tokens are worth the compiler, which is loaded at the first of them, so no command on
small problems ever waits for it; compiled code is cached on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

LONG = 4096
"""Rows of at least this many tokens are long."""


@cache
def bin_row() -> Callable[..., None] | None:
    """A compiled `_bin_row`, or None without numba."""
    try:
        import numba
    except ImportError:
        return None
    kernel: Callable[..., None] = numba.njit(cache=True, nogil=True, error_model="numpy")(_bin_row)
    return kernel


def _bin_row(target: Any, draft: Any, ratio: Any, bins: Any, masses: Any, shift: int, lowest: int, count: int) -> None:
    """Bins of the tokens of one row, and the masses p and q of the bins, (2, count + 1).

    ``ratio`` (V,) float32 is scratch, ``bins`` (V,) int16 and ``masses``, which is 0 before, are results: see
    `lpverify.verifiers.token_buckets` for what a bin is.
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
