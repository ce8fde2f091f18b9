"""How close verifiers come to what is possible, on real models at full vocabulary.

Contexts are places in texts that the target wrote itself (`lpverify.studies.text`), the same for every verifier. They
are evenly spread over the text, which the rounds of a decoder are not: fewer of them begin where the text is easy, so
the mean over contexts is somewhat above the tokens per round of a run (`lpverify.studies.rounds` measures those). In
every context, for each K and L:

* **upper bound**: the node relaxation of THEORY 2.6, which no lossless verifier with K i.i.d. paths of L tokens
  exceeds, and the block efficiency of verifiers that have a closed form, both from the target's own text by
  `lpverify.studies.teacher_forced`: E[sum_j f(y_1..y_j) / P(y_1..y_j)] = sum_c f(c).
* **block efficiency** of any verifier from drafted trees (THEORY 8). A verifier maps a drafted tree D to the law of the
  node where it stops, so

      E_D[1 + sum_c Pr(stop at c | D) |c|] = 1 + E[tau],

  the mean over trees of what the text's own draws cannot blur: its variance is that of tau less E[Var(tau | D)], and it
  lies in [1, L+1]. One tree is drafted, with the largest K and L. Paths are i.i.d. and written front to back, so the
  first k paths and first l tokens of it are a draft of that shape: all cells are measured on nested trees, and
  differences between cells or verifiers are less noisy than the values.

Both are unbiased in every context, whatever the other contexts of the prompt; the tree is drafted independently of how
the text goes on. Contexts of a prompt are not independent of each other: standard errors are over prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np
import torch

from lpverify import errors
from lpverify.core.draft_tree import DraftTree
from lpverify.decode import engine
from lpverify.decode.engine import Request
from lpverify.decode.metrics import Stopwatch, ratio
from lpverify.decode.models import Pair, Tokenizer
from lpverify.decode.prompts import Prompt
from lpverify.decode.rng import Keys
from lpverify.decode.run import versions
from lpverify.decode.sampling import Sampling
from lpverify.files import JsonLines
from lpverify.numerics import Array
from lpverify.studies.teacher_forced import TextRows, has_closed_form
from lpverify.studies.text import Text
from lpverify.verifiers import VERIFIERS, Verifier, expected_accepted, verifier

ALGORITHMS = tuple(name for name in VERIFIERS if name != "policy")
"""``policy`` is the solution of one table's LP."""

DEFAULT_ALGORITHMS = ("token", "bv", "specinfer", "traversal", "gbv", "tgbv", "pbv", "ebv")

RECORD_SCHEMA = "lpverify/bound-record@1"

STAGES = ("prefill", "text", "draft", "target", "verify", "on path")


@dataclass(frozen=True)
class BoundSettings:
    """Every K of ``paths`` with every L of ``depths``, in ``contexts`` places a prompt, ``stride`` tokens apart.

    The first context is the end of the prompt; contexts after a token of ``eos`` are not used, while in what follows a
    context (the text that is measured on, drafts) such a token is like any other. Raises InputError for empty lists and
    impossible numbers.
    """

    paths: tuple[int, ...] = (1, 2, 3, 4)
    depths: tuple[int, ...] = (8,)
    contexts: int = 4
    stride: int = 16
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    eos: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        errors.integers("paths (K)", self.paths, least=1)
        errors.integers("depth (L)", self.depths, least=1)
        errors.integer("contexts", self.contexts, least=1)
        errors.integer("stride", self.stride, least=1)
        errors.integer("seed", self.seed, least=0, most=2**63 - 1)


@dataclass(frozen=True)
class CellValues:
    """One K and L on one prompt; every list has one value a context.

    ``nodes``: distinct drafted prefixes; ``upper_bound``: the relaxation on the text; by algorithm:
    ``block_efficiency`` on drafted trees, ``on_path`` on the text where there is a closed form.
    """

    paths: int
    depth: int
    nodes: list[int]
    upper_bound: list[float]
    block_efficiency: dict[str, list[float]]
    on_path: dict[str, list[float]]


@dataclass(frozen=True)
class PromptBound:
    """All that was measured after one prompt; ``positions``: tokens of the text before each context."""

    request: str
    tokens: list[int]
    positions: list[int]
    cells: list[CellValues]
    seconds: dict[str, float]

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
    on_context: Callable[[int], None] = lambda done: None,
) -> PromptBound:
    """Measure after one prompt. The result depends on nothing but the arguments.

    ``on_context`` is told after each context how many are done. Raises InputError for an empty prompt, and where the
    context would outgrow a model.
    """
    check_context(pair, request, settings)
    most, longest = max(settings.paths), max(settings.depths)
    watch = Stopwatch(pair.target.device)
    with torch.inference_mode():
        text = Text(pair, request, settings.sampling, Keys(settings.seed, request.key), watch)
        positions: list[int] = []
        drafted: list[list[_Drafted]] = []
        for position in range(0, settings.contexts * settings.stride, settings.stride):
            text.grow(position)
            if not settings.eos.isdisjoint(text.tokens[:position]):
                break
            view = text.tree(most, longest)
            with watch("verify"):
                drafted.append(on_tree(view, verifiers, settings))
            positions.append(position)
            on_context(len(positions))
        text.grow(positions[-1] + longest)
        target, draft = text.rows()
        with watch("on path"):
            rows = TextRows(text.tokens, cast(Array, target), cast(Array, draft))
            cells = on_text(rows, positions, verifiers, settings)
    done = [
        CellValues(
            paths=paths,
            depth=depth,
            nodes=[context[i].nodes for context in drafted],
            upper_bound=bounds,
            block_efficiency={name: [context[i].block_efficiency[name] for context in drafted] for name in verifiers},
            on_path=on_path,
        )
        for i, ((paths, depth), (bounds, on_path)) in enumerate(zip(shapes(settings), cells, strict=True))
    ]
    seconds = {stage: watch.seconds.get(stage, 0.0) for stage in STAGES}
    return PromptBound(request.key, text.tokens, positions, done, seconds)


def describe(settings: BoundSettings) -> dict[str, Any]:
    """What decides the outcome of a run, as plain data."""
    sampling = settings.sampling
    return {
        "paths": list(settings.paths),
        "depths": list(settings.depths),
        "contexts": settings.contexts,
        "stride": settings.stride,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "seed": settings.seed,
    }


def shapes(settings: BoundSettings) -> list[tuple[int, int]]:
    """The (K, L) of all cells in order."""
    return [(paths, depth) for paths in settings.paths for depth in settings.depths]


@dataclass(frozen=True)
class _Drafted:
    nodes: int
    block_efficiency: dict[str, float]


def on_tree(view: DraftTree, verifiers: Mapping[str, Verifier], settings: BoundSettings) -> list[_Drafted]:
    """1 + E[tau | tree] of every verifier in every cell, from one tree of the largest shape."""
    values: list[Any] = []
    first: dict[tuple[str, int], int] = {}  # places in ``values`` of what looks at the first path only
    cells = []
    for paths, depth in shapes(settings):
        cut = view.restricted(paths, depth)
        places = {}
        for name, checked in verifiers.items():
            key = (name, depth)
            if checked.first_path_only and key in first:
                places[name] = first[key]
                continue
            places[name] = first[key] = len(values)
            values.append(expected_accepted(checked(cut)))
        cells.append((len(cut.parent) - 1, places))
    host = torch.stack(values).tolist() if isinstance(values[0], torch.Tensor) else [float(x) for x in values]
    return [_Drafted(nodes, {name: 1 + host[i] for name, i in places.items()}) for nodes, places in cells]


def on_text(
    rows: TextRows, positions: Sequence[int], verifiers: Mapping[str, Verifier], settings: BoundSettings
) -> list[tuple[list[float], dict[str, list[float]]]]:
    """Upper bound and closed forms in every cell, one value a context, from the target's text."""
    starts, longest = np.array(positions), max(settings.depths)
    closed = {name: checked for name, checked in verifiers.items() if has_closed_form(checked)}
    cells = []
    for paths in settings.paths:
        bound = rows.relaxation(starts, longest, paths)
        ratios = {name: rows.budgets(checked, starts, longest, paths) for name, checked in closed.items()}
        for depth in settings.depths:
            upper = bound[:, : depth + 1].sum(axis=1).tolist()
            cells.append((upper, {name: r[:, : depth + 1].sum(axis=1).tolist() for name, r in ratios.items()}))
    return cells


def measure_all(
    pair: Pair,
    tokenizer: Tokenizer,
    algorithms: Sequence[str],
    prompts: Sequence[Prompt],
    settings: BoundSettings,
    records: JsonLines,
    *,
    chat: bool = False,
    report: Callable[[int], None] = lambda contexts: None,
) -> list[PromptBound]:
    """`measure` after every prompt; what ``records`` has is not measured again.

    All prompts are checked before the first is measured. ``report`` is told of the contexts finished, counting those
    that a prompt did not come to. Raises InputError for an unknown algorithm, and as `measure`.
    """
    verifiers = {errors.choice("algorithm", name, ALGORITHMS): verifier(name) for name in algorithms}
    requests = [Request(tuple(tokenizer.encode(prompt.text, chat=chat)), prompt.key) for prompt in prompts]
    for request in requests:
        check_context(pair, request, settings)
    known = {found.request: found for found in records.read(PromptBound.from_json)}
    results = []
    for i, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
        before = i * settings.contexts
        result = known.get(request.key)
        if result is None:
            result = measure(pair, verifiers, request, settings, _Later(report, before))
            records.append({"prompt": prompt.text, "versions": versions(), **asdict(result)})
        results.append(result)
        report(before + settings.contexts)
    return results


@dataclass(frozen=True)
class _Later:
    """Tells ``report`` of what is done after ``before`` was."""

    report: Callable[[int], None]
    before: int

    def __call__(self, done: int) -> None:
        self.report(self.before + done)


def check_context(pair: Pair, request: Request, settings: BoundSettings) -> None:
    """Raise InputError when the prompt is empty, or it and what may follow do not fit into a model's context."""
    text = max(1, (settings.contexts - 1) * settings.stride)
    engine.check_context(pair, request, engine.Settings(depth=max(settings.depths), max_new_tokens=text))


def summarize(prompts: Sequence[PromptBound]) -> list[dict[str, Any]]:
    """The cells of the document ``lpverify/bound@1``: means over contexts, standard errors over prompts, None for one.

    ``share`` is block efficiency over upper bound, ``on_path_share`` the same of the two values on the text, which is
    at most 1 on every single text.
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
            entry = _with_error("block_efficiency", "se", drafted, counts)
            entry |= _with_error("share", "share_se", drafted, bounds)
            on_text = [sum(cell.on_path[name]) for cell in column] if name in first.on_path else None
            entry |= _with_error("on_path", "on_path_se", on_text, counts)
            entry |= _with_error("on_path_share", "on_path_share_se", on_text, bounds)
            algorithms[name] = entry
        cells.append(
            {
                "paths": first.paths,
                "depth": first.depth,
                "nodes": sum(sum(cell.nodes) for cell in column) / sum(counts),
                "upper_bound": upper,
                "upper_bound_se": upper_se,
                "algorithms": algorithms,
            }
        )
    return cells


def _with_error(
    value: str, error: str, numerators: Sequence[float] | None, denominators: Sequence[float]
) -> dict[str, float | None]:
    found = (None, None) if numerators is None else ratio(numerators, denominators)
    return {value: found[0], error: found[1]}
