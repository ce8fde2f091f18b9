"""What the commands that open real models share: options, and the check that the models' packages are there."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer

from lpverify import errors
from lpverify.cli.parsing import integer, number

Target = Annotated[
    str, typer.Option(metavar="M", help="tiny, smollm2, a folder, a hub id, or a problem (a table as model).")
]
Draft = Annotated[str, typer.Option(metavar="M", help="The draft model, likewise.")]
Prompts = Annotated[str, typer.Option(metavar="FILE|TEXT", help=".jsonl file, text, or gsm8k, humaneval, math500.")]
Chat = Annotated[bool, typer.Option("--chat", help="Wrap prompts in the chat template.")]
Limit = Annotated[int | None, typer.Option(metavar="N", parser=integer, help="First N prompts only.")]
Stride = Annotated[int, typer.Option(metavar="S", parser=integer, help="Tokens between contexts.")]
Temperature = Annotated[float, typer.Option(metavar="T", parser=number, help="0 is greedy.")]
TopK = Annotated[int | None, typer.Option(metavar="N", parser=integer, help="Keep the N likeliest tokens.")]
TopP = Annotated[float | None, typer.Option(metavar="P", parser=number, help="Keep mass P.")]
Seed = Annotated[int, typer.Option(metavar="S", parser=integer, help="Seed of all that is drawn.")]
Device = Annotated[str, typer.Option(metavar="D", help="cpu, cuda, cuda:1, ...")]
DeviceMap = Annotated[str | None, typer.Option(metavar="MAP", help="auto: spread the models (accelerate).")]
Dtype = Annotated[str, typer.Option(metavar="T", help="auto, float32, bfloat16 or float16.")]
Json = Annotated[str | None, typer.Option(metavar="FILE|-", help="Write JSON to a file, or - for stdout.")]
Records = Annotated[
    str | None, typer.Option(metavar="FILE", help="Append finished prompts (JSON lines); a rerun goes on.")
]


def check_packages(command: str, *, instead: str = "") -> None:
    """Raise InputError where a package of the models is missing; ``instead``: what would do without it."""
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            expected = "it installed (the extra lpverify[decode])" + instead
            raise errors.fail(command, got=f"no {package}", expected=expected)
