"""How close verifiers come to what is possible, on real models at full vocabulary (theory 10.1 to 10.3).

Contexts are positions in texts that the target samples itself (`lpverify.studies.text`), the same for every verifier.
In every context, for each K and L, we estimate

* the *upper bound*, the node relaxation, and the block efficiency of verifiers with a closed form, teacher-forced;
* the block efficiency of any verifier from drafted trees, all of them parts of one tree of the largest K and L.

The mean over contexts is somewhat above the tokens per round of a decoding run (`studies.rounds`, theory 10.4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from lpverify import errors
from lpverify.core.draft_tree import DraftTree
from lpverify.decode.engine import Request
from lpverify.decode.load import LoadedPair
from lpverify.decode.metrics import ratio
from lpverify.decode.models import Pair
from lpverify.decode.run import versions
from lpverify.decode.sampling import Sampling
from lpverify.files import JsonLines
from lpverify.studies.teacher_forced import TextRows
from lpverify.studies.text import Shapes, Text, text_length
from lpverify.verifiers import Verifier, expected_accepted, names, verifier

ALGORITHMS = names()
DEFAULT_ALGORITHMS = names(any_vocabulary=True)

RECORD_SCHEMA = "lpverify/bound-record@1"
STAGES = ("prefill", "text", "draft", "target", "verify", "on path")  # the last is the teacher-forced estimate


@dataclass(frozen=True)
class BoundSettings(Shapes):
    """`Shapes` and ``contexts`` positions per prompt, ``stride`` tokens apart, none after a token of ``eos``."""

    contexts: int = 4
    stride: int = 16
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    eos: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        super().__post_init__()
        text_length(self.contexts, self.stride)
        errors.integer("seed", self.seed, min=0, max=2**63 - 1)

    def check_context(self, pair: Pair, request: Request) -> None:
        """Raise InputError if the prompt is empty, or the text after it may outgrow the context of a model.

        Raises SizeError for drafted trees that are too large.
        """
        pair.check_tree(max(self.num_paths), max(self.depths))
        length = max(1, text_length(self.contexts, self.stride))
        pair.check_context(len(request.tokens), length, max(self.depths))


@dataclass(frozen=True)
class CellValues:
    """One K and L on one prompt, with the keys of the record; every list has one value per context."""

    paths: int
    depth: int
    nodes: list[int]  # distinct drafted prefixes
    upper_bound: list[float]  # teacher-forced node relaxation
    block_efficiency: dict[str, list[float]]  # by algorithm, from drafted trees
    on_path: dict[str, list[float]]  # by algorithm with a closed form, teacher-forced


@dataclass(frozen=True)
class PromptBound:
    """Everything measured after one prompt."""

    request: str  # the prompt's key
    tokens: list[int]  # the text
    positions: list[int]  # of the contexts
    cells: list[CellValues]
    seconds: dict[str, float]  # by stage

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PromptBound:
        """Inverse of ``dataclasses.asdict``; further keys are ignored."""
        plain = {name: data[name] for name in cls.__dataclass_fields__}
        return cls(**plain | {"cells": [CellValues(**cell) for cell in plain["cells"]]})


def measure(
    pair: Pair,
    verifiers: Mapping[str, Verifier],
    request: Request,
    settings: BoundSettings,
    on_context: Callable[[int], None] = lambda count: None,
) -> PromptBound:
    """Measure after one prompt. ``on_context`` is called after each context with the number of contexts finished.

    Raises InputError if the prompt is empty, the text may outgrow a model's context, or logits are NaN or infinite.
    """
    settings.check_context(pair, request)
    longest, length = max(settings.depths), settings.contexts * settings.stride
    positions, drafted = [], []
    with torch.inference_mode():
        text = Text(pair, request, settings.sampling, settings.seed)
        for position, tree in text.trees(length, settings.stride, max(settings.num_paths), longest, settings.eos):
            with text.watch("verify"):
                drafted.append(on_tree(tree, verifiers, settings))
            positions.append(position)
            on_context(len(positions))
        text.grow(positions[-1] + longest)
        rows = text.rows()
        with text.watch("on path"):
            forced = on_text(TextRows(text.tokens, *rows), positions, verifiers, settings)
    cells = []
    for shape, trees, (bounds, on_path) in zip(settings.shapes, zip(*drafted, strict=True), forced, strict=True):
        by_name = {name: [values[name] for _, values in trees] for name in verifiers}
        cells.append(CellValues(*shape, [nodes for nodes, _ in trees], bounds, by_name, on_path))
    seconds = {stage: text.watch.seconds.get(stage, 0.0) for stage in STAGES}
    return PromptBound(request.key, text.tokens, positions, cells, seconds)


def on_tree(
    tree: DraftTree, verifiers: Mapping[str, Verifier], settings: BoundSettings
) -> list[tuple[int, dict[str, float]]]:
    """For every shape the number of drafted nodes, and 1 + E[tau | tree] by verifier, from one tree of the largest."""
    values: dict[tuple[str, int, int], float] = {}
    cells = []
    for count, depth in settings.shapes:
        part = tree.restricted(count, depth)
        keys = {name: (name, 1 if verifiers[name].first_path_only else count, depth) for name in verifiers}
        for name, key in keys.items():
            if key not in values:
                values[key] = 1 + float(expected_accepted(verifiers[name](part)))
        cells.append((len(part.parent) - 1, {name: values[key] for name, key in keys.items()}))
    return cells


def on_text(
    rows: TextRows, positions: Sequence[int], verifiers: Mapping[str, Verifier], settings: BoundSettings
) -> list[tuple[list[float], dict[str, list[float]]]]:
    """For every shape, with one value per context: upper bound and block efficiency by verifier, teacher-forced."""
    starts, longest = np.array(positions), max(settings.depths)
    closed = {name: algorithm for name, algorithm in verifiers.items() if algorithm.closed_form is not None}
    cells = []
    for count in settings.num_paths:
        bound = rows.relaxation(starts, longest, count)
        ratios = {name: rows.acceptance(algorithm, starts, longest, count) for name, algorithm in closed.items()}
        for depth in settings.depths:
            upper = bound[:, : depth + 1].sum(axis=1).tolist()
            cells.append((upper, {name: r[:, : depth + 1].sum(axis=1).tolist() for name, r in ratios.items()}))
    return cells


def measure_all(
    opened: LoadedPair,
    algorithms: Sequence[str],
    requests: Sequence[Request],
    settings: BoundSettings,
    records: JsonLines,
    report: Callable[[int], None] = lambda contexts: None,
) -> list[PromptBound]:
    """`measure` after every prompt; prompts that ``records`` contains are not measured again.

    All prompts are checked before the first is measured. ``report`` is called with the number of contexts finished;
    those that an end of text leaves out count as finished. Raises InputError for unknown algorithms, and as `measure`.
    """
    pair = opened.models
    verifiers = {errors.choice("algorithm", name, ALGORITHMS): verifier(name) for name in algorithms}
    for request in requests:
        settings.check_context(pair, request)
    finished = {result.request: result for result in records.read(PromptBound.from_json)}
    results = []
    for i, request in enumerate(requests):
        before = i * settings.contexts
        result = finished.get(request.key)
        if result is None:

            def on_context(count: int, before: int = before) -> None:
                report(before + count)

            result = measure(pair, verifiers, request, settings, on_context)
            records.append({"prompt": request.text, "models": opened.names, "versions": versions(), **asdict(result)})
        results.append(result)
        report(before + settings.contexts)
    return results


def summarize(prompts: Sequence[PromptBound]) -> list[dict[str, Any]]:
    """The cells of the document ``lpverify/bound@1``: means over contexts, standard errors over prompts (None for one).

    ``share`` is block efficiency over upper bound; ``on_path_share``, of the two teacher-forced values, is at most 1 on
    every single text. Both are None for one prompt, where their errors are not known.
    """
    counts = [len(prompt.positions) for prompt in prompts]
    cells = []
    for i, first in enumerate(prompts[0].cells):
        column = [prompt.cells[i] for prompt in prompts]
        bounds = [sum(cell.upper_bound) for cell in column]
        upper, upper_se = ratio(bounds, counts)
        algorithms = {}
        for name in first.block_efficiency:
            drafted = [sum(cell.block_efficiency[name]) for cell in column]
            forced = [sum(cell.on_path[name]) for cell in column] if name in first.on_path else None
            entry: dict[str, float | None] = {}
            for key, error, totals, base in (
                ("block_efficiency", "se", drafted, counts),
                ("share", "share_se", drafted, bounds),
                ("on_path", "on_path_se", forced, counts),
                ("on_path_share", "on_path_share_se", forced, bounds),
            ):
                entry[key], entry[error] = (None, None) if totals is None else ratio(totals, base)
                if entry[error] is None and base is bounds:
                    entry[key] = None  # without an error a share says nothing: it can be far above 1
            algorithms[name] = entry
        nodes = sum(sum(cell.nodes) for cell in column) / sum(counts)
        shape: dict[str, Any] = {"paths": first.paths, "depth": first.depth, "nodes": nodes}
        cells.append(shape | {"upper_bound": upper, "upper_bound_se": upper_se, "algorithms": algorithms})
    return cells
