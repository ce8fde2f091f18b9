"""What the figures of `experiments.figures.figures` show: computed here, drawn elsewhere.

Every function returns JSON-able data. `Work` brings the size ("full" is what is published, "quick" a few minutes,
"tiny" seconds), what runs the tasks of a sweep, and who is told what begins.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.figures.real_jobs import Real
from lpverify.core import families as make
from lpverify.core.problem_files import load_problem
from lpverify.errors import InputError
from lpverify.exact import compare
from lpverify.exact.breakdown import balance
from lpverify.exact.closed_form import block_efficiency
from lpverify.lp import dense, quantile, reference, single_path
from lpverify.sweep.config import Task
from lpverify.sweep.run import Executor, executor

Rows = list[dict[str, Any]]

FAMILIES: dict[str, dict[str, Any]] = {
    "unrelated draft": {"family": "dirichlet", "parameters": {"alpha": 0.5}},
    "good draft": {"family": "softmax", "parameters": {"temperature": 1.0, "draft_noise": 0.5}},
    "good draft, low temperature": {"family": "softmax", "parameters": {"temperature": 0.3, "draft_noise": 0.5}},
}
"""The three families of the multi-path figures (`lpverify.core.families`)."""


@dataclass(frozen=True)
class Work:
    """How a figure's data are computed; ``real``: where models are measured."""

    size: str = "full"
    run: Executor = executor()
    stage: Callable[[str], None] = lambda name: None
    real: Real = field(default_factory=Real)


def one_position(work: Work) -> dict[str, Any]:
    """The balance of one position, in exact arithmetic, then as floats."""
    found = balance(load_problem("one-position", rational=True).pair)
    rows = {
        name: [float(x) for x in getattr(found, name)]
        for name in ("target", "draft", "accepted", "residual", "emitted", "naive")
    }
    masses = ("accepted_mass", "rejected_mass", "law_error", "naive_law_error")
    return rows | {name: float(getattr(found, name)) for name in masses}


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
    return {"settings": settings, "rows": rows}


MULTI_PATH: dict[str, dict[str, Any]] = {
    "tiny": {"vocab": 2, "depth": 2, "paths": [1, 2], "instances": 2},
    "quick": {"vocab": 3, "depth": 2, "paths": [1, 2, 3, 4], "instances": 3},
    "full": {"vocab": 3, "depth": 3, "paths": [1, 2, 3, 4, 5], "instances": 16},
}
MULTI_PATH_NAMES = (compare.OPTIMUM, *(name for name in compare.ALGORITHMS if name != compare.POLICY))


def multi_path_rows(work: Work) -> dict[str, Any]:
    """Every algorithm and the optimum over the number of paths."""
    return _sweep(work, MULTI_PATH[work.size], MULTI_PATH_NAMES)


DECOMPOSITION: dict[str, dict[str, Any]] = {
    "tiny": {"vocab": 2, "depth": 2, "paths": [2], "instances": 2},
    "quick": {"vocab": 3, "depth": 2, "paths": [3], "instances": 6},
    "full": {"vocab": 3, "depth": 3, "paths": [3], "instances": 20},
}
STEPS = ("bv", "gbv", "tgbv", "pbv", "ebv", compare.RANKING, compare.OPTIMUM, compare.RELAXATION)


def decomposition_rows(work: Work) -> dict[str, Any]:
    """The `STEPS` from block verification to the node relaxation."""
    return _sweep(work, DECOMPOSITION[work.size], STEPS)


def _sweep(work: Work, settings: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Rows of `FAMILIES`; every one must have a value."""
    tasks = [
        Task(**law, vocab=settings["vocab"], depth=settings["depth"], num_paths=paths, seed=seed, names=tuple(names),
             tolerance=1e-8, max_drafts=1)
        for law in FAMILIES.values()
        for paths in settings["paths"]
        for seed in range(settings["instances"])
    ]  # fmt: skip
    labels = {(law["family"], tuple(law["parameters"].items())): label for label, law in FAMILIES.items()}
    rows: Rows = []
    with work.run(tasks) as results:
        for number, found in enumerate(results, start=1):
            work.stage(f"problem {number} of {len(tasks)}")
            for row in found:
                if row["error"] is not None:
                    raise InputError(f"{row['name']} of a figure's problem failed: {row['error']}")
                label = labels[row["family"], tuple(row["parameters"].items())]
                kept = {key: row[key] for key in ("paths", "seed", "name", "block_efficiency", "upper_bound")}
                rows.append({"family": label} | kept)
    order = {name: i for i, name in enumerate(names)}
    place = {name: i for i, name in enumerate(FAMILIES)}
    rows.sort(key=lambda row: (place[row["family"]], row["paths"], row["seed"], order[row["name"]]))
    return {"settings": settings, "rows": rows}


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
    return {"settings": settings, "rows": rows}


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
"""Certified gap asked for, by number of nodes."""
LARGEST = {"rank-quantile": 10**9, "dense, HiGHS": 1_200, "cutting planes": 600}
"""Nodes up to which a formulation is run."""


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
                found = reference.solve_by_cuts(pair, paths, tolerance=goal)
            else:
                solve = quantile.solve if method == "rank-quantile" else dense.solve
                found = solve(pair, paths, tolerance=goal, time_limit=limit)
            row = {"method": method, "vocab_size": vocab, "depth": depth, "nodes": pair.nodes, "goal": goal}
            row |= {"lower_bound": found.lower_bound, "upper_bound": found.upper_bound, "gap": found.gap}
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            rows.append(row | {"status": found.status, "seconds": found.seconds, "peak_gib": peak})
    return {"settings": settings, "rows": rows}
