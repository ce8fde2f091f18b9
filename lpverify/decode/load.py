"""From a name on the command line to a model and its tokenizer, the bundled tiny pair included.

The pair ``tiny`` ships with the package so that decoding works offline: two small Llama-type models with one tokenizer,
float16 files that load as float32 in ``bundled/target`` and ``bundled/draft``. ``experiments/train_tiny.py`` made them,
``bundled/README.md`` describes them, ``bundled/report.json`` has their measured acceptance.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lpverify import errors
from lpverify.decode import table, transformer
from lpverify.decode.models import ROLES, Model, Tokenizer

BUNDLED = ("tiny", "smollm2")
FOLDER = Path(__file__).with_name("bundled")


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
) -> tuple[Model, Tokenizer]:
    """A model and its tokenizer by name.

    Args:
        name: ``tiny`` or ``smollm2``, a pair of which ``role`` picks one half (``smollm2:far`` and
            ``smollm2:distilled`` are other drafts of that pair); a problem file or the name of a built-in problem,
            whose table becomes the model; else a local folder or a hub id.
        role: ``target`` or ``draft``.
        dtype: ``auto`` (float32 on the CPU, else the checkpoint's own), ``float32``, ``bfloat16`` or ``float16``.
        device: ``auto`` (CUDA if there is one, else the CPU) or a device of torch.
        device_map: as in transformers, to spread a model over several devices.

    Raises:
        InputError: with the reason, if the model does not exist or cannot be used for verification.
    """
    errors.choice("role", role, ROLES)
    chosen = transformer.resolve_device(device)
    kind, _, variant = name.partition(":")
    if device_map is not None and (table.is_problem(name) or kind in BUNDLED):
        raise errors.fail("--device-map", got=f"{device_map} for {name}", expected="a hub id or a folder to spread")
    if table.is_problem(name):
        return table.load(name, role, chosen)
    if kind not in BUNDLED:
        return transformer.load(name, dtype=dtype, device=chosen, device_map=device_map)
    number_type = transformer.resolve_dtype("float32" if dtype == "auto" else dtype, chosen)
    if kind == "tiny":
        module, tokenizer = load_tiny(role, dtype=number_type, device=str(chosen))
    else:
        from lpverify.decode.smollm2 import load_smollm2

        module, tokenizer = load_smollm2(role, draft=variant or "near", dtype=number_type, device=str(chosen))
    return transformer.wrap(f"{name} {role}", module, tokenizer)


def load_tiny(role: str, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Any, Any]:
    """One half of the bundled pair as transformers model and tokenizer; nothing is downloaded.

    Raises:
        InputError: ``role`` is neither ``target`` nor ``draft``, or the installation lacks the weights.
    """
    folder = FOLDER / errors.choice("role of the tiny pair", role, ROLES)
    if not (folder / "model.safetensors").exists():
        expected = "an installation with its data"
        raise errors.fail(f"bundled {role} model", got=f"no weights in {folder}", expected=expected)
    return transformer.from_folder(folder, dtype=dtype, device=device)
