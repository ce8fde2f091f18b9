"""What is recorded of a decoding run, and what is computed from it.

Block efficiency is committed tokens per target call. Committed tokens are those of the text: what an end-of-text token
or the limit of new tokens cuts off counts nowhere. The prompt's own pass counts nowhere either.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

STAGES = ("draft", "target", "verify", "cache")


@dataclass(frozen=True)
class RoundRecord:
    """One target call.

    ``drafted``: L; ``nodes``: drafted nodes scored; ``accepted``: drafted tokens committed; ``committed``: tokens
    committed; ``expected_committed``: its expectation given the drafted tree (a scalar, maybe still on the device).
    """

    drafted: int
    nodes: int
    accepted: int
    committed: int
    expected_committed: Any = None


@dataclass(frozen=True)
class Generation:
    """One prompt continued by one algorithm. ``seconds``: by stage, and ``prefill``."""

    algorithm: str
    request: str
    tokens: tuple[int, ...]
    rounds: tuple[RoundRecord, ...]
    seconds: dict[str, float]


class Stopwatch:
    """Seconds by stage; on a CUDA device the queue is emptied at both ends."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = self._now()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + self._now() - start

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
