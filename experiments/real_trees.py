"""Gaps to the certified optimum on real truncated trees: the data and the picture of the figure ``real_gap``.

    python experiments/real_trees.py                                                 the bundled pair
    python experiments/real_trees.py --target smollm2 --draft smollm2 --chat --prompts questions
    python experiments/real_trees.py --print                                         the table of the stored data

Every problem is the whole tree below a context that the target wrote itself, as top-k sampling leaves it
(`lpverify extract`). The optimum is the linear program's, its certificate checked without the solver, and every
algorithm is evaluated exactly (`lpverify sweep`). Interrupted runs resume. The rows of single problems stay beside the
problem files; the figure's data are means over contexts with standard errors over prompts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.figures import captions, figures
from experiments.figures.real_data import quotient
from lpverify.exact.compare import OPTIMUM, RELAXATION
from lpverify.files import provenance
from lpverify.sweep.config import tasks
from lpverify.sweep.run import run_sweep
from lpverify.verifiers import names

FOLDER = Path(__file__).parent.parent / "paper_figs"
FIGURE = "real_gap"
LEFT_OUT = ("token", "nss")
"""Far behind the others; left out for readability."""
ALGORITHMS = tuple(name for name in names() if name not in LEFT_OUT)
REFERENCES = (RELAXATION, OPTIMUM)  # the best single ranking would take more time than all the others
TOLERANCE = 1e-7
MAX_TERMS = 10_000_000  # Traversal with K = 4 on k = 4, L = 4: 596,000 visits at most, 1 to 3 seconds
PACKAGES = (*figures.PACKAGES, *figures.MODEL_PACKAGES)
Rows = list[dict[str, Any]]


def extract(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Write the problem files; returns the settings they were made with."""
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
    print(f"{made.written} problems written, {made.existing} found", flush=True)
    described = opened.describe(settings, chat=options.chat)
    return described | {"prompts": label, "contexts": options.contexts, "versions": versions()}


def sweep(folder: Path, paths: Sequence[int], jobs: int) -> Rows:
    """The rows of every problem in ``folder``. Raises SystemExit where one failed or an optimum is not proved."""
    config = {
        "paths": list(paths),
        "algorithms": [*REFERENCES, *ALGORITHMS],
        "tolerance": TOLERANCE,
        "max_drafts": 1,  # distributions are the tests' affair
        "max_terms": MAX_TERMS,
        "family": [{"name": "folder", "path": str(folder)}],
    }
    todo = tasks(config)
    output = folder / "rows.jsonl"
    run_sweep(todo, str(output), jobs=jobs, begin=lambda done, total: print(f"{done} of {total} rows", flush=True))
    keys = {key for task in todo for key in task.keys.values()}
    rows = [row for row in map(json.loads, output.read_text().splitlines()) if row["key"] in keys]
    for row in rows:
        proved = row["certified"] and row["upper_bound"] - row["lower_bound"] <= 2 * TOLERANCE
        if row["error"] is not None or not proved:
            problem = row["error"] or f"an optimum that is not proved ({row['status']}, certified {row['certified']})"
            raise SystemExit(f"{row['parameters']['file']} K = {row['paths']} {row['name']}: {problem}")
    return rows


def summary(pair: str, rows: Rows) -> Rows:
    """For each K and name mean tokens and mean gap in percent of the optimum; standard errors over prompts.

    ``least``: the smallest gap of a problem.
    """
    frame = pd.DataFrame(rows)
    frame["file"] = [Path(row["parameters"]["file"]).stem for row in rows]
    frame["prompt"] = frame["file"].str.rpartition("-")[0]
    best = frame[frame["name"] == OPTIMUM].set_index(["file", "paths"])["block_efficiency"].rename("best")
    frame = frame.join(best, on=["file", "paths"])
    frame["gap"] = 100 * (1 - frame["block_efficiency"] / frame["best"])
    means: Rows = []
    for (paths, name), part in frame.groupby(["paths", "name"], sort=False):
        groups = part.groupby("prompt")
        counts = groups.size().to_numpy(dtype=float)
        gap, gap_se = quotient(groups["gap"].sum().to_numpy(), counts)
        value, value_se = quotient(groups["block_efficiency"].sum().to_numpy(), counts)
        row = {"pair": pair, "paths": paths, "name": name, "prompts": len(counts), "contexts": len(part)}
        row |= {"gap": gap, "gap_se": gap_se, "least": float(part["gap"].min())}
        means.append(row | {"value": value, "se": value_se})
    return means


def store(pair: str, settings: dict[str, Any], rows: Rows) -> None:
    """Put this pair's means in the place of its old ones, and draw the figure."""
    data: dict[str, Any] = {"settings": {"pairs": {}, "widest": 0.0}, "rows": []}
    if (FOLDER / f"{FIGURE}.json").exists():
        data = figures.stored(FIGURE, FOLDER)["data"]
    widest = max(row["upper_bound"] - row["lower_bound"] for row in rows)
    data["settings"]["pairs"][pair] = settings
    data["settings"]["widest"] = max(data["settings"]["widest"], widest)
    data["rows"] = [row for row in data["rows"] if row["pair"] != pair] + summary(pair, rows)
    figures.store(FIGURE, FOLDER, data, provenance(*PACKAGES), size="full", seconds=0)
    list(figures.make([FIGURE], FOLDER))


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
    parser.add_argument("--print", action="store_true", dest="only_print", help="print the table of the stored data")
    options = parser.parse_args()
    if not options.only_print:
        label = options.label or options.target
        folder = options.folder or FOLDER / ".records" / f"real_trees-{label}"
        folder.parent.mkdir(exist_ok=True)
        settings = extract(options, folder)
        store(label, settings | {"paths": options.paths}, sweep(folder, options.paths, options.jobs))
    print(captions.real_gap(figures.stored(FIGURE, FOLDER)["data"])["table"])


if __name__ == "__main__":
    main()
