"""Drawing the figures of `figures.py`: data in, a matplotlib figure out. Nothing is computed but means.

Every panel function takes data and ``ax`` and returns ``ax``. Error bars are one standard error over instances of the
difference to the same instance's optimum, so none crosses the optimum (a mean of numbers >= 0 is at least its standard
error); the optimum's own standard error is a band.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

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

Curve = tuple[Sequence[float], Sequence[float], Sequence[float]]  # x, y, standard error


def one_position(data: Data) -> Figure:
    """F1: accepted mass and correction stacked to what is emitted, beside the naive correction."""
    fig, axes = canvas(9.6, 3.9, 1, 2, sharey=True)
    rejected = data["rejected_mass"]
    naive = [rejected * p for p in data["target"]]
    balance_bars(axes[0, 0], data, data["residual"], "correction from the residual", "Right: the emitted law is p")
    words = f"Wrong: off by {data['naive_law_error']:.2f} (total variation)"
    balance_bars(axes[0, 1], data, naive, "correction from p itself", words)
    axes[0, 0].set_ylabel("probability")
    return fig


def balance_bars(ax: Axes, data: Data, correction: Sequence[float], name: str, title: str) -> Axes:
    """One bar a token: min(p, q) and what the correction adds; a line marks p, a mark the draft's q."""
    places = np.arange(len(data["target"]))
    accepted, added = np.asarray(data["accepted"]), np.asarray(correction)
    ax.bar(places, accepted, 0.56, color=ACCENT, label="accepted min(p, q)")
    ax.bar(places, added, 0.56, bottom=accepted, color="#e69f00", hatch="//", edgecolor="white", label=name)
    for place, p in zip(places, data["target"], strict=True):
        ax.hlines(p, place - 0.36, place + 0.36, color=OPTIMUM_COLOUR, linewidth=2.2, zorder=4)
    ax.hlines([], 0, 0, color=OPTIMUM_COLOUR, linewidth=2.2, label="target p")
    ax.plot(places, data["draft"], "D", color="white", markeredgecolor=INK, markersize=6, zorder=5, label="draft q")
    for place, total, p in zip(places, accepted + added, data["target"], strict=True):
        wrong = abs(total - p) > 1e-12
        ax.annotate(
            f"{total:.2f}" + (f" (p = {p:.2f})" if wrong else ""),
            (place, total),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            fontweight="bold" if wrong else "normal",
            color=INK,
        )
    ax.set_xticks(places, [f"token {x}" for x in places])
    ax.set_ylim(0, 1.3 * max(*data["target"], *data["draft"]))
    ax.set_title(title, loc="left", fontweight="bold", color=INK)
    ax.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")
    plots.despine(ax)
    return ax


def single_path(data: Data) -> Figure:
    """F2: LP optimum, BV and token rule over depth and over draft noise."""
    frame = pd.DataFrame(data["rows"])
    fig, axes = canvas(9.6, 4.0, 1, 2)
    settings = data["settings"]
    panels = (
        ("depth", "draft depth L", f"V = {settings['vocab']}, draft noise {frame['draft_noise'].iloc[0]:g}"),
        ("noise", "noise in the draft's logits", f"V = {settings['vocab']}, L = {settings['depth']}"),
    )
    for ax, (axis, label, title) in zip(axes[0], panels, strict=True):
        rows = frame[frame["axis"] == axis]
        by = "depth" if axis == "depth" else "draft_noise"
        on_optimum(ax, _curve(rows, by, OPTIMUM), {name: _curve(rows, by, name, OPTIMUM) for name in ("bv", "token")})
        ax.set_xlabel(label)
        if axis == "depth":
            ax.set_xticks(sorted(set(rows[by])))
        ax.set_title(title, loc="left", fontweight="bold", color=INK)
    axes[0, 0].set_ylabel(UNIT)
    return fig


def on_optimum(ax: Axes, best: Curve, curves: Mapping[str, Curve]) -> Axes:
    """The optimum as a broad line, BV as open marks on it, the token rule below."""
    band(ax, best)
    ax.plot(best[0], best[1], color=OPTIMUM_COLOUR, linewidth=5, alpha=0.6, label="LP optimum (HiGHS)")
    x, y, _ = curves["bv"]
    ax.plot(x, y, STYLE["bv"][1], color=INK, markerfacecolor="white", markersize=6.5, zorder=4, label="BV")
    x, y, error = curves["token"]
    colour, marker = STYLE["token"]
    ax.errorbar(x, y, error, color=colour, marker=marker, capsize=2.5, linewidth=1.4, markersize=5, label="token rule")
    ax.legend(frameon=False)
    plots.despine(ax)
    return ax


def band(ax: Axes, best: Curve) -> Axes:
    """One standard error of the mean optimum on both sides."""
    x, y, error = (np.asarray(values, dtype=float) for values in best)
    ax.fill_between(x, y - error, y + error, color=OPTIMUM_COLOUR, alpha=0.13, linewidth=0, zorder=0)
    return ax


def multi_path(data: Data) -> Figure:
    """F3: block efficiency (top) and gap to the optimum in percent (bottom) against K, a column a family."""
    frame = _with_gap(pd.DataFrame(data["rows"]))
    families = list(dict.fromkeys(frame["family"]))
    fig, axes = canvas(5.0 * len(families), 8.6, 2, len(families), sharex=True)
    for column, family in enumerate(families):
        rows = frame[frame["family"] == family]
        names = [name for name in dict.fromkeys(rows["name"]) if name != OPTIMUM]
        values = {n: _curve(rows[rows["name"] == n], "paths", "block_efficiency", "optimum") for n in names}
        best = _curve(rows[rows["name"] == OPTIMUM], "paths", "block_efficiency")
        labelled_lines(axes[0, column], values, best)
        gaps = {name: _curve(rows[rows["name"] == name], "paths", "percent") for name in names}
        gap_lines(axes[1, column], gaps)
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
    """A line with error bars an algorithm, its name at the right end, the optimum (or a bound) above them all.

    ``words``: what to write instead of an algorithm's name.
    """
    shown = SHOWN | dict(words or {})
    ends = []
    for name, (x, y, error) in curves.items():
        colour, marker = STYLE[name]
        ax.errorbar(
            x, y, error, color=colour, marker=marker, linewidth=1.3, elinewidth=0.8, capsize=1.8, markersize=5, zorder=3
        )
        ends.append((x[-1], y[-1], shown[name], colour))
    if best is not None:
        band(ax, best)
        ax.plot(best[0], best[1], color=OPTIMUM_COLOUR, linewidth=2.4, zorder=4)
        ends.append((best[0][-1], best[1][-1], best_name, OPTIMUM_COLOUR))
    plots.label_ends(ax, ends, start=min(x[0] for x, _, _ in curves.values()), fontsize=9)
    plots.despine(ax)
    return ax


def gap_lines(ax: Axes, curves: Mapping[str, Curve]) -> Axes:
    """Gaps in percent on a logarithmic axis; what is below `LEAST_GAP` lies on its floor."""
    floored = {}
    for name, (x, y, error) in curves.items():
        values = np.maximum(np.asarray(y, dtype=float), LEAST_GAP)
        down = np.minimum(np.asarray(error, dtype=float), values - LEAST_GAP)  # a bar ends at the floor, too
        shown: Any = np.stack([np.maximum(down, 0), np.where(np.asarray(y) >= LEAST_GAP, error, 0)])
        floored[name] = (x, values, shown)
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
    fig, axes = canvas(11.5, 4.6, 1, 2)
    for ax, (first, second) in zip(axes[0], (("gbv", "bv"), ("pbv", "gbv")), strict=True):
        heat_map(ax, frame.assign(difference=frame[first] - frame[second]))
        title = f"{SHOWN[first]} minus {SHOWN[second]}, tokens per target call"
        ax.set_title(title, loc="left", fontweight="bold", color=INK)
    axes[0, 0].set_ylabel("temperature")
    return fig


def heat_map(ax: Axes, frame: pd.DataFrame) -> Axes:
    """Means of ``difference``, written in the cells, in brackets where within two standard errors of 0."""
    groups = frame.groupby(["temperature", "draft_noise"])["difference"]
    mean, error = groups.mean().unstack(), groups.sem().unstack().fillna(0.0)
    most = max(float(mean.abs().to_numpy().max()), 1e-9)
    image = ax.imshow(mean.to_numpy(), cmap="PuOr", vmin=-most, vmax=most, origin="lower", aspect="auto")
    shades = image.to_rgba(mean.to_numpy())[..., :3] @ np.array([0.299, 0.587, 0.114])
    for i, j in np.ndindex(*mean.shape):
        value, wide = float(mean.iloc[i, j]), 2 * float(error.iloc[i, j])
        text = f"{value:+.2f}".replace("-", "\N{MINUS SIGN}") if abs(value) >= 0.005 else "0"
        sure = abs(value) > wide or text == "0"
        colour = "white" if shades[i, j] < 0.55 else INK
        ax.text(j, i, text if sure else f"({text})", ha="center", va="center", fontsize=8.5, color=colour)
    ax.set_xticks(range(mean.shape[1]), [f"{x:g}" for x in mean.columns])
    ax.set_yticks(range(mean.shape[0]), [f"{x:g}" for x in mean.index])
    ax.set_xlabel("noise in the draft's logits")
    for side in ax.spines.values():
        side.set_visible(False)
    ax.tick_params(length=0)
    return ax


STAGES = ("bv", "gbv", "tgbv", "pbv", "ebv", OPTIMUM, RELAXATION)
"""The steps of the decomposition; the best single ranking is beside them."""


def decomposition(data: Data) -> Figure:
    """F5: steps from BV to the optimum and the node relaxation, a panel a family."""
    frame = pd.DataFrame(data["rows"])
    families = list(dict.fromkeys(frame["family"]))
    fig, axes = canvas(4.3 * len(families), 4.0, 1, len(families), sharey=True)
    for ax, family in zip(axes[0], families, strict=True):
        rows = frame[frame["family"] == family]
        steps(ax, rows.pivot(index="seed", columns="name", values="block_efficiency"))
        ax.set_title(family, loc="left", fontweight="bold", color=INK)
        ax.set_xlabel("percent of the optimum")
    return fig


def steps(ax: Axes, wide: pd.DataFrame) -> Axes:
    """A bar from each stage to the next, in percent of each instance's optimum, its length in words on the left."""
    from matplotlib.patches import Rectangle

    percent = wide.div(wide[OPTIMUM], axis=0) * 100
    mean, error = percent.mean(), percent.sem().fillna(0.0)
    least = float(mean[[*STAGES, RANKING]].min() - error[[*STAGES, RANKING]].max())
    low = least - 0.55 * (100 - least)
    rows = [*STAGES[:-2], RANKING, *STAGES[-2:]]
    before = float(mean["bv"])
    for place, name in enumerate(rows):
        value = float(mean[name])
        if name in ("bv", RANKING):
            words = f"{value:.1f} %"
            mark = ax.plot(value, place, "s" if name == "bv" else "D", color=INK, markerfacecolor="white", zorder=5)[0]
            mark.set_clip_path(Rectangle((low, -1), 100 - low, len(rows) + 1, transform=ax.transData))
        else:
            last = STAGES[STAGES.index(name) - 1]
            change = percent[name] - percent[last]
            words = f"{change.mean():+.2f} \N{PLUS-MINUS SIGN} {0.0 if len(change) < 2 else change.sem():.2f}"
            bar = ax.barh(place, value - before, 0.62, left=before, zorder=2)[0]
            if name == RELAXATION:
                bar.set(facecolor="none", edgecolor=MUTED, linestyle="--")
            else:
                down = value < before
                bar.set(facecolor="#e69f00" if down else ACCENT, hatch="////" if down else "", linewidth=0)
                bar.set_edgecolor("white")
            ax.vlines(before, rows.index(last), place, color=MUTED, linewidth=0.7, zorder=1)
        if name != OPTIMUM:
            ax.errorbar(value, place, xerr=float(error[name]), color=INK, linewidth=1, capsize=2.5, zorder=4)
        words = words.replace("-", "\N{MINUS SIGN}")
        ax.annotate(words, (0.02, place), xycoords=("axes fraction", "data"), va="center_baseline", fontsize=9)
        before = before if name == RANKING else value
    ax.axvline(100, color=OPTIMUM_COLOUR, linewidth=2.2, zorder=6)
    names = {OPTIMUM: "optimum", RELAXATION: "node relaxation"}
    ax.set_yticks(range(len(rows)), [names.get(name, SHOWN.get(name, name)) for name in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlim(low, max(float(mean.max()) + float(error[RELAXATION]), 100) + 0.03 * (100 - low))
    ax.locator_params(axis="x", nbins=5)
    plots.despine(ax)
    ax.tick_params(axis="y", length=0)
    return ax


def scaling(data: Data) -> Figure:
    """F10: seconds of the solvers against the number of nodes."""
    fig, ax = plots.figure(8)
    time_against_nodes(ax, pd.DataFrame(data["rows"]), "Certified multi-path optimum, K = 4")
    return fig


def time_against_nodes(ax: Axes, frame: pd.DataFrame, title: str) -> Axes:
    """Solver time against number of nodes, both logarithmic, a line a method, the certified gap beside each point.

    Columns ``method``, ``nodes``, ``seconds``, ``gap``. Open markers: the gap asked for (``goal``) was not reached.
    """
    from matplotlib.ticker import NullFormatter

    for i, (name, rows) in enumerate(frame.groupby("method", sort=False)):
        rows = rows.sort_values("nodes")
        colour = plots.SERIES[i % len(plots.SERIES)]
        ax.plot(rows["nodes"], rows["seconds"], color=colour, linewidth=1.4, zorder=2)
        for row in rows.itertuples():
            face = colour if row.gap <= row.goal else "white"
            ax.plot(
                row.nodes,
                row.seconds,
                plots.MARKERS[i % len(plots.MARKERS)],
                color=colour,
                markerfacecolor=face,
                zorder=3,
            )
            if i == 0 and row.nodes >= 100:  # below, the points crowd and every gap is tiny
                ax.annotate(
                    f"{row.gap:.0e}".replace("e-0", "e-"),
                    (row.nodes, row.seconds),
                    xytext=(5, -10),
                    textcoords="offset points",
                    fontsize=7.5,
                    color=MUTED,
                )
        last = rows.iloc[-1]
        ax.annotate(
            str(name),
            (last["nodes"], last["seconds"]),
            xytext=(8, 4) if i == 0 else (-8, 4),
            textcoords="offset points",
            ha="left" if i == 0 else "right",
            color=colour,
            fontweight="bold",
            annotation_clip=False,
        )
    ax.text(0.02, 0.97, "small print: certified gap", transform=ax.transAxes, va="top", fontsize=7.5, color=MUTED)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("nodes below the root")
    ax.set_ylabel("seconds")
    return plots.despine(ax, title)


def _curve(rows: pd.DataFrame, by: str, value: str, against: str | None = None) -> Curve:
    """Mean of a column and its standard error, with ``against`` that of the difference to another column."""
    mean = rows.groupby(by)[value].mean()
    spread = rows[value] if against is None else rows[value] - rows[against]
    error = spread.groupby(rows[by]).sem().fillna(0.0)
    return mean.index.to_numpy(dtype=float), mean.to_numpy(dtype=float), error.to_numpy(dtype=float)


def _with_gap(frame: pd.DataFrame) -> pd.DataFrame:
    """Adds ``percent``: the gap to the optimum of the same instance, in percent of it."""
    keys = ["family", "paths", "seed"]
    best = frame[frame["name"] == OPTIMUM].set_index(keys)["block_efficiency"].rename("optimum")
    joined = frame.join(best, on=keys)
    return joined.assign(percent=100 * (joined["optimum"] - joined["block_efficiency"]) / joined["optimum"])
