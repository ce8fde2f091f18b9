"""From names on the command line to models and their tokenizer, the bundled tiny pair included.

The pair ``tiny`` ships with the package so that decoding works offline: two small Llama-type models with one tokenizer,
float16 files that load as float32 in ``bundled/target`` and ``bundled/draft``. ``experiments/train_tiny.py`` made them,
``bundled/README.md`` describes them, ``bundled/report.json`` has their measured acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from lpverify import errors, files
from lpverify.decode import table, transformer
from lpverify.decode.engine import Request
from lpverify.decode.models import ROLES, Model, Pair, Tokenizer
from lpverify.decode.prompts import Prompt
from lpverify.decode.sampling import Sampling

BUNDLED = ("tiny", "smollm2")
FOLDER = Path(__file__).with_name("bundled")


@dataclass(frozen=True)
class LoadedPair:
    """Target, draft and the target's tokenizer; ``names`` and ``dtype`` as they were asked for."""

    models: Pair
    tokenizer: Tokenizer
    names: tuple[str, str]
    dtype: str

    def requests(self, prompts: Sequence[Prompt], *, chat: bool = False) -> list[Request]:
        """The prompts as tokens, with ``chat`` in the chat template. Raises InputError as the tokenizer."""
        return [Request(tuple(self.tokenizer.encode(p.text, chat=chat)), p.key, p.text) for p in prompts]

    def describe(self, settings: Any, *, chat: bool) -> dict[str, Any]:
        """What was asked for, except the prompts, as plain data; ``settings`` as in `describe`."""
        models = dict(zip(ROLES, self.names, strict=True)) | {"chat": chat}
        return models | describe(settings) | {"dtype": self.dtype, "device": str(self.models.target.device)}

    def content(self) -> dict[str, Any]:
        """The content of models and tokenizer as it is now: hashes of what they compute with, not names of files."""
        models = {role: model.content() for role, model in zip(ROLES, vars(self.models).values(), strict=True)}
        return models | {"tokenizer": self.tokenizer.content()}

    def identity(self, settings: Any, *, chat: bool, **more: Any) -> dict[str, Any]:
        """Everything that stored rows depend on except the prompts: settings, content, and what computes.

        The names of the models are not part of it: a folder may move, and another may take its name.
        """
        described = {name: value for name, value in self.describe(settings, chat=chat).items() if name not in ROLES}
        return described | more | {"content": self.content(), "computed_with": software()}


def describe(settings: Any) -> dict[str, Any]:
    """A dataclass of settings as plain data with the keys of records and documents.

    Sampling is written as its three fields, ``num_paths`` as ``paths``. ``eos``, which belongs to the models, and
    fields marked ``metadata={"described": False}`` are left out.

    >>> from lpverify.decode.engine import Settings
    >>> describe(Settings(num_paths=2, depth=3))  # doctest: +NORMALIZE_WHITESPACE
    {'paths': 2, 'depth': 3, 'temperature': 1.0, 'top_k': None, 'top_p': None, 'max_new_tokens': 128, 'seed': 0}
    """
    plain: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, Sampling):
            plain |= asdict(value)
        elif field.name != "eos" and field.metadata.get("described", True):
            name = "paths" if field.name == "num_paths" else field.name
            plain[name] = list(value) if isinstance(value, tuple) else value
    return plain


def software() -> dict[str, Any]:
    """The versions and the processor that models compute with."""
    return files.software("numpy", "torch", "transformers", "tokenizers") | device_name()


def device_name() -> dict[str, str]:
    """The name of the CUDA device if there is one."""
    return {"device": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}


def quiet() -> None:
    """Let the transformers library report errors only, for programs that own the screen."""
    from transformers.utils import logging

    module: Any = logging
    module.set_verbosity_error()
    module.disable_progress_bar()


def load_model(
    name: str, role: str = "target", *, dtype: str = "auto", device: str = "auto", device_map: str | None = None
) -> tuple[Model, Tokenizer]:
    """A model and its tokenizer by name. Raises InputError, with the reason, if there is none that can be used.

    Args:
        name: ``tiny`` or ``smollm2``, a pair of which ``role`` picks one half (``smollm2:far`` and
            ``smollm2:distilled`` are other drafts of that pair); a problem file or the name of a built-in problem,
            whose table becomes the model; else a local folder or a hub id.
        role: ``target`` or ``draft``.
        dtype: ``auto`` (float32 on the CPU, else the checkpoint's own), ``float32``, ``bfloat16`` or ``float16``.
        device: ``auto`` (CUDA if there is one, else the CPU) or a device of torch.
        device_map: as in transformers, to spread a model over several devices.
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

    Raises InputError if ``role`` is neither ``target`` nor ``draft``, or the installation lacks the weights.
    """
    folder = FOLDER / errors.choice("role of the tiny pair", role, ROLES)
    if not (folder / "model.safetensors").exists():
        got, expected = f"no weights in {folder}", "an installation with its data"
        raise errors.fail(f"bundled {role} model", got=got, expected=expected)
    return transformer.from_folder(folder, dtype=dtype, device=device)
