"""The tables of README.md, from the data of ``paper_figs/``.

    python experiments/readme.py            print them
    python experiments/readme.py --write    put them between their marks in README.md

The table of the demo is what ``make demo`` prints and is not among them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import beat_pbv
import families_table
import pandas as pd

from experiments.figures.real_jobs import DEPTH, SHOWN_PAIR
from lpverify.files import write_whole
from lpverify.report.plots import SHOWN

ROOT = Path(__file__).parent.parent
FIGURES, DOCUMENT = ROOT / "paper_figs", ROOT / "README.md"
NAMES = SHOWN | {"autoregressive": "target alone", "node relaxation": "node relaxation (bound)"}
RESEARCH = ("PBV", "TGBV where it loses nothing, else PBV", "PBV's law, left-curtain coupling",
            "PBV's law, largest entropy", "EBV: half the excess back, largest entropy",
            "all the excess back, largest entropy")  # fmt: skip


def read(name: str) -> Any:
    return json.loads((FIGURES / f"{name}.json").read_text())


def pm(value: float, error: float, digits: int) -> str:
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def grid(headings: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|---|" + "---:|" * (len(headings) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def families() -> str:
    """Toy problems: gaps to the optimum."""
    return families_table.table(pd.DataFrame(read("families_table")))


def optimum() -> str:
    """Real models, K = 4: gap to the optimum on truncated trees, share of the upper bound at full vocabulary."""
    trees = {(r["pair"], r["name"]): r for r in read("real_trees")["summary"] if r["paths"] == 4}
    shares = {
        (r["pair"], r["name"]): r
        for r in read("real_bound")["data"]["rows"]
        if r["axis"] == "paths" and r["paths"] == 4 and r["estimate"] == "on-path"
    }
    pairs = list(dict.fromkeys(pair for pair, _ in trees))
    order = sorted({n for _, n in trees} - {"optimum"}, key=lambda n: sum(trees[p, n]["relative_gap"] for p in pairs))
    headings = ["", *(f"{p}: gap to the optimum, %" for p in pairs), *(f"{p}: share of the bound, %" for p in pairs)]
    cells = [trees[p, "optimum"] for p in pairs]
    rows = [
        ["**optimum**, tokens", *(f"**{pm(c['tokens'], c['tokens_se'], 2)}**" for c in cells), *([""] * len(pairs))]
    ]
    bounds = [shares.get((p, "upper bound")) for p in pairs]
    rows.append(
        [
            "upper bound, tokens",
            *([""] * len(pairs)),
            *("" if b is None else pm(b["value"], b["se"], 2) for b in bounds),
        ]
    )
    for name in order:
        gaps = [trees[p, name] for p in pairs]
        row = [NAMES.get(name, name), *(pm(100 * c["relative_gap"], 100 * c["relative_gap_se"], 2) for c in gaps)]
        found = [shares.get((p, name)) for p in pairs]
        rows.append([*row, *("" if f is None else pm(100 * f["share"], 100 * f["share_se"], 1) for f in found)])
    return grid(headings, rows)


def decoding() -> str:
    """Real models: tokens per target call and per second."""
    rows = [row for row in read("table_real")["data"]["rows"] if row["set"] == "all"]
    frame = pd.DataFrame(rows)
    columns = list(dict.fromkeys(zip(frame["pair"], frame["temperature"], strict=True)))
    cells = {(r["pair"], r["temperature"], r["name"]): r for r in rows}
    headings = [""]
    for pair, temperature in columns:
        headings += [f"{SHOWN_PAIR[pair]}, T = {temperature:g}", "tokens/s"]
    lines = []
    best = {column: max(r["rao_blackwell"] for k, r in cells.items() if k[:2] == column) for column in columns}
    for name in dict.fromkeys(frame["name"]):
        line = [NAMES.get(name, name)]
        for column in columns:
            row = cells.get((*column, name))
            if row is None:
                line += ["", ""]
                continue
            shown = pm(row["rao_blackwell"], row["rao_blackwell_se"], 2) if name != "autoregressive" else "1"
            line += [
                f"**{shown}**" if row["rao_blackwell"] == best[column] else shown,
                f"{row['tokens_per_second']:.3g}",
            ]
        lines.append(line)
    counts = ", ".join(
        f"{pair} {cells[pair, temperature, 'bv']['prompts']} at T = {temperature:g}" for pair, temperature in columns
    )
    return grid(headings, lines) + f"\n\nPrompts: {counts}; K = 4 (token rule and BV: 1), L = {DEPTH}."


def research() -> str:
    """Candidates against PBV: toy problems and real trees."""
    document = read("beat_pbv")
    rows = [row for part in ("toys", "trees") for row in document[part] if row["name"] in RESEARCH]
    return beat_pbv.table(rows, "gap", 2)


BLOCKS: dict[str, Callable[[], str]] = {
    "families": families, "optimum": optimum, "decoding": decoding, "research": research,
}  # fmt: skip


def written(text: str) -> str:
    """``text`` with every block between its marks."""
    for name, block in BLOCKS.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", flags=re.S)
        assert len(pattern.findall(text)) == 1, name
        body = block() + "\n"
        text = pattern.sub(lambda found, body=body: found[1] + body + found[2], text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        write_whole(str(DOCUMENT), written(DOCUMENT.read_text()).encode())
    else:
        print("\n\n".join(block() for block in BLOCKS.values()))


if __name__ == "__main__":
    main()
