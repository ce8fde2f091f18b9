"""Parsers of option values, so that a message says what came and what was expected."""

from __future__ import annotations

import typer

from lpverify import errors


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


def integers(option: str, text: str) -> tuple[int, ...]:
    """Integers >= 1 separated by commas, each once. Raises InputError.

    >>> integers("--paths", "1, 2,4,2")
    (1, 2, 4)
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 and int(part) for part in parts):
        raise errors.fail(option, got=repr(text), expected="integers >= 1 separated by commas")
    return tuple(dict.fromkeys(map(int, parts)))
