"""How options are declared: one line each, or as fields of a dataclass that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from lpverify import errors

if TYPE_CHECKING:
    from lpverify.decode.prompts import Prompt
    from lpverify.decode.sampling import Sampling
    from lpverify.studies.session import OpenPair


def option(metavar: str, help: str, *names: str) -> Any:
    """An option with a value, for use in ``Annotated``."""
    return typer.Option(*names, metavar=metavar, help=help)


def flag(name: str, help: str) -> Any:
    """An option without a value, for use in ``Annotated``."""
    return typer.Option(name, help=help)


Problem = Annotated[str, typer.Argument(metavar="PROBLEM", help="Problem file, or the name of a built-in example.")]
Normalize = Annotated[bool, flag("--normalize", "Divide every row of the problem by its sum.")]
Jobs = Annotated[int, option("N", "Number of local processes (joblib).")]
Contexts = Annotated[int, option("C", "Maximum number of contexts of each prompt.")]
Stride = Annotated[int, option("S", "Distance between two contexts, in tokens.")]
Records = Annotated[str | None, option("FILE", "Append finished prompts (JSON lines); interrupted runs resume.")]
Recompute = Annotated[bool, flag("--recompute", "Replace what was computed with other settings or models.")]


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
    def files(self) -> dict[str, str | None]:
        """What may be a file that the command reads, by option."""
        return {"--target": self.target, "--draft": self.draft, "--prompts": self.prompts}

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


def parser(kind: type[int] | type[float], expected: str) -> Callable[[str], float]:
    """A parser of finite numbers. Its error is typer's usage error, which names the option."""

    def number(text: str) -> float:
        with suppress(ValueError):
            value = kind(text)
            if abs(value) < float("inf"):
                return value
        raise typer.BadParameter(f"got {text!r}, expected {expected}")

    return number


PARSERS = {int: parser(int, "an integer"), float: parser(float, "a number")}


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """Make a function with annotated parameters one that typer can call.

    A parameter that is a dataclass becomes one option for each of its fields, annotated like parameters. A field
    ``explicit`` is no option: it receives the names of the fields that were given on the command line. Values of
    options of type int and float are parsed by `PARSERS`.
    """
    hints = get_type_hints(command, include_extras=True)
    bundles: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = [inspect.Parameter("typer_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in bundles:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        types = get_type_hints(hints[name], include_extras=True)
        for field in fields(hints[name]):
            if field.name != "explicit":
                values = {"name": field.name, "default": field.default, "annotation": types[field.name]}
                parameters.append(parameters[0].replace(**values))
    for parameter in parameters[1:]:
        kind, info = get_args(parameter.annotation)
        info.parser = PARSERS.get(next(iter(get_args(kind)), kind), info.parser)

    @wraps(command)
    def run(typer_context: typer.Context, **values: Any) -> None:
        sources = {name: typer_context.get_parameter_source(name) for name in values}
        for name, bundle in bundles.items():
            own = {field.name: values.pop(field.name) for field in fields(bundle) if field.name != "explicit"}
            if hasattr(bundle, "explicit"):
                own["explicit"] = frozenset(key for key in own if getattr(sources[key], "name", "DEFAULT") != "DEFAULT")
            values[name] = bundle(**own)
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


class CommandWithVerifiers(TyperCommand):
    """A command whose help ends with a list of the verifiers: the name and one line for each."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from lpverify.verifiers import names, verifier

        with formatter.section("Verifiers"):
            formatter.write_dl([(name, verifier(name).help) for name in names()])
