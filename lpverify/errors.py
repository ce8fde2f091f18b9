"""One wording for every error at the border.

Data are validated once, where they enter the package; behind the border only ``assert`` is used. Every message says
what was wrong, where, what came and what was expected, in one line, so that the command line can print it as it is.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from itertools import chain
from typing import Any

MAX_LISTED = 10_000
"""Maximum length of a list of integers given as a text."""


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


def integers(what: str, values: str | Iterable[Any], *, least: int, most: int | None = None) -> tuple[int, ...]:
    """Integers in ``least..most``, each once; also from a text such as "1,2,4" or "1..8". Else InputError.

    >>> integers("--paths", "1..3, 8,2", least=1)
    (1, 2, 3, 8)
    """
    if isinstance(values, str):
        values = _integers_of_text(what, values, least, most)
    listed = tuple(dict.fromkeys(integer(what, value, least=least, most=most) for value in values))
    if not listed:
        raise fail(what, got="none", expected=f"at least one integer >= {least}")
    return listed


def _integers_of_text(what: str, text: str, least: int, most: int | None) -> Iterable[int]:
    """The numbers of "1,2,4" or "1..8", before they are compared with ``most``."""
    bounds = f">= {least}" if most is None else f"in {least}..{most}"
    error = fail(what, got=repr(text), expected=f"integers {bounds} separated by commas, or a range as in 1..8")
    spans = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(-?\d{1,18})\s*(?:\.\.\s*(\d{1,18})\s*)?", part, re.ASCII)
        if match is None:
            raise error
        spans.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    if len(spans) == 1 and len(spans[0]) == 1:
        return spans[0]  # one number: `integer` names it
    if any(not span or span[0] < least or (most is not None and span[-1] > most) for span in spans):
        raise error
    if sum(map(len, spans)) > MAX_LISTED:
        raise too_large(
            what, size=f"{sum(map(len, spans))} numbers", limit=f"{MAX_LISTED}", instead="use a shorter range"
        )
    return chain(*spans)


def choice(what: str, value: str, options: tuple[str, ...]) -> str:
    """``value`` if it is one of ``options``, else InputError listing them."""
    if value not in options:
        raise fail(what, got=repr(value), expected="one of " + ", ".join(options))
    return value


def choices(what: str, values: str | Iterable[str], options: tuple[str, ...]) -> tuple[str, ...]:
    """Names among ``options``, each once, from a list or from a text with commas; else InputError listing them.

    >>> choices("--algorithms", "gbv, bv,gbv", ("bv", "gbv"))
    ('gbv', 'bv')
    """
    names = [name.strip() for name in values.split(",")] if isinstance(values, str) else list(values)
    listed = tuple(dict.fromkeys(choice(what, name, options) for name in names if name != ""))
    if not listed:
        raise fail(what, got=repr(values), expected="one or more of " + ", ".join(options))
    return listed


def need(what: str, *packages: str, extra: str, instead: str = "") -> None:
    """Raise InputError if a package is not installed; ``extra`` is the extra of lpverify that installs it."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            fix = f"install with pip install 'lpverify[{extra}]'"
            raise InputError(one_line(f"{what}: {package} is not installed; {fix}{instead}"))
