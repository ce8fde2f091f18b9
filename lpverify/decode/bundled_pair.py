"""The bundled tiny pair: two small Llama-type models with one tokenizer, so that decoding works offline.

The weights lie in ``bundled/target`` and ``bundled/draft`` (float16 files that load as float32), made by
``experiments/train_tiny.py``; ``bundled/README.md`` says how, ``bundled/report.json`` holds the measured numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lpverify.errors import choice, fail

FOLDER = Path(__file__).with_name("bundled")
ROLES = ("target", "draft")


def load_tiny(role: str, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Any, Any]:
    """One half of the bundled pair as ``(model, tokenizer)``; nothing is downloaded.

    Raises:
        InputError: ``role`` is neither ``target`` nor ``draft``, or the installation lacks the weights.
    """
    folder = FOLDER / choice("role of the tiny pair", role, ROLES)
    if not (folder / "model.safetensors").exists():
        raise fail(f"bundled {role} model", got=f"no weights in {folder}", expected="an installation with its data")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model.to(device).eval(), tokenizer
