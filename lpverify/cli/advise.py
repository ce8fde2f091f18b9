"""``lpverify advise``: which algorithm, K and L give the most tokens per second."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpverify.cli.advise_measure import Bench
from lpverify.cli.model_options import ModelOptions
from lpverify.cli.options import flag, option
from lpverify.cli.output import OutputAndPlot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lpverify.studies.throughput import Costs, Prediction

NEAR = (0.02, 0.05)
"""Shares by which a choice may be slower than the fastest one and is still named."""

MAX_NAMED = 6

IN_DOCUMENT = ("target", "draft", "temperature", "top_k", "top_p")
"""Options whose default is the setting of the document."""


def run(
    *,
    documents: Annotated[
        list[str] | None,
        typer.Argument(metavar="DOCUMENT...", help="JSON of lpverify bound or decode; default: measure on --prompts."),
    ] = None,
    models: ModelOptions,
    costs: Annotated[
        str | None, option("FILE", "Seconds of each part of a round (lpverify/costs@1); default: measure them.")
    ] = None,
    algorithms: Annotated[
        str | None,
        option("A,B,...", "Default: all of DOCUMENT that have costs; without DOCUMENT bv, gbv, tgbv, pbv and ebv."),
    ] = None,
    paths: Annotated[str | None, option("K,K,...", "Without DOCUMENT; default: 1,2,3,4.", "--paths", "-k")] = None,
    depth: Annotated[str | None, option("L,L,...", "Without DOCUMENT; default: 2,4,6,8.", "--depth", "-l")] = None,
    tokens: Annotated[int, option("N", "Length of the texts on which block efficiency is measured.")] = 128,
    context: Annotated[int, option("N", "Measure seconds after a context of N tokens, prompt included.")] = 128,
    repeats: Annotated[int, option("N", "Take the median of the seconds in N contexts.")] = 5,
    interpolate: Annotated[
        bool, flag("--interpolate", "Also consider L between the measured ones (monotone cubic).")
    ] = False,
    save_costs: Annotated[str | None, option("FILE", "Write the measured costs to FILE.")] = None,
    output: OutputAndPlot,
) -> None:
    """Predict tokens per second over K and L, recommend, and say how flat the optimum is.

    A round takes the first draft step and L - 1 steps at batch K, one target pass over the distinct drafted nodes, the
    verification, and the update of both caches. The seconds of each come from a cost file, or are measured on the
    models. Block efficiency comes from DOCUMENT, or is measured in the rounds of whole runs on texts of the target
    (every algorithm with a closed form but token). A cost file can be written by hand, with seconds by K, by tokens in
    the pass, or (verify) by K and L:

    \b
    {"schema": "lpverify/costs@1",
     "draft_step": {"1": 0.004, "4": 0.005}, "target_pass": {"1": 0.03, "33": 0.04},
     "verify": {"bv": 0.0004, "pbv": {"1": 0.001, "4": {"4": 0.002, "8": 0.003}}},
     "round": 0.001, "target_step": 0.03}
    """
    from lpverify import errors
    from lpverify.cli.output import check_writable, write_json
    from lpverify.files import distinct
    from lpverify.report import plots
    from lpverify.studies.cost_files import load_cells, load_costs, parse_costs, read_cells
    from lpverify.studies.throughput import predict, with_full_acceptance

    documents = documents or []
    output.check()
    check_writable("--save-costs", save_costs, stdout=False)
    roles = {"--costs": costs, "--prompts": models.prompts, "--save-costs": save_costs}
    distinct(roles | {"--json": output.json, "--plot": output.plot}, inputs=documents)
    _refuse("--costs", costs is not None, {"--save-costs": save_costs})
    _refuse("DOCUMENT", bool(documents), {"--paths": paths, "--depth": depth})
    explicit = {"--" + name.replace("_", "-"): getattr(models, name) for name in IN_DOCUMENT if name in models.explicit}
    _refuse("DOCUMENT and --costs", costs is not None and bool(documents), explicit)
    cells, settings = load_cells(documents) if documents else ([], {})
    if documents and algorithms is not None:
        chosen = errors.choices("--algorithms", algorithms, tuple(dict.fromkeys(cell.algorithm for cell in cells)))
        cells = [cell for cell in cells if cell.algorithm in chosen]
    seconds = None if costs is None else load_costs(costs)
    result: dict[str, Any] = {"documents": documents, "costs": costs, "interpolate": interpolate, "settings": settings}
    if seconds is None or not documents:
        stored = {name: settings[name] for name in IN_DOCUMENT if settings.get(name) is not None}
        bench = Bench.open(replace(models, **{name: stored[name] for name in stored if name not in models.explicit}))
        result["settings"] = settings | bench.settings
        if not documents:
            counts = errors.integers("--paths", paths or "1,2,3,4", min=1)
            depths = errors.integers("--depth", depth or "2,4,6,8", min=1)
            result["efficiency"] = bench.runs(algorithms, counts, depths, tokens)
            cells, _ = read_cells([("measured", result["efficiency"])])
        if seconds is None:
            result["costs"] = bench.costs(cells, context, repeats)
            if save_costs is not None:
                write_json(save_costs, result["costs"])
            seconds = parse_costs(result["costs"], "measured costs")
    left_out: list[str] = []
    if algorithms is None:
        left_out = list(dict.fromkeys(cell.algorithm for cell in cells if cell.algorithm not in seconds.verify))
        cells = [cell for cell in cells if cell.algorithm in seconds.verify] or cells
    predictions = predict(seconds, with_full_acceptance(cells, interpolate=interpolate))
    result = to_json(predictions, seconds, left_out, result)
    output.write(result, lambda: _print(predictions, seconds, left_out))
    output.draw(lambda: plots.throughput(result["cells"]))


def _refuse(other: str, is_there: bool, options: dict[str, Any]) -> None:
    """Raise InputError for an option that would have no effect beside ``other``."""
    from lpverify import errors

    for name, value in options.items():
        if is_there and value is not None:
            raise errors.fail(name, got=str(value), expected=f"no such option together with {other}")


def to_json(
    predictions: Sequence[Prediction], costs: Costs, left_out: Sequence[str], result: dict[str, Any]
) -> dict[str, Any]:
    """The document ``lpverify/advise@1``; ``result`` says what the predictions were computed from."""
    from lpverify.files import provenance
    from lpverify.studies.throughput import fastest, within

    by_algorithm: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        by_algorithm.setdefault(prediction.cell.algorithm, []).append(prediction)
    near = {share: [p.cell.key for p in within(predictions, share)] for share in NEAR}
    return {
        "schema": "lpverify/advise@1",
        **result,
        "autoregressive_tokens_per_second": None if costs.target_step is None else 1 / costs.target_step,
        "cells": [_plain(prediction) for prediction in predictions],
        "best": _plain(fastest(predictions)),
        "best_by_algorithm": {name: _plain(fastest(group)) for name, group in by_algorithm.items()},
        "near_best": [
            {"within": share, "cells": [dict(zip(("algorithm", "paths", "depth"), key, strict=True)) for key in keys]}
            for share, keys in near.items()
        ],
        "left_out": list(left_out),
        "versions": dict(provenance("numpy", "scipy")),
    }


def _plain(prediction: Prediction) -> dict[str, Any]:
    """A cell of the document."""
    cell = prediction.cell
    return {
        "algorithm": cell.algorithm,
        "paths": cell.num_paths,
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


def _print(predictions: Sequence[Prediction], costs: Costs, left_out: Sequence[str]) -> None:
    from rich.text import Text

    from lpverify.report.tables import show, table
    from lpverify.studies.throughput import fastest, within

    best = fastest(predictions)
    by_key = {prediction.cell.key: prediction for prediction in predictions}
    depths = sorted({depth for _, _, depth in by_key})
    rows: list[list[str | Text]] = []
    for name in dict.fromkeys(algorithm for algorithm, _, _ in by_key):
        own = fastest([prediction for prediction in predictions if prediction.cell.algorithm == name])
        for i, num_paths in enumerate(sorted({count for algorithm, count, _ in by_key if algorithm == name})):
            row: list[str | Text] = ["" if i else name, str(num_paths)]
            for depth in depths:
                p = by_key.get((name, num_paths, depth))
                text = "" if p is None else ("~" if p.cell.interpolated else "") + _rate(p.tokens_per_second)
                row.append(Text(text + (" *" if p is best else ""), style="bold" if p in (best, own) else ""))
            rows.append(row)
    caption = "* the fastest; bold: the fastest of each algorithm"
    if any(prediction.cell.interpolated for prediction in predictions):
        caption += "; ~ L between measured ones"
    if best.se is not None:
        caption += "; +- standard error of block efficiency alone"
    headings = ("algorithm", "K", *(f"L = {depth}" for depth in depths))
    show(table(headings, rows, right=tuple(range(1, len(headings))), title="Predicted tokens per second"))
    print(caption)
    cell = best.cell
    error = "" if best.se is None else f" +- {_rate(best.se)}"
    print(f"fastest: {_label(best)}: {_rate(best.tokens_per_second)}{error} tokens per second", end="")
    print("" if best.speed_up is None else f", {best.speed_up:.2f} times the target alone")
    stages = ", ".join(f"{stage} {1e3 * seconds:.3g}" for stage, seconds in best.seconds.items())
    error = "" if cell.se is None else f" +- {cell.se:.2f}"
    print(f"  {cell.block_efficiency:.2f}{error} tokens a round of {1e3 * best.round_seconds:.3g} ms ({stages})")
    for share in NEAR:
        near = within(predictions, share)[1:]
        labels = "; ".join(map(_label, near[:MAX_NAMED]))
        more = f"; and {len(near) - MAX_NAMED} more" if len(near) > MAX_NAMED else ""
        print(f"  within {100 * share:g} %: {labels or 'nothing else'}{more}")
    if costs.target_step is None:
        print("  speed-up: not known, the costs have no target_step")
    if left_out:
        print(f"left out, as the costs do not have them: {', '.join(left_out)}")


def _label(prediction: Prediction) -> str:
    from lpverify.report.plots import SHOWN

    cell = prediction.cell
    return f"{SHOWN.get(cell.algorithm, cell.algorithm)} K = {cell.num_paths}, L = {cell.depth}"


def _rate(value: float) -> str:
    """Three digits, or more if the number has more before the decimal point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
