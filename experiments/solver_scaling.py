"""Time and certified gap of the multi-path optimum against the number of nodes: data, then picture.

    python experiments/solver_scaling.py                run everything (about 15 minutes on two cores) and draw
    python experiments/solver_scaling.py --most 1200    only problems of up to 1,200 nodes
    python experiments/solver_scaling.py --draw         draw the stored data again

Instances are Dirichlet(0.5) tables, K = 4, seed 0. Every row is solved in this process, one after the other.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

import lpverify as lv
from lpverify._write import write_whole
from lpverify.lp import antichain, dense, quantile
from lpverify.report import plots

OUT = Path(__file__).parent.parent / "paper_figs"
PATHS = 4
SIZES = [(2, 3), (4, 2), (3, 4), (4, 4), (8, 3), (10, 3), (8, 4), (10, 4), (8, 5), (10, 5)]
GOALS = ((1_200, 1e-8), (12_000, 1e-6), (200_000, 1e-4))
"""Certified gap asked for, by number of nodes."""
LIMIT = 300.0
METHODS: dict[str, tuple[int, Callable[..., Any]]] = {
    "rank-quantile": (10**9, lambda pair, gap: quantile.solve(pair, PATHS, tolerance=gap, time_limit=LIMIT)),
    "dense, HiGHS": (1_200, lambda pair, gap: dense.solve(pair, PATHS, tolerance=gap, time_limit=LIMIT)),
    "cutting planes": (600, lambda pair, gap: antichain.solve_by_cuts(pair, PATHS, tolerance=gap)),
}
"""Name -> (largest number of nodes, solver)."""


def run(most: int) -> pd.DataFrame:
    rows = []
    for vocab_size, depth in SIZES:
        pair = lv.make.dirichlet(vocab_size, depth, 0, alpha=0.5)
        if pair.nodes > most:
            continue
        goal = next(gap for nodes, gap in GOALS if pair.nodes <= nodes)
        for method, (largest, solve) in METHODS.items():
            if pair.nodes > largest:
                continue
            found = solve(pair, goal)
            rows.append(
                {
                    "method": method,
                    "vocab_size": vocab_size,
                    "depth": depth,
                    "nodes": pair.nodes,
                    "goal": goal,
                    "lower_bound": found.lower_bound,
                    "upper_bound": found.upper_bound,
                    "gap": found.gap,
                    "status": found.status,
                    "seconds": found.seconds,
                    "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return pd.DataFrame(rows)


def draw(frame: pd.DataFrame) -> None:
    fig, ax = plots.figure(8)
    plots.scaling(frame, ax, title=f"Certified multi-path optimum, K = {PATHS}")
    for kind in ("png", "svg"):
        write_whole(str(OUT / f"solver_scaling.{kind}"), plots.render(fig, kind))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=10**9, help="largest number of nodes")
    parser.add_argument("--draw", action="store_true", help="only draw the stored data")
    options = parser.parse_args()
    data = OUT / "solver_scaling.json"
    if not options.draw:
        frame = run(options.most)
        record = {"machine": platform.processor() or platform.machine(), "rows": frame.to_dict("records")}
        write_whole(str(data), json.dumps(record, indent=1).encode())
    draw(pd.DataFrame(json.loads(data.read_text())["rows"]))


if __name__ == "__main__":
    main()
