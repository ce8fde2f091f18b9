"""Plots of results. Every function takes data and a matplotlib ``ax``, draws on it and returns it.

Data frames are those of `lpverify.compare`. The colours are Okabe and Ito's in an order with different grey values;
every algorithm also has its own marker and a label beside its line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lpverify import errors
from lpverify.exact.compare import OPTIMUM, POLICY, RANKING, RELAXATION
from lpverify.verifiers import names as verifier_names

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["against_paths", "comparison", "figure", "gaps", "heat_map", "render", "throughput"]


SUFFIXES = ("png", "svg", "pdf")
DPI = 150
SIGNATURE = "drawn by lpverify"  # in every picture
INK, MUTED, FAINT, ACCENT, OPTIMUM_COLOUR = "#1a1a1a", "#5f5f5f", "#c8c8c8", "#0072b2", "#d55e00"
SERIES = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#5f5f5f",
    "#8c6d00", "#004c6d", "#b05000", "#7a3e6a", "#3f7d20",
)  # fmt: skip
MARKERS = "os^DvPX<>*hp"
UNIT = "block efficiency (tokens per target call)"
SHOWN = {  # display names; other verifiers appear under their own name
    "token": "token rule", "bv": "BV", "nss": "NSS", "specinfer": "SpecInfer", "spectr": "SpecTr", "ot": "OT",
    "traversal": "Traversal", "gbv": "GBV", "tgbv": "TGBV", "pbv": "PBV", "ebv": "EBV", POLICY: "optimal policy",
    RANKING: "best ranking",
}  # fmt: skip


def looks(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each algorithm: always the same for the package's own, unused ones for others.

    >>> looks(["mine", "bv"])["bv"] == looks(["bv"])["bv"]
    True
    """
    order = list(dict.fromkeys([*verifier_names(), *names]))
    return {name: (SERIES[i % len(SERIES)], MARKERS[i % len(MARKERS)]) for i, name in enumerate(order)}


def gaps(frame: pd.DataFrame, ax: Axes, *, bounds: tuple[float, float] | None = None, title: str = "") -> Axes:
    """Draw the block efficiency of every algorithm and its gap to the optimum, for one number of paths.

    Each algorithm is a dot, the best on top; a bar leads from the dot to the optimum, and the gap is written beside it.

    Args:
        frame: rows of `lpverify.compare` for one K.
        ax: where to draw.
        bounds: certified lower and upper bound of the optimum. Where they visibly differ, the optimum is a band.
        title: heading of the panel.

    Raises:
        InputError: the frame has several K (use `against_paths`, or select one) or no evaluated algorithm.
    """
    from matplotlib.patches import Rectangle

    rows = _algorithms(frame).sort_values("block_efficiency", kind="stable")
    if frame["paths"].nunique() > 1:
        several = ", ".join(map(str, sorted(set(frame["paths"]))))
        expected = "rows of one K: select them with frame[frame.paths == K], or draw all K with against_paths"
        raise errors.fail("gaps", got=f"rows of K = {several}", expected=expected)
    if rows.empty:
        raise errors.fail("plot", got="no evaluated algorithm", expected="at least one")
    optimum = float(frame.loc[frame["name"] == OPTIMUM, "block_efficiency"].iloc[0])
    lower, upper = bounds or (optimum, optimum)
    values = rows["block_efficiency"].to_numpy(dtype=float)
    span = max(upper - values.min(), 0.02 * upper)
    positions = np.arange(len(values))

    ax.hlines(positions, values, np.maximum(values, lower), color=FAINT, linewidth=5, zorder=1)
    dots = ax.plot(values, positions, "o", color=ACCENT, markersize=9, markeredgecolor="white", zorder=3)[0]
    if upper - lower > 2e-3 * span:
        ax.axvspan(lower, upper, color=OPTIMUM_COLOUR, alpha=0.25, linewidth=0, zorder=2)
        optimum_label = f"optimum between {lower:.4f} and {upper:.4f}"
    else:
        optimum_label = f"optimum {optimum:.4f}"
    ax.axvline(upper, color=OPTIMUM_COLOUR, linewidth=2.2, zorder=4)
    left = values.min() - 0.42 * span
    dots.set_clip_path(Rectangle((left, -1), upper - left, len(values) + 2, transform=ax.transData))
    beside: Any = {"textcoords": "offset points", "ha": "right", "va": "center_baseline"}
    for position, value, gap in zip(positions, values, rows["gap"], strict=True):
        ax.annotate(_gap_label(gap, optimum), (value, position), (-9, 0), color=MUTED, **beside)
    top = (upper, len(values) - 0.2)
    ax.annotate(optimum_label, top, (-5, 0), color=OPTIMUM_COLOUR, fontweight="bold", **beside)
    ax.set_yticks(positions, [SHOWN.get(name, name) for name in rows["name"]])
    ax.set_ylim(-0.6, len(values) + 0.35)
    ax.set_xlim(left, upper + 0.02 * span)
    ax.set_xlabel(UNIT)
    despine(ax, title)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return ax


def against_paths(frame: pd.DataFrame, ax: Axes, *, title: str = "") -> Axes:
    """Draw block efficiency against the number of draft paths K: a line for each algorithm, the optimum above them.

    The optimal policy has the optimum's value and no line of its own. ``frame``: rows of `lpverify.compare`.
    """
    rows = _algorithms(frame)
    rows = rows[rows["name"] != POLICY]
    style = looks(rows["name"])
    ends: list[tuple[float, float, str, str]] = []
    for name, one in rows.groupby("name", sort=False):
        colour, marker = style[str(name)]
        one = one.sort_values("paths")
        ax.plot(one["paths"], one["block_efficiency"], color=colour, marker=marker, lw=1.4, markersize=5.5, zorder=3)
        ends.append((one["paths"].iloc[-1], one["block_efficiency"].iloc[-1], SHOWN.get(str(name), str(name)), colour))
    best = frame[frame["name"] == OPTIMUM].sort_values("paths")
    ax.plot(best["paths"], best["block_efficiency"], color=OPTIMUM_COLOUR, linewidth=2.2, zorder=4)
    ends.append((best["paths"].iloc[-1], best["block_efficiency"].iloc[-1], OPTIMUM, OPTIMUM_COLOUR))
    label_ends(ax, ends, start=float(frame["paths"].min()))
    ax.set_xticks(sorted(set(frame["paths"])))
    ax.set_xlabel("draft paths K")
    ax.set_ylabel(UNIT)
    return despine(ax, title)


def comparison(frame: pd.DataFrame, ax: Axes, *, title: str = "") -> Axes:
    """Draw a `lpverify.compare` frame: `gaps` for one number of paths, `against_paths` for several."""
    return (gaps if frame["paths"].nunique() == 1 else against_paths)(frame, ax, title=title)


def label_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str]], *, start: float, fontsize: float = 10) -> None:
    """Write labels right of the lines of ``ax``, apart from each other; set the vertical limits first.

    Args:
        ax: where the lines are; its vertical axis may be logarithmic.
        ends: x and y of each line's right end, label, colour. A label in the optimum's colour is bold.
        start: smallest x of the lines.
        fontsize: of the labels, in points.
    """
    logarithmic = ax.get_yscale() == "log"
    low, high = np.log10(ax.get_ylim()) if logarithmic else ax.get_ylim()
    right = max(end[0] for end in ends)
    text = right + 0.05 * max(right - start, 1e-9)
    heights = [float(np.log10(end[1]) if logarithmic else end[1]) for end in ends]
    apart = spread([round(height, 9) for height in heights], least=0.048 * (high - low))
    for (x, y, label, colour), height in zip(ends, apart, strict=True):
        position = 10**height if logarithmic else height
        ax.plot([x, text], [y, position], color=colour, linewidth=0.7, clip_on=False, zorder=1)
        weight = "bold" if colour == OPTIMUM_COLOUR else "normal"
        options: Any = {"va": "center", "fontsize": fontsize, "fontweight": weight, "clip_on": False}
        ax.text(text, position, f" {label}", color=colour, **options)


def spread(values: Sequence[float], *, least: float) -> list[float]:
    """Positions near ``values``, in the same order and at least ``least`` apart: where labels go.

    >>> spread([1.0, 1.0, 5.0], least=1.0)
    [0.5, 1.5, 5.0]
    """
    order = np.argsort(values, kind="stable")
    runs: list[tuple[float, int]] = []  # centre and number of labels of each run of touching labels, from below
    for value in np.asarray(values, dtype=float)[order]:
        runs.append((float(value), 1))
        while len(runs) > 1 and runs[-1][0] - runs[-2][0] < least * (runs[-1][1] + runs[-2][1]) / 2:
            (upper, many), (lower, few) = runs.pop(), runs.pop()
            runs.append(((upper * many + lower * few) / (many + few), many + few))
    result = np.empty(len(order))
    result[order] = [centre + least * (i - (count - 1) / 2) for centre, count in runs for i in range(count)]
    return [float(x) for x in result]


Cells = Sequence[Mapping[str, Any]]
PANELS_IN_A_ROW = 3


def throughput(cells: Cells) -> Figure:
    """A figure of tokens per second over K and L: a heat map for each algorithm, one scale of colour for all.

    ``cells`` are those of the document ``lpverify/advise@1``: algorithm, paths, depth, tokens_per_second, interpolated.
    """
    names = list(dict.fromkeys(cell["algorithm"] for cell in cells))
    depths, paths = (sorted({cell[key] for cell in cells}) for key in ("depth", "paths"))
    columns = min(len(names), PANELS_IN_A_ROW)
    rows = -(-len(names) // columns)
    width = max(0.55 * len(depths) + 1.1, 2.4)
    fig, axes = canvas(columns * width + 0.4, rows * (0.42 * len(paths) + 1.3) + 0.4, rows, columns)
    for i, ax in enumerate(axes.flat):
        if i < len(names):
            heat_map(cells, names[i], ax)
            ax.set_xlabel("draft depth L")
        ax.set_ylabel("draft paths K" if i % columns == 0 else "")
        ax.set_visible(i < len(names))
    fig.suptitle("Predicted tokens per second", x=0.01, ha="left", fontweight="bold", color=INK)
    return fig


def heat_map(cells: Cells, name: str, ax: Axes) -> Axes:
    """Draw one algorithm's tokens per second over K and L; the values are written in the cells.

    A thin frame marks the algorithm's own best, a thick one the best of all ``cells``. Values between measured L are in
    italics. Colours span all ``cells``.
    """
    from matplotlib.patches import Rectangle

    depths, paths = (sorted({cell[key] for cell in cells}) for key in ("depth", "paths"))
    own = [cell for cell in cells if cell["algorithm"] == name]
    best, own_best = (max(part, key=lambda cell: cell["tokens_per_second"]) for part in (cells, own))
    low, high = (extreme(cell["tokens_per_second"] for cell in cells) for extreme in (min, max))
    values = np.full((len(paths), len(depths)), np.nan)
    for cell in own:
        values[paths.index(cell["paths"]), depths.index(cell["depth"])] = cell["tokens_per_second"]
    margin = 0.05 * high if high == low else 0.0
    image = ax.imshow(values, cmap="cividis", vmin=low - margin, vmax=high + margin, origin="lower", aspect="auto")
    for cell in own:
        i, j, value = paths.index(cell["paths"]), depths.index(cell["depth"]), cell["tokens_per_second"]
        colour = "white" if np.dot(image.to_rgba(value)[:3], [0.299, 0.587, 0.114]) < 0.55 else INK
        fonts: Any = {"fontsize": 8.5, "style": "italic" if cell.get("interpolated") else "normal"}
        label = f"{value:.0f}" if high >= 100 else f"{value:.3g}"
        weight = "bold" if cell is own_best else "normal"
        ax.text(j, i, label, ha="center", va="center", color=colour, fontweight=weight, **fonts)
        if cell is own_best:
            line, colour = (3.0, OPTIMUM_COLOUR) if cell is best else (1.2, colour)
            box = Rectangle((j - 0.47, i - 0.45), 0.94, 0.9, fill=False, edgecolor=colour, linewidth=line, zorder=4)
            ax.add_patch(box)
    if len(paths) > 1 and {cell["paths"] for cell in own} == {1}:
        ax.text((len(depths) - 1) / 2, len(paths) / 2, "looks at one path", ha="center", va="center", color=MUTED)
    ax.set_xticks(range(len(depths)), [str(depth) for depth in depths])
    ax.set_yticks(range(len(paths)), [str(count) for count in paths])
    ax.set_title(SHOWN.get(name, name), loc="left", color=looks([name])[name][0], fontweight="bold")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return ax


def canvas(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A new figure of this size in inches and its array (rows, columns) of axes, without a window system."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), layout="constrained")
    return fig, fig.subplots(rows, columns, squeeze=False, **options)


def figure(rows: int) -> tuple[Figure, Axes]:
    """A new figure with one panel, high enough for `gaps` of this many algorithms."""
    fig, axes = canvas(7.2, 1.5 + 0.36 * rows)
    return fig, axes[0, 0]


def render(fig: Figure, kind: str) -> bytes:
    """The figure as the content of a file. ``kind`` is one of `SUFFIXES`.

    It says that lpverify drew it. Text stays text in svg and pdf. To keep files small, png has a palette of 128 colours
    and svg coordinates have one decimal (of points, 1/72 inch).
    """
    import io
    import re
    import warnings

    import matplotlib
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    stream = io.BytesIO()
    settings: Any = {"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "lpverify"}
    undated: Any = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in a script that the font lacks shows boxes
        fig.savefig(stream, format=kind, dpi=DPI, metadata=undated | ({} if kind == "png" else {"Creator": SIGNATURE}))
    if kind == "png":
        image = Image.open(stream).convert("RGB").quantize(128, dither=Image.Dither.NONE)
        stream = io.BytesIO()
        signed = PngInfo()
        signed.add_text("Software", SIGNATURE)
        image.save(stream, "png", optimize=True, pnginfo=signed)
    content = stream.getvalue()
    if kind == "svg":
        coordinates = rb'(?<= )(?:d|x|y)="[^"]*"'
        content = re.sub(coordinates, lambda m: re.sub(rb"(\.\d)\d+", rb"\1", m[0]), content)
        content = re.sub(rb"\s*\n\s*", b"\n", content)
    return content


def despine(ax: Axes, title: str = "") -> Axes:
    """Leave two spines, in grey, and set the title; the last step of every panel."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(MUTED)
    ax.tick_params(colors=MUTED, labelcolor=INK)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set_color(INK)
    if title:
        ax.set_title(title, loc="left", fontweight="bold", color=INK)
    return ax


def _algorithms(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of verifiers that have a value: no bounds, none that was refused."""
    return frame[~frame["name"].isin([OPTIMUM, RELAXATION]) & frame["block_efficiency"].notna()]


def _gap_label(gap: float, optimum: float) -> str:
    if abs(gap) < 5e-7 * optimum:
        return "no gap"
    percent = 100 * gap / optimum
    shown = f"{percent:.1f}" if percent >= 1 else f"{percent:.2g}"
    return f"\N{MINUS SIGN}{gap:.4f}  ({shown} %)"


def __dir__() -> list[str]:
    return __all__
