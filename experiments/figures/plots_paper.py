"""Figures about small problems: summaries of `experiments.figures.figure_data` in, a matplotlib figure out.

Every panel function takes ``ax`` and data and returns ``ax``. Error bars are one standard error over instances of the
difference to the same instance's optimum, so none crosses the optimum (the mean of numbers >= 0 is at least its
standard error); the standard error of the optimum itself is a band.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from experiments.figures.figure_data import STEPS
from lpverify.exact.compare import OPTIMUM, RANKING, RELAXATION
from lpverify.report import plots
from lpverify.report.plots import ACCENT, INK, MUTED, OPTIMUM_COLOUR, SHOWN, UNIT, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Data = Mapping[str, Any]
STYLE = plots.looks([])
"""Colour and marker of an algorithm, the same in every figure."""

LEAST_GAP = 0.01
"""Gaps in percent below this are drawn here, on the floor of a logarithmic axis."""

Curve = tuple[npt.NDArray[np.float64], ...]
"""x, y, standard error, which may have two rows: down and up."""


def one_position(data: Data) -> Figure:
    """F1: accepted mass and correction stacked to the emitted distribution, beside the naive correction."""
    fig, axes = canvas(9.6, 3.9, 1, 2, sharey=True)
    naive = [data["rejected_mass"] * p for p in data["target"]]
    wrong = f"Wrong: off by {data['naive_law_error']:.2f} (total variation)"
    right = "Right: emits the target distribution p"
    balance_bars(axes[0, 0], data, data["residual"], "correction from the residual", right)
    balance_bars(axes[0, 1], data, naive, "correction from p itself", wrong)
    axes[0, 0].set_ylabel("probability")
    return fig


def balance_bars(ax: Axes, data: Data, correction: Sequence[float], name: str, title: str) -> Axes:
    """A bar for each token: min(p, q) and what the correction adds; a line marks p, a diamond the draft's q."""
    tokens = np.arange(len(data["target"]))
    accepted, added = np.asarray(data["accepted"]), np.asarray(correction)
    ax.bar(tokens, accepted, 0.56, color=ACCENT, label="accepted min(p, q)")
    ax.bar(tokens, added, 0.56, bottom=accepted, color="#e69f00", hatch="//", edgecolor="white", label=name)
    ax.hlines(data["target"], tokens - 0.36, tokens + 0.36, OPTIMUM_COLOUR, linewidth=2.2, zorder=4, label="target p")
    ax.plot(tokens, data["draft"], "D", color="white", markeredgecolor=INK, markersize=6, zorder=5, label="draft q")
    for token, total, p in zip(tokens, accepted + added, data["target"], strict=True):
        wrong = abs(total - p) > 1e-12
        label = f"{total:.2f}" + (f" (p = {p:.2f})" if wrong else "")
        weight = "bold" if wrong else "normal"
        above: Any = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "color": INK}
        ax.annotate(label, (token, total), fontweight=weight, **above)
    ax.set_xticks(tokens, [f"token {x}" for x in tokens])
    ax.set_ylim(0, 1.3 * max(*data["target"], *data["draft"]))
    ax.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")
    return plots.despine(ax, title)


def single_path(data: Data) -> Figure:
    """F2: LP optimum, BV and token rule over depth and over draft noise."""
    frame, settings = pd.DataFrame(data["rows"]), data["settings"]
    fig, axes = canvas(9.6, 4.0, 1, 2)
    panels = (
        ("depth", "draft depth L", f"V = {settings['vocab']}, draft noise {frame['draft_noise'].iloc[0]:g}"),
        ("draft_noise", "noise in the draft's logits", f"V = {settings['vocab']}, L = {settings['depth']}"),
    )
    for ax, (by, label, title) in zip(axes[0], panels, strict=True):
        rows = frame[frame["axis"] == by.removeprefix("draft_")]
        on_optimum(ax, curve(rows, by, "optimum"), curve(rows, by, "bv"), curve(rows, by, "token", "off_token_se"))
        ax.set_xlabel(label)
        if by == "depth":
            ax.set_xticks(sorted(set(rows[by])))
        plots.despine(ax, title)
    axes[0, 0].set_ylabel(UNIT)
    return fig


def on_optimum(ax: Axes, best: Curve, bv: Curve, token: Curve) -> Axes:
    """The optimum as a broad line, BV as open marks on it, the token rule below."""
    band(ax, best)
    ax.plot(best[0], best[1], color=OPTIMUM_COLOUR, linewidth=5, alpha=0.6, label="LP optimum (HiGHS)")
    ax.plot(bv[0], bv[1], STYLE["bv"][1], color=INK, markerfacecolor="white", markersize=6.5, zorder=4, label="BV")
    colour, marker = STYLE["token"]
    ax.errorbar(*token, color=colour, marker=marker, capsize=2.5, linewidth=1.4, markersize=5, label="token rule")
    ax.legend(frameon=False)
    return ax


def band(ax: Axes, best: Curve) -> Axes:
    """One standard error of the mean optimum on both sides."""
    x, y, error = best
    ax.fill_between(x, y - error, y + error, color=OPTIMUM_COLOUR, alpha=0.13, linewidth=0, zorder=0)
    return ax


def multi_path(data: Data) -> Figure:
    """F3: block efficiency (top) and gap to the optimum in percent (bottom) against K, a column for each family."""
    frame = pd.DataFrame(data["rows"])
    families = list(dict.fromkeys(frame["family"]))
    fig, axes = canvas(4.6 * len(families), 7.6, 2, len(families), sharex=True)
    for column, family in enumerate(families):
        rows = frame[frame["family"] == family]
        verifiers = rows[rows["name"] != OPTIMUM]
        best = curve(rows[rows["name"] == OPTIMUM], "paths", "value")
        labelled_lines(axes[0, column], curves(verifiers, "paths", "value", "off_se"), best)
        gap_lines(axes[1, column], curves(verifiers, "paths", "gap"))
        axes[0, column].set_title(family, loc="left", fontweight="bold", color=INK)
        axes[1, column].set_xlabel("draft paths K")
        axes[1, column].set_xticks(sorted(set(rows["paths"])))
    axes[0, 0].set_ylabel(UNIT)
    axes[1, 0].set_ylabel("gap to the optimum (%)")
    return fig


def labelled_lines(
    ax: Axes,
    curves: Mapping[str, Curve],
    best: Curve | None = None,
    *,
    best_name: str = "optimum",
    words: Mapping[str, str] | None = None,
) -> Axes:
    """A line with error bars for each algorithm, its name at the right end, the optimum (or a bound) above them.

    ``words``: labels instead of the algorithms' names. Set the vertical limits first where they matter.
    """
    shown = SHOWN | dict(words or {})
    ends = []
    for name, (x, y, error) in curves.items():
        colour, marker = STYLE[name]
        ax.errorbar(
            x, y, error, color=colour, marker=marker, lw=1.3, elinewidth=0.8, markersize=5, clip_on=False, zorder=3
        )  # fmt: skip
        ends.append((x[-1], y[-1], shown[name], colour))
    if best is not None:
        band(ax, best)
        ax.plot(best[0], best[1], color=OPTIMUM_COLOUR, linewidth=2.4, zorder=4)
        ends.append((best[0][-1], best[1][-1], best_name, OPTIMUM_COLOUR))
    plots.label_ends(ax, ends, start=min(x[0] for x, _, _ in curves.values()), fontsize=9)
    return plots.despine(ax)


def gap_lines(ax: Axes, curves: Mapping[str, Curve]) -> Axes:
    """Gaps in percent on a logarithmic axis; gaps below `LEAST_GAP` are drawn on its floor."""
    floored: dict[str, Curve] = {}
    for name, (x, y, error) in curves.items():
        values = np.maximum(y, LEAST_GAP)
        down = np.clip(values - LEAST_GAP, 0, error)  # a bar ends at the floor, too
        floored[name] = (x, values, np.stack([down, np.where(y >= LEAST_GAP, error, 0)]))
    ax.set_yscale("log")
    top = max(float(np.max(y)) for _, y, _ in floored.values())
    ax.set_ylim(0.75 * LEAST_GAP, 2 * max(top, 1.0))
    labelled_lines(ax, floored)
    ticks = [LEAST_GAP, *(10.0**i for i in range(-1, 3) if 10.0**i < 2 * top)]
    ax.set_yticks(ticks, [f"≤ {LEAST_GAP:g}", *(f"{tick:g}" for tick in ticks[1:])])
    ax.minorticks_off()
    return ax


def where_gbv_loses(data: Data) -> Figure:
    """F4: GBV minus BV and PBV minus GBV over temperature and draft noise."""
    frame = pd.DataFrame(data["rows"])
    fig, axes = canvas(11.5, 4.8, 1, 2)
    for ax, (first, second) in zip(axes[0], (("gbv", "bv"), ("pbv", "gbv")), strict=True):
        heat_map(ax, frame, f"{first}_{second}")
        title = f"{SHOWN[first]} minus {SHOWN[second]}, tokens per target call"
        ax.set_title(title, loc="left", fontweight="bold", color=INK)
    axes[0, 0].set_ylabel("temperature")
    fig.supxlabel("(in parentheses: within two standard errors of 0)", fontsize=9, color=MUTED)
    return fig


def heat_map(ax: Axes, frame: pd.DataFrame, column: str) -> Axes:
    """A mean for each cell, written into it; in parentheses where it is within two standard errors of 0."""
    mean = frame.pivot(index="temperature", columns="draft_noise", values=column)
    error = frame.pivot(index="temperature", columns="draft_noise", values=f"{column}_se").to_numpy()
    most = max(float(mean.abs().to_numpy().max()), 1e-9)
    image = ax.imshow(mean.to_numpy(), cmap="PuOr", vmin=-most, vmax=most, origin="lower", aspect="auto")
    shades = image.to_rgba(mean.to_numpy())[..., :3] @ np.array([0.299, 0.587, 0.114])
    for i, j in np.ndindex(*mean.shape):
        value = float(mean.iloc[i, j])
        text = f"{value:+.2f}".replace("-", "\N{MINUS SIGN}") if abs(value) >= 0.005 else "0"
        shown = text if abs(value) > 2 * error[i, j] or text == "0" else f"({text})"
        colour = "white" if shades[i, j] < 0.55 else INK
        ax.text(j, i, shown, ha="center", va="center", fontsize=8.5, color=colour)
    ax.set_xticks(range(mean.shape[1]), [f"{x:g}" for x in mean.columns])
    ax.set_yticks(range(mean.shape[0]), [f"{x:g}" for x in mean.index])
    ax.set_xlabel("noise in the draft's logits")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return ax


def decomposition(data: Data) -> Figure:
    """F5: steps from BV to the optimum and the node relaxation, a panel for each family."""
    frame = pd.DataFrame(data["rows"])
    families = list(dict.fromkeys(frame["family"]))
    fig, axes = canvas(4.3 * len(families), 4.0, 1, len(families), sharey=True)
    for ax, family in zip(axes[0], families, strict=True):
        steps(ax, frame[frame["family"] == family].set_index("name"))
        ax.set_title(family, loc="left", fontweight="bold", color=INK)
        ax.set_xlabel("percent of the optimum")
    return fig


def steps(ax: Axes, rows: pd.DataFrame) -> Axes:
    """A bar from each step to the next in percent of the optimum; its length is written on the left.

    ``rows``: of `figure_data.decomposition_summary`, by name.
    """
    from matplotlib.patches import Rectangle

    order = [*STEPS[:-2], RANKING, *STEPS[-2:]]
    percent, error = rows["percent"], rows["percent_se"]
    inner = [*STEPS[:-1], RANKING]
    least = float(percent[inner].min() - error[inner].max())
    low = least - 0.55 * (100 - least)
    before = float(percent["bv"])
    for position, name in enumerate(order):
        value = float(percent[name])
        if name in ("bv", RANKING):
            label = f"{value:.1f} %"
            marker = "s" if name == "bv" else "D"
            mark = ax.plot(value, position, marker, color=INK, markerfacecolor="white", zorder=5)[0]
            mark.set_clip_path(Rectangle((low, -1), 100 - low, len(order) + 1, transform=ax.transData))
        else:
            label = f"{rows['change'][name]:+.2f} \N{PLUS-MINUS SIGN} {rows['change_se'][name]:.2f}"
            bar = ax.barh(position, value - before, 0.62, left=before, zorder=2)[0]
            if name == RELAXATION:
                bar.set(facecolor="none", edgecolor=MUTED, linestyle="--")
            else:
                down = value < before
                bar.set(facecolor="#e69f00" if down else ACCENT, hatch="////" if down else "", linewidth=0)
                bar.set_edgecolor("white")
            ax.vlines(before, order.index(STEPS[STEPS.index(name) - 1]), position, color=MUTED, linewidth=0.7, zorder=1)
        if name != OPTIMUM:
            ax.errorbar(value, position, xerr=float(error[name]), color=INK, linewidth=1, capsize=2.5, zorder=4)
        label = label.replace("-", "\N{MINUS SIGN}")
        ax.annotate(label, (0.02, position), xycoords=("axes fraction", "data"), va="center_baseline", fontsize=9)
        before = before if name == RANKING else value
    ax.axvline(100, color=OPTIMUM_COLOUR, linewidth=2.2, zorder=6)
    ax.set_yticks(range(len(order)), [SHOWN.get(name, name) for name in order])
    ax.set_ylim(len(order) - 0.4, -0.6)
    ax.set_xlim(low, max(float(percent.max()) + float(error[RELAXATION]), 100) + 0.03 * (100 - low))
    ax.locator_params(axis="x", nbins=5)
    ax.tick_params(axis="y", length=0)
    return plots.despine(ax)


def scaling(data: Data) -> Figure:
    """F10: seconds of the solvers against the number of nodes."""
    fig, ax = plots.figure(8)
    time_against_nodes(ax, pd.DataFrame(data["rows"]), "Certified multi-path optimum, K = 4")
    return fig


def time_against_nodes(ax: Axes, frame: pd.DataFrame, title: str) -> Axes:
    """Solver time against number of nodes, both logarithmic, a line for each method, the certified gap at its points.

    Columns ``method``, ``nodes``, ``seconds``, ``gap``, ``goal``. Open marks: the gap asked for was not reached.
    """
    from matplotlib.ticker import NullFormatter

    for i, (name, rows) in enumerate(frame.groupby("method", sort=False)):
        rows = rows.sort_values("nodes")
        colour, marker = plots.SERIES[i], plots.MARKERS[i]
        ax.plot(rows["nodes"], rows["seconds"], color=colour, linewidth=1.4, zorder=2)
        small: Any = {"textcoords": "offset points", "fontsize": 7.5, "color": MUTED}
        for row in rows.itertuples():
            face = colour if row.gap <= row.goal else "white"
            ax.plot(row.nodes, row.seconds, marker, color=colour, markerfacecolor=face, zorder=3)
            if i == 0 and row.nodes >= 100:  # below, the points crowd and every gap is tiny
                ax.annotate(f"{row.gap:.0e}".replace("e-0", "e-"), (row.nodes, row.seconds), (5, -10), **small)
        last = (rows["nodes"].iloc[-1], rows["seconds"].iloc[-1])
        side: Any = {"xytext": (8, 4), "ha": "left"} if i == 0 else {"xytext": (-8, 4), "ha": "right"}
        side |= {"textcoords": "offset points", "fontweight": "bold", "annotation_clip": False}
        ax.annotate(str(name), last, color=colour, **side)
    key = "small print: certified gap\nopen marks: the gap asked for was not reached"
    ax.text(0.98, 0.03, key, transform=ax.transAxes, ha="right", fontsize=7.5, color=MUTED)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("nodes below the root")
    ax.set_ylabel("seconds")
    return plots.despine(ax, title)


def curve(rows: pd.DataFrame, by: str, value: str, error: str | None = None) -> Curve:
    """The points of one line in order; ``error``: column of the standard error, default ``value`` + "_se"."""
    rows = rows.sort_values(by)
    x, y, bars = (rows[column].to_numpy(dtype=float) for column in (by, value, error or f"{value}_se"))
    return x, y, bars


def curves(rows: pd.DataFrame, by: str, value: str, error: str | None = None) -> dict[str, Curve]:
    """A line for each algorithm, in the order of the rows."""
    return {str(name): curve(rows[rows["name"] == name], by, value, error) for name in dict.fromkeys(rows["name"])}
