"""One wording for every error at the border.

Data are checked once, where they enter the package; behind the border only ``assert`` is used. A message is one line
``what: got X, expected Y``: it names the argument, the option or the position in a file, shows what came, and says what
was expected. Long values are cut, and control characters are shown as escapes, so that the command line can print the
message as it is. The checks `integer`, `integers`, `number`, `choice` and `choices` return the checked value.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

MAX_SHOWN = 60  # longest representation of a value in a message; longer ones are cut
MAX_GOT, MAX_PART = 200, 1_000  # longest description of what came, and of the other parts: a path may be long
MAX_LISTED = 10_000  # largest number of integers that a text such as ``1..8`` stands for


class InputError(ValueError):
    """Bad input from a user. ``str()`` of it is one complete line."""


class SizeError(InputError):
    """The input is valid but too large for the requested method; raised before any memory is spent."""


def fail(what: str, *, got: Any, expected: str) -> InputError:
    """The error to raise.

    >>> str(fail("target level 1 row 2", got="a sum of 0.9", expected="a sum of 1"))
    'target level 1 row 2: got a sum of 0.9, expected a sum of 1'
    """
    came = cut(got, MAX_GOT) if isinstance(got, str) else shown(got)
    return InputError(f"{one_line(what)}: got {one_line(came)}, expected {one_line(expected)}")


def too_large(what: str, *, size: str, limit: str, instead: str) -> SizeError:
    """The error to raise when a method refuses a size; ``instead`` names what would work.

    >>> str(too_large("enumeration", size="15 drafts", limit="10", instead="use fewer paths"))
    'enumeration: got 15 drafts, expected at most 10; use fewer paths'
    """
    return SizeError(f"{one_line(what)}: got {one_line(size)}, expected at most {one_line(limit)}; {one_line(instead)}")


def one_line(text: str) -> str:
    """The text on one line, cut to MAX_PART characters, with what a terminal would interpret shown as an escape."""
    return printable(" ".join(cut(text, MAX_PART).split()))


def printable(text: str) -> str:
    """The text with what a terminal would interpret, line breaks included, shown as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def label(name: str) -> str:
    """A name or token of a user as tables and titles show it: `printable`, and cut to MAX_SHOWN characters.

    >>> label("a\\n\x1b[31m"), len(label("x" * 1000))
    ('a\\\\n\\\\x1b[31m', 60)
    """
    return cut(printable(cut(name, MAX_GOT)), MAX_SHOWN)


def cut(text: str, length: int) -> str:
    """The text, or its beginning and its length where it is longer than ``length``."""
    return text if len(text) <= length else f"{text[: length - 20]}... ({len(text)} characters)"


def shown(value: Any) -> str:
    """A representation of any value that fits into a message.

    >>> shown("bv"), shown([1, 2]), shown(10**300)
    ("'bv'", '[1, 2]', '1000000000000000000000000000000000000000... (301 characters)')
    """
    if isinstance(value, int) and value.bit_length() > 10_000:  # Python refuses to print it
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (list, tuple, dict, set, frozenset)) and len(value) > MAX_SHOWN // 2:
        return f"a {type(value).__name__} of {len(value)} entries"
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a scalar of numpy or torch
        value = value.item()
    try:
        return cut(repr(value), MAX_SHOWN)
    except Exception:
        return f"a {type(value).__name__}"


def integer(what: str, value: Any, *, min: int, max: int | None = None) -> int:
    """``value`` as an int in ``min..max``. Raises InputError naming ``what``."""
    expected = f"an integer >= {min}" if max is None else f"an integer in {min}..{max}"
    try:
        number = int(value.__index__())
    except (AttributeError, TypeError):  # a float array has the attribute and raises
        raise fail(what, got=shown(value), expected=expected) from None
    if isinstance(value, bool) or number < min or (max is not None and number > max):
        raise fail(what, got=shown(value if isinstance(value, bool) else number), expected=expected)
    return number


def integers(what: str, values: Any, *, min: int, max: int | None = None) -> tuple[int, ...]:
    """One integer, several, or a text of integers and ranges separated by commas, as a tuple; each value once.

    Raises InputError for anything that is not an integer in ``min..max``, and for no integer at all.

    >>> integers("--paths", "1, 2,4..6,2", min=1), integers("num_paths", range(1, 3), min=1), integers("K", 3, min=1)
    ((1, 2, 4, 5, 6), (1, 2), (3,))
    """
    bounds = f">= {min}" if max is None else f"in {min}..{max}"
    if isinstance(values, str):
        parts = [re.fullmatch(r"\s*(-?\d{1,18})\s*(?:\.\.\s*(\d{1,18})\s*)?", part, re.A) for part in values.split(",")]
        spans = [range(int(part[1]), int(part[2] or part[1]) + 1) for part in parts if part]
        if len(spans) < len(parts) or not all(spans):
            expected = f"integers {bounds} separated by commas, or a range as in 1..8"
            raise fail(what, got=shown(values), expected=expected)
        if sum(map(len, spans)) > MAX_LISTED:
            size = f"{sum(map(len, spans))} numbers"
            raise too_large(what, size=size, limit=f"{MAX_LISTED}", instead="use a shorter range")
        values = [value for span in spans for value in span]
    elif not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        values = [values]
    listed = tuple(dict.fromkeys(integer(what, value, min=min, max=max) for value in values))
    if not listed:
        raise fail(what, got="none", expected=f"at least one integer {bounds}")
    return listed


def number(
    what: str, value: Any, *, above: float | None = None, min: float | None = None, max: float | None = None
) -> float:
    """``value`` as a finite float > ``above``, >= ``min`` and <= ``max``. Raises InputError naming ``what``."""
    bounds = ((">", above), (">=", min), ("<=", max))
    limits = " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)
    try:
        result = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        result = math.inf
    inside = (above is None or result > above) and (min is None or result >= min) and (max is None or result <= max)
    if not (math.isfinite(result) and inside):
        raise fail(what, got=shown(value), expected=f"a finite number {limits}".strip())
    return result


def choice(what: str, value: Any, options: Sequence[str]) -> str:
    """``value`` if it is one of ``options``. Raises InputError listing them."""
    if not isinstance(value, str) or value not in options:
        raise fail(what, got=shown(value), expected="one of " + ", ".join(options))
    return value


def choices(what: str, values: Any, options: Sequence[str]) -> tuple[str, ...]:
    """Names out of ``options``, a sequence or a text with commas; each once. Raises InputError for another or for none.

    >>> choices("--algorithms", "gbv, bv,gbv", ("bv", "gbv", "ebv"))
    ('gbv', 'bv')
    """
    if isinstance(values, str):
        values = [name.strip() for name in values.split(",") if name.strip()]
    elif not isinstance(values, Iterable):
        values = [values]
    names = tuple(dict.fromkeys(choice(what, name, options) for name in values))
    if not names:
        raise fail(what, got="none", expected="one or more of " + ", ".join(options))
    return names


def need(what: str, *packages: str, extra: str, instead: str = "") -> None:
    """Raise InputError if ``packages`` are missing, which says that ``extra`` of lpverify has them, and ``instead``."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            fix = f"install with pip install 'lpverify[{extra}]'"
            raise InputError(one_line(f"{what}: {package} is not installed; {fix}{instead}"))
