"""Several algorithms on the same prompts with the same seeds, interleaved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lpverify import errors
from lpverify.decode import baselines, engine
from lpverify.decode.engine import Request, Settings
from lpverify.decode.metrics import DecodeStats, Generation, RoundRecord, summarize
from lpverify.decode.models import Pair, Tokenizer
from lpverify.decode.prompts import Prompt
from lpverify.decode.records import Records
from lpverify.files import provenance
from lpverify.verifiers import VERIFIERS, Verifier, verifier

BASELINES = {"autoregressive": baselines.autoregressive, "assisted": baselines.assisted}
ALGORITHMS = (*(name for name in VERIFIERS if name != "policy"), *BASELINES)
"""``policy`` is not among them: it is the solution of one table's LP."""


@dataclass(frozen=True)
class Progress:
    """Told after every round: ``done`` of ``total`` prompt runs are finished; ``result`` when one just did."""

    algorithm: str
    done: int
    total: int
    tokens: int
    rounds: int
    result: Generation | None = None


def parse_names(option: str, text: str, among: tuple[str, ...] = ALGORITHMS) -> list[str]:
    """Algorithm names from a comma-separated option, each once. Raises InputError for an unknown one."""
    names = [errors.choice(option, name.strip(), among) for name in text.split(",") if name.strip()]
    if not names:
        raise errors.fail(option, got=repr(text), expected="one of " + ", ".join(among))
    return list(dict.fromkeys(names))


def compare(
    pair: Pair,
    tokenizer: Tokenizer,
    algorithms: Sequence[str],
    prompts: Sequence[Prompt],
    settings: Settings,
    records: Records,
    *,
    chat: bool = False,
    report: Callable[[Progress], None] | None = None,
) -> list[DecodeStats]:
    """Run every algorithm on every prompt; what ``records`` has is not run again.

    All prompts are checked before the first is run. The first algorithm of a prompt is another one each time, so that a
    machine that warms up or slows down is unfair to none. Raises InputError as the algorithms.
    """
    requests = [Request(tuple(tokenizer.encode(prompt.text, chat=chat)), prompt.key) for prompt in prompts]
    for request in requests:
        engine.check_context(pair, request, settings)
    checked = {name: verifier(name) for name in algorithms if name not in BASELINES}
    if any(records.get(name, request.key) is None for name in algorithms for request in requests):
        once = replace(settings, max_new_tokens=1)  # kernels are set up at first use, which is nobody's time
        baselines.autoregressive(pair, requests[0], once)
        baselines.autoregressive(Pair(pair.draft, pair.draft), requests[0], once)
    results: dict[str, list[Generation]] = {name: [] for name in algorithms}
    total = len(algorithms) * len(requests)
    for i, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
        shift = i % len(algorithms)
        for name in (*algorithms[shift:], *algorithms[:shift]):
            done = sum(map(len, results.values()))
            result = records.get(name, request.key)
            if result is None:
                watch = _Watch(name, done, total, report)
                result = _run(pair, name, checked.get(name), request, settings, watch)
                records.add(result, prompt=prompt.text, text=tokenizer.decode(result.tokens), versions=versions())
            results[name].append(result)
            if report is not None:
                report(Progress(name, done + 1, total, len(result.tokens), len(result.rounds), result))
    return [summarize(results[name]) for name in algorithms]


class _Watch:
    """Counts the rounds of one prompt for whoever wants to see them."""

    def __init__(self, name: str, done: int, total: int, report: Callable[[Progress], None] | None) -> None:
        self._fixed, self._report = (name, done, total), report
        self._tokens = self._rounds = 0

    def __call__(self, record: RoundRecord) -> None:
        self._tokens += record.committed
        self._rounds += 1
        if self._report is not None:
            self._report(Progress(*self._fixed, self._tokens, self._rounds))


def _run(
    pair: Pair, name: str, checked: Verifier | None, request: Request, settings: Settings, watch: _Watch
) -> Generation:
    if checked is None:
        return BASELINES[name](pair, request, settings, watch)
    return engine.generate(pair, checked, request, settings, watch)


def versions() -> dict[str, Any]:
    """What the numbers were made with."""
    found = dict(provenance("torch", "transformers"))
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
    return found
