"""T1, the table of decoding runs: pair x set of prompts x algorithm, in Markdown and in LaTeX (booktabs)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.figures.captions import text
from experiments.figures.captions_real import ERROR, NAMES, PAPER, decoded, percent, pm
from experiments.figures.real_jobs import SHOWN_PAIR

Data = Mapping[str, Any]
HEADINGS = ("pair", "prompts", "algorithm", "sampled", "Rao-Blackwell", "tokens/s", "speed over BV")
BASELINE = "autoregressive"


def rows(data: Data) -> list[list[tuple[str, bool]]]:
    """The cells of each line with whether it is the best of its group; pair and set stand in the first line only."""
    frame = pd.DataFrame(data["rows"])
    only = frame.groupby(["pair", "temperature"])["set"].transform("nunique") == 2  # "all" and the one set there is
    frame = frame[~((frame["set"] == "all") & only)]
    lines = []
    pair_before = None
    for (pair, temperature, group), part in frame.groupby(["pair", "temperature", "set"], sort=False):
        verifiers = part[part["name"] != BASELINE]
        efficient = verifiers["rao_blackwell"].idxmax()
        fast = part["tokens_per_second"].idxmax()
        label = f"{SHOWN_PAIR[pair]}, T = {temperature:g}"
        for place, (index, row) in enumerate(part.iterrows()):
            sampled = "1" if row["name"] == BASELINE else pm(row["block_efficiency"], row["se"])
            smooth = "1" if row["name"] == BASELINE else pm(row["rao_blackwell"], row["rao_blackwell_se"])
            speed = pm(row["tokens_per_second"], row["tokens_per_second_se"], 1)
            over = "" if row["name"] == "bv" else percent((row["speed_over_bv"], row["speed_over_bv_se"]))
            lines.append(
                [
                    (label if place == 0 and label != pair_before else "", False),
                    (str(group) if place == 0 else "", False),
                    (NAMES[row["name"]], False),
                    (sampled, False),
                    (smooth, index == efficient),
                    (speed, index == fast),
                    (over, False),
                ]
            )
        pair_before = label
    return lines


def markdown(data: Data) -> str:
    """The table in Markdown; bold: the best of a group."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---|---|---|" + "---:|" * (len(HEADINGS) - 3)]
    for line in rows(data):
        cells = [f"**{cell}**" if bold else cell for cell, bold in line]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def latex(data: Data) -> str:
    r"""The table for ``\usepackage{booktabs}``."""
    lines = [r"\begin{tabular}{lll" + "r" * (len(HEADINGS) - 3) + "}", r"\toprule"]
    lines += [" & ".join(HEADINGS) + r" \\", r"\midrule"]
    for i, line in enumerate(rows(data)):
        if i and line[1][0]:
            lines.append(r"\addlinespace")
        cells = [rf"\textbf{{{escaped(cell)}}}" if bold else escaped(cell) for cell, bold in line]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def escaped(cell: str) -> str:
    r"""Text for LaTeX.

    >>> escaped("+3.1 ± 0.2 %")
    '+3.1 $\\pm$ 0.2 \\%'
    """
    for plain, written in (("%", r"\%"), ("_", r"\_"), ("&", r"\&"), ("±", r"$\pm$")):
        cell = cell.replace(plain, written)
    return cell


def caption(data: Data) -> str:
    """The table with what it shows."""
    frame = pd.DataFrame(data["rows"])
    whole = frame[frame["set"] == "all"]
    words = []
    for (pair, temperature), part in whole.groupby(["pair", "temperature"], sort=False):
        verifiers = part[part["name"] != BASELINE]
        most = verifiers.loc[verifiers["rao_blackwell"].idxmax()]
        fast = verifiers.loc[verifiers["tokens_per_second"].idxmax()]
        alone = part.loc[part["name"] == BASELINE, "tokens_per_second"]
        words.append(
            f"{pair}, T = {temperature:g}: {NAMES[most['name']]} commits the most tokens a call"
            f" ({pm(most['rao_blackwell'], most['rao_blackwell_se'])}), {NAMES[fast['name']]} is the fastest verifier"
            f" ({pm(fast['tokens_per_second'], fast['tokens_per_second_se'], 1)} tokens/s; the target alone"
            f" {float(alone.iloc[0]):.1f})"
        )
    shape = f"K = {int(frame['paths'].iloc[0])} (token rule and BV: 1), L = {int(frame['depth'].iloc[0])}"
    return text(
        f"""Committed tokens per target call, sampled and Rao-Blackwell, and tokens per second, {shape}. Bold: the best
        of its group. `table_real.tex` is the same table for LaTeX (booktabs).""",
        f"""{decoded(data, frame)} All algorithms on the same prompts, interleaved. The prompts' own pass is not
        counted. OT is refused at this vocabulary: its coupling is on sets of drafted tokens. {ERROR}""",
        f"{PAPER}: GBV over 30 % in block efficiency and over 15 % in wall time ahead of BV.",
        f"{'. '.join(words)}.",
        markdown(data),
    )
