"""Tokens per target call of a whole decoding run, measured on the target's own text without drafting.

Contexts at evenly spread places of a text are not the contexts in which the rounds of a decoder begin: where tokens are
easy to predict rounds are long, so fewer of them begin there, and the mean block efficiency over places is larger than
the tokens per round of the run. What a run does on a given text is known, however. For a lossless verifier with node
budgets f, a round that begins before y_1, y_2, ... passes through y_1..y_j with probability f(y_1..y_j), after which
the text goes on with the target's law; so given the whole text

    Pr(tau >= j | y) = f(y_1..y_j) / P(y_1..y_j) = r(t, j)        for a round that begins after t tokens,

which `on_path.TextRows` gives, rounds being independent given the text. A round takes tau + 1 tokens of it, so

    u(0) = 1,     u(t) = sum_s u(s) Pr(tau = t - s - 1 | y, s)

is the probability that a round begins after t tokens, and the sum of u(t) over t < N is the expected number of rounds
in which the first N tokens are committed: given the text the run's own count with its randomness averaged out
(THEORY 8). Over texts of the target it is unbiased for the number of rounds of a run that is cut after N tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from lpverify import errors
from lpverify.decode import engine
from lpverify.decode.engine import Request
from lpverify.decode.metrics import Stopwatch, ratio
from lpverify.decode.models import Pair
from lpverify.decode.rng import Keys
from lpverify.decode.sampling import Sampling
from lpverify.numerics import Array
from lpverify.studies.teacher_forced import TextRows, has_closed_form
from lpverify.studies.text import Text
from lpverify.verifiers import VERIFIERS, Verifier, verifier

SCHEMA = "lpverify/runs@1"
ALGORITHMS = tuple(name for name in VERIFIERS if name != "policy" and has_closed_form(verifier(name)))
"""What can be measured without drafting."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """One text, expectations given it: ``tokens`` N, ``rounds``, ``full``: rounds that accept all L drafted tokens."""

    tokens: int
    rounds: float
    full: float


def run_on_text(reached: Floats) -> Run:
    """The run that commits as many tokens as ``reached`` (N, L+1) has rows; row t is Pr(tau >= 0..L) after t tokens.

    A round whose last drafted tokens are cut off at the end counts as full by what it accepted before the cut.

    >>> run_on_text(np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0]]))
    Run(tokens=4, rounds=3.0, full=1.0)
    """
    size = len(reached)
    stops = reached - np.concatenate([reached[:, 1:], np.zeros((size, 1))], axis=1)
    begins = np.zeros(size + reached.shape[1])
    begins[0] = 1.0
    for t in range(size):
        begins[t + 1 : t + 1 + stops.shape[1]] += begins[t] * stops[t]
    begins = begins[:size]
    return Run(size, float(begins.sum()), float(begins @ reached[:, -1]))


@dataclass(frozen=True)
class RunSettings:
    """Runs of ``tokens`` tokens at every K of ``paths`` and L of ``depths``; trees are drafted every ``stride`` tokens.

    The trees say how many distinct nodes a draft has. ``eos``: ids that end a text. Raises InputError for impossible
    numbers.
    """

    paths: tuple[int, ...]
    depths: tuple[int, ...]
    tokens: int = 128
    stride: int = 16
    sampling: Sampling = Sampling()
    seed: int = 0
    eos: Collection[int] = ()

    def __post_init__(self) -> None:
        errors.integers("paths (K)", self.paths, least=1)
        errors.integers("depth (L)", self.depths, least=1)
        errors.integer("tokens", self.tokens, least=1)
        errors.integer("stride", self.stride, least=1)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        return [(paths, depth) for paths in self.paths for depth in self.depths]


def measure_runs(
    pair: Pair,
    algorithms: Sequence[str],
    requests: Sequence[Request],
    settings: RunSettings,
    *,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The document ``lpverify/runs@1``: cells as in ``lpverify/bound@1``, of whole runs after ``requests``.

    Standard errors are over requests. Raises InputError for an algorithm without a closed form, and where a text does
    not fit into a model.
    """
    verifiers = {errors.choice("algorithm", name, ALGORITHMS): verifier(name) for name in algorithms}
    for request in requests:
        check_context(pair, request, settings)
    found = []
    for request in requests:
        found.append(measure(pair, verifiers, request, settings))
        advance()
    return summarize(found, settings)


def check_context(pair: Pair, request: Request, settings: RunSettings) -> None:
    """Raise InputError when the prompt is empty, or it and the text do not fit into a model's context."""
    longest = max(settings.depths)
    engine.check_context(pair, request, engine.Settings(depth=longest, max_new_tokens=settings.tokens + longest))


def summarize(found: Sequence[PromptRuns], settings: RunSettings) -> dict[str, Any]:
    """The document ``lpverify/runs@1``; standard errors are over prompts, None for one."""
    cells = []
    for i, (paths, depth) in enumerate(settings.shapes):
        nodes = [count for one in found for count in one.nodes[i]]
        entries = {}
        for name in found[0].runs:
            runs = [one.runs[name][i] for one in found]
            value, error = ratio([run.tokens for run in runs], [run.rounds for run in runs])
            full = sum(run.full for run in runs) / sum(run.rounds for run in runs)
            entries[name] = {"block_efficiency": value, "se": error, "all_accepted": full}
        cells.append({"paths": paths, "depth": depth, "nodes": sum(nodes) / len(nodes), "algorithms": entries})
    return {"schema": SCHEMA, "prompts": len(found), "cells": cells}


@dataclass(frozen=True)
class PromptRuns:
    """Runs after one prompt. ``nodes``: a list for each shape, one count a tree; ``runs``: by algorithm and shape."""

    nodes: list[list[int]]
    runs: Mapping[str, list[Run]]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PromptRuns:
        """Inverse of ``dataclasses.asdict``."""
        return cls(data["nodes"], {name: [Run(**run) for run in runs] for name, runs in data["runs"].items()})


def measure(pair: Pair, verifiers: Mapping[str, Verifier], request: Request, settings: RunSettings) -> PromptRuns:
    """The runs after one prompt; the result depends on nothing but the arguments."""
    most, longest = max(settings.paths), max(settings.depths)
    nodes: list[list[int]] = [[] for _ in settings.shapes]
    watch = Stopwatch(pair.target.device)
    with torch.inference_mode():
        text = Text(pair, request, settings.sampling, Keys(settings.seed, request.key), watch)
        for place in range(0, settings.tokens, settings.stride):
            text.grow(place)
            if not set(text.tokens).isdisjoint(settings.eos):
                break
            view = text.tree(most, longest)
            for counts, (paths, depth) in zip(nodes, settings.shapes, strict=True):
                counts.append(len(view.restricted(paths, depth).parent) - 1)
        text.grow(settings.tokens + longest)
        target, draft = text.rows()
        ended = (i + 1 for i, token in enumerate(text.tokens) if token in settings.eos)
        starts = np.arange(min(next(ended, settings.tokens), settings.tokens))
        rows = TextRows(text.tokens, cast(Array, target), cast(Array, draft))
        runs: dict[str, list[Run]] = {name: [] for name in verifiers}
        for paths in settings.paths:
            reached = {name: rows.budgets(checked, starts, longest, paths) for name, checked in verifiers.items()}
            for name, quotients in reached.items():
                runs[name] += [run_on_text(quotients[:, : depth + 1]) for depth in settings.depths]
    return PromptRuns(nodes, runs)
