"""Documents that `lpverify.studies.throughput` needs: costs, and block efficiencies of `advise`, `bound` or `decode`.

Costs are measured or written by hand. A TABLE is a number of seconds, or an object with seconds by K (``draft_step``,
``round``), by the number of tokens in the pass (``target_pass``), or by K and then by L (``verify``). Between its
entries it is linear::

    {"schema": "lpverify/costs@1",
     "draft_step":  {"1": 0.004, "4": 0.005},      one step of the draft at batch K
     "target_pass": {"1": 0.03, "33": 0.04},       one pass over the drafted nodes and the pending token
     "verify":      {"bv": 0.0004, "pbv": {"1": 0.001, "4": {"4": 0.002, "8": 0.003}}},
     "round":       0.001,                         everything else in a round
     "catch_up":    0.004,                         optional: feeding a last accepted token; default: draft_step at 1
     "target_step": 0.03}                          optional: one token by the target alone
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, Strict, TypeAdapter

from lpverify import errors
from lpverify.core.schema import came, expected, validate
from lpverify.files import parse_json, read_text
from lpverify.studies.throughput import Cell, Costs, Table
from lpverify.verifiers import names, verifier

SCHEMA = "lpverify/costs@1"
BASELINES = ("autoregressive", "assisted")
ROUNDING = 1e-9
"""Relative error by which a mean of sums of probabilities may leave its range."""

Name = Annotated[str | None, Strict(), expected("a name or null")]
Number = Annotated[float | None, Strict(), Field(allow_inf_nan=False), expected("a number or null")]
Seconds = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False), expected("seconds > 0")]
SecondsOrZero = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False), expected("seconds >= 0")]
Count = Annotated[int, Strict(), Field(ge=1, le=10**9), expected("an integer >= 1")]
Occurrences = Annotated[int, Strict(), Field(ge=0, le=10**18), expected("an integer >= 0")]
Error = Annotated[float | None, Strict(), Field(ge=0, allow_inf_nan=False), expected("a standard error >= 0, or null")]


class CostDocument(BaseModel):
    """``lpverify/costs@1``; `_table` reads the tables."""

    model_config = ConfigDict(extra="forbid")

    schema_: Any = Field(alias="schema")
    draft_step: Any
    target_pass: Any
    verify: dict[str, Any]
    round: Any
    catch_up: SecondsOrZero | None = None
    target_step: Seconds | None = None
    settings: Any = None
    versions: Any = None
    description: Any = None


class RunSettings(BaseModel):
    """The settings in which documents that are used together must agree."""

    target: Name = None
    draft: Name = None
    temperature: Number = None
    top_k: Number = None
    top_p: Number = None


class Efficiency(BaseModel):
    """One algorithm in a cell of ``lpverify/bound@1``. `_within` checks what has no type here, here and below."""

    block_efficiency: Any = None
    se: Error = None
    all_accepted: Any = None


class BoundCell(BaseModel):
    """One K and L of ``lpverify/bound@1`` or ``lpverify/runs@1``."""

    paths: Count
    depth: Count
    nodes: Any = None
    algorithms: dict[str, Efficiency]


class Run(BaseModel):
    """One algorithm of ``lpverify/decode@1``."""

    algorithm: Annotated[str, Strict(), expected("a name")]
    block_efficiency: Any = None
    block_efficiency_se: Error = None
    rao_blackwell: Any = None
    rao_blackwell_se: Error = None
    nodes_per_round: Any = None
    accepted_histogram: list[Occurrences]


def load_costs(path: str | os.PathLike[str]) -> Costs:
    """Read a cost file. Raises InputError: one line with the file, the position in it, what came, what was expected."""
    where = os.fspath(path)
    return parse_costs(parse_json(read_text(path, "a cost file"), where), where)


def parse_costs(document: Any, where: str) -> Costs:
    """The costs that a document ``lpverify/costs@1`` states. Raises InputError as `load_costs`."""
    _schema(document, where, [SCHEMA])
    stated = validate(TypeAdapter(CostDocument), document, where)
    draft_step = _table(stated.draft_step, f"{where}: draft_step", ("paths",))
    return Costs(
        draft_step=draft_step,
        target_pass=_table(stated.target_pass, f"{where}: target_pass", ("tokens",)),
        verify={
            name: _table(entry, f"{where}: verify.{name}", ("paths", "depth")) for name, entry in stated.verify.items()
        },
        round=_table(stated.round, f"{where}: round", ("paths",), SecondsOrZero),
        catch_up=draft_step(1) if stated.catch_up is None else stated.catch_up,
        target_step=stated.target_step,
    )


def _table(data: Any, name: str, units: Sequence[str], seconds: Any = Seconds) -> Table:
    """A number, or an object of numbers by ``units[0]``; its entries may be tables by the other units."""
    if not isinstance(data, dict):
        return Table(name, (), (validate(TypeAdapter(seconds), data, name),), units[0])
    if not data:
        raise errors.fail(name, got="no entry", expected=f"seconds by {units[0]}")
    entries: dict[float, float | Table] = {}
    for key, value in data.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10) or int(key) < 1:
            raise errors.fail(f"{name}: key", got=came(key), expected=f"a number of {units[0]}")
        if float(key) in entries:
            raise errors.fail(name, got=f"the key {int(key)} twice", expected="every number once")
        entry = f"{name}.{key}"
        if isinstance(value, dict) and len(units) > 1:
            entries[float(key)] = _table(value, entry, units[1:], seconds)
        else:
            entries[float(key)] = validate(TypeAdapter(seconds), value, entry)
    at = sorted(entries)
    return Table(name, tuple(at), tuple(entries[x] for x in at), units[0])


def load_cells(paths: Sequence[str | os.PathLike[str]]) -> tuple[list[Cell], dict[str, Any]]:
    """Cells of the documents at ``paths``, see `read_cells`."""
    expectation = "a document of lpverify bound or decode"
    return read_cells([(name := os.fspath(path), parse_json(read_text(path, expectation), name)) for path in paths])


def read_cells(documents: Sequence[tuple[str, Any]]) -> tuple[list[Cell], dict[str, Any]]:
    """Cells of documents of `bound`, `decode` or `advise`, and the settings that the documents share.

    An algorithm that looks at the first path only has cells at K = 1, whatever K it was run with.

    Args:
        documents: Pairs of a name for messages and the document, whose schema is one of `READERS`.

    Raises:
        InputError: For another document, for documents of different models or sampling, and for a cell that is stated
            twice.
    """
    cells: dict[tuple[str, int, int], Cell] = {}
    shared: dict[str, Any] = {}
    for where, document in documents:
        schema = _schema(document, where, READERS)
        settings = document.get("settings")
        stated = dict(validate(TypeAdapter(RunSettings), settings, f"{where}: settings", "."))
        if not shared:
            shared, first = settings, stated
        for name, value in stated.items():
            if value != first[name]:
                got, other = f"{name} = {came(value)}", f"{first[name]!r} as in {documents[0][0]}"
                raise errors.fail(f"{where}: settings", got=got, expected=other)
        own: dict[tuple[str, int, int], Cell] = {}
        for cell in sorted(READERS[schema](document, where), key=lambda cell: cell.num_paths):
            if cell.algorithm in names() and verifier(cell.algorithm).first_path_only:
                cell = replace(cell, num_paths=1, nodes=float(cell.depth))
                own.setdefault(cell.key, cell)
            else:
                own[cell.key] = cell
        for cell in own.values():
            if cell.key in cells:
                got = f"{cell.algorithm} at K = {cell.num_paths}, L = {cell.depth} a second time"
                raise errors.fail(where, got=got, expected="every cell once")
        cells |= own
    if not cells:
        raise errors.fail(", ".join(where for where, _ in documents), got="no algorithm", expected="at least one")
    return list(cells.values()), shared


def _bound_cells(document: Mapping[str, Any], where: str) -> Iterator[Cell]:
    for i, cell in enumerate(validate(TypeAdapter(list[BoundCell]), document.get("cells"), f"{where}: cells", "")):
        at = f"{where}: cells[{i}]"
        nodes = _within(cell.nodes, f"{at}.nodes", 0, cell.paths * cell.depth)
        for name, entry in cell.algorithms.items():
            own = f"{at}.algorithms.{name}"
            value = _within(entry.block_efficiency, f"{own}.block_efficiency", 1, cell.depth + 1)
            full = None if entry.all_accepted is None else _within(entry.all_accepted, f"{own}.all_accepted", 0, 1)
            yield Cell(name, cell.paths, cell.depth, nodes, value, entry.se, full)


def _decode_cells(document: Mapping[str, Any], where: str) -> Iterator[Cell]:
    """The baselines draft nothing of their own, so they have no cells."""
    settings = document["settings"]
    num_paths, depth = (
        validate(TypeAdapter(Count), settings.get(key), f"{where}: settings.{key}") for key in ("paths", "depth")
    )
    for i, run in enumerate(validate(TypeAdapter(list[Run]), document.get("runs"), f"{where}: runs", "")):
        if run.algorithm in BASELINES:
            continue
        at = f"{where}: runs[{i}]"
        value, se, key = run.rao_blackwell, run.rao_blackwell_se, "rao_blackwell"
        if value is None:
            value, se, key = run.block_efficiency, run.block_efficiency_se, "block_efficiency"
        value = _within(value, f"{at}.{key}", 1, depth + 1)
        nodes = _within(run.nodes_per_round, f"{at}.nodes_per_round", 0, num_paths * depth)
        counts = run.accepted_histogram
        full = counts[depth] / sum(counts) if len(counts) > depth and any(counts) else 0.0
        yield Cell(run.algorithm, num_paths, depth, nodes, value, se, full)


READERS: dict[str, Callable[[Mapping[str, Any], str], Iterable[Cell]]] = {
    "lpverify/bound@1": _bound_cells,
    "lpverify/runs@1": _bound_cells,
    "lpverify/decode@1": _decode_cells,
}


def _schema(document: Any, where: str, known: Iterable[str]) -> str:
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema not in (options := sorted(known)):
        got = f"a {type(document).__name__}" if not isinstance(document, dict) else f"schema {came(schema)}"
        raise errors.fail(where, got=got, expected="a document " + " or ".join(options))
    return str(schema)


def _within(value: Any, where: str, low: float, high: float) -> float:
    number = value if type(value) in (int, float) else float("nan")
    if not low - ROUNDING * high <= number <= high * (1 + ROUNDING):
        raise errors.fail(where, got=came(value), expected=f"a number in {low:g}..{high:g}")
    return float(number)
