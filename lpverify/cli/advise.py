"""``lpverify advise``: which algorithm, K and L give the most tokens per second."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpverify.cli import advise_measure as measuring
from lpverify.cli.model_options import ModelOptions
from lpverify.cli.options import integer
from lpverify.cli.output import OutputAndPlot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lpverify.studies.throughput import Cell, Costs, Prediction

NEAR = (0.02, 0.05)
"""Shares by which cells may be slower than the fastest and still be named."""

MOST_NAMED = 6

IN_DOCUMENT = ("target", "draft", "temperature", "top_k", "top_p")
"""Options whose default is what the document was made with."""


def run(
    *,
    documents: Annotated[
        list[str] | None,
        typer.Argument(metavar="DOCUMENT...", help="JSON of lpverify bound or decode; default: measure on --prompts."),
    ] = None,
    models: ModelOptions,
    costs: Annotated[
        str | None, typer.Option(metavar="FILE", help="Seconds by part (lpverify/costs@1); default: measure them.")
    ] = None,
    algorithms: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Default: all of DOCUMENT that have costs, else bv, gbv, tgbv and pbv."),
    ] = None,
    paths: Annotated[
        str | None, typer.Option("--paths", "-k", metavar="K,K,...", help="Without DOCUMENT; default: 1,2,3,4.")
    ] = None,
    depth: Annotated[
        str | None, typer.Option("--depth", "-l", metavar="L,L,...", help="Without DOCUMENT; default: 2,4,6,8.")
    ] = None,
    tokens: Annotated[
        int, typer.Option(metavar="N", parser=integer, help="Length of the texts that are measured on.")
    ] = 128,
    context: Annotated[
        int, typer.Option(metavar="N", parser=integer, help="Seconds after N tokens, prompt included.")
    ] = 128,
    repeats: Annotated[int, typer.Option(metavar="N", parser=integer, help="Seconds: the median of N contexts.")] = 5,
    interpolate: Annotated[
        bool, typer.Option("--interpolate", help="Also consider L between the measured ones (monotone cubic).")
    ] = False,
    save_costs: Annotated[str | None, typer.Option(metavar="FILE", help="Keep the measured costs.")] = None,
    output: OutputAndPlot,
) -> None:
    """Predict tokens per second over K and L, recommend, and say how flat the optimum is.

    A round takes the first draft step and L - 1 steps at batch K, one target pass over the distinct drafted nodes,
    verification, and keeping the caches; the seconds of each come from a cost file or from the pair itself. Block
    efficiency comes from DOCUMENT, or from the rounds of whole runs on texts of the target (token, bv, gbv, tgbv, pbv).
    A cost file may be written by hand; seconds by K, by tokens in the pass, or (verify) by K and L:

    \b
    {"schema": "lpverify/costs@1",
     "draft_step": {"1": 0.004, "4": 0.005}, "target_pass": {"1": 0.03, "33": 0.04},
     "verify": {"bv": 0.0004, "pbv": {"1": 0.001, "4": {"4": 0.002, "8": 0.003}}},
     "round": 0.001, "target_step": 0.03}
    """
    from lpverify import errors
    from lpverify.cli.output import check_writable, write_json
    from lpverify.report import plots
    from lpverify.studies import throughput
    from lpverify.studies.cost_files import load_cells, load_costs, parse_costs, read_cells

    output.check()
    check_writable("--save-costs", save_costs, stdout=False)
    names = None if algorithms is None else [name.strip() for name in algorithms.split(",") if name.strip()]
    files = documents or []
    _refuse("--costs", costs is not None, {"--save-costs": save_costs})
    _refuse("DOCUMENT", bool(files), {"--paths": paths, "--depth": depth})
    everything = costs is not None and bool(files)
    typed = {"--" + name.replace("_", "-"): getattr(models, name) for name in IN_DOCUMENT if name in models.explicit}
    _refuse("DOCUMENT and --costs", everything, typed)
    cells, settings = load_cells(files) if files else ([], {})
    cells = _chosen(cells, names) if files else cells
    left_out: list[str] = []
    seconds = None if costs is None else load_costs(costs)
    made: dict[str, Any] = {"documents": files, "costs": costs, "interpolate": interpolate, "settings": settings}
    if not everything:
        unset = [name for name in IN_DOCUMENT if name not in models.explicit]
        stored = {name: settings[name] for name in unset if settings.get(name) is not None}
        bench = measuring.Bench.open(replace(models, **stored))
        made["settings"] = made["settings"] | bench.settings
        if not files:
            shapes = (
                errors.integers("--paths", paths or "1,2,3,4", min=1),
                errors.integers("--depth", depth or "2,4,6,8", min=1),
            )
            made["efficiency"] = bench.runs(names, *shapes, tokens)
            cells, _ = read_cells([("measured", made["efficiency"])])
        if seconds is None:
            made["costs"] = bench.costs(cells, context, repeats)
            if save_costs is not None:
                write_json(save_costs, made["costs"])
            seconds = parse_costs(made["costs"], "measured costs")
    assert seconds is not None
    if names is None:
        left_out += dict.fromkeys(cell.algorithm for cell in cells if cell.algorithm not in seconds.verify)
        cells = [cell for cell in cells if cell.algorithm in seconds.verify] or cells
    found = throughput.predict(seconds, throughput.with_full_acceptance(cells, interpolate=interpolate))
    output.draw(lambda: plots.throughput([_plain(prediction) for prediction in found]))
    output.write(to_json(found, seconds, left_out, made), lambda: _print(found, costs=seconds, left_out=left_out))


def _refuse(given: str, is_given: bool, options: dict[str, Any]) -> None:
    """Raise InputError for an option that would have no effect."""
    from lpverify import errors

    for option, value in options.items():
        if is_given and value is not None:
            raise errors.fail(option, got=value, expected=f"nothing, as {given} was given")


def _chosen(cells: Sequence[Cell], names: Sequence[str] | None) -> list[Cell]:
    """The cells of the wanted algorithms. Raises InputError for one that was not measured."""
    from lpverify import errors

    known = tuple(dict.fromkeys(cell.algorithm for cell in cells))
    wanted = known if names is None else [errors.choice("--algorithms", name, known) for name in names]
    return [cell for cell in cells if cell.algorithm in wanted]


def to_json(found: Sequence[Prediction], costs: Costs, left_out: Sequence[str], made: dict[str, Any]) -> dict[str, Any]:
    """The document ``lpverify/advise@1``."""
    from lpverify.files import provenance
    from lpverify.studies.throughput import fastest, within

    by_algorithm: dict[str, list[Prediction]] = {}
    for prediction in found:
        by_algorithm.setdefault(prediction.cell.algorithm, []).append(prediction)
    return {
        "schema": "lpverify/advise@1",
        **made,
        "autoregressive_tokens_per_second": None if costs.target_step is None else 1 / costs.target_step,
        "cells": [_plain(prediction) for prediction in found],
        "best": _plain(fastest(found)),
        "best_by_algorithm": {name: _plain(fastest(group)) for name, group in by_algorithm.items()},
        "near_best": [
            {
                "within": share,
                "cells": [
                    {"algorithm": p.cell.algorithm, "paths": p.cell.paths, "depth": p.cell.depth}
                    for p in within(found, share)
                ],
            }
            for share in NEAR
        ],
        "left_out": list(left_out),
        "versions": dict(provenance("numpy", "scipy")),
    }


def _plain(prediction: Prediction) -> dict[str, Any]:
    cell = prediction.cell
    return {
        "algorithm": cell.algorithm,
        "paths": cell.paths,
        "depth": cell.depth,
        "nodes": cell.nodes,
        "interpolated": cell.interpolated,
        "block_efficiency": cell.block_efficiency,
        "block_efficiency_se": cell.se,
        "all_accepted": cell.full,
        "tokens_per_second": prediction.tokens_per_second,
        "tokens_per_second_se": prediction.se,
        "speed_up": prediction.speed_up,
        "round_seconds": prediction.round_seconds,
        "stage_seconds": dict(prediction.seconds),
    }


def _print(found: Sequence[Prediction], costs: Costs, left_out: Sequence[str]) -> None:
    from rich.text import Text

    from lpverify.report.tables import show, table
    from lpverify.studies.throughput import fastest, within

    best = fastest(found)
    by_place = {(p.cell.algorithm, p.cell.paths, p.cell.depth): p for p in found}
    depths = sorted({p.cell.depth for p in found})
    rows: list[list[str | Text]] = []
    for name in dict.fromkeys(p.cell.algorithm for p in found):
        own = fastest([p for p in found if p.cell.algorithm == name])
        for paths in sorted({p.cell.paths for p in found if p.cell.algorithm == name}):
            row: list[str | Text] = ["" if rows and any(r[0] == name for r in rows) else name, str(paths)]
            for depth in depths:
                p = by_place.get((name, paths, depth))
                text = "" if p is None else ("~" if p.cell.interpolated else "") + _rate(p.tokens_per_second)
                row.append(Text(text + (" *" if p is best else ""), style="bold" if p in (best, own) else ""))
            rows.append(row)
    caption = "* the fastest; bold: the fastest of each algorithm"
    if any(p.cell.interpolated for p in found):
        caption += "; ~ L between measured ones"
    if best.se is not None:
        caption += "; +- standard error of block efficiency alone"
    headings = ("algorithm", "K", *(f"L = {depth}" for depth in depths))
    right = tuple(range(1, len(headings)))
    show(table(headings, rows, right=right, title="Predicted tokens per second"))
    print(caption)
    cell = best.cell
    error = "" if best.se is None else f" +- {_rate(best.se)}"
    print(f"fastest: {_place(best)}: {_rate(best.tokens_per_second)}{error} tokens per second", end="")
    print("" if best.speed_up is None else f", {best.speed_up:.2f} times the target alone")
    stages = ", ".join(f"{stage} {1e3 * seconds:.3g}" for stage, seconds in best.seconds.items())
    error = "" if cell.se is None else f" +- {cell.se:.2f}"
    print(f"  {cell.block_efficiency:.2f}{error} tokens a round of {1e3 * best.round_seconds:.3g} ms ({stages})")
    for share in NEAR:
        near = within(found, share)[1:]
        names = "; ".join(f"{_place(p)}" for p in near[:MOST_NAMED])
        more = f"; and {len(near) - MOST_NAMED} more" if len(near) > MOST_NAMED else ""
        print(f"  within {100 * share:g} %: {names or 'nothing else'}{more}")
    if costs.target_step is None:
        print("  speed-up: not known, the costs have no target_step")
    if left_out:
        print(f"left out, as the costs do not have them: {', '.join(left_out)}")


def _place(prediction: Prediction) -> str:
    from lpverify.report.plots import SHOWN

    cell = prediction.cell
    return f"{SHOWN.get(cell.algorithm, cell.algorithm)} K = {cell.paths}, L = {cell.depth}"


def _rate(value: float) -> str:
    """Three digits, more for numbers that have more before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
