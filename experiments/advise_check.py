"""Predicted against measured tokens per second, on one pair.

    python experiments/advise_check.py --pair tiny --records tiny.jsonl      measure (interrupted runs resume), store
    python experiments/advise_check.py --pair smollm2 --chat --prompts gsm8k.jsonl --new-tokens 48 --records s.jsonl
    python experiments/advise_check.py --print                               print the tables of the stored data

On each prompt, one after the other so that a slow spell of the machine affects all three alike:

1. block efficiency of every algorithm, K and L, twice: of whole runs (`lpverify advise` without a document), and as the
   mean over evenly spread contexts (`lpverify bound`), which is not quite what a decoder sees (`studies.rounds`);
2. seconds of the parts of a round after one context (`lpverify advise`);
3. decoding with every algorithm at every K and L: tokens per second as measured.

Parts 1 and 2 predict tokens per second as ``lpverify advise`` does; part 3 is what they are compared with. Stored are
rows with both, and the (K, L) that would have been recommended beside the one that was fastest. With ``--cpu-time`` all
seconds are processor time of this process (run it with one thread), for a machine that other programs use as well.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from experiments.figures import figures
from experiments.figures.real_prompts import CODE
from lpverify.decode import engine, metrics
from lpverify.decode.load import software
from lpverify.decode.metrics import STAGES, Generation, ratio, summarize
from lpverify.decode.prompts import Prompt, keyed, load_prompts
from lpverify.decode.sampling import Sampling
from lpverify.files import JsonLines, provenance
from lpverify.studies import bound, costs, rounds
from lpverify.studies.cost_files import parse_costs, read_cells
from lpverify.studies.session import OpenPair, open_pair
from lpverify.studies.throughput import Prediction, predict, with_full_acceptance
from lpverify.verifiers import names, verifier

FOLDER = Path(__file__).parent.parent / "paper_figs"
FIGURE = "advise"
KEYS = ("among", "predicted_best", "measured_best")
ALGORITHMS = tuple(name for name in names(closed_form=True) if name not in ("token", "tgbv"))
"""Those that are decoded at every K and L; the token rule and TGBV are left out to save time."""
SCHEMA = "lpverify/advise-record@1"
Line = dict[str, Any]


def run_settings(pair: OpenPair, options: argparse.Namespace) -> rounds.RunSettings:
    """Of the predicted runs: as long as the decoded ones, other texts."""
    stride = max(options.new_tokens // options.contexts, 1)
    shape = (tuple(options.paths), tuple(options.depths), options.new_tokens, stride)
    return rounds.RunSettings(*shape, Sampling(options.temperature), 1, pair.tokenizer.eos)


def measure_prompt(pair: OpenPair, prompt: Prompt, number: int, options: argparse.Namespace) -> Line:
    """All three parts on one prompt."""
    sampling = Sampling(options.temperature)
    [request] = pair.requests([prompt], chat=options.chat)
    checked = {name: verifier(name) for name in options.algorithms}
    whole = run_settings(pair, options)
    shape = (whole.num_paths, whole.depths, options.contexts, whole.stride, sampling, whole.seed, whole.eos)
    spread = bound.measure(pair.models, checked, request, bound.BoundSettings(*shape))
    runs = rounds.measure(pair.models, checked, request, whole)
    length = len(request.tokens) + options.new_tokens // 2
    context = costs.typical_contexts(pair.models, [request], 1, length, max(options.depths), sampling)
    parts = costs.measure(pair.models, context, options.algorithms, options.paths, options.depths, sampling)
    decoded = []
    grid = [(name, k, n) for name in options.algorithms for k in paths_of(name, options.paths) for n in options.depths]
    shift = number * 5 % len(grid)
    for name, paths, depth in (*grid[shift:], *grid[:shift]):
        settings = engine.Settings(paths, depth, sampling, options.new_tokens, 0, pair.tokenizer.eos)
        run = engine.generate(pair.models, checked[name], request, settings)
        decoded.append({"paths": paths, "depth": depth, **run.to_json()})
    return {"request": prompt.key, "bound": asdict(spread), "runs": asdict(runs), "costs": parts, "decoded": decoded}


def paths_of(name: str, paths: Sequence[int]) -> list[int]:
    """The K that an algorithm is decoded with."""
    return [1] if verifier(name).first_path_only else list(paths)


def rows_of(
    lines: Sequence[Line], whole: rounds.RunSettings, settings: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Predicted and measured, one row a cell, and the costs that the prediction is made with."""
    seconds = middle([{key: value for key, value in line["costs"].items() if key != "versions"} for line in lines])
    priced = parse_costs(seconds, "costs")
    cells = bound.summarize([bound.PromptBound.from_json(line["bound"]) for line in lines])
    documents = (
        rounds.summarize([rounds.PromptRuns.from_json(line["runs"]) for line in lines], whole),
        {"schema": "lpverify/bound@1", "cells": cells},
    )
    of_runs, of_contexts = (
        predict(priced, with_full_acceptance(read_cells([("measured", document | {"settings": settings})])[0]))
        for document in documents
    )
    by_cell = {p.cell.key: p for p in of_contexts}
    return [row(p, by_cell[p.cell.key], lines) for p in of_runs], seconds


def middle(documents: Sequence[Any]) -> Any:
    """The median of every number of documents of the same shape."""
    if isinstance(documents[0], dict):
        return {key: middle([document[key] for document in documents]) for key in documents[0]}
    return documents[0] if isinstance(documents[0], str) else median(documents)


def row(prediction: Prediction, from_contexts: Prediction, lines: Sequence[Line]) -> dict[str, Any]:
    """One cell: of whole runs, of evenly spread contexts, and as decoded."""
    cell = prediction.cell
    key = cell.key
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
        "paths": cell.num_paths,
        "depth": cell.depth,
        "predicted": prediction.tokens_per_second,
        "predicted_se": prediction.se,
        "measured": speed,
        "measured_se": error,
        "relative_error": prediction.tokens_per_second / speed - 1,
        "predicted_from_contexts": from_contexts.tokens_per_second,
        "block_efficiency": {
            "predicted": cell.block_efficiency,
            "predicted_se": cell.se,
            "contexts": from_contexts.cell.block_efficiency,
            "contexts_se": from_contexts.cell.se,
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
    entries = []
    for name, group in {**groups, "all": list(rows)}.items():
        advised = max(group, key=lambda row: row["predicted"])
        best = max(group, key=lambda row: row["measured"])
        entries.append({
            "among": name,
            "predicted_best": [advised["algorithm"], advised["paths"], advised["depth"]],
            "measured_best": [best["algorithm"], best["paths"], best["depth"]],
            "measured_at_predicted": advised["measured"],
            "measured_at_best": best["measured"],
            "loss": 1 - advised["measured"] / best["measured"],
        })  # fmt: skip
    return entries


def tables(pair: dict[str, Any]) -> str:
    """Predicted and measured for every setting, and what following the advice costs, in Markdown."""
    settings = []
    for row in pair["rows"]:
        tokens, seconds = row["block_efficiency"], row["round_seconds"]
        settings.append({
            "algorithm": row["algorithm"], "K": row["paths"], "L": row["depth"],
            "predicted, /s": f"{row['predicted']:.1f}", "measured, /s": f"{row['measured']:.1f}",
            "error": f"{100 * row['relative_error']:+.0f} %",
            "tokens a round, predicted": f"{tokens['predicted']:.2f}", "spread contexts": f"{tokens['contexts']:.2f}",
            "measured": f"{tokens['measured']:.2f}",
            "ms a round, predicted": f"{1e3 * sum(seconds['predicted'].values()):.1f}",
            "ms a round, measured": f"{1e3 * sum(seconds['measured'].values()):.1f}",
        })  # fmt: skip
    advice = [
        {key: "{} K = {}, L = {}".format(*entry[key]) if key.endswith("best") else entry[key] for key in KEYS}
        | {"loss": f"{100 * entry['loss']:.1f} %"}
        for entry in pair["recommended"]
    ]
    errors = sorted(abs(row["relative_error"]) for row in pair["rows"])
    return "\n\n".join([
        f"### {pair['pair']}, {pair['prompts']} prompts of {pair['settings']['new_tokens']} new tokens",
        pd.DataFrame(settings).to_markdown(index=False, disable_numparse=True),
        pd.DataFrame(advice).to_markdown(index=False),
        f"Median error of prediction {100 * median(errors):.1f} %, largest {100 * errors[-1]:.1f} %.",
    ])  # fmt: skip


def store(folder: Path, pair: dict[str, Any], seconds: float) -> None:
    """Put one pair's data into the figure's document, beside those of other pairs, and draw the figure."""
    known = figures.stored(FIGURE, folder)["data"]["pairs"] if (folder / f"{FIGURE}.json").exists() else []
    pairs = [*(old for old in known if old["pair"] != pair["pair"]), pair]
    pairs.sort(key=lambda each: each["pair"] != "tiny")
    made_with = provenance("numpy", "scipy", "torch", "transformers")
    figures.store(FIGURE, folder, {"pairs": pairs}, made_with, size="full", seconds=seconds)
    list(figures.make([FIGURE], folder))


def integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", default="tiny")
    parser.add_argument("--prompts", help=".jsonl file or public set; default: code that is built in")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--algorithms", type=lambda text: text.split(","), default=list(ALGORITHMS))
    parser.add_argument("--paths", type=integers, default=[1, 2, 4])
    parser.add_argument("--depths", type=integers, default=[2, 4, 8])
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--contexts", type=int, default=6)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--records", type=Path, help="finished prompts; interrupted runs resume")
    parser.add_argument("--recompute", action="store_true", help="replace records of other settings or models")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the figure")
    parser.add_argument("--cpu-time", action="store_true", help="seconds of this process only")
    parser.add_argument("--print", action="store_true", dest="only_print")
    options = parser.parse_args(arguments)
    if options.only_print:
        for pair in figures.stored(FIGURE, options.out)["data"]["pairs"]:
            print(tables(pair), end="\n\n")
        return
    if options.cpu_time:
        metrics.Stopwatch.clock = staticmethod(time.process_time)
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
        "prompts": Path(options.prompts).name if options.prompts else "code",
    }
    pair = open_pair(options.pair, options.pair)
    identity = settings | {"content": pair.content(), "computed_with": software()}
    with JsonLines(options.records, SCHEMA, identity, recompute=options.recompute) as lines:
        finished = {line["request"]: line for line in lines.rows}
        for number, prompt in enumerate(prompts):
            if prompt.key not in finished:
                finished[prompt.key] = measure_prompt(pair, prompt, number, options)
                lines.append(finished[prompt.key])
                print(f"prompt {number + 1} of {len(prompts)}: {time.perf_counter() - began:.0f} s", flush=True)
    rows, seconds = rows_of([finished[prompt.key] for prompt in prompts], run_settings(pair, options), settings)
    result = {"pair": options.pair, "prompts": len(prompts), "settings": settings, "costs": seconds, "rows": rows}
    result["recommended"] = recommended(rows)
    store(options.out, result, time.perf_counter() - began)
    print(tables(result))


if __name__ == "__main__":
    main()
