"""Captions of the figures of `experiments.figures.figures`: Markdown from the same data as the picture.

Each says what the figure shows, how it was computed, what the papers claim, and what came out, with numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from lpverify.exact.compare import OPTIMUM, RANKING, RELAXATION
from lpverify.report.plots import SHOWN

Data = Mapping[str, Any]
NAMES = SHOWN | {OPTIMUM: "LP optimum", RELAXATION: "node relaxation"}
FAMILIES = """Families: *unrelated draft*, every row of both tables Dirichlet(0.5, ..., 0.5); *good draft*, logits
    z ~ N(0, 1), target softmax(z / T), draft softmax((z + 0.5 e) / T) with e ~ N(0, 1), T = 1; *good draft, low
    temperature*, the same with T = 0.3."""
ERRORS = """An error bar is one standard error over instances of the difference to the same instance's optimum; the band
    is one standard error of the mean optimum."""


def text(shows: str, computed: str, claim: str, outcome: str, table: str = "") -> str:
    parts = (("Shows", shows), ("Computed", computed), ("Claimed", claim), ("Came out", outcome))
    text = "\n\n".join(f"**{name}.** {' '.join(words.split())}" for name, words in parts)
    return text + (f"\n\n{table}\n" if table else "\n")


def one_position(data: Data) -> str:
    """F1."""
    return text(
        """One position of the token rule: a drafted token x is accepted with probability min(1, p(x)/q(x)), else a
        token is drawn from a correction. Left the correction from the residual max(p - q, 0), normalised; right the
        naive one, from p itself.""",
        f"Exactly, p = {_row(data['target'])}, q = {_row(data['draft'])} (the built-in example `one-position`).",
        "Leviathan et al. 2023, algorithm 1: with the residual the emitted law is p.",
        f"""Reproduced. Accepted mass {data["accepted_mass"]:.2f}; with the residual the law is
        {_row(data["emitted"])}, off by {data["law_error"]:.0f}; drawn from p it is {_row(data["naive"])}, off by
        {data["naive_law_error"]:.2f} in total variation.""",
    )


def single_path(data: Data) -> str:
    """F2."""
    frame, settings = pd.DataFrame(data["rows"]), data["settings"]
    worst = float((frame["optimum"] - frame["bv"]).abs().max())
    noisy = frame[frame["axis"] == "noise"]
    gain = (100 * (noisy["bv"] / noisy["token"] - 1)).groupby(noisy["draft_noise"])
    most = gain.mean().idxmax()
    return text(
        """Block efficiency with one draft path: the LP optimum, block verification (BV) and the token rule, over
        draft depth L (left) and over the noise in the draft's logits (right; without noise the draft is the
        target).""",
        f"""Family softmax at temperature 1, V = {settings["vocab"]}, {settings["instances"]} instances a point, the
        same seeds everywhere. The optimum is the explicit program solved by HiGHS; BV and the token rule are closed
        forms. {ERRORS}""",
        """Sun et al. (arXiv 2403.10444): BV accepts at least as much as the token rule and is optimal among rules for
        one path. Thomas & Pal (arXiv 2602.16961): it is optimal even against rules that see all off-path
        probabilities.""",
        f"""Reproduced. BV and the LP differ by at most {worst:.0e} tokens over {len(frame)} problems. BV's largest
        gain over the token rule is at noise {most:g}: {gain.mean()[most]:.1f} ± {gain.sem()[most]:.1f} %.""",
    )


def multi_path(data: Data) -> str:
    """F3."""
    frame, settings = pd.DataFrame(data["rows"]), data["settings"]
    paths = max(settings["paths"])
    at = frame[frame["paths"] == paths].pivot(index=["family", "seed"], columns="name", values="block_efficiency")
    gaps = at.rsub(at[OPTIMUM], axis=0).div(at[OPTIMUM], axis=0).mul(100).clip(lower=0.0)
    families = list(dict.fromkeys(frame["family"]))
    groups = gaps.groupby("family")
    mean, error, least, most = groups.mean(), groups.sem(), groups.min(), groups.max()
    lines = [f"| gap at K = {paths}, % | " + " | ".join(families) + " |", "|---|" + "---:|" * len(families)]
    for name in mean.mean().drop(OPTIMUM).sort_values().index:
        cells = [
            f"{mean.loc[f, name]:.2f} ± {error.loc[f, name]:.2f} [{least.loc[f, name]:.2f}, {most.loc[f, name]:.2f}]"
            for f in families
        ]
        lines.append(f"| {NAMES[str(name)]} | " + " | ".join(cells) + " |")
    wide = frame.pivot(index=["family", "seed", "paths"], columns="name", values="block_efficiency")
    falls = {name: int((wide[name].unstack().diff(axis=1) < -1e-7).any(axis=1).sum()) for name in ("gbv", OPTIMUM)}
    problems = len(wide["gbv"].unstack())
    over = float((wide.drop(columns=OPTIMUM).max(axis=1) - wide[OPTIMUM]).max())
    gain = (100 * (at["gbv"] / at["bv"] - 1)).groupby("family")
    gains = ", ".join(f"{gain.mean()[f]:+.1f} ± {gain.sem()[f]:.1f} % ({f})" for f in families)
    below = int((wide["gbv"] < wide["bv"] - 1e-9).unstack().any(axis=1).sum())
    return text(
        """Top: block efficiency against the number of draft paths K for every algorithm, the certified optimum above.
        Bottom: the gap to the optimum in percent, logarithmic; gaps below 0.01 % lie on the floor.""",
        f"""V = {settings["vocab"]}, L = {settings["depth"]}, {settings["instances"]} instances a family, every value
        exact for its instance, the optimum to 1e-8. {FAMILIES} {ERRORS} In the table: mean ± standard error of the
        gap, and in brackets the smallest and the largest instance.""",
        """Thomas & Pal (arXiv 2602.16961): GBV is ahead of BV by over 30 %, best at K = 3 or 4 (measured on language
        models).""",
        f"""On these families: GBV over BV at K = {paths} is {gains}; below BV at some K in {below} of {problems}
        problems; it falls in K somewhere in {falls["gbv"]}. The optimum falls in {falls[OPTIMUM]}, and no algorithm is
        above it (largest excess {max(over, 0.0):.0e}, within the solver's 1e-8).""",
        "\n".join(lines),
    )


def where_gbv_loses(data: Data) -> str:
    """F4."""
    frame, settings = pd.DataFrame(data["rows"]), data["settings"]
    differences = frame.assign(first=frame["gbv"] - frame["bv"], second=frame["pbv"] - frame["gbv"])
    cells = differences.groupby(["temperature", "draft_noise"])[["first", "second"]]
    mean, error = cells.mean(), cells.sem().fillna(0.0)
    told = (mean.abs() > 2 * error) & (mean.abs() > 1e-9)
    above, below = (told & (mean > 0)).sum(), (told & (mean < 0)).sum()
    low, high = mean["first"].idxmin(), mean["second"].idxmax()
    return text(
        """What greedy skewing costs: GBV minus BV (left) and PBV minus GBV (right), in tokens per target call, over
        temperature and the noise in the draft's logits. In brackets: within two standard errors of 0.""",
        f"""Family softmax, V = {settings["vocab"]}, L = {settings["depth"]}, K = {settings["paths"]},
        {settings["instances"]} instances a cell, the same seeds everywhere; closed forms.""",
        """Thomas & Pal (arXiv 2602.16961): low temperature favours several paths. TGBV and PBV are this project's
        own; they skew only as much as is needed.""",
        f"""GBV is above BV in {above["first"]} of {len(mean)} cells and below in {below["first"]} (by more than two
        standard errors); lowest at temperature {low[0]:g}, noise {low[1]:g}:
        {mean["first"][low]:+.2f} ± {error["first"][low]:.2f} tokens. PBV is above GBV in
        {above["second"]} cells and below in {below["second"]}; most at temperature {high[0]:g}, noise {high[1]:g}:
        {mean["second"][high]:+.2f} ± {error["second"][high]:.2f}.""",
    )


def decomposition(data: Data) -> str:
    """F5."""
    frame, settings = pd.DataFrame(data["rows"]), data["settings"]
    wide = frame.pivot(index=["family", "seed"], columns="name", values="block_efficiency")
    percent = wide.div(wide[OPTIMUM], axis=0) * 100
    families = list(dict.fromkeys(frame["family"]))
    mean, error = percent.groupby("family").mean(), percent.groupby("family").sem()
    lines = ["| percent of the optimum | " + " | ".join(families) + " |", "|---|" + "---:|" * len(families)]
    for name in ("bv", "gbv", "tgbv", "pbv", "ebv", RANKING, OPTIMUM, RELAXATION):
        cells = [f"{mean.loc[f, name]:.2f} ± {error.loc[f, name]:.2f}" for f in families]
        lines.append(f"| {NAMES[name]} | " + " | ".join(cells) + " |")
    return text(
        """Where the gap to the optimum goes, in percent of each instance's optimum: from BV to GBV (greedy skewing),
        TGBV (as much skewing as is needed), PBV (proportional), the LP optimum, and the node relaxation, an upper
        bound that ignores how nodes compete. Beside the steps: the best single ranking of the leaves; what the
        optimum is above it is what mixing rankings is worth. A hatched bar goes down. On the left the length of the
        step ± its standard error; an error bar is the standard error of the value at its end.""",
        f"""V = {settings["vocab"]}, L = {settings["depth"]}, K = {settings["paths"][0]}, {settings["instances"]}
        instances a family; the optimum to 1e-8; the best ranking by local search where not all leaf orders can be
        tried, so a lower bound of the best. {FAMILIES}""",
        "None: TGBV, PBV and the certified optimum at these sizes are this project's own.",
        f"""PBV is within {100 - mean["pbv"].min():.2f} % of the optimum on average in every family, GBV within
        {100 - mean["gbv"].min():.2f} %, BV within {100 - mean["bv"].min():.2f} %. ± is one standard error.""",
        "\n".join(lines),
    )


def scaling(data: Data) -> str:
    """F10."""
    frame = pd.DataFrame(data["rows"])
    last = frame[frame["method"] == "rank-quantile"].sort_values("nodes").iloc[-1]
    stopped = frame[frame["gap"] > frame["goal"]]
    return text(
        """Seconds to the certified multi-path optimum against the number of nodes, three formulations. Beside the
        points: the certified gap; an open marker says that the gap asked for was not reached.""",
        """Dirichlet(0.5) tables, K = 4, seed 0, one solve after the other in one process. Gap asked for: 1e-8 up to
        1,200 nodes, 1e-6 up to 12,000, 1e-4 beyond.""",
        "None: the rank-quantile formulation is this project's own.",
        f"""The rank-quantile formulation certifies {int(last["nodes"]):,} nodes to {last["gap"]:.0e} in
        {last["seconds"]:.0f} s. Not reached: {len(stopped)} of {len(frame)} runs
        ({", ".join(dict.fromkeys(stopped["method"])) or "none"}). Times are those of the machine that computed
        them.""",
    )


def _row(values: list[float]) -> str:
    return "(" + ", ".join(f"{value:.2f}" for value in values) + ")"
