"""Predicted against measured tokens per second, on one pair.

    python experiments/advise_check.py --pair tiny --records tiny.jsonl      measure (a rerun goes on), store, print
    python experiments/advise_check.py --pair smollm2 --chat --prompts gsm8k.jsonl --new-tokens 48 --records s.jsonl
    python experiments/advise_check.py --print                               print the tables of the stored data

For each prompt, one after the other so that a slow spell of the machine meets all three alike:

1. block efficiency of every algorithm, K and L, twice: of whole runs (`lpverify advise` without a document), and as the
   mean over evenly spread contexts (`lpverify bound`), which is not quite what a decoder sees (`decode.renewal`);
2. seconds of the parts of a round after one context (`lpverify advise`);
3. decoding with every algorithm at every K and L: tokens per second as measured.

From 1 and 2 tokens per second are predicted as ``lpverify advise`` does it; 3 is only compared with. What is stored are
rows with both, and the (K, L) that would have been recommended beside the one that was fastest. With ``--cpu-time`` all
seconds are the process's own (run it with one thread), for a machine that others use at the same time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from experiments.figures.real_prompts import CODE
from lpverify.decode import engine, metrics
from lpverify.decode.metrics import STAGES, Generation, ratio, summarize
from lpverify.decode.prompts import Prompt, keyed, load_prompts
from lpverify.decode.sampling import Sampling
from lpverify.files import JsonLines, provenance, write_whole
from lpverify.studies import bound, costs
from lpverify.studies import rounds as renewal
from lpverify.studies.cost_files import parse_costs, read_cells
from lpverify.studies.session import OpenPair, open_pair
from lpverify.studies.throughput import Prediction, predict, with_full_acceptance
from lpverify.verifiers import verifier

DATA = Path(__file__).parent.parent / "paper_figs" / "advise.json"
SCHEMA = "lpverify/advise-record@1"
Line = dict[str, Any]


def run_settings(pair: OpenPair, options: argparse.Namespace) -> renewal.RunSettings:
    """Of the predicted runs: as long as the decoded ones, other texts."""
    stride = max(options.new_tokens // options.contexts, 1)
    shape = (tuple(options.paths), tuple(options.depths), options.new_tokens, stride)
    return renewal.RunSettings(*shape, Sampling(options.temperature), 1, pair.tokenizer.eos)


def measure_prompt(pair: OpenPair, prompt: Prompt, number: int, options: argparse.Namespace) -> Line:
    """All three parts on one prompt."""
    sampling = Sampling(options.temperature)
    [request] = pair.requests([prompt], chat=options.chat)
    names = options.algorithms
    checked = {name: verifier(name) for name in names}
    whole = run_settings(pair, options)
    shape = (whole.num_paths, whole.depths, options.contexts, whole.stride, sampling, whole.seed, whole.eos)
    found = bound.measure(pair.models, checked, request, bound.BoundSettings(*shape))
    runs = renewal.measure(pair.models, checked, request, whole)
    length = len(request.tokens) + options.new_tokens // 2
    context = costs.typical_contexts(pair.models, [request], 1, length, max(options.depths), sampling)
    parts = costs.measure(pair.models, context, names, options.paths, options.depths, sampling)
    decoded = []
    grid = [(name, k, n) for name in names for k in paths_of(name, options.paths) for n in options.depths]
    shift = number * 5 % len(grid)
    for name, paths, depth in (*grid[shift:], *grid[:shift]):
        settings = engine.Settings(paths, depth, sampling, options.new_tokens, 0, pair.tokenizer.eos)
        run = engine.generate(pair.models, checked[name], request, settings)
        decoded.append({"paths": paths, "depth": depth, **run.to_json()})
    return {"request": prompt.key, "bound": asdict(found), "runs": asdict(runs), "costs": parts, "decoded": decoded}


def paths_of(name: str, paths: Sequence[int]) -> list[int]:
    """The K that an algorithm is decoded with."""
    return [1] if verifier(name).first_path_only else list(paths)


def rows_of(
    lines: Sequence[Line], whole: renewal.RunSettings, settings: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Predicted and measured, one row a cell, and the costs that the prediction is made with."""
    seconds = middle([{key: value for key, value in line["costs"].items() if key != "versions"} for line in lines])
    priced = parse_costs(seconds, "costs")
    places = bound.summarize([bound.PromptBound.from_json(line["bound"]) for line in lines])
    documents = (
        renewal.summarize([renewal.PromptRuns.from_json(line["runs"]) for line in lines], whole),
        {"schema": "lpverify/bound@1", "cells": places},
    )
    of_runs, of_places = (
        predict(priced, with_full_acceptance(read_cells([("measured", document | {"settings": settings})])[0]))
        for document in documents
    )
    by_place = {(p.cell.algorithm, p.cell.paths, p.cell.depth): p for p in of_places}
    return [row(p, by_place[p.cell.algorithm, p.cell.paths, p.cell.depth], lines) for p in of_runs], seconds


def middle(documents: Sequence[Any]) -> Any:
    """The median of every number of documents of the same shape."""
    if isinstance(documents[0], dict):
        return {key: middle([document[key] for document in documents]) for key in documents[0]}
    return documents[0] if isinstance(documents[0], str) else median(documents)


def row(prediction: Prediction, from_places: Prediction, lines: Sequence[Line]) -> dict[str, Any]:
    """One cell: of whole runs, of evenly spread contexts, and as decoded."""
    cell = prediction.cell
    key = (cell.algorithm, cell.paths, cell.depth)
    runs = [
        Generation.from_json(run)
        for line in lines
        for run in line["decoded"]
        if (run["algorithm"], run["paths"], run["depth"]) == key
    ]
    stats = summarize(runs)
    speed, error = ratio(
        [sum(record.committed for record in run.rounds) for run in runs],
        [sum(run.seconds[stage] for stage in STAGES) for run in runs],
    )
    return {
        "algorithm": cell.algorithm,
        "paths": cell.paths,
        "depth": cell.depth,
        "predicted": prediction.tokens_per_second,
        "predicted_se": prediction.se,
        "measured": speed,
        "measured_se": error,
        "relative_error": prediction.tokens_per_second / speed - 1,
        "predicted_from_places": from_places.tokens_per_second,
        "block_efficiency": {
            "predicted": cell.block_efficiency,
            "predicted_se": cell.se,
            "places": from_places.cell.block_efficiency,
            "places_se": from_places.cell.se,
            "measured": stats.rao_blackwell,
            "measured_se": stats.rao_blackwell_se,
        },
        "all_accepted": {"predicted": cell.full, "measured": stats.accepted_histogram[-1] / stats.rounds},
        "nodes": {"predicted": cell.nodes, "measured": stats.nodes_per_round},
        "round_seconds": {
            "predicted": dict(prediction.seconds),
            "measured": {stage: stats.stage_seconds[stage] / stats.rounds for stage in STAGES},
        },
    }


def recommended(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each algorithm and for all: the predicted best, the measured best, and what following the advice costs."""
    groups = {
        name: [row for row in rows if row["algorithm"] == name] for name in dict.fromkeys(r["algorithm"] for r in rows)
    }
    found = []
    for name, group in {**groups, "all": list(rows)}.items():
        advised = max(group, key=lambda row: row["predicted"])
        best = max(group, key=lambda row: row["measured"])
        found.append({
            "among": name,
            "predicted_best": [advised["algorithm"], advised["paths"], advised["depth"]],
            "measured_best": [best["algorithm"], best["paths"], best["depth"]],
            "measured_at_predicted": advised["measured"],
            "measured_at_best": best["measured"],
            "loss": 1 - advised["measured"] / best["measured"],
        })  # fmt: skip
    return found


def tables(pair: dict[str, Any]) -> str:
    """Markdown."""
    lines = [f"### {pair['pair']}, {pair['prompts']} prompts of {pair['settings']['new_tokens']} new tokens", ""]
    lines += ["| | K | L | predicted, /s | measured, /s | error | tokens a round, predicted | contexts | measured "
              "| ms a round, predicted | measured |", "|---|" + "---:|" * 10]  # fmt: skip
    for row in pair["rows"]:
        value, seconds = row["block_efficiency"], row["round_seconds"]
        sums = [1e3 * sum(seconds[side].values()) for side in ("predicted", "measured")]
        lines.append(
            f"| {row['algorithm']} | {row['paths']} | {row['depth']} | {row['predicted']:.1f} | {row['measured']:.1f} "
            f"| {100 * row['relative_error']:+.0f} % | {value['predicted']:.2f} | {value['places']:.2f} "
            f"| {value['measured']:.2f} "
            f"| {sums[0]:.1f} | {sums[1]:.1f} |"
        )
    lines += ["", "| among | predicted best | measured best | lost by the advice |", "|---|---|---|---:|"]
    for entry in pair["recommended"]:
        places = ["{} K = {}, L = {}".format(*entry[key]) for key in ("predicted_best", "measured_best")]
        lines.append(f"| {entry['among']} | {places[0]} | {places[1]} | {100 * entry['loss']:.1f} % |")
    for side in ("predicted", "places"):
        ratios = [row["block_efficiency"][side] / row["block_efficiency"]["measured"] for row in pair["rows"]]
        name = {"predicted": "whole runs", "places": "spread contexts"}[side]
        lines += ["", f"Tokens a round from {name}: {100 * (sum(ratios) / len(ratios) - 1):+.1f} % on average."]
    errors = sorted(abs(row["relative_error"]) for row in pair["rows"])
    lines += ["", f"Median error of prediction {100 * median(errors):.1f} %, largest {100 * errors[-1]:.1f} %."]
    return "\n".join(lines)


def store(path: Path, pair: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Put one pair's data into the figure's document, beside those of other pairs."""
    pairs = json.loads(path.read_text())["data"]["pairs"] if path.exists() else []
    pairs = sorted(
        [*(old for old in pairs if old["pair"] != pair["pair"]), pair], key=lambda each: each["pair"] != "tiny"
    )
    document = {
        "schema": "lpverify/figure@1",
        "figure": "advise",
        "size": "full",
        "seconds": round(seconds, 3),
        "provenance": dict(provenance("numpy", "scipy", "torch", "transformers")),
        "data": {"pairs": pairs},
    }
    write_whole(path, (json.dumps(document, indent=1) + "\n").encode())
    return document


def integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", default="tiny")
    parser.add_argument("--prompts", help=".jsonl file or public set; default: code that is built in")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--algorithms", type=lambda text: text.split(","), default=["bv", "gbv", "pbv"])
    parser.add_argument("--paths", type=integers, default=[1, 2, 4])
    parser.add_argument("--depths", type=integers, default=[2, 4, 8])
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--contexts", type=int, default=6)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--records", type=Path, help="finished prompts; a rerun goes on")
    parser.add_argument("--out", type=Path, default=DATA)
    parser.add_argument("--cpu-time", action="store_true", help="seconds of this process only")
    parser.add_argument("--print", action="store_true", dest="only_print")
    options = parser.parse_args(arguments)
    if options.only_print:
        for pair in json.loads(options.out.read_text())["data"]["pairs"]:
            print(tables(pair), end="\n\n")
        return
    if options.cpu_time:
        clock: Any = metrics.Stopwatch
        clock._now = lambda self: time.process_time()
    began = time.perf_counter()
    prompts = (load_prompts(options.prompts) if options.prompts else keyed(list(CODE)))[: options.limit]
    settings = {
        "target": options.pair,
        "draft": options.pair,
        **{
            name: getattr(options, name)
            for name in ("chat", "algorithms", "paths", "depths", "temperature", "contexts")
        },
        "new_tokens": options.new_tokens,
        "clock": "process" if options.cpu_time else "wall",
        "prompts": Path(options.prompts).name,
    }
    pair = open_pair(options.pair, options.pair)
    with JsonLines(options.records, SCHEMA, settings) as lines:
        done = {line["request"]: line for line in lines.rows}
        for number, prompt in enumerate(prompts):
            if prompt.key not in done:
                done[prompt.key] = measure_prompt(pair, prompt, number, options)
                lines.append(done[prompt.key])
                print(f"prompt {number + 1} of {len(prompts)}: {time.perf_counter() - began:.0f} s", flush=True)
    rows, seconds = rows_of([done[prompt.key] for prompt in prompts], run_settings(pair, options), settings)
    found = {"pair": options.pair, "prompts": len(prompts), "settings": settings, "costs": seconds, "rows": rows}
    found["recommended"] = recommended(rows)
    store(options.out, found, time.perf_counter() - began)
    print(tables(found))


if __name__ == "__main__":
    main()
