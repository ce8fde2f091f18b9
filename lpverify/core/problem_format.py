"""The problem format ``lpverify/problem@1``: a JSON document to a pair of laws and back.

::

    {"format": "lpverify/problem@1", "name": "...", "description": "...", "vocab": 3 | ["A", "B", "C"], "depth": 2,
     "target": TABLE, "draft": TABLE}
    TABLE = {"kind": "iid", "probs": [...]}                        the same row at every prefix
          | {"kind": "markov", "initial": [...], "transition": [[...], ...]}   next token depends on the last one
          | {"kind": "tree", "levels": [[[row]], [[row], [row], ...], ...]}    level i: V^i rows, lexicographic

A probability is a number or a string ("1/3", "0.2"). When all of both tables are strings or integers the problem is
rational: the rows are Fractions and must sum to exactly 1. Otherwise they are float64 and may miss 1 by
ROW_SUM_TOLERANCE; they are kept as written, never rescaled behind the user's back.

Rows and entries in messages count from 0, like the indices of the JSON arrays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.core import prefix_tree as tree
from lpverify.core.model_pair import MAX_TABLE_ENTRIES, ROW_SUM_TOLERANCE, ModelPair
from lpverify.core.tables import check_size, iid_levels, markov_levels
from lpverify.numerics import Array, Levels, is_exact

FORMAT = "lpverify/problem@1"
KINDS = {"iid": ("probs",), "markov": ("initial", "transition"), "tree": ("levels",)}
REQUIRED, OPTIONAL = ("format", "vocab", "depth", "target", "draft"), ("name", "description")

_NUMBER = re.compile(r"[+-]?(\d{1,400}/\d{1,400}|(\d{1,400}\.?\d{0,400}|\.\d{1,400})(e[+-]?\d{1,3})?)", re.A | re.I)
_LARGEST = 10**300


@dataclass(frozen=True)
class ProblemFile:
    """What a problem file says: ``pair`` with a ``name`` and a ``description`` for display."""

    pair: ModelPair
    name: str
    description: str


@dataclass(frozen=True)
class _Block:
    """Rows as they stand in the file, ``place(i)`` says where row i stands."""

    rows: list[list[Any]]
    place: Callable[[int], str]


@dataclass(frozen=True)
class _Table:
    kind: str
    blocks: list[_Block]


def parse_problem(
    document: Any, where: str, *, name: str = "unnamed", normalize: bool = False, rational: bool = False
) -> ProblemFile:
    """The pair of laws that a decoded JSON document describes.

    ``where`` (the file) starts every message, ``name`` is used when the document has none. ``normalize`` divides every
    row by its sum, Fractions exactly; ``rational`` refuses a problem that is not. Raises InputError naming the place,
    SizeError for tables too large to build.

    >>> law = {"kind": "iid", "probs": ["1/3", "2/3"]}
    >>> parse_problem({"format": FORMAT, "vocab": 2, "depth": 2, "target": law, "draft": law}, "x.json").pair.rational
    True
    """
    if not isinstance(document, dict):
        raise errors.fail(where, got=_kind_of(document), expected=f'an object {{"format": "{FORMAT}", ...}}')
    if document.get("format") != FORMAT:
        got = _shown(document["format"]) if "format" in document else "nothing"
        raise errors.fail(f"{where}: format", got=got, expected=f'"{FORMAT}"')
    _check_keys(where, document, REQUIRED, OPTIONAL)
    tokens = _vocabulary(f"{where}: vocab", document["vocab"])
    depth = _integer(f"{where}: depth", document["depth"])
    check_size(where, len(tokens), depth)
    target = _table(f"{where}: target", document["target"], tokens, depth)
    draft = _table(f"{where}: draft", document["draft"], tokens, depth)
    entries = (entry for table in (target, draft) for block in table.blocks for row in block.rows for entry in row)
    exact = all(type(entry) is str or type(entry) is int for entry in entries)
    if rational and not exact:
        raise _not_rational(target, draft)
    levels, bonus = _expand(target, tokens, depth, exact, normalize)
    draft_levels, _ = _expand(draft, tokens, depth, exact, normalize)
    return ProblemFile(
        ModelPair.from_levels(levels, draft_levels, bonus=bonus, tokens=tokens),
        _text(f"{where}: name", document.get("name", name)),
        _text(f"{where}: description", document.get("description", "")),
    )


def _not_rational(*tables: _Table) -> errors.InputError:
    place, entry = next(
        (f"{block.place(i)} entry {j}", entry)
        for table in tables
        for block in table.blocks
        for i, row in enumerate(block.rows)
        for j, entry in enumerate(row)
        if type(entry) is not str and type(entry) is not int
    )
    return errors.fail(
        place,
        got=_shown(entry),
        expected='only strings such as "1/3" or "0.2" and integers, which exact arithmetic needs',
    )


def problem_document(problem: ProblemFile) -> dict[str, Any]:
    """The JSON document of a problem; `parse_problem` gives back the same pair.

    Tables are written as iid or Markov where that says the same in fewer rows. The bonus law of a tree table has no
    place in the format: it comes back uniform, and no value depends on it.
    """
    pair = problem.pair
    plain = pair.tokens == tuple(str(x) for x in range(pair.vocab_size))
    bonus = pair.bonus if pair.bonus.ndim == 2 else pair.bonus[None, :]
    return {
        "format": FORMAT,
        "name": problem.name,
        "description": problem.description,
        "vocab": pair.vocab_size if plain else list(pair.tokens),
        "depth": pair.depth,
        "target": _table_document(pair.target, bonus),
        "draft": _table_document(pair.draft, None),
    }


def format_problem(problem: ProblemFile) -> str:
    """`problem_document` as JSON text with one row of probabilities a line."""
    return _indented(problem_document(problem), "\n") + "\n"


def _indented(value: Any, newline: str) -> str:
    inner = newline + " "
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {_indented(entry, inner)}" for key, entry in value.items()]
        return "{" + inner + ("," + inner).join(items) + newline + "}"
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "[" + inner + ("," + inner).join(_indented(entry, inner) for entry in value) + newline + "]"
    return json.dumps(value)


def _table_document(levels: Levels, bonus: Array | None) -> dict[str, Any]:
    root = levels[0][0]
    later = [*levels[1:], *([] if bonus is None else [bonus])]
    if all((level == root).all() for level in later):
        return {"kind": "iid", "probs": _entries(root)}
    vocab_size = len(root)
    transition = next((level for level in later if len(level) == vocab_size), None)
    if transition is not None and all(_repeats(level, transition) for level in later):
        return {"kind": "markov", "initial": _entries(root), "transition": [_entries(row) for row in transition]}
    return {"kind": "tree", "levels": [[_entries(row) for row in level] for level in levels]}


def _repeats(level: Array, transition: Array) -> bool:
    size = len(transition)
    return len(level) % size == 0 and bool((level.reshape(-1, size, size) == transition).all())


def _entries(row: Array) -> list[Any]:
    return [str(x) for x in row] if is_exact(row) else row.tolist()


def _expand(
    table: _Table, tokens: Sequence[str], depth: int, exact: bool, normalize: bool
) -> tuple[Sequence[Array], Array | None]:
    """The table's levels, and its law after a leaf where its kind has one."""
    blocks = [_probabilities(block, tokens, exact, normalize) for block in table.blocks]
    if table.kind == "iid":
        return iid_levels(blocks[0][0], depth), blocks[0][0]
    if table.kind == "markov":
        return markov_levels(blocks[0][0], blocks[1], depth), blocks[1]
    return blocks, None


def _probabilities(block: _Block, tokens: Sequence[str], exact: bool, normalize: bool) -> Array:
    array = np.empty((len(block.rows), len(tokens)), dtype=object if exact else np.float64)
    for i, row in enumerate(block.rows):
        numbers = [_number(entry, exact) for entry in row]
        for j, number in enumerate(numbers):
            if not isinstance(number, str) and number >= 0:
                continue
            got = number if isinstance(number, str) else f"a negative number, {_shown(row[j])}"
            label = f"{block.place(i)} entry {j} (token {_quoted(tokens[j])})"
            raise errors.fail(label, got=got, expected="a probability")
        array[i] = numbers
    sums = array.sum(axis=1)
    if normalize:
        wrong = (sums <= 0) | (sums > float(_LARGEST))
        expected = "a positive finite sum to divide by"
    else:
        wrong = sums != 1 if exact else ~(np.abs(sums - 1) <= ROW_SUM_TOLERANCE)
        expected = "a sum of 1 (--normalize rescales rows)"
    if wrong.any():
        i = int(np.argmax(wrong))
        raise errors.fail(block.place(i), got=f"a sum of {_sum_shown(sums[i])}", expected=expected)
    return array / sums[:, None] if normalize else array


def _number(entry: Any, exact: bool) -> Fraction | float | str:
    """The entry as a number, or what is wrong with it."""
    if type(entry) is float:
        if entry != entry:
            return "NaN"
        if abs(entry) > _LARGEST:
            return f"{_shown(entry)}, a number too large"
        return entry + 0.0  # no negative zero
    if type(entry) is int:
        value = Fraction(entry)
    elif type(entry) is str:
        if not _NUMBER.fullmatch(entry):
            return f"{_shown(entry)}, which is no number like 0.2 or 1/3"
        try:
            value = Fraction(entry)
        except ZeroDivisionError:
            return f"{_shown(entry)}, a division by zero"
    else:
        return _kind_of(entry)
    if abs(value) > _LARGEST:
        return f"{_shown(entry)}, a number too large"
    return value if exact else float(value)


def _table(what: str, raw: Any, tokens: Sequence[str], depth: int) -> _Table:
    """Check a table's shape; the entries are still as in the file."""
    if not isinstance(raw, dict):
        raise errors.fail(what, got=_kind_of(raw), expected='an object {"kind": ...}')
    kind = raw.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        got = _shown(kind) if "kind" in raw else "nothing"
        raise errors.fail(f"{what}.kind", got=got, expected="one of " + ", ".join(KINDS))
    _check_keys(what, raw, ("kind", *KINDS[kind]), ())
    size = len(tokens)
    if kind == "iid":
        return _Table(kind, [_block([raw["probs"]], 1, size, lambda i: f"{what}.probs")])
    if kind == "markov":
        initial = _block([raw["initial"]], 1, size, lambda i: f"{what}.initial")
        name = f"{what}.transition"
        rows = _list(name, raw["transition"], size, f"{size} rows, one for each last token")
        later = _block(rows, size, size, lambda i: f"{name} row {i} (after {_quoted(tokens[i])})")
        return _Table(kind, [initial, later])
    levels = _list(f"{what}.levels", raw["levels"], depth, f"{depth} levels, one for each drafted position")
    blocks = []
    for i, level in enumerate(levels):
        count = tree.level_size(size, i)
        rows = _list(f"{what}.levels[{i}]", level, count, f"{count} rows, one for each prefix of {i} tokens")
        blocks.append(_block(rows, count, size, _tree_place(f"{what}.levels[{i}]", i, tokens)))
    return _Table(kind, blocks)


def _tree_place(level: str, depth: int, tokens: Sequence[str]) -> Callable[[int], str]:
    def place(row: int) -> str:
        prefix = tree.prefix_of(row, depth, len(tokens))
        return f"{level} row {row} (prefix {_quoted(' '.join(tokens[token] for token in prefix))})"

    return place


def _block(rows: list[Any], count: int, size: int, place: Callable[[int], str]) -> _Block:
    assert len(rows) == count
    for i, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != size:
            _list(place(i), row, size, f"{size} probabilities, one for each token of vocab")
    return _Block(rows, place)


def _list(what: str, value: Any, length: int, expected: str) -> list[Any]:
    if not isinstance(value, list):
        raise errors.fail(what, got=_kind_of(value), expected=f"a list of {expected}")
    if len(value) != length:
        raise errors.fail(what, got=f"a list of {len(value)}", expected=expected)
    return value


def _check_keys(what: str, raw: dict[str, Any], required: tuple[str, ...], optional: tuple[str, ...]) -> None:
    for key in required:
        if key not in raw:
            raise errors.fail(f"{what}: key {key!r}", got="nothing", expected="the keys " + ", ".join(required))
    for key in raw:
        if key not in required and key not in optional:
            raise errors.fail(what, got=f"the unknown key {_shown(key)}", expected=", ".join(required + optional))


def _vocabulary(what: str, raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, list):
        size = _integer(what, raw, expected="a number of tokens >= 1 or a list of labels")
        return tuple(str(token) for token in range(size))
    if not raw:
        raise errors.fail(what, got="an empty list", expected="at least one label")
    labels = tuple(_text(f"{what}[{i}]", label) for i, label in enumerate(raw))
    seen: dict[str, int] = {}
    for i, label in enumerate(labels):
        if label in seen:
            raise errors.fail(f"{what}[{i}]", got=f"{_shown(label)} again", expected=f"other than vocab[{seen[label]}]")
        seen[label] = i
    return labels


def _integer(what: str, value: Any, expected: str = "an integer >= 1") -> int:
    if type(value) is not int or value < 1:
        got = _shown(value) if isinstance(value, (int, float, str)) else _kind_of(value)
        raise errors.fail(what, got=got, expected=expected)
    if value > MAX_TABLE_ENTRIES:
        raise errors.too_large(what, size=_shown(value), limit=str(MAX_TABLE_ENTRIES), instead="use a smaller one")
    return value


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise errors.fail(what, got=_kind_of(value), expected="a string")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise errors.fail(what, got=f"{_shown(value)}, with half of a surrogate pair", expected="valid Unicode")
    return value


def _kind_of(value: Any) -> str:
    """What a JSON value is, in JSON's words."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    kinds = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number"}
    return kinds.get(type(value), type(value).__name__)


def _shown(value: Any) -> str:
    """A short form of a scalar for a message."""
    text = json.dumps(value) if isinstance(value, (str, int, float, bool)) or value is None else _kind_of(value)
    return text if len(text) <= 50 else f"{text[:40]}... ({len(text)} characters)"


def _quoted(label: str) -> str:
    return _shown(label) if any(ord(c) < 32 for c in label) or len(label) > 40 else f'"{label}"'


def _sum_shown(total: Any) -> str:
    return str(total) if isinstance(total, Fraction) and len(str(total)) < 40 else f"{float(total):.12g}"
