"""Options that several commands share, and dataclasses of options as parameters of a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer


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


Problem = Annotated[str, typer.Argument(metavar="PROBLEM", help="Problem file, or the name of a built-in example.")]
Normalize = Annotated[bool, typer.Option("--normalize", help="Divide every row of the problem by its sum.")]
Json = Annotated[
    str | None, typer.Option(metavar="FILE|-", help="Write the results as JSON to a file, or to standard output (-).")
]
Plot = Annotated[str | None, typer.Option(metavar="FILE", help="Draw the results: a file .png, .svg or .pdf.")]
Jobs = Annotated[int, typer.Option(metavar="N", parser=integer, help="Number of local processes (joblib).")]


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """Turn every parameter of ``command`` that is a dataclass into one option for each field of the dataclass.

    The fields are annotated like parameters of a typer command. A field ``explicit`` is no option: it is set to the
    names of the fields that the user gave on the command line.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters = [inspect.Parameter("typer_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    bundles: dict[str, Any] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if not is_dataclass(hints[name]):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        bundles[name] = hints[name]
        types = get_type_hints(hints[name], include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
            )
            for field in fields(hints[name])
            if field.name != "explicit"
        ]
    if not bundles:
        return command

    @wraps(command)
    def run(typer_context: typer.Context, **values: Any) -> None:
        for name, bundle in bundles.items():
            own = {field.name: values.pop(field.name) for field in fields(bundle) if field.name != "explicit"}
            explicit = {key for key in own if getattr(typer_context.get_parameter_source(key), "name", "") != "DEFAULT"}
            values[name] = bundle(**own, explicit=frozenset(explicit))
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
