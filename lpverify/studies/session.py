"""A pair of models, opened once, and what one asks of it from Python: the functions behind the command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lpverify import errors
from lpverify.core.problem import VerifyProblem
from lpverify.decode.engine import Settings
from lpverify.decode.load import load_model, quiet
from lpverify.decode.metrics import DecodeStats, Generation
from lpverify.decode.models import Pair, Tokenizer, pair
from lpverify.decode.prompts import Prompt, keyed
from lpverify.decode.records import Records
from lpverify.decode.run import Progress, compare, parse_names
from lpverify.decode.sampling import Sampling
from lpverify.files import JsonLines
from lpverify.studies import bound as bounding
from lpverify.studies import extract as extraction
from lpverify.studies import extract_folder as folder


@dataclass(frozen=True)
class OpenPair:
    """Target, draft and their tokenizer; ``names`` and ``dtype`` as they were given to `open_pair`."""

    models: Pair
    tokenizer: Tokenizer
    names: tuple[str, str]
    dtype: str

    def decode(
        self,
        prompts: Sequence[str],
        algorithms: Sequence[str] = ("bv",),
        *,
        paths: int = 4,
        depth: int = 8,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
        chat: bool = False,
        records: str | os.PathLike[str] | None = None,
        report: Callable[[Progress], None] | None = None,
    ) -> tuple[list[DecodeStats], list[str]]:
        """Continue every prompt with every algorithm, as ``lpverify decode`` does.

        Returns the statistics, one entry an algorithm, and the first algorithm's texts, one a prompt. ``records``: a
        file of finished prompts; a rerun goes on where it stopped. Raises InputError for unknown algorithms,
        impossible settings, no prompt.
        """
        names = parse_names("algorithms", ",".join(algorithms))
        wanted = _keyed(prompts)
        sampling = Sampling(temperature, top_k, top_p)
        settings = Settings(paths, depth, sampling, max_new_tokens, seed, self.tokenizer.eos)
        with Records(records, self.describe(settings, chat=chat)) as kept:
            stats = compare(self.models, self.tokenizer, names, wanted, settings, kept, chat=chat, report=report)
        runs = [kept.get(names[0], prompt.key) for prompt in wanted]
        return stats, [self.tokenizer.decode(run.tokens) for run in runs if isinstance(run, Generation)]

    def extract(
        self,
        prompts: Sequence[str],
        *,
        paths: int = 4,
        depth: int = 4,
        top_k: int = 4,
        top_p: float | None = None,
        temperature: float = 1.0,
        contexts: int = 4,
        stride: int = 16,
        seed: int = 0,
        chat: bool = False,
    ) -> list[VerifyProblem]:
        """The whole tree below each context of the target's own texts as a small problem, as ``lpverify extract`` does.

        A prompt has ``contexts`` of them, one every ``stride`` tokens, fewer where its text ends before. Raises
        InputError for impossible settings, SizeError for trees that are too large.
        """
        settings = extraction.Settings(depth, Sampling(temperature, top_k, top_p), contexts, stride, seed)
        found = []
        for request in folder.checked_requests(self, _keyed(prompts), settings, chat):
            for context in folder.own_contexts(self, request, settings):
                made = folder.problem(self, context, request, settings, chat)
                found.append(VerifyProblem(made.pair, paths, made.name, made.description))
        return found

    def bound(
        self,
        prompts: Sequence[str],
        algorithms: Sequence[str] = bounding.DEFAULT_ALGORITHMS,
        *,
        paths: Sequence[int] = (1, 2, 3, 4),
        depths: Sequence[int] = (8,),
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        contexts: int = 4,
        stride: int = 16,
        seed: int = 0,
        chat: bool = False,
    ) -> list[dict[str, Any]]:
        """Block efficiency and its upper bound in contexts of the target's own texts, as ``lpverify bound`` measures.

        Returns the ``cells`` of its document, one for each K of ``paths`` and L of ``depths``. Raises InputError for
        unknown algorithms, impossible settings, no prompt.
        """
        names = parse_names("algorithms", ",".join(algorithms), bounding.ALGORITHMS)
        wanted, eos = _keyed(prompts), self.tokenizer.eos
        sampling = Sampling(temperature, top_k, top_p)
        settings = bounding.BoundSettings(tuple(paths), tuple(depths), contexts, stride, sampling, seed, eos)
        nowhere = JsonLines(None, bounding.RECORD_SCHEMA, {})
        found = bounding.measure_all(self.models, self.tokenizer, names, wanted, settings, nowhere, chat=chat)
        return bounding.summarize(found)

    def describe(self, settings: Settings, *, chat: bool) -> dict[str, Any]:
        """What decides the outcome of a run on this pair, as plain data."""
        target, draft = self.names
        device = str(self.models.target.device)
        return describe(settings, target=target, draft=draft, chat=chat, dtype=self.dtype, device=device)


def _keyed(prompts: Sequence[str]) -> list[Prompt]:
    if isinstance(prompts, str) or not prompts:
        raise errors.fail("prompts", got=repr(prompts), expected="a list of texts, at least one")
    return keyed(list(prompts))


def open_pair(
    target: str = "tiny",
    draft: str = "tiny",
    *,
    dtype: str = "auto",
    device: str = "auto",
    device_map: str | None = None,
) -> OpenPair:
    """Load target and draft and check that they speak of the same tokens; names as in `lpverify.decode.load`.

    Raises InputError, with the reason, for what is not there or cannot be verified with.
    """
    quiet()
    options: dict[str, Any] = {"dtype": dtype, "device": device, "device_map": device_map}
    target_model, tokenizer = load_model(target, "target", **options)
    draft_model, draft_tokenizer = load_model(draft, "draft", **options)
    return OpenPair(pair(target_model, draft_model, tokenizer, draft_tokenizer), tokenizer, (target, draft), dtype)


def describe(settings: Settings, **more: Any) -> dict[str, Any]:
    """What decides the outcome of a run, as plain data."""
    sampling = settings.sampling
    return more | {
        "paths": settings.paths,
        "depth": settings.depth,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "max_new_tokens": settings.max_new_tokens,
        "seed": settings.seed,
    }


def threads() -> int:
    """Threads that the models compute with on the CPU."""
    return torch.get_num_threads()
