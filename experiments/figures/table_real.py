"""T1, the table of decoding runs: pair x set of prompts x algorithm, in Markdown and in LaTeX (booktabs)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd
from tabulate import tabulate

from experiments.figures.captions import NAMES, measured, percent, pm
from experiments.figures.real_jobs import SHOWN_PAIR

Data = Mapping[str, Any]
HEADINGS = ("pair", "prompts", "algorithm", "sampled", "Rao-Blackwell", "tokens/s", "speed over BV")
ALIGN = ("left",) * 3 + ("right",) * 4
BASELINE = "autoregressive"


def lines(data: Data) -> list[list[str]]:
    """The cells of each line; the best of a group between ``**``; pair and set in the first line of a group only."""
    frame = pd.DataFrame(data["rows"])
    only = frame.groupby(["pair", "temperature"])["set"].transform("nunique") == 2  # "all" and the one set there is
    frame = frame[~((frame["set"] == "all") & only)]
    table = []
    label = ""
    for (pair, temperature, group), part in frame.groupby(["pair", "temperature", "set"], sort=False):
        before, label = label, f"{SHOWN_PAIR[pair]}, T = {temperature:g}"
        efficient = part["rao_blackwell"].where(part["name"] != BASELINE).idxmax()
        fast = part["tokens_per_second"].idxmax()
        for index, row in part.iterrows():
            sampled, smooth = pm(row["block_efficiency"], row["se"]), pm(row["rao_blackwell"], row["rao_blackwell_se"])
            speed = pm(row["tokens_per_second"], row["tokens_per_second_se"], 1)
            over = "" if row["name"] == "bv" else percent((row["speed_over_bv"], row["speed_over_bv_se"]))
            smooth = f"**{smooth}**" if index == efficient else smooth
            cells = ["1", "1"] if row["name"] == BASELINE else [sampled, smooth]
            cells = [NAMES[row["name"]], *cells, f"**{speed}**" if index == fast else speed, over]
            table.append([label if label != before else "", str(group), *cells])
            before, group = label, ""
    return table


def fields(data: Data) -> dict[str, Any]:
    """What the caption needs."""
    table = tabulate(lines(data), HEADINGS, "pipe", colalign=ALIGN, disable_numparse=True)
    first = data["rows"][0]
    return {"table": table, "measured": measured(data), "paths": first["paths"], "depth": first["depth"]}


def latex(data: Data) -> str:
    r"""The table for ``\usepackage{booktabs}``."""
    text = tabulate(lines(data), HEADINGS, "latex_booktabs", colalign=ALIGN, disable_numparse=True)
    return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text).replace("±", r"$\pm$") + "\n"
