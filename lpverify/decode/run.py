"""Several algorithms on the same prompts with the same seeds, interleaved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lpverify.decode import baselines, engine
from lpverify.decode.engine import Request, Settings
from lpverify.decode.metrics import DecodeStats, Generation, RoundRecord, summarize
from lpverify.decode.models import Pair
from lpverify.decode.records import Records
from lpverify.decode.session import LoadedPair
from lpverify.files import provenance
from lpverify.verifiers import names, verifier

BASELINES = {"autoregressive": baselines.autoregressive, "assisted": baselines.assisted}
ALGORITHMS = (*names(), *BASELINES)


@dataclass(frozen=True)
class Progress:
    """Reported after every round: ``finished`` of ``total`` runs, one per algorithm and prompt.

    ``tokens``, ``rounds``: of the run in progress. ``result``: the run that has just finished, else None.
    """

    algorithm: str
    finished: int
    total: int
    tokens: int
    rounds: int
    result: Generation | None = None


def compare(
    opened: LoadedPair,
    algorithms: Sequence[str],
    requests: Sequence[Request],
    settings: Settings,
    records: Records,
    report: Callable[[Progress], None] = lambda progress: None,
) -> list[DecodeStats]:
    """Run every algorithm on every prompt; runs that ``records`` contains are not repeated.

    All prompts are checked before the first run. The order of the algorithms rotates across prompts, which balances
    drift in the machine's speed. ``algorithms`` are names out of `ALGORITHMS`; ``report`` is called after every round
    and every run. Returns one entry per algorithm. Raises InputError as `lpverify.decode.engine.generate` and the
    baselines.
    """
    pair = opened.models
    for request in requests:
        pair.check_context(len(request.tokens), settings.max_new_tokens, settings.depth)
    verifiers = {name: verifier(name) for name in algorithms if name not in BASELINES}
    if any(records.get(name, request.key) is None for name in algorithms for request in requests):
        warm_up = replace(settings, max_new_tokens=1)  # excluded from timings
        baselines.autoregressive(pair, requests[0], warm_up)
        baselines.autoregressive(Pair(pair.draft, pair.draft), requests[0], warm_up)
    results: dict[str, list[Generation]] = {name: [] for name in algorithms}
    total = len(algorithms) * len(requests)
    for i, request in enumerate(requests):
        shift = i % len(algorithms)
        for name in (*algorithms[shift:], *algorithms[:shift]):
            finished = sum(map(len, results.values()))
            result = records.get(name, request.key)
            if result is None:
                tokens: list[int] = []  # of each round

                def on_round(
                    record: RoundRecord, name: str = name, finished: int = finished, tokens: list[int] = tokens
                ) -> None:
                    tokens.append(record.committed)
                    report(Progress(name, finished, total, sum(tokens), len(tokens)))

                if name in BASELINES:
                    result = BASELINES[name](pair, request, settings, on_round)
                else:
                    result = engine.generate(pair, verifiers[name], request, settings, on_round)
                text = opened.tokenizer.decode(result.tokens)
                records.add(result, prompt=request.text, text=text, versions=versions())
            results[name].append(result)
            report(Progress(name, finished + 1, total, len(result.tokens), len(result.rounds), result))
    return [summarize(results[name]) for name in algorithms]


def versions() -> dict[str, Any]:
    """The software, and the name of the CUDA device if there is one, that numbers were computed with."""
    device = {"device": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return provenance("torch", "transformers") | device
