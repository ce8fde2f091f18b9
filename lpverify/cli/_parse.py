"""Parsers of option values, so that a message says what came and what was expected."""

from __future__ import annotations

import typer


def integer(text: str) -> int:
    """An integer, else typer's usage error."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"got {text!r}, expected an integer") from None


def number(text: str) -> float:
    """A finite number, else typer's usage error."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise typer.BadParameter(f"got {text!r}, expected a number")
    return value
