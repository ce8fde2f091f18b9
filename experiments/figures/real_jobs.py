"""What is measured on real models for the figures, and how much of it: a list of jobs a pair.

A job decodes (tokens per second, sampled block efficiency) or bounds (block efficiency of every verifier on shared
contexts, upper bound) at one temperature. Every job keeps its finished prompts in a file of the figures' folder, so
that figures share jobs, a stopped run goes on where it was, and pictures of finished jobs need no model.

Budget of the full size, seconds of one core for SmolLM2 (135M) with its near draft, float32:

    decode   run of 48 tokens: about 9 s; 9 prompts x 11 algorithms x 2 temperatures (K = 4, L = 8), 5 prompts x 4 x 2
             (K = 2, 3), 5 prompts x 3 x 3 (L = 4, 16, 24)                                       about 50 minutes
    bound    context at L = 8, K = 1..4: about 3 s, at L = 4, 8, 16, 24 together about 10 s; 12 prompts x 5 contexts at
             T = 1 (all L) and 0.2, 0.4, 0.6, 0.8 (L = 8)                                         about 25 minutes

The distilled draft, where it was made (`experiments/make_smollm2_draft.py distil`), adds about half of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.figures.real_prompts import mixed, prompt_sets
from lpverify import errors

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
TABLE = ("autoregressive", "token", "bv", "nss", "specinfer", "spectr", "traversal", "gbv", "tgbv", "pbv", "ebv")
"""Algorithms of the table, run interleaved at the largest K; the first three do not depend on it. OT is not among them:
its coupling is on sets of drafted tokens, 4.6e10 of them with K = 4 and 1,024 tokens."""
OVER_PATHS = ("bv", "traversal", "gbv", "pbv")
OVER_DEPTH = ("bv", "gbv", "pbv")
BOUND = ("token", "bv", "specinfer", "traversal", "gbv", "tgbv", "pbv")
DEPTH = 8
"""L where it is not what varies: the papers' best."""


@dataclass(frozen=True)
class Plan:
    """How much is measured on one pair.

    ``prompts``, ``few``: of the table, and of the runs over K and L; ``tokens``: new tokens a prompt;
    ``temperatures`` of the table; ``bounds``: temperature -> depths of the bound jobs, on ``bound_prompts`` prompts
    with ``contexts`` contexts each, every ``stride`` tokens; ``sets``: prompts where the user names none;
    ``only``: of the sets that a user names, these, if there are any of them.
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
"""All that the bundled pair writes is code."""

LADDER = (0.2, 0.4, 0.6, 0.8, 1.0)
SMOLLM2 = Plan(
    9, 5, 48, 12, 5, 12, bounds(*LADDER, depths=(4, 8, 16, 24)), (1.0, 0.6), sets=("code", "questions"), chat=True
)  # fmt: skip
PLANS: dict[str, dict[str, Plan]] = {
    "tiny": {"tiny": Plan(2, 2, 4, 2, 2, 2, bounds(0.6, 1.0, depths=(4, 8)), paths=(1, 2), depths=(4, 8))},
    "quick": {"tiny": Plan(3, 2, 16, 4, 2, 8, bounds(0.2, 0.6, 1.0, depths=(4, 8, 16)), depths=(4, 8, 16))},
    "full": {
        "tiny": Plan(16, 8, 64, 24, 8, 12, bounds(*LADDER, depths=(4, 8, 16, 24)), (1.0, 0.6), only=CODE_SETS),
        "smollm2": SMOLLM2,
        "smollm2-distilled": Plan(
            9, 6, 48, 9, 4, 12, bounds(0.6, 1.0, depths=(8,)), depths=(4, 8), sets=("code", "questions"), chat=True
        ),
    },
}


@dataclass(frozen=True)
class Real:
    """What the figures about real models need beside their size.

    ``folder``: of the figures; ``sources``: prompts as in `prompt_sets`, empty for the built-in ones; ``pairs``: names
    of `PAIRS`, None for all that the size has a plan for and whose models are there.
    """

    folder: Path | None = None
    sources: tuple[str, ...] = ()
    pairs: tuple[str, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.pairs or ():
            errors.choice("--pairs", name, tuple(PAIRS))


@dataclass(frozen=True)
class Measured:
    """One pair's plan with its prompts, and where its records are."""

    pair: str
    plan: Plan
    prompts: list[tuple[str, Prompt]]
    records: Path | None
    seed: int
    stage: Callable[[str], None] = field(repr=False)

    def decoded(
        self, algorithms: Sequence[str], paths: int, depth: int, temperature: float, count: int
    ) -> dict[str, list[Generation]]:
        """Algorithm -> runs on the first ``count`` prompts, from the records or measured now, interleaved."""
        from lpverify.decode.engine import Settings
        from lpverify.decode.records import Records
        from lpverify.decode.run import compare
        from lpverify.decode.sampling import Sampling
        from lpverify.decode.session import describe

        settings = Settings(paths, depth, Sampling(temperature), self.plan.tokens, self.seed)
        name = f"decode-T{temperature:g}-K{paths}-L{depth}"
        prompts = [prompt for _, prompt in self.prompts[:count]]
        with Records(self._file(name), self._models() | describe(settings)) as records:
            if any(records.get(a, prompt.key) is None for a in algorithms for prompt in prompts):
                opened = self._opened()
                settings = replace(settings, eos=opened.tokenizer.eos)

                def report(now: Any) -> None:
                    shape = f"T = {temperature:g}, K = {paths}, L = {depth}"
                    run = f"run {min(now.finished + 1, now.total)} of {now.total}"
                    self.stage(f"{self.pair}, {shape}: {now.algorithm}, {run}")

                requests = opened.requests(prompts, chat=self.plan.chat)
                compare(opened, algorithms, requests, settings, records, report)
        runs = {name: [records.get(name, prompt.key) for prompt in prompts] for name in algorithms}
        return {name: [run for run in finished if run is not None] for name, finished in runs.items()}

    def bounded(self, temperature: float) -> list[PromptBound]:
        """What `lpverify.studies.bound` measures at one temperature, prompt by prompt, from the records or now."""
        from lpverify.decode.sampling import Sampling
        from lpverify.decode.session import describe
        from lpverify.files import JsonLines
        from lpverify.studies import bound

        plan = self.plan
        shape = (plan.paths, plan.bounds[temperature], plan.contexts, plan.stride, Sampling(temperature), self.seed)
        description = self._models() | {"algorithms": list(BOUND)} | describe(bound.BoundSettings(*shape))
        prompts = [prompt for _, prompt in self.prompts[: plan.bound_prompts]]

        def report(done: int) -> None:
            total = len(prompts) * plan.contexts
            self.stage(f"{self.pair}, T = {temperature:g}: bound, context {min(done + 1, total)} of {total}")

        with JsonLines(self._file(f"bound-T{temperature:g}"), bound.RECORD_SCHEMA, description) as records:
            known = {measured.request: measured for measured in records.read(bound.PromptBound.from_json)}
            if all(prompt.key in known for prompt in prompts):
                return [known[prompt.key] for prompt in prompts]
            opened = self._opened()
            settings = bound.BoundSettings(*shape, opened.tokenizer.eos)
            requests = opened.requests(prompts, chat=plan.chat)
            return bound.measure_all(opened.models, BOUND, requests, settings, records, report)

    def _models(self) -> dict[str, Any]:
        """The pair as records describe it, without loading it."""
        from lpverify.decode.transformer import resolve_device

        target, draft = PAIRS[self.pair]
        device = str(resolve_device("auto"))
        return {"target": target, "draft": draft, "chat": self.plan.chat, "dtype": "auto", "device": device}

    def _opened(self) -> OpenPair:
        self.stage(f"{self.pair}: loading")
        return open_named(self.pair)

    def _file(self, name: str) -> Path | None:
        return None if self.records is None else self.records / f"{self.pair}-{name}.jsonl"


RECORDS = ".records"
"""Folder of the finished prompts inside that of the figures."""


def measured(size: str, real: Real, stage: Callable[[str], None]) -> list[Measured]:
    """The pairs of a size. Raises InputError for a pair without a plan, and for models that are not there."""
    plans = PLANS[size]
    missing = left_out(size) if real.pairs is None else {}
    names = [name for name in dict.fromkeys(real.pairs or plans) if name not in missing]
    found = []
    for name in names:
        plan = plans.get(name) or plans.get("smollm2")
        if plan is None:
            raise errors.fail("--pairs", got=f"{name} at size {size}", expected="one of " + ", ".join(plans))
        sets = prompt_sets(real.sources or plan.sets)
        sets = {label: texts for label, texts in sets.items() if label in plan.only} or sets
        prompts = mixed(sets, max(plan.prompts, plan.bound_prompts))
        if len(prompts) < 2:
            raise errors.fail("--prompts", got=f"{len(prompts)} prompt", expected="at least 2, for standard errors")
        folder = None if real.folder is None else real.folder / RECORDS / size
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        found.append(Measured(name, plan, prompts, folder, real.seed, stage))
    return found


def left_out(size: str) -> dict[str, str]:
    """The pairs of a size whose models are not there, unless they are asked for by name, with the reason."""
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
