"""Gaps to the certified optimum on real truncated trees.

    python experiments/real_trees.py                                                 the bundled pair
    python experiments/real_trees.py --target smollm2 --draft smollm2 --chat --prompts questions
    python experiments/real_trees.py --print                                         the tables of the stored data

Every problem is the whole tree below a context that the target wrote itself, as top-k sampling leaves it
(`lpverify extract`); the optimum is the linear program's, its certificate checked without the solver, and every
algorithm is evaluated exactly (`lpverify sweep`). Both steps go on where a killed run stopped. Stored are one row for
each problem, K and algorithm, and the mean relative gaps with standard errors over prompts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lpverify.exact.compare import OPTIMUM, RELAXATION
from lpverify.files import write_whole
from lpverify.sweep.config import tasks
from lpverify.sweep.run import run_sweep

DATA = Path(__file__).parent.parent / "paper_figs" / "real_trees.json"
SCHEMA = "lpverify/real-trees@1"
ALGORITHMS = ("bv", "specinfer", "spectr", "traversal", "ot", "gbv", "tgbv", "pbv", "ebv")
REFERENCES = (RELAXATION, OPTIMUM)  # the best single ranking would take more time than all the others
TOLERANCE = 1e-7
MAX_TERMS = 10_000_000  # Traversal with K = 4 on k = 4, L = 4: 596,000 visits at most, 1 to 3 seconds
KEPT = ("paths", "name", "block_efficiency", "lower_bound", "upper_bound")
DIGITS = 10


def extract(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Write the problem files; what they were made with."""
    from experiments.figures.real_prompts import prompt_sets
    from lpverify.decode.prompts import keyed
    from lpverify.decode.run import versions
    from lpverify.decode.sampling import Sampling
    from lpverify.studies.extract import Settings
    from lpverify.studies.extract_folder import extract_folder
    from lpverify.studies.session import open_pair

    [(label, texts)] = prompt_sets([options.prompts]).items()
    sampling = Sampling(options.temperature, options.top_k)
    settings = Settings(options.depth, sampling, options.contexts, options.stride)
    opened = open_pair(options.target, options.draft)
    made = extract_folder(
        opened, keyed(texts[: options.limit]), settings, folder, chat=options.chat, versions=versions()
    )
    print(f"{made.written} problems written, {made.found} found", flush=True)
    described = opened.describe(settings, chat=options.chat)
    return described | {"prompts": label, "contexts": options.contexts, "versions": versions()}


def sweep(folder: Path, paths: Sequence[int], jobs: int) -> list[dict[str, Any]]:
    """The rows of every problem in ``folder``. Raises SystemExit where one failed or an optimum is not proved."""
    config = {
        "paths": list(paths),
        "algorithms": [*REFERENCES, *ALGORITHMS],
        "tolerance": TOLERANCE,
        "max_drafts": 1,  # law errors are the tests' affair
        "max_terms": MAX_TERMS,
        "family": [{"name": "folder", "path": str(folder)}],
    }
    todo = tasks(config)
    output = folder / "rows.jsonl"
    run_sweep(todo, str(output), jobs=jobs, begin=lambda done, total: print(f"{done} of {total} rows", flush=True))
    wanted = {key for task in todo for key in task.keys.values()}
    rows = [row for row in map(json.loads, output.read_text().splitlines()) if row["key"] in wanted]
    for row in rows:
        proved = row["certified"] and row["upper_bound"] - row["lower_bound"] <= 2 * TOLERANCE
        if row["error"] is not None or not proved:
            problem = row["error"] or f"an optimum that is not proved ({row['status']}, certified {row['certified']})"
            raise SystemExit(f"{row['parameters']['file']} K = {row['paths']} {row['name']}: {problem}")
    return rows


def stored(label: str, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What is kept of the sweep's rows."""
    for row in sorted(rows, key=lambda row: (row["parameters"]["file"], row["paths"])):
        name = Path(row["parameters"]["file"]).stem
        values = {key: round(row[key], DIGITS) if isinstance(row[key], float) else row[key] for key in KEPT}
        yield {"pair": label, "file": name, "prompt": name.rpartition("-")[0], **values}


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean tokens and mean relative gap for each pair, K and name; standard errors over prompts."""
    from lpverify.decode.metrics import ratio

    frame = pd.DataFrame(rows)
    optimum = frame[frame["name"] == OPTIMUM].set_index(["pair", "file", "paths"])["block_efficiency"]
    best = optimum.reindex(pd.MultiIndex.from_frame(frame[["pair", "file", "paths"]])).to_numpy()
    frame["gap"] = 1 - frame["block_efficiency"] / best
    found = []
    for (pair, paths, name), part in frame.groupby(["pair", "paths", "name"], sort=False):
        sums = part.groupby("prompt").agg({"gap": "sum", "block_efficiency": "sum", "file": "count"})
        gap, gap_se = ratio(sums["gap"].tolist(), sums["file"].tolist())
        tokens, tokens_se = ratio(sums["block_efficiency"].tolist(), sums["file"].tolist())
        counts = {"prompts": len(sums), "contexts": len(part)}
        values = {"tokens": tokens, "tokens_se": tokens_se, "relative_gap": gap, "relative_gap_se": gap_se}
        found.append({"pair": pair, "paths": paths, "name": name} | counts | values)
    return found


def tables(document: dict[str, Any]) -> str:
    """Markdown, one table a pair: mean relative gap in percent by algorithm and K."""
    frame = pd.DataFrame(document["summary"])
    parts = []
    for pair, part in frame.groupby("pair", sort=False):
        settings, first = document["settings"][pair], part.iloc[0]
        many = sorted(part["paths"].unique())
        heading = (
            f"{pair}: {first['contexts']} contexts of {first['prompts']} prompts ({settings['prompts']}), "
            f"T = {settings['temperature']:g}, top-k {settings['top_k']}, L = {settings['depth']}"
        )
        lines = [
            f"{heading}. Gap to the optimum in percent, mean ± standard error over prompts.",
            "",
            "| | " + " | ".join(f"K = {paths}" for paths in many) + " |",
            "|---|" + "---:|" * len(many),
        ]
        cells = {(row["name"], row["paths"]): row for row in part.to_dict("records")}
        best = [cells[OPTIMUM, paths] for paths in many]
        lines.append(
            "| **optimum**, tokens | " + " | ".join(f"{x['tokens']:.3f} ± {x['tokens_se']:.3f}" for x in best) + " |"
        )
        order = part.groupby("name")["relative_gap"].mean().drop(OPTIMUM).sort_values().index
        for name in order:
            found = [cells[name, paths] for paths in many]
            shown = (f"{100 * x['relative_gap']:.2f} ± {100 * x['relative_gap_se']:.2f}" for x in found)
            lines.append(f"| {name} | " + " | ".join(shown) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def store(label: str, settings: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Put this pair's rows in the place of its old ones."""
    document: dict[str, Any] = {"schema": SCHEMA, "settings": {}, "rows": []}
    if DATA.exists():
        document = json.loads(DATA.read_text())
    kept = [row for row in document["rows"] if row["pair"] != label] + list(stored(label, rows))
    document["settings"][label] = settings
    document |= {"summary": summary(kept), "rows": kept}
    order = ("schema", "settings", "summary", "rows")
    parts = [f"{json.dumps(key)}: {_lines(document[key])}" for key in order]
    write_whole(DATA, ("{\n" + ",\n".join(parts) + "\n}\n").encode())
    write_whole(DATA.with_suffix(".md"), (tables(document) + "\n").encode())


def _lines(value: Any) -> str:
    """JSON with one entry of a list a line, so that a change of one row is one line."""
    if isinstance(value, list):
        return "[\n" + ",\n".join(json.dumps(entry) for entry in value) + "\n]"
    return json.dumps(value, indent=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="tiny")
    parser.add_argument("--draft", default="tiny")
    parser.add_argument("--label", help="name of these rows in the data; default: the target's")
    parser.add_argument(
        "--prompts", default="code", help="[LABEL=]code, questions, gsm8k, humaneval, math500 or a file"
    )
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--limit", type=int, help="first prompts only")
    parser.add_argument("--contexts", type=int, default=5, help="of each prompt")
    parser.add_argument("--stride", type=int, default=12)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=4)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--paths", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="of the problems; default: paper_figs/.records/real_trees-LABEL")
    parser.add_argument("--print", action="store_true", dest="only_print", help="print the tables of the stored data")
    options = parser.parse_args()
    if not options.only_print:
        label = options.label or options.target
        folder = options.folder or DATA.parent / ".records" / f"real_trees-{label}"
        folder.parent.mkdir(exist_ok=True)
        settings = extract(options, folder)
        store(label, settings | {"paths": options.paths}, sweep(folder, options.paths, options.jobs))
    print(tables(json.loads(DATA.read_text())))


if __name__ == "__main__":
    main()
