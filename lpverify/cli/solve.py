"""``lpverify solve``: the optimum, every algorithm, and the gaps between them."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpverify.cli.options import integer, number

if TYPE_CHECKING:
    from rich.table import Table

    from lpverify.core.results import LpSolution
    from lpverify.exact.compare import Comparison


def run(
    problem: Annotated[str, typer.Argument(metavar="PROBLEM", help="Problem file or name of an example.")],
    paths: Annotated[
        int, typer.Option("--paths", "-k", metavar="K", parser=integer, help="Number of i.i.d. draft paths.")
    ],
    algorithms: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Algorithms to compare; default: all that the size allows.")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Exact fractions; the problem must be rational.")] = False,
    json: Annotated[str | None, typer.Option(metavar="FILE|-", help="Write JSON to a file, or - for stdout.")] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Draw the gaps: .png, .svg or .pdf.")] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Rescale rows that do not sum to 1.")] = False,
    method: Annotated[str, typer.Option(metavar="NAME", help="How to solve the multi-path LP.")] = "auto",
    tolerance: Annotated[float, typer.Option(metavar="G", parser=number, help="Certified gap to stop at.")] = 1e-9,
    max_drafts: Annotated[
        int | None,
        typer.Option(metavar="N", parser=integer, help="Enumerate up to N drafts for a law error [default: 1000]."),
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(metavar="S", parser=number, help="Stop refining after S seconds.")
    ] = None,
) -> None:
    """The certified optimum and every algorithm's gap to it.

    Block efficiency is the expected number of tokens per target call. The optimum is a linear program; its value comes
    with a lower and an upper bound that are checked without the solver.
    """
    from lpverify import errors
    from lpverify.cli.output import STDOUT, check_plot, check_writable, write_json
    from lpverify.cli.progress import SolveProgress
    from lpverify.core.problem import MAX_PATHS, VerifyProblem
    from lpverify.core.problem_files import load_problem
    from lpverify.exact import compare

    check_writable("--json", json)
    kind = check_plot(plot, json)
    names = None if algorithms is None else compare.parse_names("--algorithms", algorithms)
    errors.integer("--paths", paths, min=1, max=MAX_PATHS)
    if not tolerance > 0:
        raise errors.fail("--tolerance", got=tolerance, expected="a positive number")
    if time_limit is not None and not time_limit > 0:
        raise errors.fail("--time-limit", got=time_limit, expected="a positive number of seconds")
    if max_drafts is not None:
        errors.integer("--max-drafts", max_drafts, min=1)
    loaded = load_problem(problem, normalize=normalize, rational=exact)
    pair = loaded.pair if exact else loaded.pair.floats
    task = VerifyProblem(pair, paths, loaded.name, loaded.description)
    with SolveProgress(f"solving {task.name}, K = {paths}") as progress:
        found = compare.comparison(
            task,
            names,
            method=method,
            tolerance=tolerance,
            time_limit=time_limit,
            exact=exact,
            max_drafts=compare.MAX_DRAFTS if max_drafts is None else max_drafts,
            progress=progress.round,
            stage=progress.stage,
        )
    if kind is not None:
        assert plot is not None
        _draw(found, plot, kind)
    if json is not None:
        write_json(json, to_json(found, rational=loaded.pair.rational, exact=exact))
    if json != STDOUT:
        _print(found, exact)


def to_json(comparison: Comparison, *, rational: bool, exact: bool) -> dict[str, Any]:
    """The document ``lpverify/solve@1``; ``exact`` adds fractions as "num/den"."""
    problem = comparison.problem
    pair = problem.pair
    rows = []
    for result in comparison.results:
        row: dict[str, Any] = {
            "name": result.name,
            "block_efficiency": result.block_efficiency,
            "gap": comparison.gap(result),
            "relative_gap": comparison.relative_gap(result),
            "law_error": result.law_error,
            "method": result.method,
        }
        if result.refused:
            row["refused"] = result.refused
        if exact:
            row["block_efficiency_exact"] = _fraction(result.exact)
        rows.append(row)
    return {
        "schema": "lpverify/solve@1",
        "problem": {
            "name": problem.name,
            "vocab_size": pair.vocab_size,
            "depth": pair.depth,
            "paths": problem.num_paths,
            "nodes": pair.nodes,
            "rational": rational,
        },
        "optimum": {
            "single_path": _solution(comparison.single_path, exact),
            "multi_path": _solution(comparison.multi_path, exact),
        },
        "algorithms": rows,
        "references": [
            {"name": r.name, "block_efficiency": r.block_efficiency, "gap": comparison.gap(r), "method": r.method}
            for r in comparison.references
        ],
    }


def _solution(solution: LpSolution, exact: bool) -> dict[str, Any]:
    data: dict[str, Any] = {
        "block_efficiency": solution.value,
        "lower_bound": solution.lower_bound,
        "upper_bound": solution.upper_bound,
        "status": solution.status,
        "method": solution.method,
        "seconds": solution.seconds,
    }
    if exact:
        lower, upper = solution.exact_bounds or (None, None)
        data |= {
            "block_efficiency_exact": _fraction(solution.exact),
            "lower_bound_exact": _fraction(lower),
            "upper_bound_exact": _fraction(upper),
        }
    return data


def _fraction(value: Fraction | None) -> str | None:
    from lpverify.report.tables import quotient

    return None if value is None else quotient(value)


def _draw(comparison: Comparison, path: str, kind: str) -> None:
    from lpverify.files import write_whole
    from lpverify.report import plots

    problem, best = comparison.problem, comparison.multi_path
    frame = comparison.frame()
    fig, ax = plots.figure(len(frame))
    size = f"V = {problem.pair.vocab_size}, L = {problem.pair.depth}, K = {problem.num_paths}"
    title = f"Gap to the optimum: {problem.name}, {size}"
    plots.gaps(frame, ax, bounds=(best.lower_bound, best.upper_bound), title=title)
    write_whole(path, plots.render(fig, kind))


def _print(comparison: Comparison, exact: bool) -> None:
    from lpverify.report import tables

    problem, pair = comparison.problem, comparison.problem.pair
    paths = "1 path" if problem.num_paths == 1 else f"{problem.num_paths} paths"
    print(f"{problem.name}: {pair.vocab_size} tokens, draft depth {pair.depth}, {pair.nodes} nodes, K = {paths}")
    optima = tables.solutions({"single-path": comparison.single_path, "multi-path": comparison.multi_path})
    frame = comparison.frame()
    unresolved = frame["gap"].abs() <= comparison.multi_path.gap  # not told from 0 by the certified bounds
    frame.loc[unresolved, ["gap", "relative_gap"]] = 0.0
    order = frame["block_efficiency"].round(9).sort_values(ascending=False, kind="stable").index  # rounding keeps ties
    tables.show(
        tables.frame_table(optima.drop(columns="block_efficiency"), title="Optimal tokens per target call"),
        tables.frame_table(
            frame.loc[order].drop(columns="paths"),
            title=f"Tokens per target call with {paths}, and the gap to the optimum",
        ),
    )
    if exact:
        tables.show(_exact_table(comparison))
    best = comparison.multi_path
    if best.status != "optimal":
        print(f"status {best.status}: the optimum, and so every gap, may be larger by up to {best.gap:.1e}.")
    for result in comparison.results:
        if result.refused:
            print(f"{result.name} refused: {result.refused}")


def _exact_table(comparison: Comparison) -> Table:
    """Fractions, the optima first."""
    from lpverify.report import tables

    rows: list[tuple[str, Fraction | None]] = []
    for name, solution in (("single-path", comparison.single_path), ("multi-path", comparison.multi_path)):
        if solution.exact is not None:
            rows.append((f"{name} optimum", solution.exact))
        elif solution.exact_bounds is not None:
            lower, upper = solution.exact_bounds
            rows += [(f"{name} lower bound", lower), (f"{name} upper bound", upper)]
    rows += [(result.name, result.exact) for result in comparison.results if not result.refused]
    cells = [(name, tables.fraction(value)) for name, value in rows]
    return tables.table(("exact", "tokens per target call"), cells, caption="all digits of long fractions: --json")
