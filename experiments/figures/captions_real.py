"""Captions of the figures about real models, as in `experiments.figures.captions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.figures.captions import NAMES as THEORY_NAMES
from experiments.figures.captions import text
from experiments.figures.real_data import UPPER
from experiments.figures.real_jobs import SHOWN_PAIR
from lpverify.exact.compare import OPTIMUM, RELAXATION

Data = Mapping[str, Any]
NAMES = THEORY_NAMES | {UPPER: "upper bound", "autoregressive": "target alone"}
PAPER = "Thomas & Pal (arXiv 2602.16961)"
MANY, FAST = 0.30, 0.15
"""The paper's gains of GBV over BV: block efficiency, wall time."""

DRAFTED = """Block efficiency is the mean, over trees drafted in shared contexts, of the tokens expected given the
    tree (Rao-Blackwell). The contexts are places in texts that the target itself wrote; the first paths and tokens of
    each drafted tree, which has the largest K and L, serve the smaller ones."""
BOUND = """The upper bound is the node relaxation f(cx) = min(p f(c), phi(Q(cx))), which no lossless verifier with K
    i.i.d. paths exceeds, estimated without bias on the target's own text."""
ERROR = "± is one standard error over prompts; ratios are paired by prompt."
BARS = "An error bar is the standard error of the difference to BV in the same contexts, the band that of BV itself."


def measured(data: Data) -> str:
    """What the numbers of each pair come from."""
    parts = []
    for pair, of in data["settings"]["pairs"].items():
        sets = ", ".join(of["sets"]) + (" (chat template)" if of["chat"] else "")
        parts.append(
            f"{SHOWN_PAIR[pair]}: {of['bound_prompts']} prompts from {sets}, up to {of['contexts']} contexts each,"
            f" every {of['stride']} tokens"
        )
    return "; ".join(parts) + "."


def decoded(data: Data, rows: pd.DataFrame) -> str:
    """What the decoding runs of each pair were."""
    parts = []
    for pair, of in data["settings"]["pairs"].items():
        prompts = int(rows.loc[rows["pair"] == pair, "prompts"].max())
        sets = ", ".join(of["sets"]) + (" (chat template)" if of["chat"] else "")
        cores = f"float32, {of['threads']} thread" + ("s" if of["threads"] > 1 else "")
        where = f"{of['device']} ({cores})" if of["device"] == "cpu" else of["device"]
        parts.append(
            f"{SHOWN_PAIR[pair]}: {prompts} prompts from {sets}, at most {of['new_tokens']} new tokens each, on {where}"
        )
    return "; ".join(parts) + "."


def pm(value: float, error: float, digits: int = 2) -> str:
    """A value with its standard error."""
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def percent(ratio: tuple[float, float] | list[float]) -> str:
    """A ratio as a change in percent.

    >>> percent((1.125, 0.01))
    '+12.5 ± 1.0 %'
    """
    return f"{100 * (ratio[0] - 1):+.1f} ± {100 * ratio[1]:.1f} %"


def against(ratio: tuple[float, float] | list[float], claim: float) -> str:
    """How a gain compares with a claimed one, at two standard errors.

    >>> against((1.5, 0.05), 0.3), against((1.2, 0.01), 0.3), against((1.28, 0.02), 0.3)
    ('above 30 %', 'below 30 %', 'within two standard errors of 30 %')
    """
    off = ratio[0] - 1 - claim
    where = "within two standard errors of" if abs(off) <= 2 * ratio[1] else "above" if off > 0 else "below"
    return f"{where} {100 * claim:.0f} %"


def best(rows: pd.DataFrame, by: str, value: str = "value") -> float:
    """Where the largest value is."""
    return float(rows.loc[rows[value].idxmax(), by])


def table(columns: Mapping[str, pd.DataFrame], head: str, cell: Any) -> str:
    """Markdown: a row a name, a column a frame indexed by name, ``cell`` of its rows."""
    names = list(dict.fromkeys(name for frame in columns.values() for name in frame.index))
    lines = [f"| {head} | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for name in names:
        cells = [cell(frame.loc[name]) if name in frame.index else "-" for frame in columns.values()]
        lines.append(f"| {NAMES[name]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def real_paths(data: Data) -> str:
    """F6."""
    every, points = pd.DataFrame(data["rows"]), pd.DataFrame(data["points"])
    last = int(every["paths"].max())
    frame, on_text = every[every["estimate"] == "drafted"], every[every["estimate"] == "on-path"]
    texts = on_text.set_index(["pair", "temperature"])["over"]
    columns, words = {}, []
    for (pair, temperature), rows in frame.groupby(["pair", "temperature"], sort=False):
        at = rows[rows["paths"] == last].set_index("name")
        columns[f"{pair}, T = {temperature:g}"] = at
        gbv = at.loc["gbv", "over"]["bv"]
        words.append(
            f"{pair}, T = {temperature:g}: GBV over BV {percent(gbv)} ({against(gbv, MANY)}), independently"
            f" on the texts {percent(texts[pair, temperature]['bv'])};"
            f" best GBV at K = {best(rows[rows['name'] == 'gbv'], 'paths'):.0f};"
            f" PBV over GBV {percent(at.loc['pbv', 'over']['gbv'])}"
        )
    depth = int(frame["depth"].iloc[0])
    return text(
        f"""Block efficiency against the number of draft paths K at L = {depth}, by temperature. Open marks, left of the
        points: what decoding gave, with its own standard error (Rao-Blackwell over the rounds of each verifier's own
        texts; BV at K = 1, which is what it drafts).""",
        f"""{DRAFTED} {measured(data)} {BARS} Decoding: {decoded(data, points)} Rounds are long where
        tokens are easy to predict, so fewer of them begin there: the mean over a decoder's rounds is smaller than that
        over evenly spread contexts. {ERROR}""",
        f"""{PAPER}: GBV is ahead of BV by over 30 % in block efficiency, best at K = 3 or 4 and L = 8; at temperature 1
        BV can win. TGBV and PBV are this project's own.""",
        f"At K = {last}. {'. '.join(words)}.",
        table(columns, f"K = {last}: tokens per call (over BV)", _with_gain),
    )


def _with_gain(row: pd.Series) -> str:
    shown = pm(row["value"], row["se"])
    return shown if row.name == "bv" else f"{shown} ({percent(row['over']['bv'])})"


def real_time(data: Data) -> str:
    """F7."""
    frame = pd.DataFrame(data["rows"])
    words = []
    for pair, rows in frame.groupby("pair", sort=False):
        last = rows[rows["paths"] == rows["paths"].max()].set_index("name")
        gbv = rows[rows["name"] == "gbv"]
        gains = ", ".join(
            f"K = {row.paths}: {percent((row.speed_over_bv, row.speed_over_bv_se))}" for row in gbv.itertuples()
        )
        top = gbv.loc[gbv["speed_over_bv"].idxmax()]
        verdict = against((top["speed_over_bv"], top["speed_over_bv_se"]), FAST)
        fastest = str(last["tokens_per_second"].idxmax())
        shares = {name: _share(last.loc[name], "verify") for name in ("bv", "gbv", "pbv")}
        words.append(
            f"{pair}: GBV over BV in tokens per second, {gains} (its best is {verdict}); fastest of all is"
            f" {NAMES[fastest]} with {_speed(last.loc[fastest])} per second; verification takes "
            + ", ".join(f"{share:.0f} % of {NAMES[name]}'s time" for name, share in shares.items())
        )
    depth = int(frame["depth"].iloc[0])
    return text(
        f"""Left: committed tokens per second against K at L = {depth}, temperature 1; BV drafts one path whatever K is,
        its points are repetitions. Right: the time of a committed token by stage.""",
        f"""{decoded(data, frame)} The prompts' own pass is not counted. Algorithms that share a K were run interleaved
        on the same prompts; times are those of the machine that measured them. {ERROR}""",
        f"{PAPER}: GBV is over 15 % faster than BV in wall time, K = 3 or 4 and L = 8 the best.",
        ". ".join(words) + ".",
    )


def _speed(row: pd.Series) -> str:
    return pm(row["tokens_per_second"], row["tokens_per_second_se"], 1)


def _share(row: pd.Series, stage: str) -> float:
    return float(100 * row["milliseconds"][stage] / sum(row["milliseconds"].values()))


def real_temperature(data: Data) -> str:
    """F8."""
    frame = pd.DataFrame(data["rows"])
    words = []
    for pair, rows in frame.groupby("pair", sort=False):
        gains = {}
        for name in ("gbv", "pbv"):
            ratios = {row.temperature: row.over["bv"] for row in rows[rows["name"] == name].itertuples()}
            over = [f"{t:g}" for t, ratio in ratios.items() if ratio[0] - 1 > MANY]
            listed = ", ".join(f"T = {t:g}: {percent(ratio)}" for t, ratio in ratios.items())
            gains[name] = f"{NAMES[name]} over BV, {listed}; over 30 % at T = {', '.join(over) or 'none'}"
        words.append(f"{pair}: {gains['gbv']}. {gains['pbv']}")
    paths, depth = int(frame["paths"].iloc[0]), int(frame["depth"].iloc[0])
    return text(
        f"""Block efficiency against the temperature of both models at K = {paths} (BV: one path), L = {depth}. Above
        the dashed line a gain over BV exceeds 30 %.""",
        f"{DRAFTED} {measured(data)} {BARS} {ERROR}",
        f"{PAPER}: low temperature favours K > 1; at temperature 1 BV can win; GBV over 30 % ahead of BV.",
        ". ".join(words) + ".",
    )


def real_depth(data: Data) -> str:
    """F9."""
    frame, points = pd.DataFrame(data["rows"]), pd.DataFrame(data["points"])
    words = []
    for pair, rows in frame.groupby("pair", sort=False):
        fast = points[points["pair"] == pair]
        speeds = [
            f"{NAMES[name]} at L = {best(fast[fast['name'] == name], 'depth', 'tokens_per_second'):.0f}"
            for name in ("bv", "gbv", "pbv")
        ]
        gbv = rows[rows["name"] == "gbv"].sort_values("depth")
        gains = ", ".join(f"L = {row.depth}: {percent(row.over['bv'])}" for row in gbv.itertuples())
        words.append(f"{pair}: most tokens per second, {', '.join(speeds)}. GBV over BV in block efficiency, {gains}")
    paths = int(frame["paths"].iloc[0])
    return text(
        f"""Block efficiency (left) and committed tokens per second (right) against the draft depth L at K = {paths},
        temperature 1.""",
        f"""{DRAFTED} {measured(data)} {BARS} Tokens per second, with their own standard errors: {decoded(data, points)}
        {ERROR}""",
        f"{PAPER}: L = 8 is the best depth.",
        ". ".join(words) + ".",
    )


def real_bound(data: Data) -> str:
    """F12."""
    frame = pd.DataFrame(data["rows"])
    words, columns = [], {}
    for pair, rows in frame.groupby("pair", sort=False):
        over_paths = rows[rows["axis"] == "paths"]
        at = over_paths[over_paths["paths"] == over_paths["paths"].max()].set_index("name")
        columns[str(pair)] = at
        shares = ", ".join(f"{NAMES[name]} {_percent_of(at.loc[name])}" for name in ("pbv", "tgbv", "gbv", "bv"))
        ranges = []
        for axis, name in (("depth", "L"), ("temperature", "T")):
            line = rows[(rows["axis"] == axis) & (rows["name"] == "pbv")].sort_values(axis)
            ends = [f"{_percent_of(line.iloc[i])} at {name} = {line.iloc[i][axis]:g}" for i in (0, -1)]
            ranges.append(" to ".join(dict.fromkeys(ends)))
        words.append(f"{pair}, {shares}; PBV {', '.join(ranges)}")
    over = float((frame["share"] - 1).max())
    one = columns[next(iter(columns))].iloc[0]
    shape = f"K = {one['paths']:g}, L = {one['depth']:g}, T = {one['temperature']:g}"
    return text(
        """Block efficiency at full vocabulary against K, L and temperature, and the upper bound that no lossless
        verifier with K i.i.d. paths exceeds. At the lines' ends: percent of the bound.""",
        f"""{BOUND} All values are from the same texts by their closed forms, so nothing crosses the bound on any text;
        an error bar is the standard error of the distance to it, the band that of the bound itself. {measured(data)}
        {ERROR} The bound ignores how nodes compete, so part of what is missing may be out of reach.""",
        "None: the papers compare algorithms with each other. TGBV and PBV are this project's own.",
        f"""Of what any lossless verifier with K i.i.d. paths can reach, {shape}: {". ".join(words)}. Largest excess of
        a share over 100 %: {max(over, 0.0):.0e}.""",
        table(columns, f"{shape}: tokens per call (percent of the bound)", _with_share),
    )


def _percent_of(row: pd.Series) -> str:
    return f"{pm(100 * row['share'], 100 * row['share_se'], 1)} %"


def _with_share(row: pd.Series) -> str:
    shown = pm(row["value"], row["se"])
    return shown if row.name == UPPER else f"{shown} ({_percent_of(row)})"


def real_gap(data: Data) -> str:
    """F11."""
    frame = pd.DataFrame(data["rows"])
    last = frame["paths"].max()
    columns, words, of = {}, [], []
    for pair, rows in frame.groupby("pair", sort=False):
        settings = data["settings"]["pairs"][pair]
        best = rows[rows["name"] == OPTIMUM]
        of.append(
            f"{SHOWN_PAIR.get(pair, pair)}: {best['contexts'].max()} contexts of {best['prompts'].max()} prompts"
            f" ({settings['prompts']}), T = {settings['temperature']:g}, top-k {settings['top_k']},"
            f" L = {settings['depth']}"
        )
        for paths, part in rows.groupby("paths"):
            columns[f"{pair}, K = {paths}"] = part.set_index("name")
        at = columns[f"{pair}, K = {last}"]
        gaps = ", ".join(
            f"{NAMES[name]} {pm(at.loc[name, 'gap'], at.loc[name, 'gap_se'])} %"
            for name in ("pbv", "tgbv", "gbv", "bv")
        )
        words.append(f"{pair}: {gaps}")
    verifiers = frame[~frame["name"].isin((OPTIMUM, RELAXATION))]
    order = verifiers.groupby("name")["gap"].mean().sort_values().index
    first = [OPTIMUM, RELAXATION, *order]
    shown = {label: part.loc[[name for name in first if name in part.index]] for label, part in columns.items()}
    return text(
        """Mean gap to the optimum in percent on real conditional laws: whole prefix trees below contexts that the
        target itself wrote, as top-k sampling leaves them. Logarithmic; gaps below 0.01 % lie on the floor.""",
        f"""{"; ".join(of)}. The optimum is the linear program's, its certificate checked without the solver (bounds
        apart by at most {data["settings"]["widest"]:.0e} tokens); every algorithm is evaluated exactly. ± and error
        bars are one standard error over prompts.""",
        "None: the papers have no optimum to compare with on real models.",
        f"""Mean gap at K = {last}: {". ".join(words)}. No algorithm is above the optimum (smallest gap of any problem
        {verifiers["least"].min():.0e} %).""",
        table(shown, "gap to the optimum, %", _gap_cell),
    )


def _gap_cell(row: pd.Series) -> str:
    if row.name == OPTIMUM:
        return f"{pm(row['value'], row['se'])} tokens"
    return pm(row["gap"], row["gap_se"])


def advise(data: Data) -> str:
    """F13."""
    words, of = [], []
    lines = ["| pair | among | predicted best | measured best | lost |", "|---|---|---|---|---:|"]
    for pair in data["pairs"]:
        errors = pd.Series([abs(row["relative_error"]) for row in pair["rows"]])
        words.append(
            f"{pair['pair']}: median error of prediction {100 * errors.median():.1f} %, largest"
            f" {100 * errors.max():.1f} %, over {len(errors)} cells"
        )
        of.append(f"{SHOWN_PAIR.get(pair['pair'], pair['pair'])}: {pair['prompts']} prompts")
        for entry in pair["recommended"]:
            cells = ["{}, K = {}, L = {}".format(*_named(entry[key])) for key in ("predicted_best", "measured_best")]
            among = NAMES.get(entry["among"], entry["among"])
            lines.append(f"| {pair['pair']} | {among} | {' | '.join(cells)} | {100 * entry['loss']:.1f} % |")
    return text(
        """Tokens per second as `lpverify advise` predicts them from block efficiency (`lpverify bound`) and the seconds
        of the parts of a round, against those measured by decoding, a mark for each K and L.""",
        f"""{"; ".join(of)}. Measured one after the other on the same prompts. Error bars are one standard error.
        *lost*: measured speed at the predicted best K and L below that at the measured best.""",
        f"{PAPER}: K = 3 or 4 and L = 8 are the best.",
        f"{'. '.join(words)}.",
        "\n".join(lines),
    )


def _named(cell: list[Any]) -> list[Any]:
    return [NAMES[cell[0]], *cell[1:]]
