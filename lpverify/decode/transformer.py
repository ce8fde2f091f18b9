"""Causal language models of the transformers library: tree attention, and key-value caches that can be cut back.

Verification needs caches that can forget: layers that store every key and value. Recurrent states overwrite what they
hold, so a rejected draft could not be undone; models with such layers are refused. A sliding window is full attention
up to its length, so contexts are limited to that, and where a position encoding depends on the length of the sequence
(rope of type longrope or dynamic), to the length from which on it changes.

In the pass over a drafted tree node c attends to everything fed before the tree, to its ancestors and to itself, at the
position that its depth gives. So its logits are those of a plain pass over its own prefix; when a model is loaded this
is checked (`check_passes`).
"""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.cache_utils import DynamicLayer

from lpverify import errors
from lpverify.decode.models import known
from lpverify.files import content_hash

ATTENTION = ("sdpa", "eager")  # implementations that accept a custom attention mask
ORIGIN = ("is_local", "local_files_only", "name_or_path", "transformers_version")  # in a tokenizer's configuration
CHECKED = 24  # tokens of the longest context that `check_passes` tries
CACHE_ARGUMENTS = ("cache", "past_key_values")  # of ``forward``: the current name in transformers 5, and the older one


class TransformersModel:
    """A `lpverify.decode.models.Model` in evaluation mode.

    Raises InputError, with the reason, for a model that cannot be used: it needs a cache that can be cut back, position
    ids as an argument, and attention that accepts a mask. ``check=False`` leaves out `check_passes`, for a module that
    has passed it.
    """

    def __init__(self, name: str, module: Any, *, check: bool = True) -> None:
        config = module.config.get_text_config(decoder=True)
        parameters = inspect.signature(module.forward).parameters
        arguments = [argument for argument in CACHE_ARGUMENTS if argument in parameters]
        if not arguments:
            expected = "an attention model whose cache can be cut"
            raise errors.fail(f"model {type(module).__name__}", got="no key-value cache", expected=expected)
        windows = _windows(module.config)
        module.eval()
        self.name, self.module, self.argument = name, module, arguments[0]
        self.last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        if "position_ids" not in parameters:
            expected = "a model that takes position ids (those of a tree are not 0, 1, 2, ...)"
            raise errors.fail(f"model {name}", got=f"{type(module).__name__}, which does not", expected=expected)
        if config._attn_implementation not in ATTENTION:
            got = f"{config._attn_implementation} attention, which takes no mask of a tree"
            raise errors.fail(f"model {name}", got=got, expected=" or ".join(ATTENTION))
        limits = [(window, "beyond that a sliding window drops keys") for window in windows]
        limits += [(length, "beyond that its rope changes for all tokens") for length in _rope_lengths(config)]
        if (positions := getattr(config, "max_position_embeddings", None)) is not None:
            limits.append((positions, "its positions"))
        self.limit: int | None
        self.limit, self.limit_reason = min(limits, default=(None, ""))
        self.vocab_size = int(config.vocab_size)
        if check:
            check_passes(self)

    @cached_property
    def device(self) -> torch.device:
        """The device for token ids: that of the embeddings, or the one accelerate moves them to for execution."""
        embeddings = self.module.get_input_embeddings()
        moved_to = getattr(getattr(embeddings, "_hf_hook", None), "execution_device", None)
        device: torch.device = embeddings.weight.device if moved_to is None else torch.device(moved_to)
        return device

    def content(self) -> dict[str, str]:
        """Hashes of configuration and weights; the numbers themselves are hashed, which takes a second a gigabyte."""
        config = self.module.config.to_dict()
        config = {key: value for key, value in config.items() if key not in ("_name_or_path", "transformers_version")}
        weights = []
        for path, module in self.module.named_modules():
            with _on_device(module):
                for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                    numbers = tensor.detach().cpu().contiguous()
                    raw = numbers.reshape(-1).view(torch.uint8).numpy().data
                    weights.append((path, name, numbers.dtype, numbers.shape, content_hash(raw)))
        attention = self.module.config.get_text_config(decoder=True)._attn_implementation
        config_hash = content_hash(type(self.module).__name__, config)
        return {"attention": attention, "config": config_hash, "weights": content_hash(weights)}

    def plain(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits (V,) after ``tokens`` by one pass without a cache, mask or positions of ours."""
        logits: torch.Tensor = self.module(
            input_ids=torch.tensor([list(tokens)], device=self.device), **self.last_only
        ).logits
        return logits[0, -1]

    def start(self, tokens: Sequence[int]) -> TransformersState:
        state = TransformersState(self)
        if tokens:
            state.feed(torch.tensor([list(tokens)], device=self.device), **self.last_only)
        return state


class TransformersState:
    """A model's key-value cache, with one branch or several as rows of the batch."""

    def __init__(self, model: TransformersModel) -> None:
        self._model, self._branches = model, 1
        self.cache: Any = DynamicCache()

    @property
    def length(self) -> int:
        return int(self.cache.get_seq_length())

    def feed(self, tokens: torch.Tensor, **options: Any) -> torch.Tensor:
        """Feed m tokens to each branch, (B, m), and return logits (B, m, V); ``options`` go to the model."""
        model = self._model
        options |= {"input_ids": known(tokens, model.vocab_size), "use_cache": True, model.argument: self.cache}
        logits: torch.Tensor = model.module(**options).logits
        return logits

    def append(self, tokens: torch.Tensor) -> torch.Tensor:
        if len(tokens) > self._branches:
            self.cache.batch_repeat_interleave(len(tokens))
            self._branches = len(tokens)
        positions = torch.full((len(tokens), 1), self.length, device=tokens.device)
        return self.feed(tokens[:, None], position_ids=positions)[:, -1]

    def tree(self, tokens: torch.Tensor, parent: Sequence[int], depth: Sequence[int]) -> torch.Tensor:
        self._before = before = self.length
        dtype, device = self._model.module.dtype, self._model.device
        related = np.eye(len(parent), dtype=bool)  # is the column's node an ancestor of the row's, or itself?
        for node in range(1, len(parent)):
            related[node] |= related[parent[node]]
        mask = torch.zeros((1, 1, len(parent), before + len(parent)), dtype=dtype, device=device)
        mask[0, 0, :, before:].masked_fill_(torch.from_numpy(~related).to(device), torch.finfo(dtype).min)
        positions = torch.tensor([[before + level for level in depth]], device=device)
        return self.feed(tokens[None], position_ids=positions, attention_mask=mask)[0]

    def keep_nodes(self, nodes: Sequence[int]) -> None:
        before, after = self._before, self._before + len(nodes)
        for layer in self._layers():
            if list(nodes) != list(range(len(nodes))):  # move the entries up, behind those before the tree
                source = torch.tensor([before + node for node in nodes], device=layer.keys.device)
                for entries in (layer.keys, layer.values):
                    entries[:, :, before:after] = entries[:, :, source]
            layer.keys, layer.values = layer.keys[:, :, :after], layer.values[:, :, :after]

    def keep_branch(self, branch: int, length: int) -> None:
        row = branch if self._branches > 1 else 0
        self._branches = 1
        for layer in self._layers():
            layer.keys, layer.values = (part[row : row + 1, :, :length] for part in (layer.keys, layer.values))

    def _layers(self) -> list[Any]:
        """The layers that have entries: keys and values (B, heads, tokens, width)."""
        return [layer for layer in self.cache.layers if layer.is_initialized]


def _on_device(module: Any) -> Any:
    """A context in which the weights of a module that a device map spread are there, wherever they are stored."""
    if not hasattr(module, "_hf_hook"):
        return nullcontext()
    from accelerate.utils import align_module_device

    return align_module_device(module)


def _windows(config: Any) -> list[int]:
    """The lengths of sliding windows of layers. Raises InputError for a layer whose cache could not be cut back."""
    windows, layers = [], list[Any](DynamicCache(config=config).layers)
    for number, layer in enumerate(layers):
        if getattr(layer, "is_sliding", False):
            windows.append(int(layer.sliding_window))
        elif type(layer) is not DynamicLayer:
            got = f"a {type(layer).__name__} in layer {number}, which cannot be cut back after a rejected draft"
            raise errors.fail(f"cache of {config.model_type}", got=got, expected="attention in every layer")
    return windows


def _rope_lengths(config: Any) -> list[int]:
    """The lengths beyond which rotary positions of all tokens change: a tree across one would not be right."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    lengths = []
    for part in (rope, *(value for value in rope.values() if isinstance(value, dict))):  # or one for each kind of layer
        if part.get("rope_type", part.get("type")) in ("longrope", "dynamic"):
            own = part.get("original_max_position_embeddings")
            own = own or getattr(config, "original_max_position_embeddings", None)
            lengths.append(int(own or config.max_position_embeddings))
    return lengths


def check_passes(model: TransformersModel) -> None:
    """Raise InputError unless passes over trees and branches give the logits of plain passes over their prefixes.

    Random prefixes, a short one and one as long as the context, but at most `CHECKED`, allows. A wrong mask or position
    moves logits about as much as other tokens before them do, so they may differ by 1/500 of that; by what rounding
    causes in any case, 16 eps of the largest (centred) logit, eps of the model's number type, and never by more than
    sqrt(eps) of it. This catches models that are not causal, that take positions their own way, or ignore the mask.
    """
    name, kind = f"model {model.name}", type(model.module).__name__
    expected = "a causal model whose pass over a drafted tree gives the logits of plain passes"
    generator = np.random.default_rng(0)
    eps = torch.finfo(model.module.dtype).eps
    for length in sorted({1, min(CHECKED, model.limit or CHECKED) - 3}):
        if length < 1:
            continue
        sizes = (length, 6, length)
        prefix, (a, b, c, d, e, f), other = (generator.integers(model.vocab_size, size=n).tolist() for n in sizes)
        try:
            with torch.inference_mode():
                state = model.start(prefix[:-1])
                tokens = torch.tensor([prefix[-1], a, b, c, d], device=model.device)
                rows = [*state.tree(tokens, [-1, 0, 1, 0, 3], [0, 1, 2, 1, 2])[[0, 2, 4]]]
                state.keep_nodes([0, 3])
                rows += [*state.append(torch.tensor([e, f], device=model.device))]
                paths = [prefix + path for path in ([], [a, b], [c, d], [c, e], [c, f])]
                plain = [model.plain(path) for path in paths]
                moved = model.plain([*other, a, b])
        except errors.InputError:
            raise
        except Exception as error:  # whatever the model's own code raises for a mask, positions or a cache
            reason = next((line for line in str(error).splitlines() if line.strip()), "")
            got = f"{kind}, whose pass over a drafted tree raises {type(error).__name__}: {reason}"
            raise errors.fail(name, got=got, expected=expected) from error
        if any(right.shape != row.shape for row, right in zip(rows, plain, strict=True)):
            raise errors.fail(name, got=f"{kind}, whose logits have another shape", expected=expected)
        largest = max(float((right.float() - right.float().mean()).abs().max()) for right in plain)
        difference = max(_distance(row, right) for row, right in zip(rows, plain, strict=True))
        slack = max(16 * eps * largest, min(eps**0.5 * largest, _distance(moved, plain[1]) / 500))
        if not difference <= slack:
            got = f"{kind}, whose logits over a tree after {length} tokens differ by up to {difference:.2g} from "
            got += f"those of plain passes (rounding explains {slack:.1g})"
            raise errors.fail(name, got=got, expected=expected)


def _distance(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first.float() - second.float()).abs().max())


@dataclass(frozen=True, eq=False)
class TransformersTokenizer:
    """A tokenizer of the transformers library; ``eos``: the ids at which the target's own generation would stop."""

    tokenizer: Any
    eos: frozenset[int] = frozenset()

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        vocabulary: dict[str, int] = self.tokenizer.get_vocab()
        return vocabulary

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        """Token ids of ``text``; with ``chat`` those of the chat template with ``text`` as the user's message.

        Raises InputError without a chat template, or if the text has no token and the model no begin-of-text token.
        """
        if chat:
            if not getattr(self.tokenizer, "chat_template", None):
                raise errors.fail("--chat", got="a tokenizer without a chat template", expected="one that has it")
            messages = [{"role": "user", "content": text}]
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=not chat)
        tokens = tokens or [token for token in [self.tokenizer.bos_token_id] if token is not None]
        if not tokens:
            raise errors.fail("prompt", got="no token", expected="some text (the model has no begin-of-text token)")
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def content(self) -> str:
        """A hash of the files that it would be saved as, without what says where it was loaded from, and of `eos`."""
        with tempfile.TemporaryDirectory() as folder:
            self.tokenizer.save_pretrained(folder)
            files = {path.name: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
        config = json.loads(files.pop("tokenizer_config.json", b"{}"))
        config = {key: value for key, value in config.items() if key not in ORIGIN}
        return content_hash(sorted(self.eos), config, *(part for entry in sorted(files.items()) for part in entry))


def resolve_device(device: str) -> torch.device:
    """The device by name; ``auto`` is CUDA if there is one, else the CPU. Raises InputError if it does not exist."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        reason = str(error).splitlines()[0]
        raise errors.fail("--device", got=f"{device} ({reason})", expected="a device of this machine") from None


def resolve_dtype(dtype: str, device: torch.device) -> Any:
    """The type by name; ``auto`` is float32 on the CPU, else "auto", the checkpoint's own."""
    errors.choice("--dtype", dtype, ("auto", "float32", "bfloat16", "float16"))
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    return getattr(torch, dtype)


def load(
    name: str, *, dtype: str, device: torch.device, device_map: str | None
) -> tuple[TransformersModel, TransformersTokenizer]:
    """A model from a local folder or a hub id. Raises InputError if it does not load or cannot be used."""
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise errors.fail(f"model {name}", got="no such folder", expected="a local folder or a hub id")
    options: dict[str, Any] = {} if device_map is None else {"device_map": device_map}
    options |= {"dtype": resolve_dtype(dtype, device), "attn_implementation": "sdpa"}
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        module: Any = AutoModelForCausalLM.from_pretrained(name, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise errors.fail(f"model {name}", got=reason, expected="a local folder or a hub id that loads") from error
    return wrap(name, module.to(device) if device_map is None else module, tokenizer)


def from_folder(folder: Path, *, dtype: torch.dtype, device: str) -> tuple[Any, Any]:
    """Transformers model, in evaluation mode, and tokenizer of a local folder; nothing is downloaded."""
    module: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return module.to(device).eval(), tokenizer


def wrap(name: str, module: Any, tokenizer: Any) -> tuple[TransformersModel, TransformersTokenizer]:
    """A loaded model and tokenizer for the engine; a text ends where the model's own generation would end it."""
    ends = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    if ends is None:
        ends = tokenizer.eos_token_id
    eos = frozenset([] if ends is None else [ends] if isinstance(ends, int) else ends)
    return TransformersModel(name, module), TransformersTokenizer(tokenizer, eos)
