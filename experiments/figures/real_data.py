"""Data of the figures about real models: rows with standard errors from what `experiments.figures.real_jobs` measured.

Every standard error is over prompts (contexts and rounds of one prompt are correlated), to first order; ratios to BV
and to the upper bound are paired by prompt. With totals A, B, C, D over n prompts and v = A/B, w = C/D, the ratio v/w
has the error sqrt(n / (n - 1) sum e_i^2), e_i = (a_i - v b_i) / (B w) - (c_i - w d_i) v / (D w^2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from experiments.figures import real_jobs
from experiments.figures.figure_data import Rows, Work
from experiments.figures.real_jobs import DEPTH, Job, Measured

if TYPE_CHECKING:
    from lpverify.decode.metrics import Generation

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


def decode_rows(pair: Measured, job: Job, runs: dict[str, list[Generation]], *, by_set: bool = False) -> Rows:
    """One row for each algorithm over all prompts, and with ``by_set`` one for each set of prompts as well.

    ``milliseconds``: by stage, for each committed token. ``speed_over_bv``: ratio of tokens per second, where BV ran.
    """
    labels = [label for label, _ in pair.prompts[: job.prompts]]
    fixed = {"pair": pair.pair, "temperature": job.temperature, "paths": job.paths, "depth": job.depth}
    rows: Rows = []
    for group in ("all", *(dict.fromkeys(labels) if by_set else ())):
        chosen = [i for i, label in enumerate(labels) if group in ("all", label)]
        if len(chosen) > 1:
            bv = [runs["bv"][i] for i in chosen] if "bv" in runs else None
            rows += [fixed | {"set": group, "name": n} | _decode_row([runs[n][i] for i in chosen], bv) for n in runs]
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


AGAINST = ("token", "bv", "gbv", "specinfer", "pbv")
"""What the others are compared with, paired by prompt."""


def bound_rows(pair: Measured, temperature: float) -> Rows:
    """One row for every K, L, name and estimate; BV and the bound are those of the same contexts.

    ``estimate``: "drafted" (mean over drafted trees of the tokens expected given the tree) or "on-path" (from the
    target's own text: the closed forms and `UPPER`). ``over``: ratios to those of `AGAINST` with their standard errors;
    ``off_bv_se``: that of the difference to BV. On the text also ``share`` of the upper bound, ``gap`` to it.
    """
    prompts = pair.bounded(temperature)
    counts = [len(prompt.positions) for prompt in prompts]
    rows: Rows = []
    for cells in zip(*(prompt.cells for prompt in prompts), strict=True):
        fixed = {"pair": pair.pair, "temperature": temperature, "paths": cells[0].paths, "depth": cells[0].depth}
        upper = [sum(cell.upper_bound) for cell in cells]
        sums = {("on-path", UPPER): upper}
        sums |= {("drafted", n): [sum(cell.block_efficiency[n]) for cell in cells] for n in real_jobs.BOUND}
        closed = [n for n in real_jobs.BOUND if n in cells[0].on_path]
        sums |= {("on-path", n): [sum(cell.on_path[n]) for cell in cells] for n in closed}
        for (estimate, name), values in sums.items():
            row: dict[str, Any] = fixed | {"name": name, "estimate": estimate}
            row["value"], row["se"] = quotient(values, counts)
            against = [n for n in AGAINST if (estimate, n) in sums and n != name]
            row["over"] = {n: quotient(values, counts, sums[estimate, n], counts) for n in against}
            row["off_bv_se"] = quotient(np.subtract(values, sums[estimate, "bv"]), counts)[1]
            if estimate == "on-path":
                row["share"], row["share_se"] = quotient(values, upper)
                row["gap"], row["gap_se"] = quotient(np.subtract(upper, values), counts)
            rows.append(row)
    return rows


def _pairs(work: Work) -> list[Measured]:
    return real_jobs.measured(work.size, work.real, work.stage)


def _settings(pairs: Iterable[Measured]) -> dict[str, Any]:
    """What was measured, pair by pair."""
    import torch

    from lpverify.decode.transformer import resolve_device

    settings = {}
    for pair in pairs:
        plan = pair.plan
        target, draft = real_jobs.PAIRS[pair.pair]
        settings[pair.pair] = {
            "target": target, "draft": draft, "chat": plan.chat, "seed": pair.seed, "depth": DEPTH,
            "sets": list(dict.fromkeys(label for label, _ in pair.prompts)), "new_tokens": plan.tokens,
            "prompts": min(plan.prompts, len(pair.prompts)), "few": min(plan.few, len(pair.prompts)),
            "bound_prompts": min(plan.bound_prompts, len(pair.prompts)), "contexts": plan.contexts,
            "stride": plan.stride, "device": str(resolve_device("auto")), "threads": torch.get_num_threads(),
            "clock": real_jobs.clock(),
        }  # fmt: skip
    return {"pairs": settings}


def table_rows(work: Work) -> dict[str, Any]:
    """T1: every algorithm at the largest K, by set of prompts."""
    pairs = _pairs(work)
    rows: Rows = []
    for pair in pairs:
        jobs = real_jobs.table_jobs(pair.plan)
        for job, runs in zip(jobs, pair.decoded(jobs), strict=True):
            rows += decode_rows(pair, job, runs, by_set=True)
    return {"settings": _settings(pairs), "rows": rows}


def speeds(pair: Measured) -> Rows:
    """Every row of the speeds over K and over L."""
    jobs = real_jobs.speed_jobs(pair.plan)
    return [row for job, runs in zip(jobs, pair.decoded(jobs), strict=True) for row in decode_rows(pair, job, runs)]


def time_rows(work: Work) -> dict[str, Any]:
    """F7: tokens per second and time by stage over K, at temperature 1 and L = `DEPTH`."""
    pairs = _pairs(work)
    rows = [row for pair in pairs for row in speeds(pair) if row["depth"] == DEPTH]
    return {"settings": _settings(pairs), "rows": rows}


def paths_rows(work: Work) -> dict[str, Any]:
    """F6: block efficiency over K at L = `DEPTH`, and what decoding gave at the largest K.

    At the largest K also the estimates on the text, which are independent of the drafted trees.
    """
    rows: Rows = []
    points: Rows = []
    pairs = _pairs(work)
    for pair in pairs:
        last = pair.plan.paths[-1]
        for temperature in (1.0, 0.6):
            cells = [row for row in bound_rows(pair, temperature) if row["depth"] == DEPTH]
            rows += [r for r in cells if r["estimate"] == "drafted" or (r["paths"] == last and r["name"] != UPPER)]
        jobs = real_jobs.table_jobs(pair.plan)
        for job, runs in zip(jobs, pair.decoded(jobs), strict=True):
            points += decode_rows(pair, job, {name: runs[name] for name in real_jobs.BOUND})
    return {"settings": _settings(pairs), "rows": rows, "points": points}


def temperature_rows(work: Work) -> dict[str, Any]:
    """F8: block efficiency over temperature at L = `DEPTH` and the largest K."""
    rows: Rows = []
    pairs = _pairs(work)
    for pair in pairs:
        at = (pair.plan.paths[-1], DEPTH, "drafted")
        cells = [row for temperature in pair.plan.bounds for row in bound_rows(pair, temperature)]
        rows += [row for row in cells if (row["paths"], row["depth"], row["estimate"]) == at]
    return {"settings": _settings(pairs), "rows": rows}


def depth_rows(work: Work) -> dict[str, Any]:
    """F9: block efficiency and tokens per second over L, at temperature 1 and the largest K."""
    rows: Rows = []
    points: Rows = []
    pairs = _pairs(work)
    for pair in pairs:
        last = pair.plan.paths[-1]
        rows += [row for row in bound_rows(pair, 1.0) if (row["paths"], row["estimate"]) == (last, "drafted")]
        points += [row for row in speeds(pair) if row["paths"] == last and row["name"] in real_jobs.OVER_DEPTH]
    return {"settings": _settings(pairs), "rows": rows, "points": points}


def share_rows(work: Work) -> dict[str, Any]:
    """F12: upper bound and closed forms on the target's own text over K, over L and over temperature.

    ``axis``: what varies. The others are the largest K, L = `DEPTH`, temperature 1.
    """
    rows: Rows = []
    pairs = _pairs(work)
    for pair in pairs:
        fixed = {"paths": pair.plan.paths[-1], "depth": DEPTH, "temperature": 1.0}
        cells = [row for t in pair.plan.bounds for row in bound_rows(pair, t) if row["estimate"] == "on-path"]
        for axis in fixed:
            others = {name: value for name, value in fixed.items() if name != axis}
            rows += [{"axis": axis} | row for row in cells if all(row[name] == v for name, v in others.items())]
    return {"settings": _settings(pairs), "rows": rows}
