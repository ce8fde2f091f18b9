"""Data of the figures about real models: rows with standard errors from what `experiments.figures.real_jobs` measured.

Every standard error is over prompts (contexts and rounds of one prompt are correlated), to first order; ratios to BV
and to the upper bound are paired by prompt. With totals A, B, C, D over n prompts and v = A/B, w = C/D, the ratio v/w
has the error sqrt(n / (n - 1) sum e_i^2), e_i = (a_i - v b_i) / (B w) - (c_i - w d_i) v / (D w^2).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from experiments.figures import real_jobs
from experiments.figures.figure_data import Work
from experiments.figures.real_jobs import DEPTH, Measured
from lpverify import errors
from lpverify.exact.compare import OPTIMUM

if TYPE_CHECKING:
    from lpverify.decode.metrics import Generation

Rows = list[dict[str, Any]]
Numbers = Sequence[float] | npt.NDArray[np.float64]
UPPER = "upper bound"
STAGES = ("draft", "target", "verify", "cache")


def quotient(a: Numbers, b: Numbers, c: Numbers | None = None, d: Numbers | None = None) -> tuple[float, float]:
    """(A/B) / (C/D) of totals over prompts, or A/B, and its standard error (see the module); at least two prompts.

    >>> quotient([4, 8], [2, 4]), quotient([3, 9], [2, 4]), quotient([4, 8], [2, 4], [2, 4], [2, 4])
    ((2.0, 0.0), (2.0, 0.3333333333333333), (2.0, 0.0))
    """
    value, off = _linear(a, b)
    if c is not None and d is not None:
        against, other = _linear(c, d)
        value, off = value / against, off / against - value / against**2 * other
    count = len(off)
    return value, float(np.sqrt(count / (count - 1) * (off**2).sum()))


def _linear(a: Numbers, b: Numbers) -> tuple[float, npt.NDArray[np.float64]]:
    """A/B and each prompt's part in its first-order error."""
    top, bottom = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    value = float(top.sum() / bottom.sum())
    return value, (top - value * bottom) / bottom.sum()


def decode_rows(
    job: Measured, algorithms: Sequence[str], paths: int, depth: int, temperature: float, count: int, *, by_set: bool
) -> Rows:
    """One row an algorithm over all prompts, and with ``by_set`` one for each set of prompts as well.

    ``milliseconds``: by stage, per committed token. ``speed_over_bv``: ratio of tokens per second, where BV was run.
    """
    runs = job.decoded(algorithms, paths, depth, temperature, count)
    labels = [label for label, _ in job.prompts[:count]]
    groups = ["all", *(dict.fromkeys(labels) if by_set else ())]
    rows: Rows = []
    for group in groups:
        chosen = [i for i, label in enumerate(labels) if group in ("all", label)]
        if len(chosen) < 2:
            continue
        for name in algorithms:
            fixed = {"pair": job.pair, "set": group, "temperature": temperature, "paths": paths, "depth": depth}
            bv = [runs["bv"][i] for i in chosen] if "bv" in runs else None
            rows.append(fixed | {"name": name} | _decode_row([runs[name][i] for i in chosen], bv))
    return rows


def _decode_row(runs: Sequence[Generation], bv: Sequence[Generation] | None) -> dict[str, Any]:
    from lpverify.decode.metrics import summarize

    stats = summarize(runs)
    tokens, seconds = [len(run.tokens) for run in runs], [_seconds(run) for run in runs]
    speed, speed_se = quotient(tokens, seconds)
    row: dict[str, Any] = {
        "prompts": stats.prompts,
        "rounds": stats.rounds,
        "tokens": stats.committed_tokens,
        "block_efficiency": stats.block_efficiency,
        "se": stats.block_efficiency_se,
        "rao_blackwell": stats.rao_blackwell,
        "rao_blackwell_se": stats.rao_blackwell_se,
        "tokens_per_second": speed,
        "tokens_per_second_se": speed_se,
        "milliseconds": {stage: 1e3 * stats.stage_seconds[stage] / stats.committed_tokens for stage in STAGES},
        "nodes": stats.nodes_per_round,
        "speed_over_bv": None,
        "speed_over_bv_se": None,
    }
    if bv is not None:
        against = ([len(run.tokens) for run in bv], [_seconds(run) for run in bv])
        row["speed_over_bv"], row["speed_over_bv_se"] = quotient(tokens, seconds, *against)
    return row


def _seconds(run: Generation) -> float:
    return sum(run.seconds[stage] for stage in STAGES)


AGAINST = ("token", "bv", "gbv", "specinfer")
"""What the others are compared with, paired by prompt."""


def bound_rows(job: Measured, temperature: float) -> Rows:
    """One row for every K, L, name and estimate; BV and the bound are those of the same contexts.

    ``estimate``: "drafted" (mean over drafted trees of the tokens expected given the tree) or "on-path" (from the
    target's own text: the closed forms and `UPPER`). ``over``: ratios to those of `AGAINST` with their standard errors;
    ``off_bv_se``: that of the difference to BV. On the text also ``share`` of the upper bound, ``gap`` to it.
    """
    prompts = job.bounded(temperature)
    counts = [len(prompt.positions) for prompt in prompts]
    rows: Rows = []
    for cells in zip(*(prompt.cells for prompt in prompts), strict=True):
        fixed = {"pair": job.pair, "temperature": temperature, "paths": cells[0].paths, "depth": cells[0].depth}
        upper = [sum(cell.upper_bound) for cell in cells]
        sums = {("on-path", UPPER): upper}
        sums |= {("drafted", n): [sum(cell.block_efficiency[n]) for cell in cells] for n in real_jobs.BOUND}
        closed = [n for n in real_jobs.BOUND if n in cells[0].on_path]
        sums |= {("on-path", n): [sum(cell.on_path[n]) for cell in cells] for n in closed}
        for (estimate, name), values in sums.items():
            row: dict[str, Any] = fixed | {"name": name, "estimate": estimate}
            row["value"], row["se"] = quotient(values, counts)
            against = [n for n in AGAINST if (estimate, n) in sums]
            row["over"] = {n: quotient(values, counts, sums[estimate, n], counts) for n in against}
            row["off_bv_se"] = quotient(np.subtract(values, sums[estimate, "bv"]), counts)[1]
            if estimate == "on-path":
                row["share"], row["share_se"] = quotient(values, upper)
                row["gap"], row["gap_se"] = quotient(np.subtract(upper, values), counts)
            rows.append(row)
    return rows


def _pairs(work: Work) -> list[Measured]:
    return real_jobs.measured(work.size, work.real, work.stage)


def _settings(jobs: Iterable[Measured]) -> dict[str, Any]:
    """What was measured, pair by pair."""
    import torch

    from lpverify.decode.transformer import resolve_device

    found = {}
    for job in jobs:
        plan = job.plan
        target, draft = real_jobs.PAIRS[job.pair]
        found[job.pair] = {
            "target": target, "draft": draft, "chat": plan.chat, "seed": job.seed, "depth": DEPTH,
            "sets": list(dict.fromkeys(label for label, _ in job.prompts)), "new_tokens": plan.tokens,
            "bound_prompts": min(plan.bound_prompts, len(job.prompts)), "contexts": plan.contexts,
            "stride": plan.stride, "device": str(resolve_device("auto")), "threads": torch.get_num_threads(),
        }  # fmt: skip
    return {"pairs": found}


def table_rows(work: Work) -> dict[str, Any]:
    """T1: every algorithm at the largest K, by set of prompts."""
    rows: Rows = []
    jobs = _pairs(work)
    for job in jobs:
        for temperature in job.plan.temperatures:
            paths = job.plan.paths[-1]
            rows += decode_rows(job, real_jobs.TABLE, paths, DEPTH, temperature, job.plan.prompts, by_set=True)
    return {"settings": _settings(jobs), "rows": rows}


def time_rows(work: Work) -> dict[str, Any]:
    """F7: tokens per second and time by stage over K, at temperature 1 and L = `DEPTH`."""
    rows: Rows = []
    jobs = _pairs(work)
    for job in jobs:
        few, last = job.plan.few, job.plan.paths[-1]
        for paths in job.plan.paths[1:]:
            names = real_jobs.TABLE if paths == last else real_jobs.OVER_PATHS
            rows += decode_rows(job, names, paths, DEPTH, 1.0, few, by_set=False)
    return {"settings": _settings(jobs), "rows": rows}


def paths_rows(work: Work) -> dict[str, Any]:
    """F6: block efficiency over K at L = `DEPTH`, and what decoding gave at the same settings.

    Of GBV with the largest K also the estimate on the text, independent of the drafted trees: the claim hangs on it.
    """
    rows: Rows = []
    points: Rows = []
    jobs = _pairs(work)
    for job in jobs:
        for temperature in (1.0, 0.6):
            found = [row for row in bound_rows(job, temperature) if row["depth"] == DEPTH]
            rows += _drafted(found)
            rows += [
                r for r in found if (r["estimate"], r["name"], r["paths"]) == ("on-path", "gbv", job.plan.paths[-1])
            ]
        for temperature in job.plan.temperatures:
            last = job.plan.paths[-1]
            names = [name for name in real_jobs.TABLE if name in real_jobs.BOUND]
            points += decode_rows(job, names, last, DEPTH, temperature, job.plan.prompts, by_set=False)
    return {"settings": _settings(jobs), "rows": rows, "points": points}


def _drafted(rows: Rows) -> Rows:
    """Those of drafted trees, but for the token rule, which is far below."""
    return [row for row in rows if row["estimate"] == "drafted" and row["name"] != "token"]


def temperature_rows(work: Work) -> dict[str, Any]:
    """F8: block efficiency over temperature at L = `DEPTH` and the largest K."""
    rows: Rows = []
    jobs = _pairs(work)
    for job in jobs:
        for temperature in job.plan.bounds:
            at = (job.plan.paths[-1], DEPTH)
            rows += [r for r in _drafted(bound_rows(job, temperature)) if (r["paths"], r["depth"]) == at]
    return {"settings": _settings(jobs), "rows": rows}


def depth_rows(work: Work) -> dict[str, Any]:
    """F9: block efficiency and tokens per second over L, at temperature 1 and the largest K."""
    rows: Rows = []
    speeds: Rows = []
    jobs = _pairs(work)
    for job in jobs:
        last = job.plan.paths[-1]
        rows += [row for row in _drafted(bound_rows(job, 1.0)) if row["paths"] == last]
        for depth in job.plan.depths:
            names = real_jobs.TABLE if depth == DEPTH else real_jobs.OVER_DEPTH
            measured = decode_rows(job, names, last, depth, 1.0, job.plan.few, by_set=False)
            speeds += [row for row in measured if row["name"] in real_jobs.OVER_DEPTH]
    return {"settings": _settings(jobs), "rows": rows, "points": speeds}


def share_rows(work: Work) -> dict[str, Any]:
    """F12: upper bound and closed forms on the target's own text over K, over L and over temperature.

    ``axis``: what varies. The others are the largest K, L = `DEPTH`, temperature 1.
    """
    rows: Rows = []
    jobs = _pairs(work)
    for job in jobs:
        fixed = {"paths": job.plan.paths[-1], "depth": DEPTH, "temperature": 1.0}
        found = [row for t in job.plan.bounds for row in bound_rows(job, t) if row["estimate"] == "on-path"]
        for axis in fixed:
            others = {name: value for name, value in fixed.items() if name != axis}
            rows += [{"axis": axis} | row for row in found if all(row[name] == v for name, v in others.items())]
    return {"settings": _settings(jobs), "rows": rows}


TREES = "real_trees.json"
"""What ``experiments/real_trees.py`` leaves: every algorithm on real truncated trees, the optimum certified."""


def gap_rows(work: Work) -> dict[str, Any]:
    """F11: mean relative gap to the certified optimum, and tokens, by pair, K and algorithm. Read, not computed."""
    path = (work.real.folder or Path()) / TREES
    try:
        document = json.loads(path.read_text())
        settings, trees = document["settings"], pd.DataFrame(document["rows"])
        best = trees[trees["name"] == OPTIMUM].set_index(["pair", "file", "paths"])["block_efficiency"]
    except FileNotFoundError as error:
        expected = "what python experiments/real_trees.py writes"
        raise errors.fail(str(path), got="no such file", expected=expected) from error
    except (ValueError, KeyError, TypeError) as error:
        raise errors.fail(str(path), got=f"{type(error).__name__}: {error}", expected="rows and settings") from error
    trees = trees.join(best.rename("best"), on=["pair", "file", "paths"])
    trees["gap"] = 1 - trees["block_efficiency"] / trees["best"]
    rows: Rows = []
    for (pair, paths, name), part in trees.groupby(["pair", "paths", "name"], sort=False):
        sums = part.groupby("prompt")[["gap", "block_efficiency"]].sum()
        counts = part.groupby("prompt").size().to_numpy(dtype=float)
        gap, gap_se = quotient(sums["gap"].to_numpy(), counts)
        value, value_se = quotient(sums["block_efficiency"].to_numpy(), counts)
        row = {"pair": pair, "paths": paths, "name": name, "prompts": len(counts), "contexts": len(part)}
        row |= {"gap": 100 * gap, "gap_se": 100 * gap_se, "least": 100 * float(part["gap"].min())}
        rows.append(row | {"value": value, "se": value_se})
    keys = ("temperature", "top_k", "depth", "prompts")
    widest = float((trees["upper_bound"] - trees["lower_bound"]).max())
    return {
        "settings": {"pairs": {p: {k: of[k] for k in keys} for p, of in settings.items()}, "widest": widest},
        "rows": rows,
    }
