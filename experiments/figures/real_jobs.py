"""What is measured on real models for the figures, and how much of it: a plan for each pair of models.

Two kinds of measurement: decoding (tokens per second, sampled block efficiency), and `lpverify.studies.bound` (block
efficiency of every verifier in shared contexts, and its upper bound). Finished prompts are kept in files of the
figures' folder: figures share them, and interrupted runs resume. The models are loaded even if all is measured: their
content says whether the records are theirs.

Speeds are measured prompt by prompt: every setting that a figure compares runs on one prompt before the next prompt
begins, and the first algorithm rotates. A machine that slows down then slows all settings alike, and the drift is part
of the standard error over prompts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from experiments.figures.real_prompts import mixed, prompt_sets
from lpverify import errors
from lpverify.verifiers import names as verifier_names

if TYPE_CHECKING:
    from lpverify.decode.metrics import Generation
    from lpverify.decode.prompts import Prompt
    from lpverify.studies.bound import PromptBound
    from lpverify.studies.session import OpenPair

PAIRS = {
    "tiny": ("tiny", "tiny"),
    "smollm2": ("smollm2", "smollm2"),
    "smollm2-far": ("smollm2", "smollm2:far"),
    "smollm2-distilled": ("smollm2", "smollm2:distilled"),
}
"""Name of a pair in the figures -> (target, draft) of `lpverify.decode.load`."""

SHOWN_PAIR = {
    "tiny": "tiny (1.8M, 0.5M draft)",
    "smollm2": "SmolLM2-135M, near draft",
    "smollm2-far": "SmolLM2-135M, far draft",
    "smollm2-distilled": "SmolLM2-135M, distilled draft",
}
BOUND = verifier_names(any_vocabulary=True)
"""Verifiers measured in shared contexts. OT is not among them: its coupling is on sets of drafted tokens, 4.6e10 of
them with K = 4 and 1,024 tokens."""
TABLE = ("autoregressive", *BOUND)
"""Decoded at the largest K; the target alone, the token rule and BV draft at most one path."""
OVER_PATHS = ("bv", "traversal", "gbv", "pbv", "ebv")
OVER_DEPTH = ("bv", "gbv", "pbv", "ebv")
"""Subsets for speeds over K and over L: decoding every verifier at every setting would take hours."""
DEPTH = 8
"""L where it is not what varies: the papers' best."""


@dataclass(frozen=True)
class Plan:
    """How much is measured on one pair.

    ``prompts``, ``few``: prompts of the table, and of the speeds over K and L; ``tokens``: new tokens of each;
    ``temperatures`` of the table; ``bounds``: temperature -> depths measured in shared contexts, ``contexts`` of them
    (one every ``stride`` tokens) on each of ``bound_prompts`` prompts; ``sets``: prompts where the user names none;
    ``only``: those sets of the user's that are used, if there are any.
    """

    prompts: int
    few: int
    tokens: int
    bound_prompts: int
    contexts: int
    stride: int
    bounds: Mapping[float, tuple[int, ...]]
    temperatures: tuple[float, ...] = (1.0,)
    paths: tuple[int, ...] = (1, 2, 3, 4)
    depths: tuple[int, ...] = (4, 8, 16, 24)
    sets: tuple[str, ...] = ("code",)
    only: tuple[str, ...] = ()
    chat: bool = False


def bounds(*temperatures: float, depths: tuple[int, ...]) -> dict[float, tuple[int, ...]]:
    """All depths at temperature 1, `DEPTH` alone at the others."""
    return {temperature: depths if temperature == 1 else (DEPTH,) for temperature in temperatures}


CODE_SETS = ("code", "humaneval")
"""The bundled pair writes code only."""

LADDER = (0.2, 0.4, 0.6, 0.8, 1.0)
ASKED: dict[str, Any] = {"sets": ("code", "questions"), "chat": True}
PLANS: dict[str, dict[str, Plan]] = {
    "tiny": {"tiny": Plan(2, 2, 4, 2, 2, 2, bounds(0.6, 1.0, depths=(4, 8)), paths=(1, 2), depths=(4, 8))},
    "quick": {"tiny": Plan(3, 2, 16, 4, 2, 8, bounds(0.2, 0.6, 1.0, depths=(4, 8, 16)), depths=(4, 8, 16))},
    "full": {
        "tiny": Plan(16, 8, 64, 24, 8, 12, bounds(*LADDER, depths=(4, 8, 16, 24)), (1.0, 0.6), only=CODE_SETS),
        "smollm2": Plan(6, 4, 48, 12, 5, 12, bounds(*LADDER, depths=(4, 8, 16, 24)), (1.0, 0.6), **ASKED),
        "smollm2-distilled": Plan(9, 6, 48, 9, 4, 12, bounds(0.6, 1.0, depths=(8,)), depths=(4, 8), **ASKED),
    },
}


@dataclass(frozen=True)
class Real:
    """What the figures about real models need beside their size.

    ``folder``: of the figures; ``sources``: prompts as in `prompt_sets`, empty for the built-in ones; ``pairs``: names
    of `PAIRS`, None for all that the size has a plan for and whose models are installed; ``recompute``: replace records
    of other settings or models.
    """

    folder: Path | None = None
    sources: tuple[str, ...] = ()
    pairs: tuple[str, ...] | None = None
    recompute: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.pairs or ():
            errors.choice("--pairs", name, tuple(PAIRS))


@dataclass(frozen=True)
class Job:
    """Decoding runs of one setting: these algorithms on the first ``prompts`` prompts."""

    algorithms: tuple[str, ...]
    paths: int
    depth: int
    temperature: float
    prompts: int


def table_jobs(plan: Plan) -> list[Job]:
    """Every algorithm at the largest K, one job for each temperature."""
    return [Job(TABLE, plan.paths[-1], DEPTH, t, plan.prompts) for t in plan.temperatures]


def speed_jobs(plan: Plan) -> list[Job]:
    """Speeds over K at L = `DEPTH` and over L at the largest K, at temperature 1."""
    last = plan.paths[-1]
    over_paths = [Job(OVER_PATHS, paths, DEPTH, 1.0, plan.few) for paths in plan.paths[1:-1]]
    over_depth = [Job(OVER_DEPTH, last, depth, 1.0, plan.few) for depth in plan.depths if depth != DEPTH]
    return [*over_paths, Job(TABLE, last, DEPTH, 1.0, plan.few), *over_depth]


@dataclass(frozen=True)
class Measured:
    """One pair's plan with its prompts, and where its records are."""

    pair: str
    plan: Plan
    prompts: list[tuple[str, Prompt]]
    records: Path | None
    seed: int
    recompute: bool
    stage: Callable[[str], None] = field(repr=False)

    def decoded(self, jobs: Sequence[Job]) -> list[dict[str, list[Generation]]]:
        """For each job algorithm -> runs, prompt by prompt, from the records or measured now, interleaved."""
        from lpverify.decode.engine import Settings
        from lpverify.decode.load import describe
        from lpverify.decode.metrics import Stopwatch
        from lpverify.decode.run import Records, compare
        from lpverify.decode.sampling import Sampling

        settings = [
            Settings(job.paths, job.depth, Sampling(job.temperature), self.plan.tokens, self.seed) for job in jobs
        ]
        keys = [prompt.key for _, prompt in self.prompts]
        with ExitStack() as stack:
            stack.enter_context(self._folder())
            stack.enter_context(mock.patch.object(Stopwatch, "clock", staticmethod(CLOCKS[clock()])))
            records, opened = [], self._opened()
            identity = opened.identity(settings[0], chat=self.plan.chat, clock=clock())
            for job, shape in zip(jobs, settings, strict=True):
                file = self._file(f"decode-T{job.temperature:g}-K{job.paths}-L{job.depth}")
                own = Records(file, identity | describe(shape), recompute=self.recompute)
                records.append(stack.enter_context(own))
            last = max(job.prompts for job in jobs)
            for i, (_, prompt) in enumerate(self.prompts[:last]):
                for job, finished, shape in zip(jobs, records, settings, strict=True):
                    if i >= job.prompts or all(finished.get(name, prompt.key) for name in job.algorithms):
                        continue
                    where = f"T = {job.temperature:g}, K = {job.paths}, L = {job.depth}"
                    self.stage(f"{self.pair}, prompt {i + 1} of {last}: decoding, {where}")
                    first = i % len(job.algorithms)
                    turned = (*job.algorithms[first:], *job.algorithms[:first])
                    requests = opened.requests([prompt], chat=self.plan.chat)
                    compare(opened, turned, requests, replace(shape, eos=opened.tokenizer.eos), finished)
            return [
                {name: [_known(run, name, key) for key in keys[: job.prompts]] for name in job.algorithms}
                for job, run in zip(jobs, records, strict=True)
            ]

    def bounded(self, temperature: float) -> list[PromptBound]:
        """What `lpverify.studies.bound` measures at one temperature, prompt by prompt, from the records or now."""
        from lpverify.decode.sampling import Sampling
        from lpverify.files import JsonLines
        from lpverify.studies import bound

        plan = self.plan
        shape = (plan.paths, plan.bounds[temperature], plan.contexts, plan.stride, Sampling(temperature), self.seed)
        opened = self._opened()
        settings = bound.BoundSettings(*shape, opened.tokenizer.eos)
        identity = opened.identity(settings, chat=plan.chat, algorithms=list(BOUND))
        prompts = [prompt for _, prompt in self.prompts[: plan.bound_prompts]]

        def report(done: int) -> None:
            total = len(prompts) * plan.contexts
            self.stage(f"{self.pair}, T = {temperature:g}: shared contexts, {min(done + 1, total)} of {total}")

        file = self._file(f"bound-T{temperature:g}")
        requests = opened.requests(prompts, chat=plan.chat)
        with (
            self._folder(),
            JsonLines(file, bound.RECORD_SCHEMA, identity, recompute=self.recompute) as records,
        ):
            return bound.measure_all(opened, BOUND, requests, settings, records, report)

    def _opened(self) -> OpenPair:
        return open_named(self.pair)

    @contextmanager
    def _folder(self) -> Iterator[None]:
        """The folder of the records; if nothing was kept in it, it is removed again."""
        folders = () if self.records is None else (self.records, *self.records.parents)
        missing = [folder for folder in folders if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir()
        try:
            yield
        finally:
            for folder in missing:
                with suppress(OSError):  # not empty
                    folder.rmdir()

    def _file(self, name: str) -> Path | None:
        return None if self.records is None else self.records / f"{self.pair}-{name}.jsonl"


CLOCKS = {"wall time": time.perf_counter, "processor time": time.process_time}


def clock() -> str:
    """What decoding is timed with: for one thread on a CPU the processor time, which other programs hardly change.

    On an idle machine the two are equal there.
    """
    import torch

    from lpverify.decode.transformer import resolve_device

    alone = torch.get_num_threads() == 1 and resolve_device("auto").type == "cpu"
    return "processor time" if alone else "wall time"


def _known(records: Any, name: str, key: str) -> Generation:
    run = records.get(name, key)
    assert run is not None, (name, key)
    return run


RECORDS = ".records"
"""Folder of the finished prompts inside that of the figures."""


def measured(size: str, real: Real, stage: Callable[[str], None]) -> list[Measured]:
    """The pairs of a size. Raises InputError for a pair without a plan, and for models that are not installed."""
    plans = PLANS[size]
    missing = left_out(size) if real.pairs is None else {}
    jobs = []
    for name in dict.fromkeys(real.pairs or plans):
        if name in missing:
            continue
        plan = plans.get(name) or plans.get("smollm2")
        if plan is None:
            raise errors.fail("--pairs", got=f"{name} at size {size}", expected="one of " + ", ".join(plans))
        sets = prompt_sets(real.sources or plan.sets)
        sets = {label: texts for label, texts in sets.items() if label in plan.only} or sets
        prompts = mixed(sets, max(plan.prompts, plan.bound_prompts))
        if len(prompts) < 2:
            raise errors.fail("--prompts", got=f"{len(prompts)} prompt", expected="at least 2, for standard errors")
        folder = None if real.folder is None else real.folder / RECORDS / size
        jobs.append(Measured(name, plan, prompts, folder, real.seed, real.recompute, stage))
    return jobs


def left_out(size: str) -> dict[str, str]:
    """Pair -> reason, for the pairs of a size whose models are not installed."""
    from lpverify.decode.smollm2 import distilled_folder, gguf_file

    reasons = {}
    for name in PLANS[size]:
        if name.startswith("smollm2"):
            try:
                gguf_file()
            except errors.InputError as error:
                reasons[name] = str(error)
        if name.endswith("distilled") and not distilled_folder().exists():
            reasons[name] = "experiments/make_smollm2_draft.py distil has not made its draft"
    return reasons


@lru_cache(maxsize=1)  # one pair at a time: two SmolLM2 models are a gigabyte
def open_named(name: str) -> OpenPair:
    """The pair called ``name`` in the figures."""
    from lpverify.studies.session import open_pair

    return open_pair(*PAIRS[name])
