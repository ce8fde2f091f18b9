"""The figures: one table of name -> compute, draw, caption, and `make`, which computes, stores, then draws.

A figure called NAME is four files: ``NAME.json`` (data, what they were computed with), ``NAME.svg``, ``NAME.png`` and
``NAME.md`` (caption). All but the first are drawn from the first. A table has ``NAME.tex`` in place of the pictures.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from experiments.figures import captions, captions_real, figure_data, plots_paper, plots_real, real_data, table_real
from experiments.figures.figure_data import Work
from experiments.figures.real_prompts import BUILT_IN
from lpverify import errors
from lpverify.decode.prompts import SETS
from lpverify.files import provenance, write_whole
from lpverify.report import plots

SCHEMA = "lpverify/figure@1"
SIZES = ("full", "quick", "tiny")
PACKAGES = ("numpy", "scipy", "highspy")
MODEL_PACKAGES = ("torch", "transformers")
Data = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """How one figure comes about. ``draw`` gives a matplotlib figure, of a ``table`` its text for LaTeX.

    ``models``: it is measured on real models, so the packages of lpverify[decode] are needed to compute it.
    ``compute`` None: a program of ``experiments/`` writes its data; ``experiment`` is that program and the file that it
    leaves in the folder of the figures.
    """

    title: str
    compute: Callable[[Work], dict[str, Any]] | None
    draw: Callable[[Data], Any]
    caption: Callable[[Data], str]
    models: bool = False
    table: bool = False
    experiment: tuple[str, str] | None = None


FIGURES = {
    "balance": Figure(
        "The balance of one position", figure_data.one_position, plots_paper.one_position, captions.one_position
    ),
    "single_path": Figure(
        "One path: block verification is the optimum",
        figure_data.single_path_rows,
        plots_paper.single_path,
        captions.single_path,
    ),
    "multi_path": Figure(
        "Many paths: every algorithm and the optimum",
        figure_data.multi_path_rows,
        plots_paper.multi_path,
        captions.multi_path,
    ),
    "where_gbv_loses": Figure(
        "Where greedy multi-path verification loses",
        figure_data.grid_rows,
        plots_paper.where_gbv_loses,
        captions.where_gbv_loses,
    ),
    "decomposition": Figure(
        "Where the gap to the optimum goes",
        figure_data.decomposition_rows,
        plots_paper.decomposition,
        captions.decomposition,
    ),
    "solver_scaling": Figure(
        "Time and gap against the number of nodes", figure_data.scaling_rows, plots_paper.scaling, captions.scaling
    ),
    "real_paths": Figure(
        "Real models: block efficiency over K",
        real_data.paths_rows,
        plots_real.real_paths,
        captions_real.real_paths,
        models=True,
    ),
    "real_time": Figure(
        "Real models: tokens per second and time by stage",
        real_data.time_rows,
        plots_real.real_time,
        captions_real.real_time,
        models=True,
    ),
    "real_temperature": Figure(
        "Real models: block efficiency over temperature",
        real_data.temperature_rows,
        plots_real.real_temperature,
        captions_real.real_temperature,
        models=True,
    ),
    "real_depth": Figure(
        "Real models: block efficiency and tokens per second over L",
        real_data.depth_rows,
        plots_real.real_depth,
        captions_real.real_depth,
        models=True,
    ),
    "real_bound": Figure(
        "Real models: how much of the upper bound is reached",
        real_data.share_rows,
        plots_real.real_bound,
        captions_real.real_bound,
        models=True,
    ),
    "table_real": Figure(
        "Real models: every algorithm",
        real_data.table_rows,
        table_real.latex,
        table_real.caption,
        models=True,
        table=True,
    ),
    "real_gap": Figure(
        "Real truncated trees: gap to the exact optimum",
        real_data.gap_rows,
        plots_real.real_gap,
        captions_real.real_gap,
        experiment=("experiments/real_trees.py", real_data.TREES),
    ),
    "advise": Figure(
        "Real models: predicted and measured tokens per second",
        None,
        plots_real.advise,
        captions_real.advise,
        experiment=("experiments/advise_check.py", "advise.json"),
    ),
}


def available(folder: str | os.PathLike[str]) -> list[str]:
    """All figures but those whose experiment has not left its data in ``folder``."""
    return [n for n, f in FIGURES.items() if f.experiment is None or (Path(folder) / f.experiment[1]).exists()]


def make(
    names: Sequence[str] | None = None, out: str | os.PathLike[str] = "paper_figs", *, work: Work | None = None
) -> Iterator[tuple[str, float]]:
    """Compute, store and draw ``names`` (default: all `available`) into the folder ``out``; ``work`` None only draws.

    Yields each name with the seconds it took, when it is done. Raises InputError for an unknown name, or for data that
    are missing or not of the figure.
    """
    chosen = tuple(available(out) if names is None else dict.fromkeys(names))
    for name in chosen:
        errors.choice("figure", name, tuple(FIGURES))
    if work is not None and any(FIGURES[name].models for name in chosen):
        for package in MODEL_PACKAGES:
            if find_spec(package) is None:
                raise errors.fail("figures", got=f"no {package}", expected="it installed (the extra lpverify[decode])")
    if find_spec("matplotlib") is None:
        raise errors.fail("figures", got="no matplotlib", expected="it installed (the extra lpverify[plot])")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    return _made(chosen, folder, work)


def _made(names: Sequence[str], folder: Path, work: Work | None) -> Iterator[tuple[str, float]]:
    for name in names:
        began = time.perf_counter()
        if work is not None and FIGURES[name].compute is not None:
            store(name, folder, work)
        draw(name, folder)
        yield name, time.perf_counter() - began


def store(name: str, folder: Path, work: Work) -> None:
    """Compute a figure's data and write them."""
    began = time.perf_counter()
    made_with = provenance(
        *PACKAGES, *(MODEL_PACKAGES if FIGURES[name].models else ())
    )  # before the work: a checkout may change meanwhile
    compute = FIGURES[name].compute
    assert compute is not None
    data = compute(work)
    document = {
        "schema": SCHEMA,
        "figure": name,
        "size": work.size,
        "seconds": round(time.perf_counter() - began, 3),
        "provenance": made_with,
        "data": data,
    }
    write_whole(folder / f"{name}.json", _lines(document).encode())


def stored(name: str, folder: Path) -> dict[str, Any]:
    """The document that `store` wrote."""
    path = folder / f"{name}.json"
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError as error:
        experiment = FIGURES[name].experiment
        first = "compute them" if experiment is None else f"python {experiment[0]}"
        raise errors.fail(str(path), got="no such file", expected=f"the figure's data; {first} first") from error
    except ValueError as error:
        raise errors.fail(str(path), got=f"no JSON ({error})", expected=f"a document {SCHEMA}") from error
    if not isinstance(document, dict) or (document.get("schema"), document.get("figure")) != (SCHEMA, name):
        raise errors.fail(str(path), got="another document", expected=f"a document {SCHEMA} of the figure {name}")
    return document


def draw(name: str, folder: Path) -> None:
    """Picture and caption from the stored data."""
    document = stored(name, folder)
    figure = FIGURES[name]
    drawn = figure.draw(document["data"])
    if figure.table:
        write_whole(folder / f"{name}.tex", drawn.encode())
    else:
        for kind in ("png", "svg"):
            write_whole(folder / f"{name}.{kind}", plots.render(drawn, kind))
    size = document["size"]
    note = "" if size == "full" else f"*Size {size}: fewer or smaller instances than the full figure.*\n\n"
    text = f"# {figure.title}\n\n{note}{figure.caption(document['data'])}\n{_origin(document)}\n"
    write_whole(folder / f"{name}.md", text.encode())


def _origin(document: Mapping[str, Any]) -> str:
    made = document["provenance"]
    git = made.get("git")
    at = "" if git is None else f", commit {git['commit'][:12]}" + (" with changes" if git.get("changed") else "")
    versions = ", ".join(
        f"{name} {made[name]}" for name in ("lpverify", "python", *PACKAGES, *MODEL_PACKAGES) if made.get(name)
    )
    experiment = FIGURES[document["figure"]].experiment
    command = f"lpverify figures --only {document['figure']}" + (" --quick" if document["size"] == "quick" else "")
    command += "".join(f" --prompts {name}" for name in _named_sets(document["data"]))
    command = command if experiment is None else f"python {experiment[0]}"
    took = f"{document['seconds']:.0f} s; " if experiment is None else ""
    how = f"`{command}` computes them again ({took}{versions}{at})"
    return f"Data: `{document['figure']}.json`; {how}."


def _named_sets(data: Data) -> list[str]:
    """The prompts that are not built in, as options: a public set by its name, any other as a file."""
    pairs = data.get("settings", {}).get("pairs", {}).values()
    labels = dict.fromkeys(name for of in pairs for name in of.get("sets", ()) if name not in BUILT_IN)
    return [name if name in SETS else f"{name}=FILE" for name in labels]


def _lines(document: Mapping[str, Any]) -> str:
    """JSON with one row of the data a line."""
    data = document["data"]
    if "rows" not in data:
        return json.dumps(document, indent=1, allow_nan=False) + "\n"
    text = json.dumps({**document, "data": {**data, "rows": "@"}}, indent=1, allow_nan=False)
    rows = ",\n".join("   " + json.dumps(row, allow_nan=False) for row in data["rows"])
    return text.replace('"@"', f"[\n{rows}\n  ]") + "\n"
