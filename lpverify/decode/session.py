"""A loaded pair of models with its tokenizer, and settings as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from lpverify.decode.engine import Request
from lpverify.decode.load import load_model, quiet
from lpverify.decode.models import Pair, Tokenizer
from lpverify.decode.prompts import Prompt
from lpverify.decode.sampling import Sampling


@dataclass(frozen=True)
class LoadedPair:
    """Target, draft and the target's tokenizer; ``names`` and ``dtype`` as they were given to `load`."""

    models: Pair
    tokenizer: Tokenizer
    names: tuple[str, str]
    dtype: str

    @classmethod
    def load(
        cls, target: str, draft: str, *, dtype: str = "auto", device: str = "auto", device_map: str | None = None
    ) -> Self:
        """Load two models by name (`lpverify.decode.load.load_model`) and check that they share a vocabulary.

        Raises:
            InputError: with the reason, if a model does not exist or cannot be used for verification.
        """
        quiet()
        options: dict[str, Any] = {"dtype": dtype, "device": device, "device_map": device_map}
        target_model, tokenizer = load_model(target, "target", **options)
        draft_model, draft_tokenizer = load_model(draft, "draft", **options)
        models = Pair.checked(target_model, draft_model, tokenizer, draft_tokenizer)
        return cls(models, tokenizer, (target, draft), dtype)

    def requests(self, prompts: Sequence[Prompt], *, chat: bool = False) -> list[Request]:
        """The prompts as tokens, with ``chat`` in the chat template. Raises InputError as the tokenizer."""
        return [Request(tuple(self.tokenizer.encode(p.text, chat=chat)), p.key, p.text) for p in prompts]

    def describe(self, settings: Any, *, chat: bool) -> dict[str, Any]:
        """Everything the outcome depends on except the prompts, as plain data; ``settings`` as in `describe`."""
        target, draft = self.names
        models = {"target": target, "draft": draft, "chat": chat}
        return models | describe(settings) | {"dtype": self.dtype, "device": str(self.models.target.device)}


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
            plain["paths" if field.name == "num_paths" else field.name] = (
                list(value) if isinstance(value, tuple) else value
            )
    return plain
