"""How options are declared: one line each, or as fields of a dataclass that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand


def option(metavar: str, help: str, *names: str) -> Any:
    """An option with a value, for use in ``Annotated``."""
    return typer.Option(*names, metavar=metavar, help=help)


def flag(name: str, help: str) -> Any:
    """An option without a value, for use in ``Annotated``."""
    return typer.Option(name, help=help)


Problem = Annotated[str, typer.Argument(metavar="PROBLEM", help="Problem file, or the name of a built-in example.")]
Normalize = Annotated[bool, flag("--normalize", "Divide every row of the problem by its sum.")]
Jobs = Annotated[int, option("N", "Number of local processes (joblib).")]


def integer(text: str) -> int:
    """Parse an integer. Raises typer's usage error, which names the option."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"got {text!r}, expected an integer") from None


def number(text: str) -> float:
    """Parse a finite number. Raises typer's usage error, which names the option."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise typer.BadParameter(f"got {text!r}, expected a number")
    return value


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """Make a function with annotated parameters one that typer can call.

    A parameter that is a dataclass becomes one option for each of its fields, annotated like parameters. A field
    ``explicit`` is no option: it receives the names of the fields that were given on the command line. Values of
    options of type int and float are parsed by `integer` and `number`.
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
                parameters.append(
                    parameters[0].replace(name=field.name, default=field.default, annotation=types[field.name])
                )
    for parameter in parameters[1:]:
        kind, info = get_args(parameter.annotation)
        info.parser = {int: integer, float: number}.get(next(iter(get_args(kind)), kind), info.parser)

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
