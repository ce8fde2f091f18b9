"""Figures about real models: data of `experiments.figures.real_data` in, a matplotlib figure out.

A row or a column of panels for each pair of models. Error bars are one standard error over prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.figures.plots_paper import STYLE, curve, curves, gap_lines, labelled_lines
from experiments.figures.real_data import STAGES, UPPER
from experiments.figures.real_jobs import SHOWN_PAIR
from lpverify.report import plots
from lpverify.report.plots import INK, MUTED, SERIES, SHOWN, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Data = Mapping[str, Any]
NAMES = SHOWN | {"autoregressive": "target alone"}
STAGE_LOOK = {"draft": (SERIES[4], ""), "target": (SERIES[0], ""), "verify": (SERIES[1], "///"), "cache": (MUTED, "")}
"""Colour and hatching of a stage; in grey: light, dark, hatched, middle."""


def real_time(data: Data) -> Figure:
    """F7: tokens per second against K, and the time of a token by stage at the largest K."""
    frame = pd.DataFrame(data["rows"])
    pairs = list(dict.fromkeys(frame["pair"]))
    fig, axes = canvas(11.5, 0.6 + 3.6 * len(pairs), len(pairs), 2)
    for row, pair in zip(axes, pairs, strict=True):
        rows = frame[frame["pair"] == pair]
        last = rows[rows["paths"] == rows["paths"].max()]
        over = [name for name in dict.fromkeys(rows["name"]) if rows[rows["name"] == name]["paths"].nunique() > 1]
        several = rows["paths"].nunique() > 1
        lines = rows[rows["name"].isin(over)] if several else rows[rows["name"].isin(STYLE)]
        from_zero(row[0], rows["tokens_per_second"] + rows["tokens_per_second_se"])
        labelled_lines(row[0], curves(lines, "paths", "tokens_per_second", "tokens_per_second_se"))
        alone = last[last["name"] == "autoregressive"]
        if len(alone):
            level = float(alone["tokens_per_second"].iloc[0])
            row[0].axhline(level, color=INK, linewidth=1, linestyle=":")
            row[0].annotate(
                "target alone", (0, level), (3, 3), xycoords=("axes fraction", "data"), textcoords="offset points"
            )
        row[0].set_xticks(sorted(set(rows["paths"])))
        row[0].set_xlabel("draft paths K (BV drafts one)")
        row[0].set_ylabel("tokens per second")
        row[0].set_title(SHOWN_PAIR[pair], loc="left", fontweight="bold", color=INK)
        stage_bars(row[1], last)
        row[1].set_title(f"time by stage, K = {int(last['paths'].iloc[0])}", loc="left", fontweight="bold", color=INK)
    return fig


def from_zero(ax: Axes, values: pd.Series) -> None:
    """Let the vertical axis go from 0 to a little above all values; before lines are labelled."""
    ax.set_ylim(0, 1.06 * float(values.max()))


def stage_bars(ax: Axes, rows: pd.DataFrame) -> Axes:
    """Milliseconds for each committed token, stacked by stage, fastest on top; tokens per second at the bar's end."""
    rows = rows.sort_values("tokens_per_second").reset_index(drop=True)
    left = np.zeros(len(rows))
    for stage in STAGES:
        colour, hatch = STAGE_LOOK[stage]
        width = np.array([entry[stage] for entry in rows["milliseconds"]])
        look: Any = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.4, "label": stage}
        ax.barh(range(len(rows)), width, 0.66, left=left, **look)
        left = left + width
    for position, (end, row) in enumerate(zip(left, rows.itertuples(), strict=True)):
        label = f" {row.tokens_per_second:.3g} ± {row.tokens_per_second_se:.2g} /s"
        ax.text(end, position, label, va="center_baseline", fontsize=8.5, color=INK)
    ax.set_yticks(range(len(rows)), [NAMES[name] for name in rows["name"]])
    ax.set_xlim(0, 1.3 * float(left.max()))
    ax.set_xlabel("milliseconds per committed token")
    ax.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")
    ax.tick_params(axis="y", length=0)
    return plots.despine(ax)


MORE = 1.3
"""Thomas and Pal's claim for GBV: over 30 % above BV."""

LEFT_OUT = ("token", "nss")
"""Far below the others; only in the tables, so that the lines of the others can be told apart."""


def panel(ax: Axes, rows: pd.DataFrame, by: str, points: pd.DataFrame | None = None) -> Axes:
    """Lines of block efficiency, moved a little apart; BV with a band.

    The band is BV's standard error, an error bar that of the difference to BV: contexts are shared, so most of what
    makes BV's value uncertain moves all lines alike. The limits leave room for ``points``, which others draw.
    """
    rows = rows[~rows["name"].isin(LEFT_OUT)]
    lines = curves(rows, by, "value", "off_bv_se")
    x, y, _ = lines.pop("bv")
    error = curve(rows[rows["name"] == "bv"], by, "value", "se")[2]
    colour = STYLE["bv"][0]
    ax.fill_between(x, np.subtract(y, error), np.add(y, error), color=colour, alpha=0.15, linewidth=0, zorder=0)
    step = 0.012 * (float(np.max(x)) - float(np.min(x)))
    moved = {
        name: (line[0] + step * (i - (len(lines) - 1) / 2), *line[1:]) for i, (name, line) in enumerate(lines.items())
    }
    ends = [np.add(line[1], line[2]).max() for line in moved.values()] + [np.add(y, error).max()]
    starts = [np.subtract(line[1], line[2]).min() for line in moved.values()] + [np.subtract(y, error).min()]
    if points is not None and len(points):
        ends.append((points["rao_blackwell"] + points["rao_blackwell_se"]).max())
        starts.append((points["rao_blackwell"] - points["rao_blackwell_se"]).min())
    margin = 0.05 * (max(ends) - min(starts))
    ax.set_ylim(min(starts) - margin, max(ends) + margin)  # before the lines are labelled
    shown: Any = {"bv": (x, y, np.zeros(len(y))), **moved}
    return labelled_lines(ax, shown)


def real_paths(data: Data) -> Figure:
    """F6: block efficiency against K, a row for each pair, a column for each temperature."""
    frame, points = pd.DataFrame(data["rows"]), pd.DataFrame(data["points"])
    frame = frame[frame["estimate"] == "drafted"]
    pairs, temperatures = list(dict.fromkeys(frame["pair"])), list(dict.fromkeys(frame["temperature"]))
    fig, axes = canvas(5.6 * len(temperatures), 0.3 + 4.2 * len(pairs), len(pairs), len(temperatures))
    for row, pair in zip(axes, pairs, strict=True):
        for ax, temperature in zip(row, temperatures, strict=True):
            rows = frame[(frame["pair"] == pair) & (frame["temperature"] == temperature)]
            at = points[(points["pair"] == pair) & (points["temperature"] == temperature)]
            at = at[at["name"].isin(set(rows["name"]) - set(LEFT_OUT))]
            check_points(panel(ax, rows, "paths", at), at)
            ax.set_xticks(sorted(set(rows["paths"])))
            ax.set_title(f"{SHOWN_PAIR[pair]}, T = {temperature:g}", loc="left", fontweight="bold", color=INK)
        row[0].set_ylabel(plots.UNIT)
    for ax in axes[-1]:
        ax.set_xlabel("draft paths K")
    return fig


def check_points(ax: Axes, rows: pd.DataFrame) -> Axes:
    """Open marks left of the lines' points: what decoding gave. BV's at K = 1, which is what it drafts."""
    for i, row in enumerate(rows.itertuples()):
        colour, marker = STYLE[row.name]
        beside = (1 if row.name == "bv" else row.paths) - 0.34 + 0.035 * i
        ax.errorbar(
            beside, row.rao_blackwell, row.rao_blackwell_se, color=colour, marker=marker, markersize=5,
            markerfacecolor="white", elinewidth=0.6, linestyle="", zorder=2,
        )  # fmt: skip
    if len(rows):
        key = "open marks: decoding runs"
        ax.text(0.98, 0.02, key, transform=ax.transAxes, ha="right", fontsize=8.5, color=MUTED)
    return ax


def real_temperature(data: Data) -> Figure:
    """F8: block efficiency against temperature; dashed, 30 % above BV."""
    frame = pd.DataFrame(data["rows"])
    pairs = list(dict.fromkeys(frame["pair"]))
    fig, axes = canvas(5.8 * len(pairs), 4.5, 1, len(pairs))
    for ax, pair in zip(axes[0], pairs, strict=True):
        rows = frame[frame["pair"] == pair]
        panel(ax, rows, "temperature")
        x, y, _ = curve(rows[rows["name"] == "bv"], "temperature", "value", "se")
        ax.plot(x, MORE * np.asarray(y), color=STYLE["bv"][0], linestyle="--", linewidth=1.1, zorder=1)
        ax.text(0.97, 0.02, "dashed: BV + 30 %", transform=ax.transAxes, ha="right", fontsize=8.5, color=STYLE["bv"][0])
        ax.set_xticks(x)
        ax.set_xlabel("temperature")
        shape = f"K = {int(rows['paths'].iloc[0])}, L = {int(rows['depth'].iloc[0])}"
        ax.set_title(f"{SHOWN_PAIR[pair]}, {shape}", loc="left", fontweight="bold", color=INK)
    axes[0, 0].set_ylabel(plots.UNIT)
    return fig


def real_depth(data: Data) -> Figure:
    """F9: block efficiency (left) and tokens per second (right) against L, a row for each pair."""
    frame, speeds = pd.DataFrame(data["rows"]), pd.DataFrame(data["points"])
    pairs = list(dict.fromkeys(frame["pair"]))
    fig, axes = canvas(11.5, 0.3 + 4.0 * len(pairs), len(pairs), 2)
    for row, pair in zip(axes, pairs, strict=True):
        rows, fast = frame[frame["pair"] == pair], speeds[speeds["pair"] == pair]
        panel(row[0], rows, "depth")
        from_zero(row[1], fast["tokens_per_second"] + fast["tokens_per_second_se"])
        labelled_lines(row[1], curves(fast, "depth", "tokens_per_second", "tokens_per_second_se"))
        paths = int(rows["paths"].iloc[0])
        row[0].set_title(f"{SHOWN_PAIR[pair]}, K = {paths}", loc="left", fontweight="bold", color=INK)
        row[0].set_ylabel(plots.UNIT)
        row[1].set_ylabel("tokens per second")
        for ax, shown in zip(row, (rows, fast), strict=True):
            ax.set_xticks(sorted(set(shown["depth"])))
            ax.set_xlabel("draft depth L")
    return fig


AXES = {"paths": "draft paths K", "depth": "draft depth L", "temperature": "temperature"}


def real_bound(data: Data) -> Figure:
    """F12: closed forms and upper bound on the target's own texts, with shares of the bound; a row for each pair."""
    frame = pd.DataFrame(data["rows"])
    pairs = list(dict.fromkeys(frame["pair"]))
    fig, axes = canvas(15.5, 0.3 + 4.0 * len(pairs), len(pairs), len(AXES))
    for row, pair in zip(axes, pairs, strict=True):
        for ax, (axis, label) in zip(row, AXES.items(), strict=True):
            rows = frame[(frame["pair"] == pair) & (frame["axis"] == axis)]
            bounded_lines(ax, rows, axis)
            ax.set_xticks(sorted(set(rows[axis])))
            ax.set_xlabel(label)
            shape = {name: f"{short} = {rows[name].iloc[0]:g}" for name, short in SHORT.items() if name != axis}
            ax.set_title(", ".join(shape.values()), loc="left", color=INK)
        row[0].set_title(f"{SHOWN_PAIR[pair]}\n{row[0].get_title(loc='left')}", loc="left", color=INK)
        row[0].set_ylabel(plots.UNIT)
    return fig


SHORT = {"paths": "K", "depth": "L", "temperature": "T"}


def bounded_lines(ax: Axes, rows: pd.DataFrame, axis: str) -> Axes:
    """Values on the text below the upper bound; the labels at the right end give the percent of the bound."""
    last = rows[rows[axis] == rows[axis].max()].set_index("name")
    words = {
        str(name): f"{SHOWN[str(name)]} {100 * row['share']:.1f} ± {100 * row['share_se']:.1f} %"
        for name, row in last.iterrows()
        if name != UPPER
    }
    best = curve(rows[rows["name"] == UPPER], axis, "value", "se")
    lines = curves(rows[rows["name"] != UPPER], axis, "value", "gap_se")
    low = min(float(np.subtract(line[1], line[2]).min()) for line in lines.values())
    high = float(np.add(best[1], best[2]).max())
    ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))  # before the lines are labelled
    return labelled_lines(ax, lines, best, best_name=UPPER, words=words)


def real_gap(data: Data) -> Figure:
    """F11: gap to the exact optimum in percent against K on real truncated trees, a column for each pair."""
    frame = pd.DataFrame(data["rows"])
    pairs = list(dict.fromkeys(frame["pair"]))
    fig, axes = canvas(5.6 * len(pairs), 4.8, 1, len(pairs), sharey=True)
    for ax, pair in zip(axes[0], pairs, strict=True):
        rows = frame[(frame["pair"] == pair) & frame["name"].isin(STYLE)]
        gap_lines(ax, curves(rows, "paths", "gap", "gap_se"))
        of = data["settings"]["pairs"][pair]
        words = f"T = {of['temperature']:g}, top-k {of['top_k']}, L = {of['depth']}, {rows['contexts'].max()} contexts"
        ax.set_title(f"{SHOWN_PAIR.get(pair, pair)}\n{words}", loc="left", color=INK)
        ax.set_xticks(sorted(set(rows["paths"])))
        ax.set_xlabel("draft paths K")
    axes[0, 0].set_ylabel("gap to the optimum (%)")
    return fig


def advise(data: Data) -> Figure:
    """F13: predicted against measured tokens per second, a panel for each pair."""
    pairs = data["pairs"]
    fig, axes = canvas(5.4 * len(pairs), 5.2, 1, len(pairs))
    for ax, pair in zip(axes[0], pairs, strict=True):
        plot_predicted(pair, ax)
        ax.set_title(SHOWN_PAIR.get(pair["pair"], pair["pair"]), loc="left", fontweight="bold", color=INK)
    return fig


def plot_predicted(data: Mapping[str, Any], ax: Axes) -> Axes:
    """Predicted against measured tokens per second of one pair: a mark for each K and L, the diagonal between.

    ``data["rows"]``: algorithm, paths, depth, predicted, predicted_se, measured, measured_se. Error bars are one
    standard error; the band is 10 % on both sides of equality. Each algorithm's best measured setting has a ring and is
    named in the legend.
    """
    rows = pd.DataFrame(data["rows"])
    every = rows[["predicted", "measured"]].to_numpy()
    low, high = 0.9 * every.min(), 1.08 * every.max()
    line = np.array([low, high])
    ax.fill_between(line, 0.9 * line, 1.1 * line, color=MUTED, alpha=0.13, linewidth=0, zorder=0)
    ax.plot(line, line, color=MUTED, linewidth=1, zorder=1)
    key = "line: equal; grey: within 10 %; ring: best measured"
    ax.text(0.98, 0.03, key, transform=ax.transAxes, ha="right", fontsize=8.5, color=MUTED)
    for name, own in rows.groupby("algorithm", sort=False):
        best = own.loc[own["measured"].idxmax()]
        colour, marker = STYLE[str(name)]
        errors = {"xerr": own["predicted_se"].fillna(0.0), "yerr": own["measured_se"].fillna(0.0)}
        look: Any = {"color": colour, "markersize": 6, "markeredgewidth": 0, "elinewidth": 0.9}
        label = f"{SHOWN[str(name)]}, best K = {best['paths']}, L = {best['depth']}"
        ax.errorbar(own["predicted"], own["measured"], **errors, fmt=marker, label=label, zorder=3, **look)
        ax.plot(best["predicted"], best["measured"], "o", color=colour, markersize=12, markerfacecolor="none", zorder=4)
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.set_aspect("equal")
    ax.set_xlabel("predicted tokens per second")
    ax.set_ylabel("measured tokens per second")
    ax.legend(frameon=False, loc="upper left")
    return plots.despine(ax)
