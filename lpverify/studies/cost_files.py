"""Documents that `lpverify.studies.throughput` needs: costs, and block efficiencies of `advise`, `bound` or `decode`.

Costs are measured or written by hand. A TABLE is a number of seconds, or an object of them by K (``draft_step``,
``round``), by tokens in the pass (``target_pass``), by K and then L (``verify``); between its entries it is linear::

    {"schema": "lpverify/costs@1",
     "draft_step":  {"1": 0.004, "4": 0.005},      one step of the draft at batch K
     "target_pass": {"1": 0.03, "33": 0.04},       one pass over the drafted nodes and the pending token
     "verify":      {"bv": 0.0004, "pbv": {"1": 0.001, "4": {"4": 0.002, "8": 0.003}}},
     "round":       0.001,                         all else in a round
     "catch_up":    0.004,                         optional: feeding a last accepted token; default: draft_step at 1
     "target_step": 0.03}                          optional: one token by the target alone
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lpverify import errors
from lpverify.files import parse_json, read_text
from lpverify.studies.throughput import Cell, Costs, Table
from lpverify.verifiers import VERIFIERS, verifier

SCHEMA = "lpverify/costs@1"
REQUIRED = ("draft_step", "target_pass", "verify", "round")
OPTIONAL = ("catch_up", "target_step", "settings", "versions", "description")
SAME: dict[str, tuple[type, ...]] = {
    "target": (str,),
    "draft": (str,),
    "temperature": (int, float),
    "top_k": (int,),
    "top_p": (int, float),
}
"""Settings in which documents that are used together must agree, and what they are if not null."""

BASELINES = ("autoregressive", "assisted")


def load_costs(path: str | os.PathLike[str]) -> Costs:
    """Read a cost file. Raises InputError (one line: file, place in it, what came, what was expected)."""
    return parse_costs(_document(path, "a cost file"), os.fspath(path))


def parse_costs(document: Any, where: str) -> Costs:
    """The costs that a document ``lpverify/costs@1`` states. Raises InputError as `load_costs`."""
    _schema(document, where, {SCHEMA})
    for key in REQUIRED:
        if key not in document:
            raise errors.fail(where, got=f"no {key}", expected=", ".join(REQUIRED))
    for key in document:
        errors.choice(f"{where}: key", key, ("schema", *REQUIRED, *OPTIONAL))
    verify = _object(document["verify"], f"{where}: verify", "seconds by algorithm")
    draft_step = _table(document["draft_step"], f"{where}: draft_step", ("paths",))
    late = document.get("catch_up")
    alone = document.get("target_step")
    return Costs(
        draft_step=draft_step,
        target_pass=_table(document["target_pass"], f"{where}: target_pass", ("tokens",)),
        verify={name: _table(entry, f"{where}: verify.{name}", ("paths", "depth")) for name, entry in verify.items()},
        round=_table(document["round"], f"{where}: round", ("paths",), zero=True),
        catch_up=draft_step(1) if late is None else _seconds(late, f"{where}: catch_up", zero=True),
        target_step=None if alone is None else _seconds(alone, f"{where}: target_step"),
    )


def load_cells(paths: Sequence[str | os.PathLike[str]]) -> tuple[list[Cell], dict[str, Any]]:
    """Cells of the documents at ``paths``, see `read_cells`."""
    return read_cells([(os.fspath(path), _document(path, "a document of lpverify bound or decode")) for path in paths])


def read_cells(documents: Sequence[tuple[str, Any]]) -> tuple[list[Cell], dict[str, Any]]:
    """Cells of (name, document) pairs, schemas those of `READERS`, with the settings they share.

    Algorithms that look at the first path only have cells at K = 1, whatever K they were run with. Raises InputError
    for what is no such document, for documents of different models or sampling, and for a cell that is given twice.
    """
    cells: dict[tuple[str, int, int], Cell] = {}
    shared: dict[str, Any] = {}
    for where, document in documents:
        kind = _schema(document, where, set(READERS))
        settings = _object(document.get("settings"), f"{where}: settings", "the settings of the run")
        for name, kinds in SAME.items():
            value = settings.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
                expected = "a name" if kinds == (str,) else "a number"
                raise errors.fail(f"{where}: settings.{name}", got=_short(value), expected=f"{expected} or null")
            if shared and settings.get(name) != shared.get(name):
                got, expected = f"{name} = {settings.get(name)!r}", f"{shared.get(name)!r} as in {documents[0][0]}"
                raise errors.fail(f"{where}: settings", got=got, expected=expected)
        shared = shared or settings
        found = _single(READERS[kind](document, where))
        for key, cell in found.items():
            if key in cells:
                what = f"{cell.algorithm} at K = {cell.paths}, L = {cell.depth}"
                raise errors.fail(where, got=f"{what} a second time", expected="every cell once")
        cells |= found
    if not cells:
        raise errors.fail(
            ", ".join(where for where, _ in documents), got="no algorithm", expected="at least one measured"
        )
    return list(cells.values()), shared


def _single(cells: Iterable[Cell]) -> dict[tuple[str, int, int], Cell]:
    """By (algorithm, K, L); those that look at one path only once for each L, from the smallest K."""
    found: dict[tuple[str, int, int], Cell] = {}
    for cell in sorted(cells, key=lambda cell: cell.paths):
        if cell.algorithm in VERIFIERS and cell.algorithm != "policy" and verifier(cell.algorithm).first_path_only:
            key = (cell.algorithm, 1, cell.depth)
            one = Cell(cell.algorithm, 1, cell.depth, float(cell.depth), cell.block_efficiency, cell.se, cell.full)
            found.setdefault(key, one)
        else:
            found[cell.algorithm, cell.paths, cell.depth] = cell
    return found


def _bound_cells(document: Mapping[str, Any], where: str) -> list[Cell]:
    cells = []
    for i, entry in enumerate(_list(document.get("cells"), f"{where}: cells")):
        place = f"{where}: cells[{i}]"
        entry = _object(entry, place, "a cell")
        paths = errors.integer(f"{place}.paths", entry.get("paths"), min=1)
        depth = errors.integer(f"{place}.depth", entry.get("depth"), min=1)
        nodes = _number(entry.get("nodes"), f"{place}.nodes", 0.0, paths * depth)
        for name, values in _object(entry.get("algorithms"), f"{place}.algorithms", "values by algorithm").items():
            spot = f"{place}.algorithms.{name}"
            values = _object(values, spot, "an algorithm's values")
            value = _number(values.get("block_efficiency"), f"{spot}.block_efficiency", 1.0, depth + 1.0)
            full = values.get("all_accepted")
            full = None if full is None else _number(full, f"{spot}.all_accepted", 0.0, 1.0)
            cells.append(Cell(name, paths, depth, nodes, value, _error(values.get("se"), f"{spot}.se"), full))
    return cells


def _decode_cells(document: Mapping[str, Any], where: str) -> list[Cell]:
    settings = document["settings"]
    paths = errors.integer(f"{where}: settings.paths", settings.get("paths"), min=1)
    depth = errors.integer(f"{where}: settings.depth", settings.get("depth"), min=1)
    cells = []
    for i, run in enumerate(_list(document.get("runs"), f"{where}: runs")):
        place = f"{where}: runs[{i}]"
        run = _object(run, place, "a run")
        name = run.get("algorithm")
        if not isinstance(name, str):
            raise errors.fail(f"{place}.algorithm", got=repr(name), expected="a name")
        if name in BASELINES:
            continue
        key = "block_efficiency" if run.get("rao_blackwell") is None else "rao_blackwell"
        value = _number(run.get(key), f"{place}.{key}", 1.0, depth + 1.0)
        nodes = _number(run.get("nodes_per_round"), f"{place}.nodes_per_round", 0.0, paths * depth)
        counts = [
            errors.integer(f"{place}.accepted_histogram", count, min=0)
            for count in _list(run.get("accepted_histogram"), f"{place}.accepted_histogram")
        ]
        full = counts[depth] / sum(counts) if len(counts) > depth else 0.0
        cells.append(Cell(name, paths, depth, nodes, value, _error(run.get(f"{key}_se"), f"{place}.{key}_se"), full))
    return cells


READERS: dict[str, Callable[[Mapping[str, Any], str], list[Cell]]] = {
    "lpverify/bound@1": _bound_cells,
    "lpverify/runs@1": _bound_cells,
    "lpverify/decode@1": _decode_cells,
}


def _document(path: str | os.PathLike[str], expected: str) -> Any:
    return parse_json(read_text(path, expected), os.fspath(path))


def _schema(document: Any, where: str, known: set[str]) -> str:
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str) or schema not in known:
        got = f"a {type(document).__name__}" if not isinstance(document, dict) else f"schema {schema!r}"
        raise errors.fail(where, got=got, expected="a document " + " or ".join(sorted(known)))
    return schema


def _table(data: Any, name: str, units: Sequence[str], *, zero: bool = False) -> Table:
    """A number, or numbers by ``units[0]``, which may again be tables by the other units."""
    if not isinstance(data, dict):
        return Table(name, (), (_seconds(data, name, zero=zero),), units[0])
    if not data:
        raise errors.fail(name, got="no entry", expected=f"seconds by {units[0]}")
    entries: list[tuple[float, float | Table]] = []
    for key, value in data.items():
        if not (key.isascii() and key.isdigit()) or int(key) < 1:
            raise errors.fail(f"{name}: key", got=repr(key), expected=f"a number of {units[0]}")
        place = f"{name}.{key}"
        deeper = isinstance(value, dict) and len(units) > 1
        entry: float | Table = _table(value, place, units[1:]) if deeper else _seconds(value, place, zero=zero)
        entries.append((float(key), entry))
    entries.sort(key=lambda entry: entry[0])
    if len({at for at, _ in entries}) < len(entries):
        raise errors.fail(name, got="a key twice", expected="every number once")
    return Table(name, tuple(at for at, _ in entries), tuple(entry for _, entry in entries), units[0])


def _seconds(value: Any, where: str, *, zero: bool = False) -> float:
    number = _finite(value)
    if number is None or number < 0 or (number == 0 and not zero):
        raise errors.fail(where, got=_short(value), expected="seconds" + ("" if zero else " > 0"))
    return number


def _number(value: Any, where: str, least: float, most: float) -> float:
    number = _finite(value)
    slack = 1e-9 * most  # sums of probabilities
    if number is None or not least - slack <= number <= most + slack:
        raise errors.fail(where, got=_short(value), expected=f"a number in {least:g}..{most:g}")
    return number


def _error(value: Any, where: str) -> float | None:
    """A standard error; None (of one prompt there is none) passes."""
    number = _finite(value)
    if value is not None and (number is None or number < 0):
        raise errors.fail(where, got=_short(value), expected="a standard error >= 0, or null")
    return number


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _short(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:60]


def _object(value: Any, where: str, expected: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise errors.fail(where, got=_short(value), expected=f"an object: {expected}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise errors.fail(where, got=_short(value), expected="a list")
    return value
