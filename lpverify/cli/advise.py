"""``lpverify advise``: which algorithm, K and L give the most tokens per second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpverify.cli._parse import integer, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lpverify.exact.throughput import Cell, Costs, Prediction

NEAR = (0.02, 0.05)
"""Shares by which cells may be slower than the fastest and still be named."""

MOST_NAMED = 6


def run(
    documents: Annotated[
        list[str],
        typer.Argument(metavar="DOCUMENT...", help="JSON of lpverify bound, or of lpverify decode (several)."),
    ],
    costs: Annotated[
        str | None, typer.Option(metavar="FILE", help="Seconds by part (lpverify/costs@1); default: measure them.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="M", help="Measure this target; default: that of DOCUMENT.")
    ] = None,
    draft: Annotated[str | None, typer.Option(metavar="M", help="The draft model, likewise.")] = None,
    algorithms: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Only these; default: all of DOCUMENT that have costs.")
    ] = None,
    interpolate: Annotated[
        bool, typer.Option("--interpolate", help="Also consider L between the measured ones (monotone cubic).")
    ] = False,
    prompts: Annotated[
        str, typer.Option(metavar="FILE|TEXT", help="Measure after these prompts; as in lpverify decode.")
    ] = "def main():",
    context: Annotated[
        int, typer.Option(metavar="N", parser=integer, help="Measure after N tokens, prompt included.")
    ] = 128,
    repeats: Annotated[int, typer.Option(metavar="N", parser=integer, help="Contexts to take the median of.")] = 5,
    temperature: Annotated[
        float | None, typer.Option(metavar="T", parser=number, help="Measure at this; default: that of DOCUMENT.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Wrap prompts in the chat template.")] = False,
    device: Annotated[str, typer.Option(metavar="D", help="cpu, cuda, cuda:1, ...")] = "auto",
    device_map: Annotated[str | None, typer.Option(metavar="MAP", help="auto: spread the models (accelerate).")] = None,
    dtype: Annotated[str, typer.Option(metavar="T", help="auto, float32, bfloat16 or float16.")] = "auto",
    save_costs: Annotated[str | None, typer.Option(metavar="FILE", help="Keep the measured costs.")] = None,
    json: Annotated[str | None, typer.Option(metavar="FILE|-", help="Write JSON to a file, or - for stdout.")] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Heat maps as .png, .svg or .pdf.")] = None,
) -> None:
    """Predict tokens per second over K and L, recommend, and say how flat the optimum is.

    Block efficiency comes from DOCUMENT, seconds from a cost file or from the pair itself. One round takes the first
    draft step and L - 1 steps at batch K, one target pass over the distinct drafted nodes, verification, and keeping
    the caches.
    """
    from lpverify import _check
    from lpverify.cli._output import STDOUT, check_plot, check_writable, write_json
    from lpverify.exact import throughput
    from lpverify.exact.throughput_files import load_cells, load_costs, parse_costs

    check_writable("--json", json)
    kind = check_plot(plot, json)
    measured = {"--target": target, "--draft": draft, "--temperature": temperature, "--save-costs": save_costs}
    for option, value in measured.items():
        if costs is not None and value is not None:
            raise _check.fail(option, got=value, expected="nothing, as --costs is given and nothing is measured")
    if save_costs == STDOUT:
        raise _check.fail("--save-costs", got="-", expected="a file name")
    check_writable("--save-costs", save_costs)
    cells, settings = load_cells(documents)
    cells = _chosen(cells, algorithms)
    left_out: list[str] = []
    document: dict[str, Any] | None = None
    if costs is not None:
        seconds = load_costs(costs)
        if algorithms is None:
            left_out += list(dict.fromkeys(cell.algorithm for cell in cells if cell.algorithm not in seconds.verify))
            cells = [cell for cell in cells if cell.algorithm in seconds.verify] or cells
    else:
        models = target or settings.get("target"), draft or settings.get("draft")
        hot = settings.get("temperature") if temperature is None else temperature
        document = _measure(
            cells,
            models,
            (hot, settings.get("top_k"), settings.get("top_p")),
            prompts=prompts,
            context=context,
            repeats=repeats,
            chat=chat,
            options={"device": device, "device_map": device_map, "dtype": dtype},
        )
        if save_costs is not None:
            write_json(save_costs, document)
        seconds = parse_costs(document, "measured costs")
    found = throughput.predict(seconds, throughput.with_full_acceptance(cells, interpolate=interpolate))
    if plot is not None:
        assert kind is not None
        _draw(found, plot, kind)
    if json is not None:
        more: dict[str, Any] = {"documents": documents, "interpolate": interpolate, "bound": settings}
        more |= {"costs": costs if document is None else document}
        write_json(json, to_json(found, seconds, left_out, more))
    if json != STDOUT:
        _print(found, seconds, left_out)


def _chosen(cells: Sequence[Cell], algorithms: str | None) -> list[Cell]:
    """The cells of the wanted algorithms. Raises InputError for one that was not measured."""
    from lpverify import _check

    if algorithms is None:
        return list(cells)
    known = tuple(dict.fromkeys(cell.algorithm for cell in cells))
    names = {_check.choice("--algorithms", name.strip(), known) for name in algorithms.split(",")}
    return [cell for cell in cells if cell.algorithm in names]


def _measure(
    cells: Sequence[Cell],
    models: tuple[Any, Any],
    sampling: tuple[Any, Any, Any],
    *,
    prompts: str,
    context: int,
    repeats: int,
    chat: bool,
    options: dict[str, Any],
) -> dict[str, Any]:
    """The costs of all that ``cells`` need, on the pair itself."""
    from importlib.util import find_spec

    from lpverify import _check

    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            expected = "it installed (the extra lpverify[decode]), or --costs FILE"
            raise _check.fail("advise", got=f"no {package}", expected=expected)
    for option, name in zip(("--target", "--draft"), models, strict=True):
        if not isinstance(name, str):
            raise _check.fail(option, got="no model", expected="one, or a DOCUMENT that names it, or --costs FILE")
    from lpverify.cli._progress import time_left
    from lpverify.decode import costs
    from lpverify.decode.prompts import load_prompts
    from lpverify.decode.sampling import Sampling
    from lpverify.decode.session import open_pair

    temperature, top_k, top_p = sampling
    law = Sampling(1.0 if temperature is None else temperature, top_k, top_p)
    _check.integer("--context", context, least=1)
    _check.integer("--repeats", repeats, least=1)
    loaded = load_prompts(prompts, repeats)
    names = list(dict.fromkeys(cell.algorithm for cell in cells))
    paths, depths = {cell.paths for cell in cells}, {cell.depth for cell in cells}
    pair = open_pair(*models, **options)
    with time_left() as progress:
        bar = progress.add_task("measuring", total=2 * repeats + 1)

        def advance() -> None:
            progress.advance(bar)

        requests = [(tuple(pair.tokenizer.encode(prompt.text, chat=chat)), prompt.key) for prompt in loaded]
        contexts = costs.contexts(pair.models, requests, repeats, context, max(depths), law, advance=advance)
        document = costs.measure(pair.models, contexts, names, paths, depths, law, advance=advance)
    described = {"target": models[0], "draft": models[1], "context": context, "repeats": repeats, "chat": chat}
    described |= {"temperature": law.temperature, "top_k": law.top_k, "top_p": law.top_p}
    described |= {"dtype": pair.dtype, "device": str(pair.models.target.device)}
    return document | {"settings": described}


def to_json(
    found: Sequence[Prediction], costs: Costs, left_out: Sequence[str], settings: dict[str, Any]
) -> dict[str, Any]:
    """The document ``lpverify/advise@1``."""
    from lpverify._provenance import provenance
    from lpverify.exact.throughput import fastest, within

    by_algorithm: dict[str, list[Prediction]] = {}
    for prediction in found:
        by_algorithm.setdefault(prediction.cell.algorithm, []).append(prediction)
    return {
        "schema": "lpverify/advise@1",
        "settings": settings,
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


def _draw(found: Sequence[Prediction], path: str, kind: str) -> None:
    from lpverify._write import write_whole
    from lpverify.report import plots, plots_advice

    write_whole(path, plots.render(plots_advice.surface([_plain(prediction) for prediction in found]), kind))


def _print(found: Sequence[Prediction], costs: Costs, left_out: Sequence[str]) -> None:
    from rich.text import Text

    from lpverify.exact.throughput import fastest, within
    from lpverify.report.tables import show, table

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
