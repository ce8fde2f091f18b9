"""The record of a decoding run, and the statistics computed from it.

Block efficiency is the number of committed tokens per target pass. Committed tokens are those of the text: tokens cut
off by an end of text or by the limit of new tokens are not counted, nor is the pass over the prompt.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import torch

STAGES = ("draft", "target", "verify", "cache")


@dataclass(frozen=True)
class RoundRecord:
    """One decoding round, which is one target pass."""

    drafted: int  # L, tokens per path
    nodes: int  # distinct drafted prefixes, scored in the pass
    accepted: int  # drafted tokens committed
    committed: int  # tokens committed
    expected_committed: Any = None  # given the drafted tree; while the prompt is decoded a scalar on the device


@dataclass(frozen=True)
class Generation:
    """One prompt continued by one algorithm."""

    algorithm: str
    request: str  # the prompt's key
    tokens: tuple[int, ...]  # the new ones
    rounds: tuple[RoundRecord, ...]
    seconds: dict[str, float]  # by stage (`STAGES`, and ``prefill``)
    peak_memory: int  # bytes, on a device those of the device, else of the process

    @classmethod
    def measured(
        cls, algorithm: str, request: str, tokens: Sequence[int], rounds: Sequence[RoundRecord], watch: Stopwatch
    ) -> Generation:
        """The result of a run timed by ``watch``; copies expectations from the device to the host, all at once."""
        expected = [record.expected_committed for record in rounds]
        if expected and isinstance(expected[0], torch.Tensor):
            expected = torch.stack(expected).tolist()
        else:
            expected = [None if value is None else float(value) for value in expected]
        finished = tuple(replace(r, expected_committed=value) for r, value in zip(rounds, expected, strict=True))
        seconds = {stage: watch.seconds.get(stage, 0.0) for stage in (*STAGES, "prefill")}
        return cls(algorithm, request, tuple(tokens), finished, seconds, watch.peak_memory())

    def to_json(self) -> dict[str, Any]:
        """Plain data, one list per field of the rounds."""
        rounds = {name: [getattr(record, name) for record in self.rounds] for name in RoundRecord.__dataclass_fields__}
        return vars(self) | {"tokens": list(self.tokens), "rounds": rounds}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Generation:
        """Inverse of `to_json`; further keys are ignored."""
        columns = [data["rounds"][name] for name in RoundRecord.__dataclass_fields__]
        rounds = tuple(RoundRecord(*row) for row in zip(*columns, strict=True))
        plain = {name: data[name] for name in cls.__dataclass_fields__}
        return cls(**plain | {"tokens": tuple(data["tokens"]), "rounds": rounds})


@dataclass(frozen=True)
class DecodeStats:
    """One algorithm over all prompts. Ratios are of totals; standard errors are over prompts, None for one prompt."""

    algorithm: str
    prompts: int
    rounds: int
    committed_tokens: int
    block_efficiency: float  # committed tokens per round
    block_efficiency_se: float | None
    rao_blackwell: float | None  # the same with ``expected_committed``
    rao_blackwell_se: float | None
    tokens_per_second: float  # without the pass over the prompt
    stage_seconds: dict[str, float]  # totals
    prefill_seconds: float
    accepted_histogram: list[int]  # number of rounds that committed 0, 1, ... drafted tokens
    acceptance_by_depth: list[float]  # share of rounds that committed at least 1, 2, ... drafted tokens
    acceptance_rate: float | None  # committed drafted tokens over drafted depths, None if nothing was drafted
    nodes_per_round: float
    peak_memory: int


def summarize(generations: Sequence[Generation]) -> DecodeStats:
    """Statistics of at least one run of one algorithm."""
    rounds = [record for run in generations for record in run.rounds]
    calls = [len(run.rounds) for run in generations]
    committed = [sum(record.committed for record in run.rounds) for run in generations]
    value, error = ratio(committed, calls)
    smooth: tuple[float | None, float | None] = (None, None)
    if all(record.expected_committed is not None for record in rounds):
        smooth = ratio([sum(record.expected_committed for record in run.rounds) for run in generations], calls)
    depth, drafted = max(record.drafted for record in rounds), sum(record.drafted for record in rounds)
    histogram = [sum(record.accepted == i for record in rounds) for i in range(depth + 1)]
    seconds = {stage: sum(run.seconds[stage] for run in generations) for stage in STAGES}
    return DecodeStats(
        algorithm=generations[0].algorithm,
        prompts=len(generations),
        rounds=len(rounds),
        committed_tokens=sum(committed),
        block_efficiency=value,
        block_efficiency_se=error,
        rao_blackwell=smooth[0],
        rao_blackwell_se=smooth[1],
        tokens_per_second=sum(committed) / sum(seconds.values()),
        stage_seconds=seconds,
        prefill_seconds=sum(run.seconds["prefill"] for run in generations),
        accepted_histogram=histogram,
        acceptance_by_depth=[sum(histogram[i:]) / len(rounds) for i in range(1, depth + 1)],
        acceptance_rate=sum(record.accepted for record in rounds) / drafted if drafted else None,
        nodes_per_round=sum(record.nodes for record in rounds) / len(rounds),
        peak_memory=max(run.peak_memory for run in generations),
    )


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, float | None]:
    """Ratio r of the totals of n pairs, and its standard error to first order in 1/n (None for n = 1).

    With e_i = numerator_i - r denominator_i the error is sqrt(n / (n - 1) sum e_i^2) / (sum of denominators).

    >>> ratio([4, 8], [2, 4]), ratio([3, 9], [2, 4]), ratio([3], [1])
    ((2.0, 0.0), (2.0, 0.3333333333333333), (3.0, None))
    """
    total, count = sum(denominators), len(numerators)
    value = sum(numerators) / total
    if count == 1:
        return value, None
    squares = sum((a - value * b) ** 2 for a, b in zip(numerators, denominators, strict=True))
    return value, sqrt(count / (count - 1) * squares) / total


class Stopwatch:
    """Seconds by stage; on a CUDA device both ends of a stage synchronise."""

    clock: Callable[[], float] = staticmethod(time.perf_counter)  # time.process_time where other programs disturb a run

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds: dict[str, float] = {}
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = self._now()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + self._now() - start

    def peak_memory(self) -> int:
        """Maximum of bytes in use: on a CUDA device since this stopwatch began, else by the process since it began."""
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        import resource  # not on Windows

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self.clock()
