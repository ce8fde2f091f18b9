"""Captions: ``captions/NAME.md`` is static text; `caption` fills in its numbers and tables, written as ``{field}``.

Fields are the figure's settings and facts under their own names, and what the function of the figure below returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.figures.figure_data import STEPS
from experiments.figures.real_data import UPPER
from experiments.figures.real_jobs import SHOWN_PAIR
from lpverify.exact.compare import OPTIMUM, RANKING, RELAXATION
from lpverify.report.plots import SHOWN

Data = Mapping[str, Any]
FOLDER = Path(__file__).parent / "captions"
NAMES = SHOWN | {OPTIMUM: "LP optimum", RELAXATION: "node relaxation", "autoregressive": "target alone"}


def title(name: str) -> str:
    """The heading of a figure's caption."""
    return (FOLDER / f"{name}.md").read_text().partition("\n")[0].removeprefix("# ")


def caption(name: str, data: Data, tables: Mapping[str, Any]) -> str:
    """The caption of a figure with its fields filled in."""
    fields = {**data, **data.get("settings", {}), **data.get("facts", {}), **tables}
    return (FOLDER / f"{name}.md").read_text().format_map(fields)


def pm(value: float, error: float, digits: int = 2) -> str:
    """A value with its standard error."""
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def percent(ratio: Sequence[float], digits: int = 1) -> str:
    """A ratio and its standard error as a change in percent.

    >>> percent((1.125, 0.01))
    '+12.5 ± 1.0 %'
    """
    return f"{100 * (ratio[0] - 1):+.{digits}f} ± {100 * ratio[1]:.{digits}f} %"


def markdown(cells: Mapping[str, Mapping[str, str]], head: str, order: Sequence[str] | None = None) -> str:
    """A Markdown table: a column for each key, a row for each name that a column has, in ``order``.

    >>> print(markdown({"a": {"bv": "1"}, "b": {"bv": "2", "gbv": "3"}}, "tokens"))
    | tokens   |   a |   b |
    |:---------|----:|----:|
    | BV       |   1 |   2 |
    | GBV      |   - |   3 |
    """
    names = list(order or dict.fromkeys(name for column in cells.values() for name in column))
    frame = pd.DataFrame({key: [column.get(name, "-") for name in names] for key, column in cells.items()})
    frame.insert(0, head, [NAMES.get(name, name) for name in names])
    align = ["left", *["right"] * len(cells)]
    return str(frame.to_markdown(index=False, colalign=align, disable_numparse=True))


def columns(rows: pd.DataFrame, label: str, cell: Callable[[Any], str]) -> dict[str, dict[str, str]]:
    """The columns of a table: ``label`` formats a row's group, ``cell`` its entry; keys of a column are names.

    >>> rows = pd.DataFrame({"name": ["bv", "gbv"], "K": [2, 2], "gap": [1.0, 0.5]})
    >>> columns(rows, "K = {K}", lambda row: f"{row.gap:.1f}")
    {'K = 2': {'bv': '1.0', 'gbv': '0.5'}}
    """
    table: dict[str, dict[str, str]] = {}
    for row in rows.itertuples(index=False):
        table.setdefault(label.format_map(row._asdict()), {})[str(row.name)] = cell(row)
    return table


def by_gap(rows: pd.DataFrame, first: Sequence[str] = ()) -> list[str]:
    """Names by their mean gap over all groups; ``first`` come first."""
    order = rows.groupby("name")["gap"].mean().sort_values().index
    return [*first, *(str(name) for name in order if name not in first)]


def multi_path(data: Data) -> dict[str, str]:
    rows, last = pd.DataFrame(data["rows"]), max(data["settings"]["paths"])
    rows = rows[(rows["paths"] == last) & (rows["name"] != OPTIMUM)]
    cells = columns(rows, "{family}", lambda r: f"{pm(r.gap, r.gap_se)} [{r.gap_min:.2f}, {r.gap_max:.2f}]")
    gains = ", ".join(f"{f} {v:+.1f} ± {e:.1f} %" for f, (v, e) in data["facts"]["gbv_over_bv"].items())
    return {"table": markdown(cells, f"gap at K = {last}, %", by_gap(rows)), "gains": gains, "last": str(last)}


def decomposition(data: Data) -> dict[str, str]:
    cells = columns(pd.DataFrame(data["rows"]), "{family}", lambda r: pm(r.percent, r.percent_se))
    return {"table": markdown(cells, "percent of the optimum", [*STEPS[:-2], RANKING, *STEPS[-2:]])}


def measured(data: Data) -> str:
    """What the numbers of each pair come from, as a table."""
    table = {}
    for pair, s in data["settings"]["pairs"].items():
        contexts = f"up to {s['contexts']} in each of {s['bound_prompts']} prompts, one every {s['stride']} tokens"
        table[SHOWN_PAIR.get(pair, pair)] = {
            "prompts from": ", ".join(s["sets"]) + (" (chat template)" if s["chat"] else ""),
            "shared contexts": contexts,
            "decoding at the largest K": f"{s['prompts']} prompts, at most {s['new_tokens']} new tokens each",
            "speeds over K and L": f"the first {s['few']} of these prompts",
            "device, threads, clock": f"{s['device']}, {s['threads']}, {s.get('clock', 'wall time')}",
        }
    return markdown(table, "measured")


def _with_gain(row: Any) -> str:
    gain = f" ({percent(row.over['bv'])})" if "bv" in row.over and row.name != "bv" else ""
    return pm(row.value, row.se) + gain


def _gain(row: Any) -> str:
    return percent(row.over["bv"])


def _speed(row: Any) -> str:
    return f"{row.tokens_per_second:.3g} ± {row.tokens_per_second_se:.2g}"


def real_paths(data: Data) -> dict[str, str]:
    rows = pd.DataFrame(data["rows"])
    last, label = rows["paths"].max(), "{pair}, T = {temperature:g}"
    tables = {}
    for field, estimate, words in (
        ("table", "drafted", "drafted trees"),
        ("texts", "on-path", "the target's own texts"),
    ):
        part = rows[(rows["paths"] == last) & (rows["estimate"] == estimate)]
        head = f"K = {last}, {words}: tokens per call (over BV)"
        tables[field] = markdown(columns(part, label, _with_gain), head)
    return tables | {"depth": str(rows["depth"].iloc[0]), "measured": measured(data)}


def real_time(data: Data) -> dict[str, str]:
    rows = pd.DataFrame(data["rows"])

    def over_bv(row: Any) -> str:
        return _speed(row) + ("" if row.name == "bv" else f" ({percent((row.speed_over_bv, row.speed_over_bv_se))})")

    def share(row: Any) -> str:
        return f"{100 * row.milliseconds['verify'] / sum(row.milliseconds.values()):.0f} %"

    last = rows[(rows["paths"] == rows["paths"].max()) & (rows["name"] != "autoregressive")]
    return {
        "depth": str(rows["depth"].iloc[0]),
        "measured": measured(data),
        "table": markdown(columns(rows, "{pair}, K = {paths}", over_bv), "tokens per second (over BV)"),
        "shares": markdown(columns(last, "{pair}, K = {paths}", share), "share of verification in the time"),
    }


def real_temperature(data: Data) -> dict[str, str]:
    rows = pd.DataFrame(data["rows"])
    cells = columns(rows[rows["name"] != "bv"], "{pair}, T = {temperature:g}", _gain)
    shape = {"paths": str(rows["paths"].iloc[0]), "depth": str(rows["depth"].iloc[0])}
    return shape | {"measured": measured(data), "table": markdown(cells, "block efficiency over BV")}


def real_depth(data: Data) -> dict[str, str]:
    rows, points = pd.DataFrame(data["rows"]), pd.DataFrame(data["points"])
    points = points.sort_values("depth", kind="stable").sort_values("pair", kind="stable", ascending=False)
    gains = columns(rows[rows["name"] != "bv"], "{pair}, L = {depth}", _gain)
    return {
        "paths": str(rows["paths"].iloc[0]),
        "measured": measured(data),
        "table": markdown(gains, "block efficiency over BV"),
        "speeds": markdown(columns(points, "{pair}, L = {depth}", _speed), "tokens per second"),
    }


def real_bound(data: Data) -> dict[str, str]:
    rows = pd.DataFrame(data["rows"])
    over = rows[rows["axis"] == "paths"]
    at = over[over["paths"] == over["paths"].max()]

    def share(row: Any) -> str:
        return pm(row.value, row.se) + (
            "" if row.name == UPPER else f" ({pm(100 * row.share, 100 * row.share_se, 1)} %)"
        )

    shape = f"K = {at['paths'].iloc[0]}, L = {at['depth'].iloc[0]}, T = 1"
    table = markdown(columns(at, "{pair}", share), f"{shape}: tokens per call (percent of the bound)")
    excess = 100 * max(0.0, float((rows["share"] - 1).max()))
    return {"measured": measured(data), "table": table, "excess": f"{excess:.0e} %"}


def real_gap(data: Data) -> dict[str, str]:
    rows = pd.DataFrame(data["rows"])
    settings = {}
    for pair, s in data["settings"]["pairs"].items():
        part = rows[rows["pair"] == pair]
        settings[SHOWN_PAIR.get(pair, pair)] = {
            "contexts": f"{part['contexts'].max()} of {part['prompts'].max()} prompts ({s['prompts']})",
            "temperature, top-k, L": f"{s['temperature']:g}, {s['top_k']}, {s['depth']}",
        }

    def gap(row: Any) -> str:
        return f"{pm(row.value, row.se)} tokens" if row.name == OPTIMUM else pm(row.gap, row.gap_se)

    least = rows.loc[~rows["name"].isin((OPTIMUM, RELAXATION)), "least"].min()
    order = by_gap(rows, first=(OPTIMUM, RELAXATION))
    return {
        "measured": markdown(settings, "measured"),
        "table": markdown(columns(rows, "{pair}, K = {paths}", gap), "gap to the optimum, %", order),
        "widest": f"{data['settings']['widest']:.0e}",
        "least": f"{least:.0e}",
    }


def advise(data: Data) -> dict[str, str]:
    settings, advice = {}, []
    for pair in data["pairs"]:
        off = pd.Series([abs(row["relative_error"]) for row in pair["rows"]])
        settings[SHOWN_PAIR.get(pair["pair"], pair["pair"])] = {
            "prompts": str(pair["prompts"]),
            "settings (algorithm, K, L)": str(len(off)),
            "median error of prediction": f"{100 * off.median():.1f} %",
            "largest error of prediction": f"{100 * off.max():.1f} %",
        }
        for entry in pair["recommended"]:
            best = {
                side.replace("_", " "): "{}, K = {}, L = {}".format(NAMES[entry[side][0]], *entry[side][1:])
                for side in ("predicted_best", "measured_best")
            }
            among = NAMES.get(entry["among"], entry["among"])
            advice.append({"pair": pair["pair"], "among": among, **best, "loss": f"{100 * entry['loss']:.1f} %"})
    table = pd.DataFrame(advice).to_markdown(index=False, colalign=["left"] * 4 + ["right"], disable_numparse=True)
    return {"measured": markdown(settings, "measured"), "table": str(table)}
