"""The tables of README.md and the pages of docs/, from the data of ``paper_figs/``.

    python experiments/readme.py            print them
    python experiments/readme.py --write    put them between their marks in the pages

The table of the demo is what ``make demo`` prints and is not one of them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import beat_pbv, families_table
from experiments.figures.captions import by_gap, columns, markdown, pm
from experiments.figures.real_data import UPPER
from experiments.figures.real_jobs import DEPTH, SHOWN_PAIR
from lpverify.exact.compare import OPTIMUM
from lpverify.files import write_whole

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "paper_figs"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PATHS = 4


def read(name: str) -> Any:
    return json.loads((FIGURES / f"{name}.json").read_text())


def families() -> str:
    """Toy problems: gaps to the optimum."""
    return families_table.table(read("families_table"))


def optimum() -> str:
    """Real models, K = 4: gap to the optimum on truncated trees, share of the upper bound at full vocabulary."""
    trees = pd.DataFrame(read("real_gap")["data"]["rows"]).query("paths == @PATHS")
    shares = pd.DataFrame(read("real_bound")["data"]["rows"]).query("axis == 'paths' and paths == @PATHS")

    def gap(row: Any) -> str:
        return f"**{pm(row.value, row.se)}** tokens" if row.name == OPTIMUM else pm(row.gap, row.gap_se)

    def share(row: Any) -> str:
        return f"{pm(row.value, row.se)} tokens" if row.name == UPPER else pm(100 * row.share, 100 * row.share_se, 1)

    cells = columns(trees, "{pair}: gap to the optimum, %", gap) | columns(
        shares, "{pair}: share of the bound, %", share
    )
    order = [OPTIMUM, UPPER, *(name for name in by_gap(trees) if name != OPTIMUM)]
    return markdown(cells, f"K = {PATHS}", order)


def decoding() -> str:
    """Real models: tokens per target call and per second."""
    frame = pd.DataFrame(read("table_real")["data"]["rows"]).query("set == 'all'")
    frame["label"] = frame["pair"].map(SHOWN_PAIR)
    best = frame.groupby(["pair", "temperature"])["rao_blackwell"].max()

    def tokens(row: Any) -> str:
        if row.name == "autoregressive":
            return "1"
        shown = pm(row.rao_blackwell, row.rao_blackwell_se)
        return f"**{shown}**" if row.rao_blackwell == best[row.pair, row.temperature] else shown

    cells: dict[str, dict[str, str]] = {}
    for _, part in frame.groupby(["pair", "temperature"], sort=False):
        cells |= columns(part, "{label}, T = {temperature:g}", tokens)
        cells |= columns(part, "{pair}, T = {temperature:g}: tokens/s", lambda row: f"{row.tokens_per_second:.3g}")
    prompts = frame[frame["name"] == "bv"].apply(
        lambda row: f"{row['pair']} {row['prompts']} at T = {row['temperature']:g}", axis=1
    )
    note = f"Prompts: {', '.join(prompts)}; K = {PATHS} (token rule and BV: 1), L = {DEPTH}."
    return f"{markdown(cells, 'tokens per target call')}\n\n{note}"


def research() -> str:
    """Candidates against PBV: toy problems and real trees."""
    document = read("beat_pbv")
    rows = [row for part in ("toys", "trees") for row in document[part] if row["name"] in beat_pbv.IN_README]
    return beat_pbv.table(rows, 2)


BLOCKS: dict[str, Callable[[], str]] = {
    "families": families, "optimum": optimum, "decoding": decoding, "research": research,
}  # fmt: skip


def written(text: str) -> str:
    """``text`` with every table between its marks renewed."""
    for name, block in BLOCKS.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", flags=re.S)
        if pattern.search(text):
            body = block() + "\n"
            text = pattern.sub(lambda match, body=body: match[1] + body + match[2], text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        for page in PAGES:
            write_whole(str(page), written(page.read_text()).encode())
    else:
        print("\n\n".join(block() for block in BLOCKS.values()))


if __name__ == "__main__":
    main()
