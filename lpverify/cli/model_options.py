"""Options of the commands that open real models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from lpverify import errors
from lpverify.cli.options import flag, option

if TYPE_CHECKING:
    from lpverify.decode.prompts import Prompt
    from lpverify.decode.sampling import Sampling
    from lpverify.studies.session import OpenPair

Contexts = Annotated[int, option("C", "Maximum number of contexts of each prompt.")]
Stride = Annotated[int, option("S", "Distance between two contexts, in tokens.")]
Records = Annotated[str | None, option("FILE", "Append finished prompts (JSON lines); interrupted runs resume.")]


@dataclass(frozen=True)
class ModelOptions:
    """The models, the prompts, and what makes their distributions: options of every such command.

    ``explicit``: names of the options that were given on the command line, not left at their default.
    """

    target: Annotated[
        str, option("M", "Target model: tiny, smollm2, a folder, a hub id, or a problem (its table as a model).")
    ] = "tiny"
    draft: Annotated[str, option("M", "Draft model, named as the target.")] = "tiny"
    prompts: Annotated[
        str, option("FILE|TEXT", "Prompts: a .jsonl file, one text, or a data set: gsm8k, humaneval, math500.")
    ] = "def main():"
    chat: Annotated[bool, flag("--chat", "Wrap every prompt in the model's chat template.")] = False
    limit: Annotated[int | None, option("N", "Use the first N prompts only; default: all.")] = None
    temperature: Annotated[float, option("T", "Temperature of both models; 0 is greedy.")] = 1.0
    top_k: Annotated[int | None, option("N", "Keep the N most probable tokens; default: all.")] = None
    top_p: Annotated[float | None, option("P", "Keep the most probable tokens of total mass P; default: all.")] = None
    seed: Annotated[int, option("S", "Seed of all random draws.")] = 0
    device: Annotated[str, option("D", "auto, cpu, cuda, cuda:1, ...")] = "auto"
    device_map: Annotated[str | None, option("MAP", "auto spreads the models over all devices (accelerate).")] = None
    dtype: Annotated[str, option("T", "Number type of the models: auto, float32, bfloat16, float16.")] = "auto"
    explicit: frozenset[str] = frozenset()

    @property
    def sampling(self) -> Sampling:
        """Temperature, top-k and top-p. Raises InputError for impossible values."""
        from lpverify.decode.sampling import Sampling

        return Sampling(self.temperature, self.top_k, self.top_p)

    def load_prompts(self) -> list[Prompt]:
        """The prompts that were asked for. Raises InputError."""
        from lpverify.decode import prompts

        if self.limit is not None:
            errors.integer("--limit", self.limit, min=1)
        return prompts.load_prompts(self.prompts, self.limit)

    def open_pair(self) -> OpenPair:
        """Load the two models. Raises InputError."""
        from lpverify.studies.session import open_pair

        return open_pair(self.target, self.draft, dtype=self.dtype, device=self.device, device_map=self.device_map)


def check_packages(command: str, *, instead: str = "") -> None:
    """Raise InputError if a package that the models need is missing; ``instead`` says what works without it."""
    errors.need(command, "torch", "transformers", extra="decode", instead=instead)
