"""Several algorithms on the same prompts with the same seeds, interleaved, and the record of finished prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lpverify.decode import baselines, engine
from lpverify.decode.engine import Request, Settings
from lpverify.decode.load import LoadedPair, device_name
from lpverify.decode.metrics import DecodeStats, Generation, RoundRecord, summarize
from lpverify.decode.models import Pair
from lpverify.files import JsonLines, StrPath, provenance
from lpverify.verifiers import names, verifier

RECORD_SCHEMA = "lpverify/decode-record@1"
BASELINES = {"autoregressive": baselines.autoregressive, "assisted": baselines.assisted}
ALGORITHMS = (*names(), *BASELINES)


class Records(JsonLines):
    """The finished prompts of one run, one line for each prompt and algorithm, so that an interrupted run resumes.

    ``path``, ``recompute``, use and errors are those of `JsonLines`; ``identity`` has everything that the outcome
    depends on besides algorithm and prompt. A line has the fields of `Generation`, and what `add` was told besides.
    """

    def __init__(self, path: StrPath | None, identity: Mapping[str, Any], *, recompute: bool = False) -> None:
        super().__init__(path, RECORD_SCHEMA, identity, recompute=recompute)
        self._finished = {(run.algorithm, run.request): run for run in self.read(Generation.from_json)}

    def get(self, algorithm: str, request: str) -> Generation | None:
        """The finished run of this algorithm on this prompt."""
        return self._finished.get((algorithm, request))

    def add(self, generation: Generation, **more: Any) -> None:
        """Store a finished prompt; ``more`` becomes part of its line."""
        self._finished[generation.algorithm, generation.request] = generation
        self.append({**more, **generation.to_json()})


@dataclass(frozen=True)
class Progress:
    """Reported after every round: ``finished`` of ``total`` runs, one per algorithm and prompt."""

    algorithm: str
    finished: int
    total: int
    tokens: int  # of the run in progress
    rounds: int
    result: Generation | None = None  # the run that has just finished


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
    pair, total = opened.models, len(algorithms) * len(requests)
    for request in requests:
        pair.check_context(len(request.tokens), settings.max_new_tokens)
    verifiers = {name: verifier(name) for name in algorithms if name not in BASELINES}
    pair.check_tree(settings.num_paths, settings.depth)
    if any(records.get(name, request.key) is None for name in algorithms for request in requests):
        warm_up = replace(settings, max_new_tokens=1)  # excluded from timings, as is compiling
        for used in verifiers.values():
            engine.generate(pair, used, requests[0], warm_up)
        baselines.autoregressive(pair, requests[0], warm_up)
        baselines.autoregressive(Pair(pair.draft, pair.draft), requests[0], warm_up)

    def run(name: str, request: Request, finished: int) -> Generation:
        committed: list[int] = []  # tokens of each round

        def on_round(record: RoundRecord) -> None:
            committed.append(record.committed)
            report(Progress(name, finished, total, sum(committed), len(committed)))

        if name in BASELINES:
            return BASELINES[name](pair, request, settings, on_round)
        return engine.generate(pair, verifiers[name], request, settings, on_round)

    results: dict[str, list[Generation]] = {name: [] for name in algorithms}
    for i, request in enumerate(requests):
        shift = i % len(algorithms)
        for name in (*algorithms[shift:], *algorithms[:shift]):
            finished = sum(map(len, results.values()))
            result = records.get(name, request.key)
            if result is None:
                result = run(name, request, finished)
                text = opened.tokenizer.decode(result.tokens)
                records.add(result, prompt=request.text, text=text, models=opened.names, versions=versions())
            results[name].append(result)
            report(Progress(name, finished + 1, total, len(result.tokens), len(result.rounds), result))
    return [summarize(results[name]) for name in algorithms]


def versions() -> dict[str, Any]:
    """The software, and the name of the CUDA device if there is one, that numbers were computed with."""
    return provenance("torch", "transformers") | device_name()
