"""``lpverify solve``: the optimum, every algorithm, and the gaps between them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

from lpverify import errors
from lpverify.cli.options import Normalize, Problem, flag, option
from lpverify.cli.output import OutputAndPlot, plural

if TYPE_CHECKING:
    import pandas as pd

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
    from lpverify.cli.progress import waiting
    from lpverify.core.problem import MAX_PATHS, VerifyProblem, load_problem
    from lpverify.exact import compare

    output.check("lpverify/solve@", {"PROBLEM": problem})
    names = None if algorithms is None else errors.choices("--algorithms", algorithms, compare.ALGORITHMS)
    numbers = errors.integers("--paths", paths, min=1, max=MAX_PATHS)
    if not tolerance > 0:
        raise errors.fail("--tolerance", got=tolerance, expected="a positive number")
    if time_limit is not None and not time_limit > 0:
        raise errors.fail("--time-limit", got=time_limit, expected="a positive number of seconds")
    limit = compare.MAX_DRAFTS if max_drafts is None else errors.integer("--max-drafts", max_drafts, min=1)
    loaded = load_problem(problem, normalize=normalize, rational=exact)
    pair = loaded.pair if exact else loaded.pair.floats
    options: dict[str, Any] = {"method": method, "tolerance": tolerance, "time_limit": time_limit, "exact": exact}
    comparisons = []
    with waiting(f"solving {errors.label(loaded.name)}") as say:

        def progress(step: RefinementStep) -> None:
            say(f"{step.bins} bins, optimum between {step.lower_bound:.9f} and {step.upper_bound:.9f}")

        for num_paths in numbers:
            task = VerifyProblem(pair, num_paths, loaded.name, loaded.description)

            def stage(name: str, k: int = num_paths) -> None:
                say(f"K = {k}, {name}")

            options |= {"max_drafts": limit, "progress": progress, "stage": stage}
            comparisons.append(compare.comparison(task, names, **options))
    document = to_json(comparisons, rational=loaded.pair.rational, exact=exact)
    output.write_and_draw(document, lambda: _print(comparisons, exact), lambda: _figure(comparisons))


def to_json(comparisons: Sequence[Comparison], *, rational: bool, exact: bool) -> dict[str, Any]:
    """The document ``lpverify/solve@1``; ``exact`` adds fractions as "num/den", several K the key ``by_paths``."""
    problem, entries = comparisons[0].problem, [_entry(comparison, exact) for comparison in comparisons]
    size = {"vocab_size": problem.pair.vocab_size, "depth": problem.pair.depth, "paths": problem.num_paths}
    described = {"name": problem.name, **size, "nodes": problem.pair.nodes, "rational": rational}
    document = {"schema": "lpverify/solve@1", "problem": described, **entries[0]}
    if len(comparisons) > 1:
        numbers = [comparison.problem.num_paths for comparison in comparisons]
        document["by_paths"] = [{"paths": k, **entry} for k, entry in zip(numbers, entries, strict=True)]
    return document


def _entry(comparison: Comparison, exact: bool) -> dict[str, Any]:
    """What a document says about one K."""
    algorithms, references = [], []
    for result in comparison.results:
        gaps = {"gap": comparison.gap(result), "relative_gap": comparison.relative_gap(result)}
        row: dict[str, Any] = {"name": result.name, "block_efficiency": result.block_efficiency, **gaps}
        row |= {"law_error": result.law_error, "method": result.method}
        refused = {"refused": result.refused} if result.refused else {}
        algorithms.append(row | refused | _fractions(exact, block_efficiency=result.exact))
    for result in comparison.references:
        row = {"name": result.name, "block_efficiency": result.block_efficiency, "gap": comparison.gap(result)}
        references.append(row | {"method": result.method})
    optimum = {name: _solution(getattr(comparison, name), exact) for name in ("single_path", "multi_path")}
    return {"optimum": optimum, "algorithms": algorithms, "references": references}


def _solution(solution: LpSolution, exact: bool) -> dict[str, Any]:
    names = ("lower_bound", "upper_bound", "status", "method", "seconds")
    data = {"block_efficiency": solution.value} | {name: getattr(solution, name) for name in names}
    lower, upper = solution.exact_bounds or (None, None)
    return data | _fractions(exact, block_efficiency=solution.exact, lower_bound=lower, upper_bound=upper)


def _fractions(exact: bool, **values: Fraction | None) -> dict[str, str | None]:
    """The entries ``NAME_exact`` of a document, if they were asked for."""
    from lpverify.report.tables import quotient

    named = values.items() if exact else ()
    return {f"{name}_exact": None if value is None else quotient(value) for name, value in named}


def _figure(comparisons: Sequence[Comparison]) -> Any:
    """Gaps to the optimum for one K, lines over K for several."""
    import pandas as pd

    from lpverify.report import plots

    problem, best = comparisons[0].problem, comparisons[0].multi_path
    frame = pd.concat([comparison.frame() for comparison in comparisons], ignore_index=True)
    fig, ax = plots.figure(len(frame) // len(comparisons))
    name = errors.label(problem.name).replace("$", r"\$")  # no mathematics
    size = f"{name}, V = {problem.pair.vocab_size}, L = {problem.pair.depth}"
    if len(comparisons) > 1:
        plots.against_paths(frame, ax, title=f"Tokens per target call: {size}")
    else:
        title = f"Gap to the optimum: {size}, K = {problem.num_paths}"
        plots.gaps(frame, ax, bounds=(best.lower_bound, best.upper_bound), title=title)
    return fig


def _print(comparisons: Sequence[Comparison], exact: bool) -> None:
    import pandas as pd

    from lpverify.report import tables

    first, several = comparisons[0], len(comparisons) > 1
    problem, pair = first.problem, first.problem.pair
    paths = [plural(comparison.problem.num_paths, "path") for comparison in comparisons]
    numbers = ", ".join(str(c.problem.num_paths) for c in comparisons) + " paths" if several else paths[0]
    name = errors.label(problem.name)
    print(f"{name}: {pair.vocab_size} tokens, draft depth {pair.depth}, {pair.nodes} nodes, K = {numbers}")
    optima = {"single-path": first.single_path}
    optima |= {label: c.multi_path for label, c in zip(paths if several else ["multi-path"], comparisons, strict=True)}
    solutions = tables.solutions(optima).drop(columns="block_efficiency")
    rows = pd.concat([_ranked(comparison) for comparison in comparisons], ignore_index=True)
    title = "Tokens per target call" + ("" if several else f" with {numbers}") + ", and the gap to the optimum"
    tables.show(
        tables.frame_table(solutions, title="Optimal tokens per target call"),
        tables.frame_table(rows if several else rows.drop(columns="paths"), title=title),
    )
    for comparison in comparisons:
        suffix = f" (K = {comparison.problem.num_paths})" if several else ""
        if exact:
            fractions, caption = _exact_rows(comparison), "all digits of long fractions: --json"
            tables.show(tables.table((f"exact{suffix}", "tokens per target call"), fractions, caption=caption))
        best = comparison.multi_path
        if best.status != "optimal":
            limit = f"the optimum, and so every gap, may be larger by up to {best.gap:.1e}."
            print(f"status {best.status}{suffix}: {limit}")
        for result in comparison.results:
            if result.refused:
                print(f"{result.name} refused{suffix}: {result.refused}")


def _ranked(comparison: Comparison) -> pd.DataFrame:
    """The rows, the best first; a gap that the certified bounds cannot tell from 0 is 0."""
    frame = comparison.frame()
    frame.loc[frame["gap"].abs() <= comparison.multi_path.gap, ["gap", "relative_gap"]] = 0.0
    ranks = frame["block_efficiency"].round(9)  # rounding keeps ties in order
    return frame.loc[ranks.sort_values(ascending=False, kind="stable").index]


def _exact_rows(comparison: Comparison) -> list[tuple[str, str]]:
    """Names and fractions, the optima first."""
    from lpverify.report.tables import fraction

    rows: list[tuple[str, Fraction | None]] = []
    for name, solution in (("single-path", comparison.single_path), ("multi-path", comparison.multi_path)):
        if solution.exact is not None:
            rows.append((f"{name} optimum", solution.exact))
        elif solution.exact_bounds is not None:
            rows += zip((f"{name} lower bound", f"{name} upper bound"), solution.exact_bounds, strict=True)
    rows += [(result.name, result.exact) for result in comparison.results if not result.refused]
    return [(name, fraction(value)) for name, value in rows]
