"""Who wins where: mean gap to the certified optimum of every algorithm on three families of random problems.

    python experiments/families_table.py            compute (about five minutes), store, print the Markdown table
    python experiments/families_table.py --print    print the table of the stored data

V = 4, L = 3, K = 3, 20 problems in each family, seeds 0..19. Every value is exact for its problem (closed form,
recursion on nodes, or the linear program); standard errors are over problems.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

import lpverify as lv
from experiments.figures import figure_data, figures
from experiments.figures.captions import by_gap, columns, markdown, pm
from lpverify.files import write_whole
from lpverify.verifiers import names

DATA = Path(__file__).parent.parent / "paper_figs" / "families_table.json"
VOCAB, DEPTH, PATHS, INSTANCES = 4, 3, 3, 20
FAMILIES: dict[str, Callable[[int], lv.ModelPair]] = {
    "unrelated draft": lambda seed: lv.make.dirichlet(VOCAB, DEPTH, seed, alpha=0.5),
    "good draft": lambda seed: lv.make.softmax(VOCAB, DEPTH, seed, temperature=1.0, draft_noise=0.5),
    "good draft, low temperature": lambda seed: lv.make.softmax(VOCAB, DEPTH, seed, temperature=0.3, draft_noise=0.5),
}
HEAD = "gap to the optimum, % (optimum: tokens per call)"


def run() -> pd.DataFrame:
    parts = []
    for family, build in FAMILIES.items():
        for seed in range(INSTANCES):
            problem = lv.VerifyProblem(build(seed), PATHS)
            frame = lv.compare(problem, algorithms=names(), tolerance=1e-7)
            parts.append(frame.assign(family=family, seed=seed))
            print(family, seed, flush=True)
    return pd.concat(parts)[["family", "seed", "name", "block_efficiency"]]


def summary(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """For each family and name mean tokens and mean gap in percent of the optimum, with standard errors."""
    best = frame[frame["name"] == "optimum"].set_index(["family", "seed"])["block_efficiency"].rename("best")
    frame = frame.join(best, on=["family", "seed"]).rename(columns={"block_efficiency": "value"})
    frame["gap"] = 100 * (1 - frame["value"] / frame["best"])
    return figure_data.summary(frame, ["family", "name"], ["value", "gap"])


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: tokens of the optimum, and the mean gap of the others in percent; in bold the best algorithm."""
    frame = pd.DataFrame(rows)
    best = frame[frame["name"].isin(names())].groupby("family")["gap"].min()

    def cell(row: Any) -> str:
        if row.name == "optimum":
            return f"**{row.value:.3f}**"
        is_best = row.name in names() and row.gap == best[row.family]
        return f"**{pm(row.gap, row.gap_se)}**" if is_best else pm(row.gap, row.gap_se)

    return markdown(columns(frame, "{family}", cell), HEAD, by_gap(frame, first=("optimum",)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", dest="only_print", help="print the table of the stored data")
    if not parser.parse_args().only_print:
        lines = ",\n".join(json.dumps(figures.rounded(row)) for row in summary(run()))
        write_whole(DATA, f"[\n{lines}\n]\n".encode())
    print(table(json.loads(DATA.read_text())))


if __name__ == "__main__":
    main()
