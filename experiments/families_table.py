"""Who wins where: mean gap to the certified optimum of every algorithm on three families of random problems.

    python experiments/families_table.py            compute (about five minutes), store, print the Markdown table
    python experiments/families_table.py --print    print the table of the stored data

V = 4, L = 3, K = 3, 20 instances a family, seeds 0..19. Every entry is exact for its instance (closed form, recursion
on nodes, or the linear program); the standard error is over instances.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd

import lpverify as lv
from lpverify.files import write_whole

DATA = Path(__file__).parent.parent / "paper_figs" / "families_table.json"
VOCAB, DEPTH, PATHS, INSTANCES = 4, 3, 3, 20
FAMILIES: dict[str, Callable[[int], lv.ModelPair]] = {
    "unrelated draft": lambda seed: lv.make.dirichlet(VOCAB, DEPTH, seed, alpha=0.5),
    "good draft": lambda seed: lv.make.softmax(VOCAB, DEPTH, seed, temperature=1.0, draft_noise=0.5),
    "good draft, low temperature": lambda seed: lv.make.softmax(VOCAB, DEPTH, seed, temperature=0.3, draft_noise=0.5),
}
ALGORITHMS = ["token", "bv", "nss", "specinfer", "spectr", "ot", "traversal", "gbv", "tgbv", "pbv", "ebv"]
SHOWN = {"node relaxation": "node relaxation (bound)", "optimum": "**optimum**", "best ranking": "best single ranking"}


def run() -> pd.DataFrame:
    parts = []
    for family, build in FAMILIES.items():
        for seed in range(INSTANCES):
            problem = lv.VerifyProblem(build(seed), PATHS)
            frame = lv.compare(problem, algorithms=ALGORITHMS, tolerance=1e-7)
            parts.append(frame.assign(family=family, seed=seed))
            print(family, seed, flush=True)
    return pd.concat(parts)[["family", "seed", "name", "block_efficiency"]]


def table(frame: pd.DataFrame) -> str:
    """Markdown: block efficiency of the optimum, and of the others the mean relative gap in percent with its error."""
    wide = frame.pivot(index=["family", "seed"], columns="name", values="block_efficiency")
    gaps = wide.rsub(wide["optimum"], axis=0).div(wide["optimum"], axis=0) * 100
    families = list(FAMILIES)
    mean, error = (getattr(gaps.groupby("family"), k)().loc[families] for k in ("mean", "sem"))
    best = gaps[ALGORITHMS].groupby("family").mean().loc[families].min(axis=1)
    lines = ["| gap to the optimum, % | " + " | ".join(families) + " |", "|---|" + "---:|" * len(families)]
    optimum = wide["optimum"].groupby("family").mean().loc[families]
    lines.append("| **optimum** (tokens per call) | " + " | ".join(f"**{x:.3f}**" for x in optimum) + " |")
    order = mean.mean().drop("optimum").sort_values().index
    for name in order:
        cells = []
        for family in families:
            cell = f"{mean.loc[family, name]:.2f} ± {error.loc[family, name]:.2f}"
            cells.append(f"**{cell}**" if name in ALGORITHMS and mean.loc[family, name] == best[family] else cell)
        lines.append(f"| {SHOWN.get(str(name), name)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", dest="only_print", help="print the table of the stored data")
    if not parser.parse_args().only_print:
        write_whole(str(DATA), json.dumps(run().to_dict("records"), indent=0).encode())
    print(table(pd.DataFrame(json.loads(DATA.read_text()))))


if __name__ == "__main__":
    main()
