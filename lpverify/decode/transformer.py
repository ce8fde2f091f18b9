"""Causal language models of the transformers library."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lpverify import errors
from lpverify.decode import cache as kv
from lpverify.decode.models import known
from lpverify.decode.tree_pass import attention_mask, position_ids

ATTENTION = ("sdpa", "eager")
"""Implementations that take a mask of our own."""


@dataclass(frozen=True, eq=False)
class TransformersModel:
    """A model in evaluation mode. Raises InputError for one that cannot be verified with, and says why.

    Needed are a cache that can be cut back, position ids as an argument, and attention that takes a mask.
    """

    name: str
    module: Any
    argument: str = field(init=False)
    limit: int | None = field(init=False)
    vocab_size: int = field(init=False)

    def __post_init__(self) -> None:
        module, config = self.module, self.module.config.get_text_config(decoder=True)
        argument = kv.cache_argument(module)
        kv.new_cache(module.config)
        if "position_ids" not in inspect.signature(module.forward).parameters:
            expected = "a model that takes position ids (those of a tree are not 0, 1, 2, ...)"
            raise errors.fail(f"model {self.name}", got=f"{type(module).__name__}, which does not", expected=expected)
        if config._attn_implementation not in ATTENTION:
            got = f"{config._attn_implementation} attention, which takes no mask of a tree"
            raise errors.fail(f"model {self.name}", got=got, expected=" or ".join(ATTENTION))
        module.eval()
        limit = getattr(config, "max_position_embeddings", None)
        for name, value in (("argument", argument), ("limit", limit), ("vocab_size", int(config.vocab_size))):
            object.__setattr__(self, name, value)

    @cached_property
    def device(self) -> torch.device:
        """Where token ids go: to where the embeddings are, or where accelerate brings them when they are used."""
        embeddings = self.module.get_input_embeddings()
        brought = getattr(getattr(embeddings, "_hf_hook", None), "execution_device", None)
        device: torch.device = embeddings.weight.device if brought is None else torch.device(brought)
        return device

    @cached_property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.module.dtype
        return dtype

    @cached_property
    def _few_logits(self) -> dict[str, int]:
        """The option to compute logits of the last token only, where the model has it."""
        return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(self.module.forward).parameters else {}

    def start(self, tokens: Sequence[int]) -> TransformersState:
        state = TransformersState(self)
        if tokens:
            state.feed(torch.tensor([list(tokens)], device=self.device), **self._few_logits)
        return state


class TransformersState:
    """A model's cache, in one branch or several."""

    def __init__(self, model: TransformersModel) -> None:
        self._model = model
        self.cache = kv.new_cache(model.module.config)

    @property
    def length(self) -> int:
        return kv.length(self.cache)

    def feed(self, tokens: torch.Tensor, **options: Any) -> torch.Tensor:
        """Feed tokens (branches, m); logits (branches, m, V), or fewer where the options ask for it."""
        model = self._model
        tokens = known(tokens, model.vocab_size)
        output = model.module(input_ids=tokens, use_cache=True, **{model.argument: self.cache}, **options)
        logits: torch.Tensor = output.logits
        return logits

    def append(self, tokens: torch.Tensor) -> torch.Tensor:
        if len(tokens) > kv.branches(self.cache):
            kv.fork(self.cache, len(tokens))
        places = torch.full((len(tokens), 1), self.length, device=tokens.device)
        return self.feed(tokens[:, None], position_ids=places)[:, -1]

    def tree(self, tokens: torch.Tensor, parent: Sequence[int], depth: Sequence[int]) -> torch.Tensor:
        self._before = before = self.length
        model = self._model
        mask = attention_mask(parent, before, model.dtype, model.device)
        return self.feed(tokens[None], position_ids=position_ids(depth, before, model.device), attention_mask=mask)[0]

    def keep_nodes(self, nodes: Sequence[int]) -> None:
        kv.keep_path(self.cache, self._before, nodes)

    def keep_branch(self, branch: int, length: int) -> None:
        kv.keep(self.cache, branch if kv.branches(self.cache) > 1 else 0, length)


@dataclass(frozen=True, eq=False)
class TransformersTokenizer:
    """A tokenizer of the transformers library; ``eos`` are the ids that end a text for the target."""

    tokenizer: Any
    eos: frozenset[int] = frozenset()

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        vocabulary: dict[str, int] = self.tokenizer.get_vocab()
        return vocabulary

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        """Token ids of ``text``, or of the chat template with it as the user's message.

        Raises InputError where there is no chat template, or the text has no token and there is no begin-of-text token.
        """
        if chat:
            if not getattr(self.tokenizer, "chat_template", None):
                raise errors.fail("--chat", got="a tokenizer without a chat template", expected="one that has it")
            text = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            )
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=not chat)
        if not tokens and self.tokenizer.bos_token_id is not None:
            return [self.tokenizer.bos_token_id]
        if not tokens:
            raise errors.fail("prompt", got="no token", expected="some text (the model has no begin-of-text token)")
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


def resolve_device(device: str) -> torch.device:
    """``auto`` is CUDA where there is one, else the CPU. Raises InputError for a device that is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        reason = str(error).splitlines()[0]
        raise errors.fail("--device", got=f"{device} ({reason})", expected="a device of this machine") from None


def resolve_dtype(dtype: str, device: torch.device) -> Any:
    """``auto`` is float32 on the CPU, else the checkpoint's own."""
    errors.choice("--dtype", dtype, ("auto", "float32", "bfloat16", "float16"))
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    return getattr(torch, dtype)


def load(
    name: str, *, dtype: str, device: torch.device, device_map: str | None, attention: str | None
) -> tuple[TransformersModel, TransformersTokenizer]:
    """A local folder or a hub id. Raises InputError for what is not there or cannot be verified with."""
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise errors.fail(f"model {name}", got="no such folder", expected="a local folder or a hub id")
    options: dict[str, Any] = {"dtype": resolve_dtype(dtype, device)}
    if device_map is not None:
        options["device_map"] = device_map
    options["attn_implementation"] = attention or "sdpa"
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        module: Any = AutoModelForCausalLM.from_pretrained(name, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise errors.fail(f"model {name}", got=reason, expected="a local folder or a hub id that loads") from error
    if device_map is None:
        module = module.to(device)
    return wrap(name, module, tokenizer)


def wrap(name: str, module: Any, tokenizer: Any) -> tuple[TransformersModel, TransformersTokenizer]:
    """A loaded model and its tokenizer; what ends a text is what the model's own generation would end at."""
    ends = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    if ends is None:
        ends = tokenizer.eos_token_id
    eos = frozenset([] if ends is None else [ends] if isinstance(ends, int) else ends)
    return TransformersModel(name, module), TransformersTokenizer(tokenizer, eos)
