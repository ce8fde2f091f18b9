"""Key-value caches: made, cut back to committed tokens, or refused when that cannot be done.

Verification needs caches that can forget: layers that keep every key and value. Sliding windows drop old entries and
recurrent states overwrite them, so after a rejected draft they cannot be brought back; models with such layers are
refused, not decoded wrongly.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from lpverify import errors

ARGUMENTS = ("cache", "past_key_values")
"""Names of the cache argument: the current one of transformers 5, and the older one."""


def cache_argument(model: Any) -> str:
    """The name under which ``model.forward`` takes its cache. Raises InputError where it takes none."""
    parameters = inspect.signature(model.forward).parameters
    for name in ARGUMENTS:
        if name in parameters:
            return name
    raise errors.fail(
        f"model {type(model).__name__}", got="no key-value cache", expected="an attention model whose cache can be cut"
    )


def new_cache(config: Any) -> Any:
    """An empty cache for a model of this configuration. Raises InputError where it could not be cut back."""
    cache = DynamicCache(config=config)
    for number, layer in enumerate(cache.layers):
        if type(layer) is not DynamicLayer:
            kind = "a sliding window" if getattr(layer, "is_sliding", False) else f"a {type(layer).__name__}"
            raise errors.fail(
                f"cache of {config.model_type}",
                got=f"{kind} in layer {number}, which cannot be cut back after a rejected draft",
                expected="full attention in every layer",
            )
    return cache


def length(cache: Any) -> int:
    """Tokens fed to each branch."""
    return int(cache.get_seq_length())


def branches(cache: Any) -> int:
    """Rows of the batch; 1 while empty."""
    keys = next((keys for keys, _ in entries(cache)), None)
    return 1 if keys is None else int(keys.shape[0])


def entries(cache: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values (branches, heads, length, width) of every layer that has some."""
    return [(layer.keys, layer.values) for layer in cache.layers if layer.is_initialized]


def fork(cache: Any, count: int) -> None:
    """Turn one branch into ``count`` copies."""
    cache.batch_repeat_interleave(count)


def keep(cache: Any, branch: int, tokens: int) -> None:
    """Forget all but one branch and all but its first ``tokens`` entries."""
    for layer in cache.layers:
        if layer.is_initialized:
            layer.keys = layer.keys[branch : branch + 1, :, :tokens]
            layer.values = layer.values[branch : branch + 1, :, :tokens]


def keep_path(cache: Any, before: int, places: Sequence[int]) -> None:
    """Of the entries after the first ``before`` keep those at ``places`` (ascending), which move up to follow them."""
    after = before + len(places)
    moves = list(places) != list(range(len(places)))
    for layer in cache.layers:
        if not layer.is_initialized:
            continue
        if moves:
            source = torch.tensor([before + place for place in places], device=layer.keys.device)
            layer.keys[:, :, before:after] = layer.keys[:, :, source]
            layer.values[:, :, before:after] = layer.values[:, :, source]
        layer.keys = layer.keys[:, :, :after]
        layer.values = layer.values[:, :, :after]
