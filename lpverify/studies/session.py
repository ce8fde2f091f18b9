"""A pair of models, opened once, and what can be asked of it from Python: the functions behind the command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from lpverify import errors
from lpverify.core.problem import VerifyProblem
from lpverify.decode.engine import Settings
from lpverify.decode.load import LoadedPair, load_model, quiet
from lpverify.decode.metrics import DecodeStats, Generation
from lpverify.decode.models import Pair
from lpverify.decode.prompts import Prompt, keyed
from lpverify.decode.run import ALGORITHMS, Progress, Records, compare
from lpverify.decode.sampling import Sampling
from lpverify.files import JsonLines
from lpverify.studies import bound as bounding
from lpverify.studies import extract as extraction
from lpverify.studies import extract_folder as folder


class OpenPair(LoadedPair):
    """Target, draft and their tokenizer, as `open_pair` loads them."""

    def decode(
        self,
        prompts: Sequence[str],
        algorithms: str | Sequence[str] = ("bv",),
        *,
        num_paths: int = 4,
        depth: int = 8,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
        chat: bool = False,
        records: str | os.PathLike[str] | None = None,
        recompute: bool = False,
        report: Callable[[Progress], None] = lambda progress: None,
    ) -> tuple[list[DecodeStats], list[str]]:
        """Continue every prompt with every algorithm, as ``lpverify decode`` does.

        Args:
            prompts: texts, at least one.
            algorithms: names of verifiers, ``autoregressive`` or ``assisted``; a list, or a text with commas.
            num_paths, depth: K drafted paths of L tokens.
            temperature, top_k, top_p: sampling of both models (`lpverify.decode.sampling.Sampling`).
            max_new_tokens: limit of each text.
            seed: of everything that is drawn.
            chat: wrap the prompts in the chat template.
            records: file of finished prompts; an interrupted run resumes. One of other settings or other models (by
                content) is refused, or with ``recompute`` replaced.
            report: called after every round.

        Returns:
            Statistics, one entry per algorithm, and the texts of the first algorithm, one per prompt.

        Raises:
            InputError: unknown algorithms, impossible settings, no prompt, or logits that are NaN or infinite.
        """
        names = errors.choices("algorithms", algorithms, ALGORITHMS)
        requests = self.requests(_keyed(prompts), chat=chat)
        sampling = Sampling(temperature, top_k, top_p)
        settings = Settings(num_paths, depth, sampling, max_new_tokens, seed, self.tokenizer.eos)
        identity = {} if records is None else self.identity(settings, chat=chat)
        with Records(records, identity, recompute=recompute) as store:
            stats = compare(self, names, requests, settings, store, report)
        runs = [store.get(names[0], request.key) for request in requests]
        return stats, [self.tokenizer.decode(run.tokens) for run in runs if isinstance(run, Generation)]

    def extract(
        self,
        prompts: Sequence[str],
        *,
        num_paths: int = 4,
        depth: int = 4,
        top_k: int = 4,
        top_p: float | None = None,
        temperature: float = 1.0,
        contexts: int = 4,
        stride: int = 16,
        seed: int = 0,
        chat: bool = False,
    ) -> list[VerifyProblem]:
        """The whole tree below contexts of the target's own texts as small problems, as ``lpverify extract`` does.

        Args:
            num_paths, depth: K of the problems, and L, the levels of the trees.
            top_k: at most 8, which keeps the trees small.
            contexts, stride: as in `bound`. Others as in `decode`.

        Raises:
            InputError: impossible settings or no prompt. SizeError: trees that are too large.
        """
        settings = extraction.Settings(depth, Sampling(temperature, top_k, top_p), contexts, stride, seed)
        problems = []
        for request in folder.checked_requests(self, _keyed(prompts), settings, chat):
            for context in folder.contexts_after(self, request, settings):
                file = folder.problem_below(self, context, request, settings, chat)
                problems.append(VerifyProblem(file.pair, num_paths, file.name, file.description))
        return problems

    def bound(
        self,
        prompts: Sequence[str],
        algorithms: str | Sequence[str] = bounding.DEFAULT_ALGORITHMS,
        *,
        num_paths: int | Sequence[int] = (1, 2, 3, 4),
        depths: int | Sequence[int] = (8,),
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        contexts: int = 4,
        stride: int = 16,
        seed: int = 0,
        chat: bool = False,
    ) -> list[dict[str, Any]]:
        """Block efficiency and its upper bound in contexts of the target's own texts, as ``lpverify bound`` does.

        Args:
            algorithms: names of verifiers; a list, or a text with commas.
            num_paths, depths: every K with every L.
            contexts, stride: at most so many contexts per prompt, so many tokens apart, none after an end of text.
            Others as in `decode`.

        Returns:
            The ``cells`` of the document ``lpverify/bound@1``, one for each K and L.

        Raises:
            InputError: unknown algorithms, impossible settings, no prompt, or logits that are NaN or infinite.
        """
        names = errors.choices("algorithms", algorithms, bounding.ALGORITHMS)
        requests, eos = self.requests(_keyed(prompts), chat=chat), self.tokenizer.eos
        sampling = Sampling(temperature, top_k, top_p)
        shapes = (errors.integers("num_paths", num_paths, min=1), errors.integers("depths", depths, min=1))
        settings = bounding.BoundSettings(*shapes, contexts, stride, sampling, seed, eos)
        unsaved = JsonLines(None, bounding.RECORD_SCHEMA, {})
        return bounding.summarize(bounding.measure_all(self, names, requests, settings, unsaved))


def _keyed(prompts: Sequence[str]) -> list[Prompt]:
    several = isinstance(prompts, Sequence) and not isinstance(prompts, str | bytes) and prompts
    if not several or not all(isinstance(text, str) for text in prompts):
        raise errors.fail("prompts", got=prompts, expected="a list of texts, at least one")
    return keyed(list(prompts))


def open_pair(
    target: str = "tiny",
    draft: str = "tiny",
    *,
    dtype: str = "auto",
    device: str = "auto",
    device_map: str | None = None,
) -> OpenPair:
    """Load target and draft and check that they share a vocabulary.

    Args:
        target, draft: ``tiny`` (bundled), ``smollm2``, a local folder, a hub id, a problem file or the name of a
            built-in problem (`lpverify.decode.load.load_model`).
        dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        device: ``auto`` (CUDA if there is one, else the CPU) or a device of torch.
        device_map: ``auto`` spreads the models over several devices.

    Raises:
        InputError: with the reason, if a model does not exist or cannot be used for verification.
    """
    quiet()
    options: dict[str, Any] = {"dtype": dtype, "device": device, "device_map": device_map}
    target_model, tokenizer = load_model(target, "target", **options)
    draft_model, draft_tokenizer = load_model(draft, "draft", **options)
    models = Pair.checked(target_model, draft_model, tokenizer, draft_tokenizer)
    return OpenPair(models, tokenizer, (target, draft), dtype)
