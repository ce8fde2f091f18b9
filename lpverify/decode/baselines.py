"""Baselines of the verifiers: the target alone, and the transformers library's own assisted generation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from lpverify import errors
from lpverify.decode.engine import Request, Settings
from lpverify.decode.metrics import Generation, RoundRecord, Stopwatch
from lpverify.decode.models import Pair
from lpverify.decode.rng import Keys, Role
from lpverify.decode.sampling import Sampling, probabilities
from lpverify.decode.transformer import TransformersModel
from lpverify.verifiers.sample import pick


def autoregressive(
    pair: Pair, request: Request, settings: Settings, on_round: Callable[[RoundRecord], None] = lambda record: None
) -> Generation:
    """The target alone: one token per target pass, with the sampling function of the engine.

    Token t is drawn with the uniform of round t and `lpverify.decode.rng.Role.TARGET`, so a longer text begins with
    a shorter one. Arguments and errors are those of `lpverify.decode.engine.generate`.
    """
    pair.check_context(len(request.tokens), settings.max_new_tokens)
    keys, watch = Keys(settings.seed, request.key), Stopwatch(pair.target.device)
    new: list[int] = []
    rounds: list[RoundRecord] = []
    with torch.inference_mode():
        with watch("prefill"):
            state = pair.target.start(request.tokens[:-1])
        while len(new) < settings.max_new_tokens and not (new and new[-1] in settings.eos):
            pending = new[-1] if new else request.tokens[-1]
            with watch("target"):
                logits = state.append(torch.tensor([pending], device=pair.target.device))
                rows = probabilities(logits, settings.sampling, pair.vocab_size)
            with watch("verify"):
                new.append(pick(rows[0], keys.uniform(len(new), Role.TARGET)))
            rounds.append(RoundRecord(drafted=0, nodes=0, accepted=0, committed=1, expected_committed=1.0))
            on_round(rounds[-1])
    return Generation.measured("autoregressive", request.key, new, rounds, watch)


def assisted(
    pair: Pair, request: Request, settings: Settings, on_round: Callable[[RoundRecord], None] = lambda record: None
) -> Generation:
    """``generate(assistant_model=...)`` of transformers with L assistant tokens each time: one path, its token rule.

    The models' own generation defaults are replaced. The library would take an end of text and an early end of drafts
    from them (``assistant_confidence_threshold``, 0.4 unless set), and a padding token, which it would mask for the
    draft wherever the prompt contains it. The stage ``verify`` is all of the library's time outside the two models. The
    Rao-Blackwell estimate is unknown.

    Raises InputError if a model is not of the transformers library, if the two differ in the number of logits or are
    one object, and as `lpverify.decode.engine.generate`.
    """
    pair.check_context(len(request.tokens), settings.max_new_tokens)
    target, draft = pair.target, pair.draft
    if not isinstance(target, TransformersModel) or not isinstance(draft, TransformersModel):
        raise errors.fail("assisted", got="a table as a model", expected="two transformers models")
    if target.vocab_size != draft.vocab_size:
        sizes = f"{draft.vocab_size} and {target.vocab_size} logits"
        raise errors.fail("assisted", got=sizes, expected="as many of the draft as of the target")
    if target.module is draft.module:
        raise errors.fail("assisted", got="one model as target and draft", expected="two")
    prompt = torch.tensor([request.tokens], device=target.device)
    watch = Stopwatch(target.device)
    cached: list[int] = []  # tokens in the target's cache at the beginning of each target pass
    drafting: dict[str, Any] = {"num_assistant_tokens": settings.depth, "num_assistant_tokens_schedule": "constant"}
    drafting["assistant_confidence_threshold"] = 0.0
    devices = [target.device] if target.device.type == "cuda" else []
    begin = time.perf_counter()
    with (
        torch.random.fork_rng(devices=devices),
        torch.inference_mode(),
        _observed(target, _configuration(settings), partial(watch, "target"), cached),
        _observed(draft, _configuration(settings, **drafting), partial(watch, "draft"), []),
    ):
        torch.manual_seed(Keys(settings.seed, request.key).bits(0, Role.OTHER) >> 1)
        output = target.module.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            generation_config=_configuration(settings, max_new_tokens=settings.max_new_tokens),
            logits_processor=_filters(settings.sampling),
            assistant_model=draft.module,
        )
        new = output[0, prompt.shape[1] :].tolist()
    watch.seconds["verify"] = max(time.perf_counter() - begin - sum(watch.seconds.values()), 0.0)
    starts = [prompt.shape[1], *(length + 1 for length in cached[1:]), output.shape[1]]
    rounds = []
    for committed in np.diff(starts).tolist():
        rounds.append(RoundRecord(settings.depth, settings.depth, min(committed - 1, settings.depth), committed))
        on_round(rounds[-1])
    return Generation.measured("assisted", request.key, new, rounds, watch)


def _configuration(settings: Settings, **further: Any) -> Any:
    """Ends of text and the kind of sampling, without filters; one row needs no padding token of its own."""
    eos, sampled = sorted(settings.eos), settings.sampling.temperature > 0
    ends = {"eos_token_id": eos, "pad_token_id": eos[0]} if eos else {}
    configuration: Any = GenerationConfig  # its types are missing
    return configuration(do_sample=sampled, top_k=0 if sampled else None, **ends, **further)  # top_k: 50 by default


def _filters(sampling: Sampling) -> Any:
    """Temperature, top-k and top-p as logits processors.

    In the configuration they would act on the draft twice: the library passes the target's processors to the draft,
    which also makes its own from the same configuration.
    """
    filters: Any = LogitsProcessorList()
    if sampling.temperature not in (0, 1):
        filters.append(TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.temperature > 0 and sampling.top_k is not None:
        filters.append(TopKLogitsWarper(sampling.top_k))
    if sampling.temperature > 0 and sampling.top_p is not None:
        filters.append(TopPLogitsWarper(float(sampling.top_p)))
    return filters


@contextmanager
def _observed(model: TransformersModel, defaults: Any, stage: Callable[[], Any], cached: list[int]) -> Iterator[None]:
    """Replace the model's generation defaults, time its calls, and note the length of its cache before each."""
    module, running, original = model.module, [], model.module.generation_config

    def before(_module: Any, _arguments: Any, options: dict[str, Any]) -> None:
        cached.append(int(options[model.argument].get_seq_length()))
        running.append(stage())
        running[-1].__enter__()

    def after(*_: Any) -> None:
        running.pop().__exit__(None, None, None)

    hooks = [module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after)]
    module.generation_config = defaults
    try:
        yield
    finally:
        module.generation_config = original
        for hook in hooks:
            hook.remove()
