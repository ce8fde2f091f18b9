"""The data of the figures about small problems: computed and summarised here, drawn elsewhere.

Every ``..._rows`` function returns plain data: ``settings``; ``rows``, the means and standard errors (over instances)
that are drawn; ``facts``, single numbers for captions and checks; ``instances``, one row for each problem, which is
stored apart from the rest (`experiments.figures.figures.store`).
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from experiments.figures.real_jobs import Real
from lpverify.core import families as make
from lpverify.core.problem import load_problem
from lpverify.errors import InputError
from lpverify.exact import compare
from lpverify.exact.breakdown import balance
from lpverify.exact.closed_form import block_efficiency
from lpverify.exact.compare import OPTIMUM
from lpverify.lp import dense, quantile, reference, single_path
from lpverify.sweep.config import Task
from lpverify.sweep.run import Executor, executor
from lpverify.verifiers import names

Rows = list[dict[str, Any]]
TOLERANCE = 2e-8
"""Two optima of the multi-path data, each certified to 1e-8, may be in the wrong order by this much."""

FAMILIES: dict[str, dict[str, Any]] = {
    "unrelated draft": {"family": "dirichlet", "parameters": {"alpha": 0.5}},
    "good draft": {"family": "softmax", "parameters": {"temperature": 1.0, "draft_noise": 0.5}},
    "good draft, low temperature": {"family": "softmax", "parameters": {"temperature": 0.3, "draft_noise": 0.5}},
}
"""The three families of the multi-path figures (`lpverify.core.families`)."""


@dataclass(frozen=True)
class Work:
    """How data are computed.

    ``size``: "full" is what is published, "quick" takes minutes, "tiny" seconds; ``run``: what runs the tasks of a
    sweep; ``stage``: called with the name of every step; ``real``: what to measure on models.
    """

    size: str = "full"
    run: Executor = executor()
    stage: Callable[[str], None] = lambda name: None
    real: Real = field(default_factory=Real)


def summary(frame: pd.DataFrame, by: Sequence[str], columns: Iterable[str]) -> Rows:
    """For each group the mean of every column and, as NAME_se, its standard error (0 for one row).

    >>> summary(pd.DataFrame({"name": ["bv", "bv"], "gap": [1.0, 3.0]}), ["name"], ["gap"])
    [{'name': 'bv', 'gap': 2.0, 'gap_se': 1.0}]
    """
    groups = frame.groupby(list(by), sort=False)[list(columns)]
    joined = groups.mean().join(groups.sem().fillna(0.0).add_suffix("_se"))
    rows: Rows = joined.reset_index().to_dict("records")
    return rows


def one_position(work: Work) -> dict[str, Any]:
    """The balance of one position of the token rule, computed in Fractions."""
    exact = balance(load_problem("one-position", rational=True).pair)
    rows = ("target", "draft", "accepted", "residual", "emitted", "naive")
    masses = ("accepted_mass", "rejected_mass", "law_error", "naive_law_error")
    data = {name: [float(x) for x in getattr(exact, name)] for name in rows}
    return data | {name: float(getattr(exact, name)) for name in masses}


SINGLE_PATH: dict[str, dict[str, Any]] = {
    "tiny": {"vocab": 2, "depths": [1, 2], "noises": [0.0, 1.0], "depth": 2, "instances": 2},
    "quick": {"vocab": 3, "depths": [1, 2, 3, 4], "noises": [0.0, 0.5, 1.0, 2.0], "depth": 3, "instances": 5},
    "full": {
        "vocab": 3, "depths": [1, 2, 3, 4, 5, 6], "noises": [0.0, 0.25, 0.5, 1.0, 2.0, 4.0], "depth": 4,
        "instances": 20,
    },
}  # fmt: skip
SINGLE_PATH_NOISE = 0.5


def single_path_rows(work: Work) -> dict[str, Any]:
    """The LP by HiGHS beside the closed forms of BV and the token rule, over depth and over draft noise."""
    settings = SINGLE_PATH[work.size]
    cells = [("depth", depth, SINGLE_PATH_NOISE) for depth in settings["depths"]]
    cells += [("noise", settings["depth"], noise) for noise in settings["noises"]]
    rows: Rows = []
    for axis, depth, noise in cells:
        work.stage(f"L = {depth}, draft noise {noise}")
        for seed in range(settings["instances"]):
            pair = make.softmax(settings["vocab"], depth, seed, draft_noise=noise)
            row = {"axis": axis, "depth": depth, "draft_noise": noise, "seed": seed}
            row["optimum"] = single_path.solve_as_lp(pair).value
            rows.append(row | {name: float(block_efficiency(pair, name)) for name in ("bv", "token")})
    return single_path_summary(settings, rows)


def single_path_summary(settings: dict[str, Any], instances: Rows) -> dict[str, Any]:
    """Columns of the rows: optimum, bv, token; ``off_token``: token - optimum; ``gain``: BV over the token rule, %."""
    frame = pd.DataFrame(instances)
    frame["off_token"] = frame["token"] - frame["optimum"]
    frame["gain"] = 100 * (frame["bv"] / frame["token"] - 1)
    columns = ("optimum", "bv", "token", "off_token", "gain")
    rows = summary(frame, ["axis", "depth", "draft_noise"], columns)
    noisy = frame[(frame["axis"] == "noise") & (frame["draft_noise"] > 0)]
    best = max((row for row in rows if row["axis"] == "noise"), key=lambda row: row["gain"])
    facts = {
        "problems": len(frame),
        "largest_difference": float((frame["bv"] - frame["optimum"]).abs().max()),
        "smallest_gain": float((frame["bv"] - frame["token"]).min()),
        "perfect_draft_error": _largest(frame[frame["draft_noise"] == 0].eval("bv - depth - 1")),
        "largest_gain": float(noisy["gain"].max()),
        "mean_gain": float(noisy["gain"].mean()),
        "best_noise": best["draft_noise"],
        "best_gain": best["gain"],
        "best_gain_se": best["gain_se"],
    }
    return {"settings": settings, "facts": facts, "rows": rows, "instances": instances}


def _largest(values: pd.Series) -> float:
    return float(values.abs().max())


MULTI_PATH: dict[str, dict[str, Any]] = {
    "tiny": {"vocab": 2, "depth": 2, "paths": [1, 2], "instances": 2},
    "quick": {"vocab": 3, "depth": 2, "paths": [1, 2, 3, 4], "instances": 3},
    "full": {"vocab": 3, "depth": 3, "paths": [1, 2, 3, 4, 5], "instances": 16},
}
MULTI_PATH_NAMES = (OPTIMUM, *names())


def multi_path_rows(work: Work) -> dict[str, Any]:
    """Every algorithm and the optimum over the number of paths."""
    settings = MULTI_PATH[work.size]
    return multi_path_summary(settings, _sweep(work, settings, MULTI_PATH_NAMES))


def multi_path_summary(settings: dict[str, Any], instances: Rows) -> dict[str, Any]:
    """Columns of the rows: value, ``off`` (to the same instance's optimum), ``gap`` in percent with its extremes."""
    frame = _with_gap(pd.DataFrame(instances))
    keys = ["family", "paths", "name"]
    extremes = frame.groupby(keys, sort=False)["gap"].agg(["min", "max"])
    rows = summary(frame, keys, ("value", "off", "gap"))
    for row in rows:
        row["gap_min"], row["gap_max"] = (float(x) for x in extremes.loc[tuple(row[key] for key in keys)])
    lines = frame.pivot(index=["family", "seed"], columns=["name", "paths"], values="value")
    wide = frame.pivot(index=["family", "seed", "paths"], columns="name", values="value")
    last = wide.xs(max(settings["paths"]), level="paths")
    gain = summary((100 * (last["gbv"] / last["bv"] - 1)).rename("gain").reset_index(), ["family"], ["gain"])
    gain.sort(key=lambda row: list(FAMILIES).index(row["family"]))
    same = ["gbv", "tgbv", "pbv", "ebv", "traversal", "bv"]
    one = wide.xs(1, level="paths")
    facts = {
        "problems": len(wide),
        "sequences": len(lines),
        "largest_excess": max(0.0, float((wide.drop(columns=OPTIMUM).max(axis=1) - wide[OPTIMUM]).max())),
        "gbv_falls": int((lines["gbv"].diff(axis=1) < -1e-7).any(axis=1).sum()),
        "optimum_falls": int((lines[OPTIMUM].diff(axis=1) < -TOLERANCE).any(axis=1).sum()),
        "gbv_below_bv": int((wide["gbv"] < wide["bv"] - 1e-9).unstack().any(axis=1).sum()),
        "one_path_difference": float(one[same].sub(one[OPTIMUM], axis=0).abs().to_numpy().max()),
        "gbv_over_bv": {row["family"]: [row["gain"], row["gain_se"]] for row in gain},
    }
    return {"settings": settings, "facts": facts, "rows": rows, "instances": instances}


def _with_gap(frame: pd.DataFrame) -> pd.DataFrame:
    """Adds to every row ``off``, the difference to the optimum of the same instance, and the gap in %, at least 0."""
    keys = ["family", "paths", "seed"]
    best = frame[frame["name"] == OPTIMUM].set_index(keys)["block_efficiency"].rename("best")
    joined = frame.join(best, on=keys).rename(columns={"block_efficiency": "value"})
    joined["off"] = joined["value"] - joined["best"]
    return joined.assign(gap=(-100 * joined["off"] / joined["best"]).clip(lower=0.0))


DECOMPOSITION: dict[str, dict[str, Any]] = {
    "tiny": {"vocab": 2, "depth": 2, "paths": [2], "instances": 2},
    "quick": {"vocab": 3, "depth": 2, "paths": [3], "instances": 6},
    "full": {"vocab": 3, "depth": 3, "paths": [3], "instances": 20},
}
STEPS = ("bv", "gbv", "tgbv", "pbv", "ebv", OPTIMUM, compare.RELAXATION)
"""The steps of the decomposition; the best single ranking is beside them."""


def decomposition_rows(work: Work) -> dict[str, Any]:
    """The `STEPS` from block verification to the node relaxation, and the best ranking."""
    settings = DECOMPOSITION[work.size]
    return decomposition_summary(settings, _sweep(work, settings, (*STEPS, compare.RANKING)))


def decomposition_summary(settings: dict[str, Any], instances: Rows) -> dict[str, Any]:
    """Columns of the rows: ``percent`` of the instance's optimum, ``change`` from the step before."""
    wide = pd.DataFrame(instances).pivot(index=["family", "seed"], columns="name", values="block_efficiency")
    percent = 100 * wide.div(wide[OPTIMUM], axis=0)
    parts = []
    for name in (*STEPS, compare.RANKING):
        before = STEPS[STEPS.index(name) - 1] if name in STEPS[1:] else name
        values = {"name": name, "percent": percent[name], "change": percent[name] - percent[before]}
        parts.append(pd.DataFrame(values).reset_index())
    rows = summary(pd.concat(parts), ["family", "name"], ["percent", "change"])
    order = list(FAMILIES)
    rows.sort(key=lambda row: order.index(row["family"]))
    others = wide.drop(columns=[OPTIMUM, compare.RELAXATION])
    facts = {
        "problems": len(wide),
        "largest_excess": max(0.0, float((others.max(axis=1) - wide[OPTIMUM]).max())),
        "smallest_relaxation": float((wide[compare.RELAXATION] - wide[OPTIMUM]).min()),
    }
    facts |= {f"{n}_within": 100 - min(row["percent"] for row in rows if row["name"] == n) for n in STEPS[:5]}
    return {"settings": settings, "facts": facts, "rows": rows, "instances": instances}


def _sweep(work: Work, settings: dict[str, Any], rows_of: Sequence[str]) -> Rows:
    """One row for each instance of `FAMILIES`, K and name. Raises InputError where one has no value."""
    tasks = [
        Task(**law, vocab=settings["vocab"], depth=settings["depth"], num_paths=paths, seed=seed, names=tuple(rows_of),
             tolerance=1e-8, max_drafts=1)
        for law in FAMILIES.values()
        for paths in settings["paths"]
        for seed in range(settings["instances"])
    ]  # fmt: skip
    labels = {(law["family"], tuple(law["parameters"].items())): label for label, law in FAMILIES.items()}
    rows: Rows = []
    with work.run(tasks) as results:
        for number, problem in enumerate(results, start=1):
            work.stage(f"problem {number} of {len(tasks)}")
            for row in problem:
                if row["error"] is not None:
                    raise InputError(f"{row['name']} of a figure's problem failed: {row['error']}")
                label = labels[row["family"], tuple(row["parameters"].items())]
                columns = ("paths", "seed", "name", "block_efficiency", "upper_bound")
                rows.append({"family": label} | {key: row[key] for key in columns})
    order, families = list(rows_of), list(FAMILIES)
    rows.sort(key=lambda r: (families.index(r["family"]), r["paths"], r["seed"], order.index(r["name"])))
    return rows


GRID: dict[str, dict[str, Any]] = {
    "tiny": {"vocab": 2, "depth": 2, "paths": 2, "temperatures": [0.3, 1.0], "noises": [0.0, 1.0], "instances": 2},
    "quick": {
        "vocab": 3, "depth": 3, "paths": 3, "temperatures": [0.2, 0.5, 1.0, 2.0], "noises": [0.0, 0.25, 0.5, 1.0, 2.0],
        "instances": 6,
    },
    "full": {
        "vocab": 4, "depth": 4, "paths": 4, "temperatures": [0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5],
        "noises": [0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0], "instances": 30,
    },
}  # fmt: skip


def grid_rows(work: Work) -> dict[str, Any]:
    """BV, GBV and PBV over temperature and draft noise, in closed form."""
    settings = GRID[work.size]
    rows: Rows = []
    for temperature in settings["temperatures"]:
        work.stage(f"temperature {temperature}")
        for noise in settings["noises"]:
            for seed in range(settings["instances"]):
                pair = make.softmax(settings["vocab"], settings["depth"], seed, temperature, noise)
                row = {"temperature": temperature, "draft_noise": noise, "seed": seed}
                values = {n: float(block_efficiency(pair, n, settings["paths"])) for n in ("bv", "gbv", "pbv")}
                rows.append(row | values)
    return grid_summary(settings, rows)


def grid_summary(settings: dict[str, Any], instances: Rows) -> dict[str, Any]:
    """Columns of the rows: bv, gbv, pbv and the differences ``gbv_bv`` and ``pbv_gbv``."""
    frame = pd.DataFrame(instances)
    frame["gbv_bv"], frame["pbv_gbv"] = frame["gbv"] - frame["bv"], frame["pbv"] - frame["gbv"]
    rows = summary(frame, ["temperature", "draft_noise"], ("bv", "gbv", "pbv", "gbv_bv", "pbv_gbv"))
    perfect = frame[frame["draft_noise"] == 0]
    facts: dict[str, Any] = {
        "cells": len(rows),
        "perfect_draft_error": float((perfect[["bv", "pbv"]] - settings["depth"] - 1).abs().to_numpy().max()),
        "perfect_draft_gbv": float(perfect["gbv_bv"].max()),
    }
    for column, extreme in (("gbv_bv", min), ("pbv_gbv", max)):
        sure = [row for row in rows if abs(row[column]) > max(2 * row[f"{column}_se"], 1e-9)]
        facts[f"{column}_above"] = sum(row[column] > 0 for row in sure)
        facts[f"{column}_below"] = sum(row[column] < 0 for row in sure)
        cell = extreme(rows, key=lambda row: row[column])
        words = ("temperature", "draft_noise", column, f"{column}_se")
        facts[f"{column}_extreme"] = dict(
            zip(("temperature", "noise", "value", "se"), map(cell.get, words), strict=True)
        )
    return {"settings": settings, "facts": facts, "rows": rows, "instances": instances}


SCALING: dict[str, dict[str, Any]] = {
    "tiny": {"paths": 4, "sizes": [(2, 2), (2, 3)], "limit": 20.0},
    "quick": {"paths": 4, "sizes": [(2, 3), (4, 2), (3, 4)], "limit": 20.0},
    "full": {
        "paths": 4,
        "sizes": [(2, 3), (4, 2), (3, 4), (4, 4), (8, 3), (10, 3), (8, 4), (10, 4), (8, 5), (10, 5)],
        "limit": 300.0,
    },
}
GOALS = ((1_200, 1e-8), (12_000, 1e-6), (200_000, 1e-4))
"""Number of nodes up to which this certified gap is asked for."""
LARGEST = {"rank-quantile": 10**9, "dense, HiGHS": 1_200, "cutting planes": 600}
"""Most nodes that a formulation is run on."""


def scaling_rows(work: Work) -> dict[str, Any]:
    """Time and certified gap of the formulations, one solve after the other in this process."""
    settings = SCALING[work.size]
    paths, limit = settings["paths"], settings["limit"]
    rows: Rows = []
    for vocab, depth in settings["sizes"]:
        pair = make.dirichlet(vocab, depth, 0, alpha=0.5)
        goal = next(gap for nodes, gap in GOALS if pair.nodes <= nodes)
        for method, largest in LARGEST.items():
            if pair.nodes > largest:
                continue
            work.stage(f"{method}, {pair.nodes} nodes")
            if method == "cutting planes":
                solution = reference.solve_by_cuts(pair, paths, tolerance=goal)
            else:
                solve = quantile.solve if method == "rank-quantile" else dense.solve
                solution = solve(pair, paths, tolerance=goal, time_limit=limit)
            row = {"method": method, "vocab_size": vocab, "depth": depth, "nodes": pair.nodes, "goal": goal}
            row |= {"lower_bound": solution.lower_bound, "upper_bound": solution.upper_bound, "gap": solution.gap}
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            rows.append(row | {"status": solution.status, "seconds": solution.seconds, "peak_gib": peak})
    return scaling_summary(settings, rows)


def scaling_summary(settings: dict[str, Any], rows: Rows) -> dict[str, Any]:
    """The rows as they are; the largest problem of the rank-quantile formulation, and how many runs fell short."""
    last = max((row for row in rows if row["method"] == "rank-quantile"), key=lambda row: row["nodes"])
    missed = [row for row in rows if row["gap"] > row["goal"]]
    facts = {key: last[key] for key in ("nodes", "gap", "seconds")} | {"runs": len(rows), "missed": len(missed)}
    facts["missed_by"] = "; ".join(dict.fromkeys(row["method"] for row in missed)) or "none"
    return {"settings": settings, "facts": facts, "rows": rows}
