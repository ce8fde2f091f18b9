"""Predicted throughput: heat maps over K and L, and predicted against measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.figures.plots_paper import STYLE, canvas
from lpverify.report import plots
from lpverify.report.plots import INK, MUTED, OPTIMUM_COLOUR, SHOWN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
PANELS_A_ROW = 3


def surface(cells: Rows) -> Figure:
    """Tokens per second over K and L, a panel an algorithm, one scale of grey for all.

    ``cells`` are those of the document ``lpverify/advise@1``: algorithm, paths, depth, tokens_per_second, interpolated.
    """
    names = list(dict.fromkeys(cell["algorithm"] for cell in cells))
    depths, paths = (sorted({cell[key] for cell in cells}) for key in ("depth", "paths"))
    rates = [cell["tokens_per_second"] for cell in cells]
    best = max(cells, key=lambda cell: cell["tokens_per_second"])
    columns = min(len(names), PANELS_A_ROW)
    rows = -(-len(names) // columns)
    width = max(0.55 * len(depths) + 1.1, 2.4)
    fig, axes = canvas(columns * width + 0.4, rows * (0.42 * len(paths) + 1.3) + 0.4, rows, columns)
    for ax, name in zip(axes.flat, names, strict=False):
        own = [cell for cell in cells if cell["algorithm"] == name]
        heat_map(own, ax, paths=paths, depths=depths, span=(min(rates), max(rates)), best=best)
    for ax in axes.flat[len(names) :]:
        ax.set_visible(False)
    for i, ax in enumerate(axes.flat[: len(names)]):
        if i % columns == 0:
            ax.set_ylabel("draft paths K")
        ax.set_xlabel("draft depth L")
    fig.suptitle("Predicted tokens per second", x=0.01, ha="left", fontweight="bold", color=INK)
    return fig


def heat_map(
    cells: Rows,
    ax: Axes,
    *,
    paths: Sequence[int],
    depths: Sequence[int],
    span: tuple[float, float],
    best: Mapping[str, Any],
) -> Axes:
    """One algorithm's tokens per second over ``paths`` and ``depths``, written in the cells.

    A thin frame marks the algorithm's own best, a thick one the best of all; values between measured L are in italics.
    """
    from matplotlib.patches import Rectangle

    values = np.full((len(paths), len(depths)), np.nan)
    for cell in cells:
        values[paths.index(cell["paths"]), depths.index(cell["depth"])] = cell["tokens_per_second"]
    low, high = span
    room = 0.05 * high if high == low else 0.0
    image = ax.imshow(values, cmap="cividis", vmin=low - room, vmax=high + room, origin="lower", aspect="auto")
    own = max(cells, key=lambda cell: cell["tokens_per_second"])
    for cell in cells:
        i, j = paths.index(cell["paths"]), depths.index(cell["depth"])
        value = cell["tokens_per_second"]
        shade = float(np.dot(image.to_rgba(value)[:3], [0.299, 0.587, 0.114]))
        ax.text(
            j,
            i,
            f"{value:.0f}" if high >= 100 else f"{value:.3g}",
            ha="center",
            va="center",
            fontsize=8.5,
            color="white" if shade < 0.55 else INK,
            style="italic" if cell.get("interpolated") else "normal",
            fontweight="bold" if cell is own else "normal",
        )
        if cell is own:
            wide, colour = (3.0, OPTIMUM_COLOUR) if cell is best else (1.2, "white" if shade < 0.55 else INK)
            frame = Rectangle((j - 0.47, i - 0.45), 0.94, 0.9, fill=False, edgecolor=colour, linewidth=wide, zorder=4)
            ax.add_patch(frame)
    if len(paths) > 1 and {cell["paths"] for cell in cells} == {1}:
        ax.text((len(depths) - 1) / 2, len(paths) / 2, "looks at one path", ha="center", va="center", color=MUTED)
    ax.set_xticks(range(len(depths)), [str(depth) for depth in depths])
    ax.set_yticks(range(len(paths)), [str(count) for count in paths])
    name = str(own["algorithm"])
    ax.set_title(SHOWN.get(name, name), loc="left", color=STYLE[name][0] if name in STYLE else INK, fontweight="bold")
    for side in ax.spines.values():
        side.set_visible(False)
    ax.tick_params(length=0)
    return ax


def advise(data: Mapping[str, Any]) -> Figure:
    """F13: predicted against measured throughput, a panel for each of ``data["pairs"]``."""
    pairs = data["pairs"]
    fig, axes = canvas(5.2 * len(pairs), 4.9, 1, len(pairs))
    for ax, pair in zip(axes[0], pairs, strict=True):
        plot_predicted(pair, ax)
        ax.set_title(pair["pair"], loc="left", fontweight="bold", color=INK)
    return fig


def plot_predicted(data: Mapping[str, Any], ax: Axes) -> Axes:
    """F13: predicted against measured tokens per second of one pair, a mark for each cell, the diagonal between.

    ``data["rows"]``: algorithm, paths, depth, predicted, predicted_se, measured, measured_se. Error bars are one
    standard error; the band is 10 % on both sides of equality. Each algorithm's best measured cell has a ring and is
    named in the legend.
    """
    rows: Rows = data["rows"]
    every = [row[key] for row in rows for key in ("predicted", "measured")]
    low, high = 0.9 * min(every), 1.08 * max(every)
    line = np.array([low, high])
    ax.fill_between(line, 0.9 * line, 1.1 * line, color=MUTED, alpha=0.13, linewidth=0, zorder=0)
    ax.plot(line, line, color=MUTED, linewidth=1, zorder=1)
    ax.text(0.98, 0.03, "line: equal; grey: within 10 %", transform=ax.transAxes, ha="right", fontsize=8.5, color=MUTED)
    for name in dict.fromkeys(row["algorithm"] for row in rows):
        own = [row for row in rows if row["algorithm"] == name]
        best = max(own, key=lambda row: row["measured"])
        colour, marker = STYLE.get(name, (INK, "o"))
        ax.errorbar(
            [row["predicted"] for row in own],
            [row["measured"] for row in own],
            yerr=[row["measured_se"] or 0.0 for row in own],
            xerr=[row["predicted_se"] or 0.0 for row in own],
            fmt=marker,
            color=colour,
            markersize=6,
            markeredgewidth=0,
            elinewidth=0.9,
            capsize=2,
            zorder=3,
            label=f"{SHOWN.get(name, name)}, best K = {best['paths']}, L = {best['depth']}",
        )
        ax.plot(best["predicted"], best["measured"], "o", color=colour, markersize=12, markerfacecolor="none", zorder=4)
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.set_aspect("equal")
    ax.set_xlabel("predicted tokens per second")
    ax.set_ylabel("measured tokens per second")
    ax.legend(frameon=False, loc="upper left")
    plots._plain(ax)
    return ax
