"""``lpverify advise``: which algorithm, K and L give the most tokens per second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpverify import errors
from lpverify.cli.advise_measure import Bench
from lpverify.cli.options import ModelOptions, flag, option
from lpverify.cli.output import OutputAndPlot, check_output, is_document, with_error, write_json
from lpverify.files import provenance

if TYPE_CHECKING:
    from rich.text import Text

    from lpverify.studies.throughput import Prediction

NEAR = (0.02, 0.05)  # shares by which a choice may be slower than the fastest one and is still named
MAX_NAMED = 6
IN_DOCUMENT = ("target", "draft", "temperature", "top_k", "top_p")  # their default is the setting of the document


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
    from lpverify.report import plots
    from lpverify.studies.cost_files import load_cells, load_costs, parse_costs, read_cells, same_content
    from lpverify.studies.throughput import predict, with_full_acceptance

    documents = documents or []
    inputs = models.files | {"--costs": costs} | {f"DOCUMENT {name}": name for name in documents}
    output.check("lpverify/advise@", inputs, **{"save-costs": save_costs})
    check_output("--save-costs", save_costs, is_document("lpverify/costs@"), stdout=False)
    explicit = {"--" + name.replace("_", "-"): getattr(models, name) for name in IN_DOCUMENT if name in models.explicit}
    for other, is_there, options in (
        ("--costs", costs is not None, {"--save-costs": save_costs}),
        ("DOCUMENT", bool(documents), {"--paths": paths, "--depth": depth}),
        ("DOCUMENT and --costs", costs is not None and bool(documents), explicit),
    ):
        for name, value in options.items():
            if is_there and value is not None:  # it would have no effect
                raise errors.fail(name, got=str(value), expected=f"no such option together with {other}")
    cells, settings = load_cells(documents) if documents else ([], {})
    if documents and algorithms is not None:
        chosen = errors.choices("--algorithms", algorithms, tuple(dict.fromkeys(cell.algorithm for cell in cells)))
        cells = [cell for cell in cells if cell.algorithm in chosen]
    seconds, priced = (None, {}) if costs is None else load_costs(costs)
    document: dict[str, Any] = {"schema": "lpverify/advise@1", "documents": documents, "costs": costs}
    document |= {"interpolate": interpolate, "settings": settings}
    if seconds is None or not documents:
        stored = {name: settings[name] for name in IN_DOCUMENT if settings.get(name) is not None}
        bench = Bench(replace(models, **{name: stored[name] for name in stored if name not in models.explicit}))
        if documents:
            same_content("the models", bench.settings, documents[0], settings)
        document["settings"] = settings | bench.settings
        if not documents:
            same_content("the models", bench.settings, str(costs), priced)
            counts = errors.integers("--paths", paths or "1,2,3,4", min=1)
            depths = errors.integers("--depth", depth or "2,4,6,8", min=1)
            document["efficiency"] = bench.runs(algorithms, counts, depths, tokens)
            cells, _ = read_cells([("measured", document["efficiency"])])
        if seconds is None:
            document["costs"] = bench.costs(cells, context, repeats)
            if save_costs is not None:
                write_json(save_costs, document["costs"])
            seconds = parse_costs(document["costs"], "measured costs")
    if costs is not None and documents:
        same_content(costs, priced, documents[0], settings)
    left_out: list[str] = []
    if algorithms is None:
        left_out = list(dict.fromkeys(cell.algorithm for cell in cells if cell.algorithm not in seconds.verify))
        cells = [cell for cell in cells if cell.algorithm in seconds.verify] or cells
    predictions = predict(seconds, with_full_acceptance(cells, interpolate=interpolate))
    alone = None if seconds.target_step is None else 1 / seconds.target_step
    document |= {"autoregressive_tokens_per_second": alone, **advice(predictions), "left_out": left_out}
    document["versions"] = dict(provenance("numpy", "scipy"))
    output.write_and_draw(document, lambda: _print(document), lambda: plots.throughput(document["cells"]))


def advice(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """The part of the document ``lpverify/advise@1`` that follows from the predictions."""
    from lpverify.studies.throughput import by_speed, within

    fastest: dict[str, Prediction] = {}
    for prediction in by_speed(predictions):
        fastest.setdefault(prediction.cell.algorithm, prediction)
    names = dict.fromkeys(prediction.cell.algorithm for prediction in predictions)
    near = {share: [p.cell.key for p in within(predictions, share)] for share in NEAR}
    return {
        "cells": [_plain(prediction) for prediction in predictions],
        "best": _plain(next(iter(fastest.values()))),
        "best_by_algorithm": {name: _plain(fastest[name]) for name in names},
        "near_best": [
            {"within": share, "cells": [dict(zip(("algorithm", "paths", "depth"), key, strict=True)) for key in keys]}
            for share, keys in near.items()
        ],
    }


def _plain(prediction: Prediction) -> dict[str, Any]:
    """A cell of the document."""
    cell, rate, se = prediction.cell, prediction.tokens_per_second, prediction.se
    plain = {"algorithm": cell.algorithm, "paths": cell.num_paths, "depth": cell.depth, "nodes": cell.nodes}
    plain |= {"interpolated": cell.interpolated, "block_efficiency": cell.block_efficiency}
    plain |= {"block_efficiency_se": cell.se, "all_accepted": cell.full}
    plain |= {"tokens_per_second": rate, "tokens_per_second_se": se, "speed_up": prediction.speed_up}
    return plain | {"round_seconds": prediction.round_seconds, "stage_seconds": dict(prediction.seconds)}


def _print(document: dict[str, Any]) -> None:
    from rich.text import Text

    from lpverify.report.tables import show, table

    best, by_key = document["best"], {(c["algorithm"], c["paths"], c["depth"]): c for c in document["cells"]}
    depths = sorted({depth for _, _, depth in by_key})
    rows: list[list[str | Text]] = []
    for name, own in document["best_by_algorithm"].items():
        for i, num_paths in enumerate(sorted({count for algorithm, count, _ in by_key if algorithm == name})):
            row: list[str | Text] = ["" if i else name, str(num_paths)]
            for depth in depths:
                cell = by_key.get((name, num_paths, depth))
                text = "" if cell is None else "~" * cell["interpolated"] + _rate(cell["tokens_per_second"])
                row.append(Text(text + (" *" if cell == best else ""), style="bold" if cell in (best, own) else ""))
            rows.append(row)
    between = "; ~ L between measured ones" if any(cell["interpolated"] for cell in document["cells"]) else ""
    errors_of = "; +- standard error of block efficiency alone" if best["tokens_per_second_se"] is not None else ""
    headings = ("algorithm", "K", *(f"L = {depth}" for depth in depths))
    show(table(headings, rows, right=tuple(range(1, len(headings))), title="Predicted tokens per second"))
    print(f"* the fastest; bold: the fastest of each algorithm{between}{errors_of}")
    rate = _rate(best["tokens_per_second"], best["tokens_per_second_se"])
    speed_up = "" if best["speed_up"] is None else f", {best['speed_up']:.2f} times the target alone"
    print(f"fastest: {_label(best)}: {rate} tokens per second{speed_up}")
    stages = ", ".join(f"{stage} {1e3 * seconds:.3g}" for stage, seconds in best["stage_seconds"].items())
    tokens = with_error(best["block_efficiency"], best["block_efficiency_se"], digits=2)
    print(f"  {tokens} tokens a round of {1e3 * best['round_seconds']:.3g} ms ({stages})")
    for near in document["near_best"]:
        _, *others = map(_label, near["cells"])
        more = f"; and {len(others) - MAX_NAMED} more" if len(others) > MAX_NAMED else ""
        print(f"  within {100 * near['within']:g} %: {'; '.join(others[:MAX_NAMED]) or 'nothing else'}{more}")
    if best["speed_up"] is None:
        print("  speed-up: not known, the costs have no target_step")
    if document["left_out"]:
        print(f"left out, as the costs do not have them: {', '.join(document['left_out'])}")


def _label(cell: dict[str, Any]) -> str:
    from lpverify.report.plots import SHOWN

    return f"{SHOWN.get(cell['algorithm'], cell['algorithm'])} K = {cell['paths']}, L = {cell['depth']}"


def _rate(value: float, error: float | None = None) -> str:
    """Three digits, or more if the number has more before the decimal point."""
    text = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return text if error is None else f"{text} +- {_rate(error)}"
