"""Validate what users write in files: pydantic finds the first error, and this module puts it into our one line.

A type states what it expects, in the words of the message::

    Count = Annotated[int, Strict(), Field(ge=1), expected("an integer >= 1")]
    validate(TypeAdapter(dict[str, list[Count]]), {"a": [1, 0]}, "f.json")
    InputError: f.json: a[1]: got 0, expected an integer >= 1
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

from lpverify import errors

T = TypeVar("T")

# What a type expects that does not say so itself
PLAIN = {"list_type": "a list", "dict_type": "an object", "model_type": "an object", "string_type": "a text"}


def expected(text: str) -> WrapValidator:
    """The last entry of an ``Annotated`` type: whatever is wrong with a value, the message expects ``text``."""

    def check(value: Any, handler: Any) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            details = {"expected": text, "got": came(error.errors()[0]["input"])}
            raise PydanticCustomError("expected", "{expected}", details) from None

    return WrapValidator(check)


def validate(kind: TypeAdapter[T], data: Any, where: str, separator: str = ": ") -> T:
    """Convert what ``json`` or ``tomllib`` parsed to the type ``kind``; its parts but objects and lists use `expected`.

    ``where`` is the file, and the position in it if ``data`` is a part of the file; ``separator`` stands between it and
    the position in ``data``. Raises InputError with the position of the first error.

    >>> validate(TypeAdapter(dict[str, list[int]]), {"a": 3}, "f.json")
    Traceback (most recent call last):
    lpverify.errors.InputError: f.json: a: got 3, expected a list
    """
    try:
        return kind.validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
    *parents, last = first["loc"] or ("",)
    path = ""
    for step in parents if first["type"] == "missing" else first["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    position = f"{where}{separator}{path}" if path else where
    if first["type"] == "missing":
        raise errors.fail(position, got=f"no {last}", expected="one")
    details = first.get("ctx", {})
    got = details.get("got", came(first["input"]))
    raise errors.fail(position, got=got, expected=details.get("expected") or PLAIN.get(first["type"], first["msg"]))


def came(value: Any) -> str:
    """A value as a message shows it: null is nothing, an empty list is called so."""
    return "nothing" if value is None else "an empty list" if value == [] else errors.shown(value)
