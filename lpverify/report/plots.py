"""Pictures of results. Every function takes data and a matplotlib ``ax`` and returns the ``ax``.

Frames are those of `lpverify.exact.compare.compare`. Colours are Okabe and Ito's, in an order whose grey values differ,
and every series also has its own marker and a label beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lpverify import errors
from lpverify.exact.compare import OPTIMUM, POLICY, RANKING, RELAXATION

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = ("png", "svg", "pdf")
INK, MUTED, FAINT, ACCENT, OPTIMUM_COLOUR = "#1a1a1a", "#5f5f5f", "#c8c8c8", "#0072b2", "#d55e00"
SERIES = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#5f5f5f",
    "#8c6d00",
    "#004c6d",
    "#b05000",
    "#7a3e6a",
    "#3f7d20",
)
MARKERS = "os^DvPX<>*h"
SHOWN = {
    "token": "token rule",
    "bv": "BV",
    "nss": "NSS",
    "specinfer": "SpecInfer",
    "spectr": "SpecTr",
    "ot": "OT",
    "traversal": "Traversal",
    "gbv": "GBV",
    "tgbv": "TGBV",
    "pbv": "PBV",
    "ebv": "EBV",
    POLICY: "optimal policy",
    RANKING: "best ranking",
}
"""Names in pictures."""

DPI = 200
UNIT = "block efficiency (tokens per target call)"


def gaps(frame: pd.DataFrame, ax: Axes, *, bounds: tuple[float, float] | None = None, title: str = "") -> Axes:
    """Every algorithm's block efficiency and its gap to the optimum, for one number of paths.

    One dot an algorithm, best on top, a bar from the dot to the optimum, the gap in words beside it. ``bounds`` are the
    certified bounds of the optimum: where they visibly differ the optimum is a band, and no dot lies right of it.
    """
    from matplotlib.patches import Rectangle

    rows = _algorithms(frame)
    if rows.empty:
        raise errors.fail("plot", got="no evaluated algorithm", expected="at least one")
    optimum = float(frame.loc[frame["name"] == OPTIMUM, "block_efficiency"].iloc[0])
    lower, upper = bounds or (optimum, optimum)
    rows = rows.sort_values("block_efficiency", kind="stable")
    values = rows["block_efficiency"].to_numpy(dtype=float)
    span = max(upper - values.min(), 0.02 * upper)
    positions = np.arange(len(values))
    bar_ends = np.maximum(values, lower)

    ax.hlines(positions, values, bar_ends, color=FAINT, linewidth=5, zorder=1)
    dots = ax.plot(values, positions, "o", color=ACCENT, markersize=9, markeredgecolor="white", zorder=3)[0]
    if upper - lower > 2e-3 * span:
        ax.axvspan(lower, upper, color=OPTIMUM_COLOUR, alpha=0.25, linewidth=0, zorder=2)
        words = f"optimum between {lower:.4f} and {upper:.4f}"
    else:
        words = f"optimum {optimum:.4f}"
    ax.axvline(upper, color=OPTIMUM_COLOUR, linewidth=2.2, zorder=4)
    left = values.min() - 0.42 * span
    dots.set_clip_path(Rectangle((left, -1), upper - left, len(values) + 2, transform=ax.transData))
    labels = [(value, _gap_words(gap, optimum), -9) for value, gap in zip(values, rows["gap"], strict=True)]
    labels.append((upper, words, -5))
    for position, (value, text, offset) in zip([*positions, len(values) - 0.2], labels, strict=True):
        is_optimum = text is words
        ax.annotate(
            text,
            (value, position),
            xytext=(offset, 0),
            textcoords="offset points",
            ha="right",
            va="center_baseline",
            color=OPTIMUM_COLOUR if is_optimum else MUTED,
            fontweight="bold" if is_optimum else "normal",
        )
    ax.set_yticks(positions, [SHOWN.get(name, name) for name in rows["name"]])
    ax.set_ylim(-0.6, len(values) + 0.35)
    ax.set_xlim(left, upper + 0.02 * span)
    ax.set_xlabel(UNIT)
    if title:
        ax.set_title(title, loc="left", fontweight="bold", color=INK)
    _plain(ax)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return ax


def against_paths(frame: pd.DataFrame, ax: Axes, *, title: str = "") -> Axes:
    """Block efficiency against the number of draft paths K, a line an algorithm, the optimum above them all.

    The runnable optimum (`policy`) has no line of its own.
    """
    best = frame[frame["name"] == OPTIMUM].sort_values("paths")
    rows = _algorithms(frame)
    rows = rows[rows["name"] != POLICY]
    ends: list[tuple[float, float, str, str]] = []
    for i, name in enumerate(dict.fromkeys(rows["name"])):
        one = rows[rows["name"] == name].sort_values("paths")
        colour = SERIES[i % len(SERIES)]
        x, y = one["paths"].to_numpy(dtype=float), one["block_efficiency"].to_numpy(dtype=float)
        ax.plot(x, y, color=colour, marker=MARKERS[i % len(MARKERS)], linewidth=1.4, markersize=5.5, zorder=3)
        ends.append((x[-1], y[-1], SHOWN.get(str(name), str(name)), colour))
    x, y = best["paths"].to_numpy(dtype=float), best["block_efficiency"].to_numpy(dtype=float)
    ax.plot(x, y, color=OPTIMUM_COLOUR, linewidth=2.2, zorder=4)
    ends.append((x[-1], y[-1], "optimum", OPTIMUM_COLOUR))
    low, high = ax.get_ylim()
    right = float(x.max())
    heights = spread([round(end[1], 9) for end in ends], least=0.048 * (high - low))
    for (end, value, name, colour), height in zip(ends, heights, strict=True):
        text = right + 0.05 * max(right - float(x.min()), 1.0)
        ax.plot([end, text], [value, height], color=colour, linewidth=0.7, clip_on=False, zorder=1)
        weight = "bold" if name == "optimum" else "normal"
        ax.text(text, height, f" {name}", color=colour, va="center", fontweight=weight, clip_on=False)
    ax.set_xticks(sorted(set(frame["paths"])))
    ax.set_xlabel("draft paths K")
    ax.set_ylabel(UNIT)
    if title:
        ax.set_title(title, loc="left", fontweight="bold", color=INK)
    _plain(ax)
    return ax


def scaling(frame: pd.DataFrame, ax: Axes, *, title: str = "") -> Axes:
    """Solver time against number of nodes, both logarithmic, a line a method, the certified gap beside each point.

    Columns ``method``, ``nodes``, ``seconds``, ``gap``. Open markers: the gap asked for (``goal``) was not reached.
    """
    from matplotlib.ticker import NullFormatter

    for i, (name, rows) in enumerate(frame.groupby("method", sort=False)):
        rows = rows.sort_values("nodes")
        colour = SERIES[i % len(SERIES)]
        ax.plot(rows["nodes"], rows["seconds"], color=colour, linewidth=1.4, zorder=2)
        for row in rows.itertuples():
            face = colour if row.gap <= row.goal else "white"
            ax.plot(row.nodes, row.seconds, MARKERS[i % len(MARKERS)], color=colour, markerfacecolor=face, zorder=3)
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
    if title:
        ax.set_title(title, loc="left", fontweight="bold", color=INK)
    _plain(ax)
    return ax


def comparison(frame: pd.DataFrame, ax: Axes, *, title: str = "") -> Axes:
    """The picture of a `compare` frame: `gaps` for one number of paths, `against_paths` for several."""
    if frame["paths"].nunique() == 1:
        return gaps(frame, ax, title=title)
    return against_paths(frame, ax, title=title)


def spread(values: Sequence[float], *, least: float) -> list[float]:
    """Positions near ``values``, in the same order, at least ``least`` apart: where labels go.

    >>> spread([1.0, 1.0, 5.0], least=1.0)
    [0.5, 1.5, 5.0]
    """
    order = np.argsort(values, kind="stable")
    blocks: list[tuple[float, int]] = []  # (centre, labels) of each run of touching labels, from below
    for value in np.asarray(values, dtype=float)[order]:
        blocks.append((float(value), 1))
        while len(blocks) > 1 and blocks[-1][0] - blocks[-2][0] < least * (blocks[-1][1] + blocks[-2][1]) / 2:
            (upper, many), (lower, few) = blocks.pop(), blocks.pop()
            blocks.append(((upper * many + lower * few) / (many + few), many + few))
    placed = [centre + least * (i - (count - 1) / 2) for centre, count in blocks for i in range(count)]
    result = np.empty(len(placed))
    result[order] = placed
    return [float(x) for x in result]


def figure(rows: int) -> tuple[Figure, Axes]:
    """A new figure for ``rows`` algorithms, without a window system."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(7.2, 1.5 + 0.36 * rows), layout="constrained")
    return fig, fig.subplots()


def render(fig: Figure, kind: str) -> bytes:
    """The picture as a file's content; ``kind`` is one of `SUFFIXES`. Text stays text in svg and pdf."""
    import io

    import matplotlib

    stream = io.BytesIO()
    settings: Any = {"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "lpverify"}
    with matplotlib.rc_context(settings):
        undated: dict[str, Any] = {"Date": None} if kind == "svg" else {"CreationDate": None} if kind == "pdf" else {}
        fig.savefig(stream, format=kind, dpi=DPI, metadata=undated)
    return stream.getvalue()


def _algorithms(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that are verifiers with a value: no bounds, nothing refused."""
    return frame[~frame["name"].isin([OPTIMUM, RELAXATION]) & frame["block_efficiency"].notna()]


def _gap_words(gap: float, optimum: float) -> str:
    if abs(gap) < 5e-7 * optimum:
        return "no gap"
    percent = 100 * gap / optimum
    shown = f"{percent:.1f}" if percent >= 1 else f"{percent:.2g}"
    return f"\N{MINUS SIGN}{gap:.4f}  ({shown} %)"


def _plain(ax: Axes) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(MUTED)
    ax.tick_params(colors=MUTED, labelcolor=INK)
    ax.xaxis.label.set_color(INK)
    ax.yaxis.label.set_color(INK)
