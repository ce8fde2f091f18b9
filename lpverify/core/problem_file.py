"""The problem format ``lpverify/problem@1``: a JSON document to tables and back.

docs/command-line.md describes the format to those who write such files. Rows and entries in messages count from 0, like
the indices of the JSON arrays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator
from pydantic_core import PydanticCustomError

from lpverify import errors
from lpverify.core import prefix_tree as tree
from lpverify.core.model_pair import MAX_TABLE_ENTRIES, ModelPair, check_size, iid_levels, markov_levels
from lpverify.core.problem import VerifyProblem
from lpverify.core.rows import NUMBER, check_rows, check_text, check_tokens, number
from lpverify.core.schema import expected, validate
from lpverify.numerics import Array, Levels, is_exact, one

FORMAT = "lpverify/problem@1"

Count = Annotated[int, Field(ge=1), expected("an integer >= 1")]
Vocabulary = Annotated[
    Annotated[int, Field(ge=1)] | Annotated[list[Any], Field(min_length=1)],
    expected("a number of tokens >= 1 or a list of labels"),
]
Row = list[Any]  # its entries are checked by `Block.read`


class _Object(BaseModel):
    """An object whose keys are listed in the message if one is missing or unknown."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, value: Any) -> Any:
        keys = cls.model_fields
        if isinstance(value, dict):
            wrong = [f"no key {key!r}" for key, entry in keys.items() if entry.is_required() and key not in value]
            wrong += [f"the unknown key {errors.shown(key)}" for key in value if key not in keys]
            if wrong:
                raise PydanticCustomError("expected", "", {"got": wrong[0], "expected": ", ".join(keys)})
        return value


class Document(_Object):
    format: str
    name: str = "unnamed"
    description: str = ""
    vocab: Vocabulary
    depth: Count
    target: dict[str, Any]
    draft: dict[str, Any]


class Iid(_Object):
    kind: str
    probs: Row


class Markov(_Object):
    kind: str
    initial: Row
    transition: list[Row]


class Tree(_Object):
    kind: str
    levels: list[list[Row]]
    bonus: list[Row] | None = None


DOCUMENT = TypeAdapter(Document)
TABLES: dict[str, TypeAdapter[Any]] = {kind.__name__.lower(): TypeAdapter(kind) for kind in (Iid, Markov, Tree)}


class Block(NamedTuple):
    """Rows of a file; ``position(i)`` says where row i is."""

    rows: Sequence[Row]
    position: Callable[[int], str]

    def float_entry(self) -> tuple[str, Any] | None:
        """Position and value of the first entry that is a float."""
        entries = ((i, j, entry) for i, row in enumerate(self.rows) for j, entry in enumerate(row))
        floats = (entry for entry in entries if isinstance(entry[2], float | np.floating))
        return next(((f"{self.position(i)} entry {j}", entry) for i, j, entry in floats), None)

    def read(self, tokens: Sequence[str], exact: bool, normalize: bool) -> Array:
        """The validated rows, Fractions or float64."""
        array = np.empty((len(self.rows), len(tokens)), dtype=object if exact else np.float64)
        for i, row in enumerate(self.rows):
            numbers: list[Any] = []
            try:
                for entry in row:
                    numbers.append(number(entry) if exact else float(number(entry)))
            except ValueError as error:
                what = f"{self.position(i)} entry {len(numbers)} (token {errors.shown(tokens[len(numbers)])})"
                raise errors.fail(what, got=str(error), expected="a probability") from None
            array[i] = numbers
        return check_rows(array, self.position, tokens, normalize, "--normalize")


def parse_problem(
    document: Any,
    where: str,
    *,
    num_paths: int = 1,
    name: str = "unnamed",
    normalize: bool = False,
    rational: bool = False,
) -> VerifyProblem:
    """The problem that a decoded JSON document describes; the arguments are those of `load_problem`.

    ``where`` is the file, with which every message starts, and ``name`` is used if the document has none. Raises
    InputError that names the position in the document, SizeError for tables too large to build.

    >>> table = {"kind": "iid", "probs": ["1/3", "2/3"]}
    >>> parse_problem({"format": FORMAT, "vocab": 2, "depth": 2, "target": table, "draft": table}, "x.json")
    VerifyProblem('unnamed', V = 2, L = 2, K = 1, 6 nodes, rational)
    """
    if isinstance(document, Mapping) and document.get("format") != FORMAT:  # the first thing to say about another file
        got = errors.shown(document["format"]) if "format" in document else "nothing"
        raise errors.fail(f"{where}: format", got=got, expected=f'"{FORMAT}"')
    parsed = validate(DOCUMENT, document, where)
    size = parsed.vocab if isinstance(parsed.vocab, int) else len(parsed.vocab)
    for key, value in (("vocab", size), ("depth", parsed.depth)):
        if value > MAX_TABLE_ENTRIES:
            got, limit = errors.shown(value), str(MAX_TABLE_ENTRIES)
            raise errors.too_large(f"{where}: {key}", size=got, limit=limit, instead="use a smaller one")
    check_size(where, size, parsed.depth)
    labels = check_tokens(f"{where}: vocab", None if isinstance(parsed.vocab, int) else parsed.vocab, size)
    raw = {"target": parsed.target, "draft": parsed.draft}
    blocks = {role: _blocks(f"{where}: {role}", table, labels, parsed.depth) for role, table in raw.items()}
    entries = (block.float_entry() for block in (*blocks["target"], *blocks["draft"]))
    inexact = next((entry for entry in entries if entry is not None), None)
    if rational and inexact is not None:
        position, entry = inexact
        needed = 'only strings such as "1/3" or "0.2" and integers, which exact arithmetic needs'
        raise errors.fail(position, got=errors.shown(entry), expected=needed)
    levels: dict[str, Sequence[Array]] = {}
    bonus: Sequence[Array] = []
    for role, table in raw.items():
        rows = [block.read(labels, inexact is None, normalize) for block in blocks[role]]
        if table["kind"] == "iid":
            levels[role], after = iid_levels(rows[0][0], parsed.depth), [rows[0]]
        elif table["kind"] == "markov":
            levels[role], after = markov_levels(rows[0][0], rows[1], parsed.depth), [rows[1]]
        else:
            levels[role], after = rows[: parsed.depth], rows[parsed.depth :]
        bonus = after if role == "target" else bonus
    pair = ModelPair._of(levels["target"], levels["draft"], bonus, labels)
    title = check_text(f"{where}: name", parsed.name if "name" in parsed.model_fields_set else name)
    return VerifyProblem(pair, num_paths, title, check_text(f"{where}: description", parsed.description))


def problem_document(problem: VerifyProblem) -> dict[str, Any]:
    """The document of a problem; `parse_problem` returns an equal problem. Tables are written in the fewest rows."""
    pair = problem.pair
    plain = pair.tokens == tuple(str(x) for x in range(pair.vocab_size))
    vocab = pair.vocab_size if plain else list(pair.tokens)
    target = _table_document(pair.target, pair.bonus if pair.bonus.ndim == 2 else pair.bonus[None, :])
    head = {"format": FORMAT, "name": problem.name, "description": problem.description}
    return head | {"vocab": vocab, "depth": pair.depth, "target": target, "draft": _table_document(pair.draft, None)}


def format_problem(problem: VerifyProblem) -> str:
    """`problem_document` as JSON text with one row of probabilities per line."""
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
    """``bonus``: the target's rows after a path, of which iid and Markov tables have a formula of their own."""
    root, size = levels[0][0], len(levels[0][0])
    later = [*levels[1:], *([] if bonus is None else [bonus])]
    if all((rows == root).all() for rows in later):
        return {"kind": "iid", "probs": _entries(root)}
    transition = next((rows for rows in later if len(rows) == size), None)
    if transition is not None and all(
        len(rows) % size == 0 and (rows.reshape(-1, size, size) == transition).all() for rows in later
    ):
        return {"kind": "markov", "initial": _entries(root), "transition": [_entries(row) for row in transition]}
    table = {"kind": "tree", "levels": [[_entries(row) for row in rows] for rows in levels]}
    if bonus is None or (bonus == one(root) / size).all():
        return table
    return table | {"bonus": [_entries(row) for row in bonus]}


def _entries(row: Array) -> list[Any]:
    """Raises InputError for a Fraction of so many digits that `parse_problem` would refuse it."""
    if not is_exact(row):
        return list(row.tolist())
    for entry in row:
        if not NUMBER.fullmatch(str(entry)):
            raise errors.fail("probability", got=errors.cut(str(entry), 60), expected="at most 400 digits in a file")
    return [str(entry) for entry in row]


def _blocks(what: str, raw: dict[str, Any], tokens: Sequence[str], depth: int) -> list[Block]:
    """The blocks of rows of a table, of the right numbers of rows and entries; the entries are as in the file."""
    if "kind" not in raw:
        raise errors.fail(f"{what}.kind", got="nothing", expected="one of " + ", ".join(TABLES))
    size, kind = len(tokens), errors.choice(f"{what}.kind", raw["kind"], tuple(TABLES))
    table = validate(TABLES[kind], raw, what, ".")
    if kind == "iid":
        blocks = [Block([table.probs], lambda row: f"{what}.probs")]
    elif kind == "markov":
        name = f"{what}.transition"
        _check_length(name, table.transition, (size,), f"{size} rows, one for each last token")
        after = Block(table.transition, lambda row: f"{name} row {row} (after {errors.shown(tokens[row])})")
        blocks = [Block([table.initial], lambda row: f"{what}.initial"), after]
    else:
        _check_length(f"{what}.levels", table.levels, (depth,), f"{depth} levels, one for each drafted position")
        blocks = []
        for i, rows in enumerate(table.levels):
            name, count = f"{what}.levels[{i}]", tree.level_size(size, i)
            _check_length(name, rows, (count,), f"{count} rows, one for each prefix of {i} tokens")
            blocks.append(Block(rows, partial(_of_prefix, name, i, tokens)))
        if table.bonus is not None:
            counts = (1, size, tree.level_size(size, depth))
            _check_length(f"{what}.bonus", table.bonus, counts, f"{counts[0]}, {counts[1]} or {counts[2]} rows")
            blocks.append(Block(table.bonus, lambda row: f"{what}.bonus row {row}"))
    for block in blocks:
        for i, entries in enumerate(block.rows):
            if len(entries) != size:
                _check_length(block.position(i), entries, (size,), f"{size} probabilities, one for each token of vocab")
    return blocks


def _check_length(what: str, entries: Sequence[Any], lengths: Sequence[int], expected: str) -> None:
    if len(entries) not in lengths:
        raise errors.fail(what, got=f"a list of {len(entries)}", expected=expected)


def _of_prefix(level: str, depth: int, tokens: Sequence[str], row: int) -> str:
    prefix = " ".join(tokens[token] for token in tree.prefix_of(row, depth, len(tokens)))
    return f"{level} row {row} (prefix {errors.shown(prefix)})"
