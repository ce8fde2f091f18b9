"""From a name on the command line to a model and its tokenizer."""

from __future__ import annotations

from typing import Any

from lpverify import errors
from lpverify.decode import table, transformer
from lpverify.decode.models import Model, Tokenizer

ROLES = ("target", "draft")
BUNDLED = ("tiny", "smollm2")


def quiet() -> None:
    """Let the transformers library report errors only, for programs that own the screen."""
    from transformers.utils import logging

    module: Any = logging
    module.set_verbosity_error()
    module.disable_progress_bar()


def load_model(
    name: str,
    role: str = "target",
    *,
    dtype: str = "auto",
    device: str = "auto",
    device_map: str | None = None,
    attention: str | None = None,
) -> tuple[Model, Tokenizer]:
    """The model called ``name`` with its tokenizer.

    ``tiny`` and ``smollm2`` name the two halves of a pair, of which ``role`` picks one; ``smollm2:far`` and
    ``smollm2:distilled`` other drafts of that pair. A problem file, or the name of a built-in problem, is a table.
    Anything else is a local folder or a hub id. ``dtype`` auto is float32 on the CPU, else that of the checkpoint.
    Raises InputError, with the reason, for what is not there or cannot be verified with.
    """
    errors.choice("role", role, ROLES)
    chosen = transformer.resolve_device(device)
    kind, _, variant = name.partition(":")
    if device_map is not None and (table.is_problem(name) or kind in BUNDLED):
        raise errors.fail("--device-map", got=f"{device_map} for {name}", expected="a hub id or a folder to spread")
    if table.is_problem(name):
        return table.load(name, role, chosen)
    if kind not in BUNDLED:
        return transformer.load(name, dtype=dtype, device=chosen, device_map=device_map, attention=attention)
    options: dict[str, Any] = {"device": str(chosen), "dtype": transformer.resolve_dtype(dtype, chosen)}
    if options["dtype"] == "auto":
        options["dtype"] = transformer.resolve_dtype("float32", chosen)
    if kind == "tiny":
        from lpverify.decode.bundled_pair import load_tiny

        module, tokenizer = load_tiny(role, **options)
    else:
        from lpverify.decode.smollm2 import load_smollm2

        module, tokenizer = load_smollm2(role, draft=variant or "near", **options)
    if attention is not None:
        module.set_attn_implementation(attention)
    return transformer.wrap(f"{name} {role}", module, tokenizer)
