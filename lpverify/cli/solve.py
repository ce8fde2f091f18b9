"""``lpverify solve``: the optimum, every algorithm, and the gaps between them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

from lpverify.cli.options import Normalize, Problem, flag, option
from lpverify.cli.output import OutputAndPlot

if TYPE_CHECKING:
    from rich.table import Table

    from lpverify.core.results import LpSolution, RefinementStep
    from lpverify.exact.compare import Comparison


def run(
    *,
    problem: Problem,
    paths: Annotated[str, option("K", "Number of i.i.d. draft paths; several as in 1,2,4 or 1..8.", "--paths", "-k")],
    algorithms: Annotated[str | None, option("A,B,...", "Verifiers; default: all that the size allows.")] = None,
    exact: Annotated[bool, flag("--exact", "Compute in exact fractions; the problem must be rational.")] = False,
    output: OutputAndPlot,
    normalize: Normalize = False,
    method: Annotated[str, option("NAME", "Multi-path method: auto, quantile, dense, transport, ...")] = "auto",
    tolerance: Annotated[float, option("G", "Certified gap at which to stop, in tokens.")] = 1e-9,
    max_drafts: Annotated[
        int | None, option("N", "Enumerate up to N drafts for the law error of a closed form; default: 1000.")
    ] = None,
    time_limit: Annotated[float | None, option("S", "Stop refining after S seconds; default: no limit.")] = None,
) -> None:
    """The certified optimum, and every verifier's gap to it.

    Block efficiency is the expected number of tokens per target call. The optimum is the value of a linear program,
    between a lower and an upper bound that are checked without the solver. The verifier policy is the optimum, run.

    With several K there is a row for every K and verifier. The JSON document lpverify/solve@1 is then that of the
    first K, and its key by_paths lists "paths", "optimum", "algorithms" and "references" for every K.
    """
    from lpverify import errors
    from lpverify.cli.progress import waiting
    from lpverify.core.problem import MAX_PATHS, VerifyProblem, load_problem
    from lpverify.exact import compare

    output.check()
    names = None if algorithms is None else errors.choices("--algorithms", algorithms, compare.ALGORITHMS)
    numbers = errors.integers("--paths", paths, min=1, max=MAX_PATHS)
    if not tolerance > 0:
        raise errors.fail("--tolerance", got=tolerance, expected="a positive number")
    if time_limit is not None and not time_limit > 0:
        raise errors.fail("--time-limit", got=time_limit, expected="a positive number of seconds")
    if max_drafts is not None:
        errors.integer("--max-drafts", max_drafts, min=1)
    loaded = load_problem(problem, normalize=normalize, rational=exact)
    pair = loaded.pair if exact else loaded.pair.floats
    with waiting(f"solving {loaded.name}") as say:

        def progress(step: RefinementStep) -> None:
            say(f"{step.bins} bins, optimum between {step.lower_bound:.9f} and {step.upper_bound:.9f}")

        comparisons = [
            compare.comparison(
                VerifyProblem(pair, num_paths, loaded.name, loaded.description),
                names,
                method=method,
                tolerance=tolerance,
                time_limit=time_limit,
                exact=exact,
                max_drafts=compare.MAX_DRAFTS if max_drafts is None else max_drafts,
                progress=progress,
                stage=lambda stage, k=num_paths: say(f"K = {k}, {stage}"),  # type: ignore[misc]
            )
            for num_paths in numbers
        ]
    output.draw(lambda: _figure(comparisons))
    document = to_json(comparisons, rational=loaded.pair.rational, exact=exact)
    output.write(document, lambda: _print(comparisons, exact))


def to_json(comparisons: Sequence[Comparison], *, rational: bool, exact: bool) -> dict[str, Any]:
    """The document ``lpverify/solve@1``; ``exact`` adds fractions as "num/den", several K the key ``by_paths``."""
    by_paths = [_entry(comparison, exact) for comparison in comparisons]
    problem = comparisons[0].problem
    document = {
        "schema": "lpverify/solve@1",
        "problem": {
            "name": problem.name,
            "vocab_size": problem.pair.vocab_size,
            "depth": problem.pair.depth,
            "paths": problem.num_paths,
            "nodes": problem.pair.nodes,
            "rational": rational,
        },
        **by_paths[0],
    }
    if len(comparisons) > 1:
        numbers = [comparison.problem.num_paths for comparison in comparisons]
        document["by_paths"] = [{"paths": k, **entry} for k, entry in zip(numbers, by_paths, strict=True)]
    return document


def _entry(comparison: Comparison, exact: bool) -> dict[str, Any]:
    """What a document says about one K."""
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
    names = ("lower_bound", "upper_bound", "status", "method", "seconds")
    data: dict[str, Any] = {"block_efficiency": solution.value} | {name: getattr(solution, name) for name in names}
    if exact:
        lower, upper = solution.exact_bounds or (None, None)
        values = {"block_efficiency": solution.exact, "lower_bound": lower, "upper_bound": upper}
        data |= {f"{name}_exact": _fraction(value) for name, value in values.items()}
    return data


def _fraction(value: Fraction | None) -> str | None:
    from lpverify.report.tables import quotient

    return None if value is None else quotient(value)


def _figure(comparisons: Sequence[Comparison]) -> Any:
    """Gaps to the optimum for one K, lines over K for several."""
    import pandas as pd

    from lpverify.report import plots

    problem, best = comparisons[0].problem, comparisons[0].multi_path
    frame = pd.concat([comparison.frame() for comparison in comparisons], ignore_index=True)
    fig, ax = plots.figure(len(frame) // len(comparisons))
    size = f"{problem.name}, V = {problem.pair.vocab_size}, L = {problem.pair.depth}"
    if len(comparisons) > 1:
        plots.against_paths(frame, ax, title=f"Tokens per target call: {size}")
    else:
        title = f"Gap to the optimum: {size}, K = {problem.num_paths}"
        plots.gaps(frame, ax, bounds=(best.lower_bound, best.upper_bound), title=title)
    return fig


def _print(comparisons: Sequence[Comparison], exact: bool) -> None:
    import pandas as pd

    from lpverify.report import tables

    problem, pair, several = comparisons[0].problem, comparisons[0].problem.pair, len(comparisons) > 1
    paths = {
        c.problem.num_paths: "1 path" if c.problem.num_paths == 1 else f"{c.problem.num_paths} paths"
        for c in comparisons
    }
    numbers = ", ".join(map(str, paths)) + " paths" if several else paths[problem.num_paths]
    print(f"{problem.name}: {pair.vocab_size} tokens, draft depth {pair.depth}, {pair.nodes} nodes, K = {numbers}")
    optima = {"single-path": comparisons[0].single_path}
    frames = []
    for comparison in comparisons:
        optima[paths[comparison.problem.num_paths] if several else "multi-path"] = comparison.multi_path
        frame = comparison.frame()
        unresolved = frame["gap"].abs() <= comparison.multi_path.gap  # 0 as far as the certified bounds can tell
        frame.loc[unresolved, ["gap", "relative_gap"]] = 0.0
        ranks = frame["block_efficiency"].round(9)  # rounding keeps ties in order
        frames.append(frame.loc[ranks.sort_values(ascending=False, kind="stable").index])
    rows = pd.concat(frames, ignore_index=True) if several else frames[0].drop(columns="paths")
    title = "Tokens per target call" + ("" if several else f" with {numbers}") + ", and the gap to the optimum"
    tables.show(
        tables.frame_table(
            tables.solutions(optima).drop(columns="block_efficiency"), title="Optimal tokens per target call"
        ),
        tables.frame_table(rows, title=title),
    )
    for comparison in comparisons:
        suffix = f" (K = {comparison.problem.num_paths})" if several else ""
        if exact:
            tables.show(_exact_table(comparison, suffix))
        best = comparison.multi_path
        if best.status != "optimal":
            print(
                f"status {best.status}{suffix}: the optimum, and so every gap, may be larger by up to {best.gap:.1e}."
            )
        for result in comparison.results:
            if result.refused:
                print(f"{result.name} refused{suffix}: {result.refused}")


def _exact_table(comparison: Comparison, suffix: str) -> Table:
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
    return tables.table(
        (f"exact{suffix}", "tokens per target call"), cells, caption="all digits of long fractions: --json"
    )
