"""What is recorded of a decoding run, and what is computed from it.

Block efficiency is committed tokens per target call. Committed tokens are those of the text: what an end-of-text token
or the limit of new tokens cuts off counts nowhere. The prompt's own pass counts nowhere either.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch

STAGES = ("draft", "target", "verify", "cache")


@dataclass(frozen=True)
class RoundRecord:
    """One target call.

    ``drafted``: L; ``nodes``: drafted nodes scored; ``accepted``: drafted tokens committed; ``committed``: tokens
    committed; ``expected_committed``: its expectation given the drafted tree, None where it is not known (a scalar on
    the device while the prompt runs, a float in a `Generation`).
    """

    drafted: int
    nodes: int
    accepted: int
    committed: int
    expected_committed: Any = None


@dataclass(frozen=True)
class Generation:
    """One prompt continued by one algorithm.

    ``seconds``: by stage, and ``prefill``; ``peak_memory``: bytes, of the device where there is one, else the process.
    """

    algorithm: str
    request: str
    tokens: tuple[int, ...]
    rounds: tuple[RoundRecord, ...]
    seconds: dict[str, float]
    peak_memory: int

    @classmethod
    def measured(
        cls, algorithm: str, request: str, tokens: Sequence[int], rounds: Sequence[RoundRecord], watch: Stopwatch
    ) -> Generation:
        """The result of a run that ``watch`` timed; brings what is still on the device to the host, once."""
        expected = [record.expected_committed for record in rounds]
        if expected and isinstance(expected[0], torch.Tensor):
            expected = torch.stack(expected).tolist()
        done = tuple(
            RoundRecord(r.drafted, r.nodes, r.accepted, r.committed, value)
            for r, value in zip(rounds, expected, strict=True)
        )
        seconds = {stage: watch.seconds.get(stage, 0.0) for stage in (*STAGES, "prefill")}
        return cls(algorithm, request, tuple(tokens), done, seconds, watch.peak_memory())

    def to_json(self) -> dict[str, Any]:
        """Plain data, one list per field of the rounds."""
        rounds = {name: [getattr(record, name) for record in self.rounds] for name in RoundRecord.__dataclass_fields__}
        return {
            "algorithm": self.algorithm,
            "request": self.request,
            "tokens": list(self.tokens),
            "rounds": rounds,
            "seconds": self.seconds,
            "peak_memory": self.peak_memory,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Generation:
        """Inverse of `to_json`; further keys are ignored."""
        columns = [data["rounds"][name] for name in RoundRecord.__dataclass_fields__]
        rounds = tuple(RoundRecord(*row) for row in zip(*columns, strict=True))
        fields = (data["algorithm"], data["request"], tuple(data["tokens"]), rounds, data["seconds"])
        return cls(*fields, data["peak_memory"])


@dataclass(frozen=True)
class DecodeStats:
    """One algorithm over all prompts. Ratios are of totals; standard errors are over prompts, None for one prompt.

    * ``accepted_histogram``: number of rounds that committed 0, 1, ... drafted tokens.
    * ``acceptance_by_depth``: share of rounds that committed at least 1, 2, ... drafted tokens.
    * ``acceptance_rate``: committed drafted tokens over drafted depths, None where nothing was drafted.
    * ``tokens_per_second``: without the time of the prompts' own pass.
    """

    algorithm: str
    prompts: int
    rounds: int
    committed_tokens: int
    block_efficiency: float
    block_efficiency_se: float | None
    rao_blackwell: float | None
    rao_blackwell_se: float | None
    tokens_per_second: float
    stage_seconds: dict[str, float]
    prefill_seconds: float
    accepted_histogram: list[int]
    acceptance_by_depth: list[float]
    acceptance_rate: float | None
    nodes_per_round: float
    peak_memory: int


def summarize(generations: Sequence[Generation]) -> DecodeStats:
    """Statistics of the runs of one algorithm, at least one."""
    rounds = [record for generation in generations for record in generation.rounds]
    calls = [len(generation.rounds) for generation in generations]
    committed = [sum(record.committed for record in generation.rounds) for generation in generations]
    value, error = ratio(committed, calls)
    smooth: tuple[float | None, float | None] = (None, None)
    if all(record.expected_committed is not None for record in rounds):
        smooth = ratio([sum(r.expected_committed for r in generation.rounds) for generation in generations], calls)
    depth = max(record.drafted for record in rounds)
    histogram = [sum(record.accepted == i for record in rounds) for i in range(depth + 1)]
    drafted = sum(record.drafted for record in rounds)
    seconds = {stage: sum(generation.seconds[stage] for generation in generations) for stage in STAGES}
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
        prefill_seconds=sum(generation.seconds["prefill"] for generation in generations),
        accepted_histogram=histogram,
        acceptance_by_depth=[sum(histogram[i:]) / len(rounds) for i in range(1, depth + 1)],
        acceptance_rate=sum(record.accepted for record in rounds) / drafted if drafted else None,
        nodes_per_round=sum(record.nodes for record in rounds) / len(rounds),
        peak_memory=max(generation.peak_memory for generation in generations),
    )


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, float | None]:
    """Ratio of totals r and its standard error, to first order in 1/n (None for n = 1).

    With e_i = numerator_i - r denominator_i the error is sqrt(n / (n - 1) sum e_i^2) / sum of denominators.

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
    """Seconds by stage; on a CUDA device the queue is emptied at both ends."""

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
        """Most bytes in use since the beginning: on the device; else by the whole process, since it started."""
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        import resource
        import sys

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
