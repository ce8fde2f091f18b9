"""Options of the commands that open real models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from lpverify import errors
from lpverify.cli.options import integer, number

if TYPE_CHECKING:
    from lpverify.decode.prompts import Prompt
    from lpverify.decode.sampling import Sampling
    from lpverify.studies.session import OpenPair

Contexts = Annotated[int, typer.Option(metavar="C", parser=integer, help="Maximum number of contexts of each prompt.")]
Stride = Annotated[int, typer.Option(metavar="S", parser=integer, help="Distance between two contexts, in tokens.")]
PathCounts = Annotated[
    str, typer.Option("--paths", "-k", metavar="K,K,...", help="Numbers of draft paths: 1,2,4 or 1..8.")
]
Depths = Annotated[
    str, typer.Option("--depth", "-l", metavar="L,L,...", help="Tokens of each draft path: 2,4,8 or 1..8.")
]
Records = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Append every finished prompt to FILE (JSON lines); interrupted runs resume."),
]


@dataclass(frozen=True)
class ModelOptions:
    """The models, the prompts, and how both models' distributions are made: what every such command takes.

    ``explicit`` holds the names of the options that were given on the command line, not left at their default.
    """

    target: Annotated[
        str,
        typer.Option(
            metavar="M",
            help="Target model: tiny, smollm2, a folder, a hub id, or a problem (its table as a model).",
        ),
    ] = "tiny"
    draft: Annotated[str, typer.Option(metavar="M", help="Draft model, named as the target.")] = "tiny"
    prompts: Annotated[
        str,
        typer.Option(
            metavar="FILE|TEXT", help="Prompts: a .jsonl file, one text, or the set gsm8k, humaneval or math500."
        ),
    ] = "def main():"
    chat: Annotated[bool, typer.Option("--chat", help="Wrap every prompt in the model's chat template.")] = False
    limit: Annotated[
        int | None, typer.Option(metavar="N", parser=integer, help="Use the first N prompts only; default: all.")
    ] = None
    temperature: Annotated[
        float, typer.Option(metavar="T", parser=number, help="Temperature of both models; 0 is greedy.")
    ] = 1.0
    top_k: Annotated[
        int | None, typer.Option(metavar="N", parser=integer, help="Keep the N most probable tokens; default: all.")
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(metavar="P", parser=number, help="Keep the most probable tokens of total mass P; default: all."),
    ] = None
    seed: Annotated[int, typer.Option(metavar="S", parser=integer, help="Seed of all random draws.")] = 0
    device: Annotated[str, typer.Option(metavar="D", help="auto, cpu, cuda, cuda:1, ...")] = "auto"
    device_map: Annotated[
        str | None, typer.Option(metavar="MAP", help="auto spreads the models over all devices (accelerate).")
    ] = None
    dtype: Annotated[
        str, typer.Option(metavar="T", help="Number type of the models: auto, float32, bfloat16 or float16.")
    ] = "auto"
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
