"""Errors at the border: one line, short, printable, and the checks that raise them."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import lpverify as lv
from lpverify import errors
from lpverify.errors import InputError, SizeError


@pytest.mark.parametrize(
    "action",
    [
        lambda: lv.evaluate("coin-2", "x" * 100_000),
        lambda: lv.solve("coin-2", 10**300),
        lambda: lv.solve("coin-2", 10**10_000),
        lambda: lv.solve("x" * 100_000),
        lambda: lv.solve("\x1b[31mred\n\u202eevil"),
        lambda: lv.ModelPair.iid(["x" * 100_000, 1], [1, 0], 1),
        lambda: lv.ModelPair.iid([0.5, 0.5], [1, 0], 1, tokens=["\x1b[2J" * 5000] * 2),
        lambda: lv.ModelPair.iid([10**5000, 0], [1, 0], 1),
        lambda: lv.make.family("\r\x07", 3, 2, seed=0),
        lambda: lv.as_problem({"format": "\x1b" * 100_000}),
        lambda: lv.as_problem({"format": "lpverify/problem@1", "\x1b[31m" * 10_000: 1}),
        lambda: errors.choices("--algorithms", "bv," + "x" * 100_000, ("bv",)),
        lambda: errors.integers("--paths", "1," * 100_000 + "x", min=1),
    ],
)
def test_messages_are_one_short_printable_line(action: Any) -> None:
    with pytest.raises(InputError) as caught:
        action()
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1_500
    assert re.search(": got .*, expected ", message)


def test_control_characters_are_shown() -> None:
    assert errors.one_line("a\x1b[31m\n b\u202e") == "a\\x1b[31m b\\u202e"
    assert str(errors.fail("\x07", got="\x07", expected="\x07")) == "\\x07: got \\x07, expected \\x07"
    assert "caf\u00e9" in errors.one_line("caf\u00e9")


def test_a_refused_size_reads_like_every_error() -> None:
    with pytest.raises(
        SizeError, match=r"^problem: got a table of .* entries, expected at most 50000000; use a smaller"
    ):
        lv.make.dirichlet(100, 10, seed=0)


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("bv", "'bv'"),
        (np.float64(0.5), "0.5"),
        (np.int64(3), "3"),
        (list(range(1000)), "a list of 1000 entries"),
        (Hostile(), "a Hostile"),
        ("x" * 200, "'" + "x" * 39 + "... (202 characters)"),
    ],
)
def test_shown(value: Any, shown: str) -> None:
    assert errors.shown(value) == shown
    assert errors.shown(10**20_000) == "an integer of 66439 bits"


@pytest.mark.parametrize("value", [True, 1.0, "1", None, [1], np.array([1.5]), np.array([1, 2]), Fraction(1)])
def test_integer_refuses(value: Any) -> None:
    with pytest.raises(InputError, match=r"^K: got .*, expected an integer in 1\.\.9$"):
        errors.integer("K", value, min=1, max=9)


def test_integer_bounds() -> None:
    assert [errors.integer("K", value, min=1, max=9) for value in (1, 9, np.int8(4), np.array(5))] == [1, 9, 4, 5]
    for value in (0, 10, -(10**300)):
        with pytest.raises(InputError, match="^K: got "):
            errors.integer("K", value, min=1, max=9)


@pytest.mark.parametrize(
    "values", ["", "1,", "1,,2", "x", "3..1", "1.5", [], [0], 0, None, [None], {}, 1.5, "1..1000000"]
)
def test_integers_refuses(values: Any) -> None:
    with pytest.raises(InputError, match="^--paths: got "):
        errors.integers("--paths", values, min=1)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1", None, True, 10**400, 1j])
def test_number_refuses(value: Any) -> None:
    with pytest.raises(InputError, match="^alpha: got .*, expected a finite number > 0 and <= 5$"):
        errors.number("alpha", value, above=0, max=5)


def test_number_accepts_every_real() -> None:
    assert [errors.number("a", value, min=0) for value in (0, 0.5, Fraction(1, 4), np.float32(2))] == [0, 0.5, 0.25, 2]


@pytest.mark.parametrize("values", ["", ",", "bv,x", [], ["x"], [3], 3, None])
def test_choices_refuses(values: Any) -> None:
    with pytest.raises(InputError, match="^a: got .*, expected one (or more )?of bv, gbv$"):
        errors.choices("a", values, ("bv", "gbv"))
