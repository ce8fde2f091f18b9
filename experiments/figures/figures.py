"""The figures: one table of name -> compute, draw, caption fields; `make` computes, stores, then draws.

A figure called NAME has the files ``NAME.json`` (summary of the data, and what computed them), ``NAME.svg``,
``NAME.png`` and ``NAME.md`` (caption), all drawn from the first. A table has ``NAME.tex`` in place of the pictures. The
rows of single problems go to ``.records/NAME.json.gz``, which is not part of the repository.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from experiments.figures import captions, figure_data, plots_paper, plots_real, real_data, table_real
from experiments.figures.figure_data import Work
from experiments.figures.real_jobs import RECORDS
from experiments.figures.real_prompts import BUILT_IN
from lpverify import errors
from lpverify.decode.prompts import SETS
from lpverify.files import provenance, write_whole
from lpverify.report import plots

SCHEMA = "lpverify/figure@2"
PACKAGES = ("numpy", "scipy", "highspy")
MODEL_PACKAGES = ("torch", "transformers")
KINDS = ("png", "svg")
DIGITS = 10
"""Significant digits of stored numbers."""
Data = Mapping[str, Any]


def _no_fields(data: Data) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Figure:
    """How one figure comes about. ``draw`` gives a matplotlib figure, of a ``table`` its text for LaTeX.

    ``fields``: what fills the caption beside settings and facts; ``models``: it is measured on real models, so the
    packages of lpverify[decode] are needed to compute it. ``compute`` None: the program ``experiment`` writes its data.
    """

    name: str
    compute: Callable[[Work], dict[str, Any]] | None
    draw: Callable[[Data], Any]
    fields: Callable[[Data], dict[str, Any]] = _no_fields
    models: bool = False
    table: bool = False
    experiment: str | None = None

    @property
    def title(self) -> str:
        """The heading of its caption."""
        return captions.title(self.name)


FIGURES = {
    figure.name: figure
    for figure in (
        Figure("balance", figure_data.one_position, plots_paper.one_position),
        Figure("single_path", figure_data.single_path_rows, plots_paper.single_path),
        Figure("multi_path", figure_data.multi_path_rows, plots_paper.multi_path, captions.multi_path),
        Figure("where_gbv_loses", figure_data.grid_rows, plots_paper.where_gbv_loses),
        Figure("decomposition", figure_data.decomposition_rows, plots_paper.decomposition, captions.decomposition),
        Figure("solver_scaling", figure_data.scaling_rows, plots_paper.scaling),
        Figure("real_paths", real_data.paths_rows, plots_real.real_paths, captions.real_paths, models=True),
        Figure("real_time", real_data.time_rows, plots_real.real_time, captions.real_time, models=True),
        Figure(
            "real_temperature", real_data.temperature_rows, plots_real.real_temperature, captions.real_temperature,
            models=True,
        ),
        Figure("real_depth", real_data.depth_rows, plots_real.real_depth, captions.real_depth, models=True),
        Figure("real_bound", real_data.share_rows, plots_real.real_bound, captions.real_bound, models=True),
        Figure("table_real", real_data.table_rows, table_real.latex, table_real.fields, models=True, table=True),
        Figure("real_gap", None, plots_real.real_gap, captions.real_gap, experiment="experiments/real_trees.py"),
        Figure("advise", None, plots_real.advise, captions.advise, experiment="experiments/advise_check.py"),
    )
}  # fmt: skip


def available(folder: str | os.PathLike[str]) -> list[str]:
    """All figures but those whose experiment has not left its data in ``folder``."""
    return [n for n, f in FIGURES.items() if f.experiment is None or (Path(folder) / f"{n}.json").exists()]


def make(
    names: Sequence[str] | None = None, out: str | os.PathLike[str] = "paper_figs", *, work: Work | None = None
) -> Iterator[tuple[str, float]]:
    """Compute, store and draw ``names`` (default: all `available`) into the folder ``out``; ``work`` None only draws.

    Yields each name with the seconds it took, when it is done. Raises InputError for an unknown name, for missing
    packages, for data that are missing or not of the figure, and for files of its name that are not the figure's.
    """
    chosen = tuple(available(out) if names is None else dict.fromkeys(names))
    for name in chosen:
        errors.choice("figure", name, tuple(FIGURES))
    needed = {"matplotlib": "plot"}
    if work is not None and any(FIGURES[name].models for name in chosen):
        needed |= dict.fromkeys(MODEL_PACKAGES, "decode")
    for package, extra in needed.items():
        if find_spec(package) is None:
            raise errors.fail("figures", got=f"no {package}", expected=f"pip install 'lpverify[{extra}]' first")
    for name in chosen if work is not None else ():
        for path in files(name, Path(out)):
            if path.exists():
                stored(name, Path(out))  # otherwise they are not a figure's, and would be lost
    return _made(chosen, Path(out), work)


def files(name: str, folder: Path) -> list[Path]:
    """What `make` writes for a figure into ``folder``, first the data."""
    return [folder / f"{name}.{kind}" for kind in ("json", "md", *(["tex"] if FIGURES[name].table else KINDS))]


def _made(names: Sequence[str], folder: Path, work: Work | None) -> Iterator[tuple[str, float]]:
    for name in names:
        began = time.perf_counter()
        compute = FIGURES[name].compute
        if work is not None and compute is not None:
            packages = (*PACKAGES, *(MODEL_PACKAGES if FIGURES[name].models else ()))
            made_with = provenance(*packages)  # before the work: a checkout may change meanwhile
            data = compute(work)
            store(name, folder, data, made_with, size=work.size, seconds=time.perf_counter() - began)
        draw(name, folder)
        yield name, time.perf_counter() - began


def store(
    name: str, folder: Path, data: dict[str, Any], made_with: Mapping[str, Any], *, size: str, seconds: float
) -> None:
    """Write a figure's data: the summary, and the rows of single problems (key ``instances``) apart from it."""
    instances = data.pop("instances", None)
    git = made_with.get("git")
    made_with = {**made_with, "git": git and {"commit": git["commit"]}}
    document = {"schema": SCHEMA, "figure": name, "size": size, "seconds": round(seconds, 1), "provenance": made_with}
    text = _lines({**document, "data": rounded(data)})
    folder.mkdir(parents=True, exist_ok=True)
    if instances is not None:
        (folder / RECORDS).mkdir(exist_ok=True)
        write_whole(folder / RECORDS / f"{name}.json.gz", gzip.compress(json.dumps(instances).encode(), mtime=0))
    write_whole(folder / f"{name}.json", text.encode())


def stored(name: str, folder: Path) -> dict[str, Any]:
    """The document that `store` wrote."""
    path = folder / f"{name}.json"
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError as error:
        experiment = FIGURES[name].experiment
        first = "compute them" if experiment is None else f"python {experiment}"
        raise errors.fail(str(path), got="no such file", expected=f"the figure's data; {first} first") from error
    except ValueError as error:
        raise errors.fail(str(path), got=f"no JSON ({error})", expected=f"a document {SCHEMA}") from error
    if not isinstance(document, dict) or (document.get("schema"), document.get("figure")) != (SCHEMA, name):
        raise errors.fail(str(path), got="another document", expected=f"a document {SCHEMA} of the figure {name}")
    return document


def draw(name: str, folder: Path) -> None:
    """Write picture and caption from the stored data."""
    document = stored(name, folder)
    figure = FIGURES[name]
    drawn = figure.draw(document["data"])
    if figure.table:
        write_whole(folder / f"{name}.tex", drawn.encode())
    else:
        for kind in KINDS:
            write_whole(folder / f"{name}.{kind}", plots.render(drawn, kind))
    write_whole(folder / f"{name}.md", caption(document).encode())


def caption(document: Mapping[str, Any]) -> str:
    """The caption of a stored document, with the origin of the data in its last line."""
    figure, data, size = FIGURES[document["figure"]], document["data"], document["size"]
    heading, _, text = captions.caption(figure.name, data, figure.fields(data)).partition("\n")
    note = "" if size == "full" else f"\n*Size {size}: fewer or smaller problems than the full figure.*\n"
    return f"{heading}\n{note}{text}\n{_origin(document)}\n"


def _origin(document: Mapping[str, Any]) -> str:
    """The last line of a caption: where the data are, what computes them, and the versions that did."""
    name, versions = document["figure"], dict(document["provenance"])
    size = " --quick" if document["size"] == "quick" else ""
    prompts = "".join(f" --prompts {name}" for name in _named_sets(document["data"]))
    experiment = FIGURES[name].experiment
    command = f"lpverify figures --only {name}{size}{prompts}" if experiment is None else f"python {experiment}"
    packages = ("lpverify", "python", *PACKAGES, *MODEL_PACKAGES)
    shown = ", ".join(f"{package} {versions[package]}" for package in packages if versions.get(package))
    commit = f", commit {versions['git']['commit'][:12]}" if versions.get("git") else ""
    return f"Data: `{name}.json`, computed by `{command}` ({shown}{commit})."


def _named_sets(data: Data) -> list[str]:
    """The prompts that are not built in, as options: a public set by its name, any other as a file."""
    pairs = data.get("settings", {}).get("pairs", {}).values()
    labels = dict.fromkeys(name for pair in pairs for name in pair.get("sets", ()) if name not in BUILT_IN)
    return [name if name in SETS else f"{name}=FILE" for name in labels]


def rounded(value: Any) -> Any:
    """All floats of plain data rounded to `DIGITS` significant digits."""
    if isinstance(value, Mapping):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(entry) for entry in value]
    return float(f"{value:.{DIGITS - 1}e}") if isinstance(value, float) else value


def _lines(document: Mapping[str, Any]) -> str:
    """JSON with one row of the data on each line."""
    data = dict(document["data"])
    tables = {key: data[key] for key in ("rows", "points") if key in data}
    text = json.dumps({**document, "data": data | {key: f"@{key}" for key in tables}}, indent=1, allow_nan=False)
    for key, rows in tables.items():
        body = ",\n".join("   " + json.dumps(row, allow_nan=False) for row in rows)
        text = text.replace(f'"@{key}"', f"[\n{body}\n  ]")
    return text + "\n"
