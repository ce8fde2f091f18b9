"""Documents that `lpverify.studies.throughput` needs: costs, and block efficiencies of `advise`, `bound` or `decode`.

Costs are measured or written by hand; ``lpverify advise --help`` has an example of ``lpverify/costs@1``. Every entry is
a number of seconds, or an object with seconds by K (``draft_step``: one step of the draft at batch K; ``round``:
everything that has no entry of its own), by the number of tokens in the pass (``target_pass``, over the drafted nodes
and the pending token), or by K and then by L (``verify``). Between its entries it is linear. Optional numbers:
``catch_up``, for feeding a last accepted token (default: ``draft_step`` at 1), and ``target_step``, for one token by
the target alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, Field, Strict, TypeAdapter

from lpverify import errors
from lpverify.core.schema import came, expected, validate
from lpverify.files import parse_json, read_text
from lpverify.studies.throughput import Cell, Costs, Table
from lpverify.verifiers import names, verifier

SCHEMA = "lpverify/costs@1"
REQUIRED = ("draft_step", "target_pass", "verify", "round")
OPTIONAL = ("catch_up", "target_step", "settings", "versions", "description")
BASELINES = ("autoregressive", "assisted")  # they do not draft as verifiers do
ROUNDING = 1e-9  # relative error by which a mean of sums of probabilities may leave its range

Name = Annotated[str | None, Strict(), expected("a name or null")]
Setting = Annotated[float | None, Strict(), Field(allow_inf_nan=False), expected("a number or null")]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False), expected("a number")]
Error = Annotated[float | None, Strict(), Field(ge=0, allow_inf_nan=False), expected("a standard error >= 0, or null")]
Count = Annotated[int, Strict(), Field(ge=1, le=10**9), expected("an integer >= 1")]
Occurrences = Annotated[int, Strict(), Field(ge=0, le=10**18), expected("an integer >= 0")]


class RunSettings(BaseModel):
    """The settings in which documents that are used together must agree."""

    target: Name = None
    draft: Name = None
    temperature: Setting = None
    top_k: Setting = None
    top_p: Setting = None


class Efficiency(BaseModel):  # one algorithm in a cell of lpverify/bound@1
    block_efficiency: Number
    se: Error = None
    all_accepted: Number | None = None


class BoundCell(BaseModel):  # one K and L of lpverify/bound@1
    paths: Count
    depth: Count
    nodes: Number
    algorithms: dict[str, Efficiency]


class BoundDocument(BaseModel):
    """``lpverify/bound@1`` or ``lpverify/runs@1``."""

    settings: RunSettings
    cells: list[BoundCell]

    def measured(self) -> Iterator[tuple[str, Cell]]:
        """The cells, each with its position in the document."""
        for i, cell in enumerate(self.cells):
            for name, own in cell.algorithms.items():
                values = (cell.nodes, own.block_efficiency, own.se, own.all_accepted)
                yield f"cells[{i}].algorithms.{name}", Cell(name, cell.paths, cell.depth, *values)


class DecodeSettings(RunSettings):  # of lpverify/decode@1
    paths: Count
    depth: Count


class Run(BaseModel):  # one algorithm of lpverify/decode@1
    algorithm: Annotated[str, Strict(), expected("a name")]
    block_efficiency: Number
    block_efficiency_se: Error = None
    rao_blackwell: Number | None = None
    rao_blackwell_se: Error = None
    nodes_per_round: Number
    accepted_histogram: list[Occurrences]


class DecodeDocument(BaseModel):
    """``lpverify/decode@1``."""

    settings: DecodeSettings
    runs: list[Run]

    def measured(self) -> Iterator[tuple[str, Cell]]:
        """The cells of the verifiers, each with its position in the document."""
        paths, depth = self.settings.paths, self.settings.depth
        for i, run in enumerate(self.runs):
            value, se = run.rao_blackwell, run.rao_blackwell_se
            if value is None:
                value, se = run.block_efficiency, run.block_efficiency_se
            counts = run.accepted_histogram
            full = counts[depth] / sum(counts) if len(counts) > depth and any(counts) else 0.0
            if run.algorithm not in BASELINES:
                yield f"runs[{i}]", Cell(run.algorithm, paths, depth, run.nodes_per_round, value, se, full)


KINDS: dict[str, TypeAdapter[Any]] = {
    "lpverify/bound@1": TypeAdapter(BoundDocument),
    "lpverify/decode@1": TypeAdapter(DecodeDocument),
    "lpverify/runs@1": TypeAdapter(BoundDocument),
}


def load_costs(path: str | os.PathLike[str]) -> tuple[Costs, dict[str, Any]]:
    """Costs and settings of a file. Raises InputError: the file, the position in it, what came, what was expected."""
    where = os.fspath(path)
    document = parse_json(read_text(path, "a cost file"), where)
    costs, settings = parse_costs(document, where), document.get("settings")
    return costs, settings if isinstance(settings, dict) else {}


def same_content(where: str, settings: Mapping[str, Any], other_where: str, other: Mapping[str, Any]) -> None:
    """Raise InputError if settings name the same models as others, but state that their content was different.

    Without a statement, and for weights in other number types, nothing is known.
    """
    stated = all(isinstance(each.get("content"), dict) for each in (settings, other))
    if not stated or any(settings.get(name) != other.get(name) for name in ("dtype", "device")):
        return
    for role in ("target", "draft"):
        if settings.get(role) == other.get(role):
            came_with, expected = (each["content"].get(role) for each in (settings, other))
            if came_with != expected:
                got, fix = f"{role} {settings.get(role)} with content {came_with}", "measure one of them again"
                raise errors.fail(where, got=got, expected=f"{expected} as in {other_where}; {fix}")


def parse_costs(document: Any, where: str) -> Costs:
    """The costs that a document ``lpverify/costs@1`` states. Raises InputError as `load_costs`."""
    _schema(document, where, (SCHEMA,))
    for key in REQUIRED:
        if key not in document:
            raise errors.fail(where, got=f"no {key}", expected=", ".join(REQUIRED))
    for key in document:
        errors.choice(f"{where}: key", key, ("schema", *REQUIRED, *OPTIONAL))
    verify, catch_up, alone = (document.get(key) for key in ("verify", "catch_up", "target_step"))
    if not isinstance(verify, dict):
        raise errors.fail(f"{where}: verify", got=came(verify), expected="an object with seconds by algorithm")
    draft_step = _table(document["draft_step"], f"{where}: draft_step", ("paths",), above=0)
    return Costs(
        draft_step,
        _table(document["target_pass"], f"{where}: target_pass", ("tokens",), above=0),
        {name: _table(data, f"{where}: verify.{name}", ("paths", "depth"), above=0) for name, data in verify.items()},
        _table(document["round"], f"{where}: round", ("paths",), min=0),
        draft_step(1) if catch_up is None else errors.number(f"{where}: catch_up", catch_up, min=0),
        None if alone is None else errors.number(f"{where}: target_step", alone, above=0),
    )


def _table(data: Any, name: str, units: Sequence[str], **limit: float) -> Table:
    """A number, or an object of numbers by ``units[0]``; its entries may be tables by the other units."""
    if not isinstance(data, dict):
        return Table(name, (), (errors.number(name, data, **limit),), units[0])
    entries: dict[float, float | Table] = {}
    for key, value in data.items():
        if not re.fullmatch("0*[1-9][0-9]*", key) or len(key) > 9:
            raise errors.fail(f"{name}: key", got=came(key), expected=f"a number of {units[0]}")
        if float(key) in entries:
            raise errors.fail(name, got=f"the key {int(key)} twice", expected="every number once")
        deeper, at = isinstance(value, dict) and len(units) > 1, f"{name}.{key}"
        entries[float(key)] = _table(value, at, units[1:], **limit) if deeper else errors.number(at, value, **limit)
    if not entries:
        raise errors.fail(name, got="no entry", expected=f"seconds by {units[0]}")
    ordered = dict(sorted(entries.items()))
    return Table(name, tuple(ordered), tuple(ordered.values()), units[0])


def load_cells(paths: Sequence[str | os.PathLike[str]]) -> tuple[list[Cell], dict[str, Any]]:
    """Cells of the documents at ``paths``, see `read_cells`."""
    kind = "a document of lpverify bound or decode"
    return read_cells([(name := os.fspath(path), parse_json(read_text(path, kind), name)) for path in paths])


def read_cells(documents: Sequence[tuple[str, Any]]) -> tuple[list[Cell], dict[str, Any]]:
    """Cells of documents, whose schemas are in `KINDS`, given with names for messages; and the settings of the first.

    An algorithm that looks at the first path only has cells at K = 1, whatever K it was run with. Raises InputError for
    another document, for documents of different models or sampling, and for a cell that is stated twice.
    """
    cells: dict[tuple[str, int, int], Cell] = {}
    first: dict[str, Any] = {}
    for where, document in documents:
        stated = validate(KINDS[_schema(document, where, tuple(KINDS))], document, where)
        for name in RunSettings.model_fields:
            value = getattr(stated.settings, name)
            if value != first.setdefault(name, value):
                other = f"{first[name]!r} as in {documents[0][0]}"
                raise errors.fail(f"{where}: settings", got=f"{name} = {came(value)}", expected=other)
        same_content(where, document["settings"], *(documents[0][0], documents[0][1]["settings"]))
        own: dict[tuple[str, int, int], Cell] = {}
        for at, cell in sorted(stated.measured(), key=lambda measured: measured[1].num_paths):
            nodes, tokens = cell.num_paths * cell.depth, cell.depth + 1
            for name, low, high in (("nodes", 0, nodes), ("block_efficiency", 1, tokens), ("full", 0, 1)):
                value = getattr(cell, name)
                if value is not None and not low - ROUNDING <= value <= high * (1 + ROUNDING):
                    raise errors.fail(f"{where}: {at}: {name}", got=came(value), expected=f"{low}..{high}")
            if cell.algorithm in names() and verifier(cell.algorithm).first_path_only:
                cell = replace(cell, num_paths=1, nodes=float(cell.depth))
                own.setdefault(cell.key, cell)
            else:
                own[cell.key] = cell
        for key in own:
            if key in cells:
                got = "{} at K = {}, L = {} a second time".format(*key)
                raise errors.fail(where, got=got, expected="every cell once")
        cells |= own
    if not cells:
        raise errors.fail(", ".join(where for where, _ in documents), got="no algorithm", expected="at least one")
    return list(cells.values()), documents[0][1]["settings"]


def _schema(document: Any, where: str, known: Sequence[str]) -> str:
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema not in known:
        got = f"schema {came(schema)}" if isinstance(document, dict) else f"a {type(document).__name__}"
        raise errors.fail(where, got=got, expected="a document " + " or ".join(known))
    return str(schema)
