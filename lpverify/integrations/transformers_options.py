"""What `lpverify.integrations.transformers` is asked for, and what of it is refused by name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from transformers import GenerationMixin
from transformers.generation.logits_process import (
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from lpverify import errors

BEAMS = "one text at a time is drafted and verified"
DRAFTS = "draft_model drafts"
CACHE = "rejected drafts are cut out of a dynamic cache of its own"
TREES = "a pass scores a tree, not a text"
OFF: dict[str, tuple[tuple[Any, ...], str]] = {
    "num_beams": ((None, 1), f"1 ({BEAMS})"),
    "num_beam_groups": ((None, 1), f"1 ({BEAMS})"),
    "constraints": ((None,), f"none ({BEAMS})"),
    "force_words_ids": ((None,), f"none ({BEAMS})"),
    "penalty_alpha": ((None, 0), "none (contrastive search has no next-token distribution to verify against)"),
    "dola_layers": ((None,), "none (the target's distribution is that of its last layer)"),
    "guidance_scale": ((None, 1), "none (guidance runs the model once more for every token)"),
    "prompt_lookup_num_tokens": ((None,), f"none ({DRAFTS})"),
    "assistant_early_exit": ((None,), f"none ({DRAFTS})"),
    "use_mtp": ((None, False), f"none ({DRAFTS})"),
    "speculation_type": ((None,), f"none ({DRAFTS})"),
    "token_healing": ((None, False), "none (heal the prompt first)"),
    "use_cache": ((None, True), f"True ({CACHE})"),
    "cache_implementation": ((None, "dynamic", "hybrid"), f"none ({CACHE})"),
    "cache_config": ((None,), f"none ({CACHE})"),
    "return_legacy_cache": ((None, False), f"none ({CACHE})"),
    "prefill_chunk_size": ((None,), "none (the prompt is one pass)"),
    "compile_config": ((None,), "none (drafted trees differ in size)"),
    "low_memory": ((None, False), f"none ({BEAMS})"),
    "output_attentions": ((None, False), f"False ({TREES})"),
    "output_hidden_states": ((None, False), f"False ({TREES})"),
}
"""Fields of the generation configuration that cannot be honoured: values that ask for nothing, and what is expected."""

STATEFUL = (UnbatchedClassifierFreeGuidanceLogitsProcessor, SynthIDTextWatermarkLogitsProcessor)
"""Logits processors that remember the prefixes of earlier calls, so that they cannot be asked about a tree."""

CACHES = ("cache", "past_key_values", "cache_params")
PREPARED = ("attention_mask", "position_ids", "cache_position", "logits_to_keep", "num_logits_to_keep", "use_cache")
"""Arguments of the model that the library prepares for any loop: the engine has its own, or checks them."""


def call_of_generate() -> dict[str, Any]:
    """The local variables of the ``model.generate`` that called, empty if none did.

    The library keeps some arguments to itself when it calls a callable: the streamer above all, of which it passes on
    the prompt and no more, so that a reader of the stream would wait for ever.
    """
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return {} if frame is None else dict(frame.f_locals)


def check_options(
    model: Any, config: Any, processors: Sequence[Any], call: Mapping[str, Any], model_kwargs: Mapping[str, Any]
) -> None:
    """Raise InputError, with the name, for an option that cannot be honoured.

    Args:
        model: the target.
        config: the generation configuration that the library prepared.
        processors: its logits processors.
        call: the variables of ``model.generate`` (`call_of_generate`).
        model_kwargs: what the library would pass to the model.
    """
    if config is None:
        raise errors.fail("generate", got="no generation configuration", expected="a call by model.generate")
    if getattr(model.config, "is_encoder_decoder", False):
        raise errors.fail("model", got=f"{type(model).__name__}, an encoder-decoder", expected="a causal model")
    for name, (off, expected) in OFF.items():
        value = getattr(config, name, None)
        if value not in off:
            raise errors.fail(name, got=errors.shown(value), expected=expected)
    if call.get("assistant_model") is not None:
        got = f"a {type(call['assistant_model']).__name__}"
        raise errors.fail("assistant_model", got=got, expected=f"draft_model=... ({DRAFTS})")
    if call.get("synced_gpus"):
        raise errors.fail("synced_gpus", got=True, expected="False (processes would differ in their number of passes)")
    given = call.get("kwargs", model_kwargs)
    for name in CACHES:
        if given.get(name) is not None:
            raise errors.fail(name, got=f"a {type(given[name]).__name__}", expected=f"none ({CACHE})")
    for name, value in model_kwargs.items():
        if value is not None and name not in CACHES and name not in PREPARED:
            raise errors.fail(name, got=f"a {type(value).__name__}", expected="none (drafted tokens have none)")
    for one in processors:
        if isinstance(one, STATEFUL):
            expected = "processors that are functions of prefix and logits"
            raise errors.fail("logits_processor", got=f"a {type(one).__name__}", expected=expected)


def padding_widths(input_ids: torch.Tensor, model_kwargs: Mapping[str, Any]) -> list[int]:
    """The number of padding tokens on the left of every row of ``input_ids`` (B, T).

    Raises InputError for an attention mask that leaves out other tokens, and for positions that are not 0, 1, ...
    after the padding.
    """
    mask, positions = model_kwargs.get("attention_mask"), model_kwargs.get("position_ids")
    attended = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask.to(input_ids.device) != 0
    if attended.shape != input_ids.shape or bool((attended[:, :-1] & ~attended[:, 1:]).any()):
        raise errors.fail("attention_mask", got="a gap after the first token", expected="left padding only")
    counted = attended.long().cumsum(dim=1) - 1
    if positions is not None:
        same = positions.shape in (counted.shape, counted[:1].shape) and positions.to(counted.device) == counted
        if not (torch.is_tensor(same) and bool((same | ~attended).all())):
            raise errors.fail("position_ids", got="other positions", expected="0, 1, 2, ... after the padding, or none")
    widths: list[int] = (~attended).sum(dim=1).tolist()
    return widths
