"""Decoding rounds: tokens per target pass of a whole run, from the target's own text without drafting (theory 10.4).

`lpverify.studies.teacher_forced` computes how likely a round that begins after t tokens of the text accepts at least j
drafted tokens; a renewal equation turns that into the expected number of rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lpverify import errors
from lpverify.decode.engine import Request
from lpverify.decode.metrics import ratio
from lpverify.decode.models import Pair
from lpverify.decode.sampling import Sampling
from lpverify.studies.teacher_forced import TextRows
from lpverify.studies.text import Shapes, Text
from lpverify.verifiers import Verifier, names, verifier

SCHEMA = "lpverify/runs@1"
ALGORITHMS = names(closed_form=True)


@dataclass(frozen=True)
class Run:
    """Expectations given a text."""

    tokens: int  # N, of the text
    rounds: float
    full: float  # rounds that accept all L drafted tokens


def run_on_text(acceptance: npt.NDArray[np.float64]) -> Run:
    """The run that commits N tokens: the probability u(t) that a round begins after t tokens, summed over t < N.

        u(0) = 1,     u(t) = sum_{s < t} u(s) Pr(tau = t - s - 1 | text, s)

    Row t of ``acceptance`` (N, L+1) has Pr(tau >= 0..L) of a round that begins after t tokens. A round that the end of
    the text cuts is full if it accepted all L drafted tokens before the cut.

    >>> run_on_text(np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0]]))
    Run(tokens=4, rounds=3.0, full=1.0)
    """
    size, width = acceptance.shape
    stops = -np.diff(acceptance, axis=1, append=0.0)  # Pr(tau = 0..L)
    begins = np.zeros(size + width)
    begins[0] = 1.0
    for t in range(size):
        begins[t + 1 : t + 1 + width] += begins[t] * stops[t]
    begins = begins[:size]
    return Run(size, float(begins.sum()), float(begins @ acceptance[:, -1]))


@dataclass(frozen=True)
class RunSettings(Shapes):
    """Runs at every shape. Raises InputError for empty lists and impossible numbers."""

    tokens: int = 128  # of a run
    stride: int = 16  # a tree is drafted every so many tokens, to count its distinct nodes
    sampling: Sampling = Sampling()
    seed: int = 0
    eos: Collection[int] = ()  # a text ends with its first one

    def __post_init__(self) -> None:
        super().__post_init__()
        errors.integer("tokens", self.tokens, min=1)
        errors.integer("stride", self.stride, min=1)


@dataclass(frozen=True)
class PromptRuns:
    """Runs after one prompt: ``nodes`` by shape and tree, ``runs`` by algorithm and shape."""

    nodes: list[list[int]]
    runs: dict[str, list[Run]]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PromptRuns:
        """Inverse of ``dataclasses.asdict``."""
        return cls(data["nodes"], {name: [Run(**run) for run in runs] for name, runs in data["runs"].items()})


def measure(pair: Pair, verifiers: Mapping[str, Verifier], request: Request, settings: RunSettings) -> PromptRuns:
    """The runs after one prompt, of ``verifiers`` with a closed form."""
    longest = max(settings.depths)
    nodes: list[list[int]] = [[] for _ in settings.shapes]
    with torch.inference_mode():
        text = Text(pair, request, settings.sampling, settings.seed)
        for _, tree in text.trees(settings.tokens, settings.stride, max(settings.num_paths), longest, settings.eos):
            for counts, shape in zip(nodes, settings.shapes, strict=True):
                counts.append(len(tree.restricted(*shape).parent) - 1)
        text.grow(settings.tokens + longest)
        ends = (i + 1 for i, token in enumerate(text.tokens) if token in settings.eos)
        starts = np.arange(min(next(ends, settings.tokens), settings.tokens))
        rows = TextRows(text.tokens, *text.rows())
    runs: dict[str, list[Run]] = {name: [] for name in verifiers}
    for count in settings.num_paths:
        for name, algorithm in verifiers.items():
            acceptance = rows.acceptance(algorithm, starts, longest, count)
            runs[name] += [run_on_text(acceptance[:, : depth + 1]) for depth in settings.depths]
    return PromptRuns(nodes, runs)


def measure_runs(
    pair: Pair,
    algorithms: Sequence[str],
    requests: Sequence[Request],
    settings: RunSettings,
    *,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The document ``lpverify/runs@1``: cells as in ``lpverify/bound@1``, of whole runs after ``requests``.

    ``advance`` is called after each prompt. Raises InputError if an algorithm has no closed form, a prompt is empty, or
    a text may outgrow a model's context.
    """
    verifiers = {errors.choice("algorithm", name, ALGORITHMS): verifier(name) for name in algorithms}
    longest = max(settings.depths)
    for request in requests:
        pair.check_context(len(request.tokens), settings.tokens + longest, longest)
        pair.check_tree(max(settings.num_paths), longest)
    results = []
    for request in requests:
        results.append(measure(pair, verifiers, request, settings))
        advance()
    return summarize(results, settings)


def summarize(results: Sequence[PromptRuns], settings: RunSettings) -> dict[str, Any]:
    """The document ``lpverify/runs@1``; standard errors are over prompts, None for one prompt."""
    cells = []
    for i, (count, depth) in enumerate(settings.shapes):
        nodes = [number for result in results for number in result.nodes[i]]
        entries = {}
        for name in results[0].runs:
            runs = [result.runs[name][i] for result in results]
            value, error = ratio([run.tokens for run in runs], [run.rounds for run in runs])
            full = sum(run.full for run in runs) / sum(run.rounds for run in runs)
            entries[name] = {"block_efficiency": value, "se": error, "all_accepted": full}
        cells.append({"paths": count, "depth": depth, "nodes": sum(nodes) / len(nodes), "algorithms": entries})
    return {"schema": SCHEMA, "prompts": len(results), "cells": cells}
