"""Drafted trees and lossless verification for ``model.generate``, by the package lpverify."""

from typing import Any

from lpverify.integrations.transformers import generate_from_folder


def generate(model: Any, **arguments: Any) -> Any:
    """Continue as ``model.generate`` would, drafted by ``draft_model`` and verified by ``algorithm``."""
    return generate_from_folder(model, **arguments)
