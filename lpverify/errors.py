"""One wording for every error at the border.

Data are validated once, where they enter the package; behind the border only ``assert`` is used. Every message says
what was wrong, where, what came and what was expected, in one line, so that the command line can print it as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """Bad input from a user. ``str()`` of it is one complete line."""


class SizeError(InputError):
    """The input is valid but too large for the method asked for; raised before any memory is spent."""


def fail(what: str, *, got: Any, expected: str) -> InputError:
    """The error to raise: ``raise fail("target level 1 row 2", got="a sum of 0.9", expected="a sum of 1")``."""
    return InputError(one_line(f"{what}: got {got}, expected {expected}"))


def too_large(what: str, *, size: str, limit: str, instead: str) -> SizeError:
    """The error to raise when a method refuses a size; ``instead`` names what would work."""
    return SizeError(one_line(f"{what}: {size} is more than {limit}; {instead}"))


def one_line(message: str) -> str:
    """The message on one line, as the command-line contract demands."""
    return " ".join(message.split())


def integer(what: str, value: Any, *, least: int, most: int | None = None) -> int:
    """``value`` as an int in ``least..most``, else InputError naming ``what``."""
    bounds = f"an integer >= {least}" if most is None else f"an integer in {least}..{most}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise fail(what, got=repr(value), expected=bounds)
    number = value.__index__()
    if number < least or (most is not None and number > most):
        raise fail(what, got=number, expected=bounds)
    return int(number)


def integers(what: str, values: Iterable[Any], *, least: int) -> None:
    """Are there ``values``, all of them integers >= ``least``? Else InputError naming ``what``."""
    listed = list(values)
    if not listed:
        raise fail(what, got="none", expected=f"at least one integer >= {least}")
    for value in listed:
        integer(what, value, least=least)


def choice(what: str, value: str, options: tuple[str, ...]) -> str:
    """``value`` if it is one of ``options``, else InputError listing them."""
    if value not in options:
        raise fail(what, got=repr(value), expected="one of " + ", ".join(options))
    return value
