"""``lpverify explain``: one position's balance of accepted and residual mass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from lpverify.core.problem_format import ProblemFile
    from lpverify.exact.breakdown import Balance

COLUMNS = ("target", "draft", "accepted", "residual", "residual_law", "emitted", "naive")
SCALARS = ("accepted_mass", "rejected_mass", "law_error", "naive_law_error")
MOST_ROWS = 30


def run(
    problem: Annotated[str, typer.Argument(metavar="PROBLEM", help="Problem file or name of an example.")],
    prefix: Annotated[str, typer.Option(help='Tokens before the position, as in "A B"; default: none.')] = "",
    json: Annotated[str | None, typer.Option(metavar="FILE|-", help="Write JSON to a file, or - for stdout.")] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Rescale rows that do not sum to 1.")] = False,
) -> None:
    """One position's accepted mass, residual and emitted law.

    Beside the token rule stands the naive correction, which draws the replacement from the target and not from the
    residual: its emitted law is not the target's.
    """
    from lpverify.cli.output import STDOUT, check_writable, write_json
    from lpverify.core.problem_files import load_problem
    from lpverify.exact.breakdown import balance, parse_prefix

    check_writable("--json", json)
    loaded = load_problem(problem, normalize=normalize)
    result = balance(loaded.pair, parse_prefix(loaded.pair, prefix))
    if json is not None:
        write_json(json, to_json(loaded, result))
    if json != STDOUT:
        _print(loaded, result)


def to_json(problem: ProblemFile, result: Balance) -> dict[str, Any]:
    """The balance as JSON; on rational problems also every number as "num/den"."""
    pair = problem.pair
    data: dict[str, Any] = {
        "schema": "lpverify/explain@1",
        "problem": {
            "name": problem.name,
            "vocab_size": pair.vocab_size,
            "depth": pair.depth,
            "rational": pair.rational,
        },
        "prefix": [pair.tokens[token] for token in result.prefix],
        "tokens": list(pair.tokens),
    }
    numbers = {name: getattr(result, name) for name in COLUMNS + SCALARS}
    data |= {name: _convert(value, float) for name, value in numbers.items()}
    if pair.rational:
        data["exact"] = {name: _convert(value, str) for name, value in numbers.items()}
    return data


def _convert(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    return [kind(x) for x in value] if getattr(value, "ndim", 0) else kind(value)


def _print(problem: ProblemFile, result: Balance) -> None:
    from lpverify.report.tables import number, show, table

    pair = problem.pair
    order = sorted(range(pair.vocab_size), key=lambda x: -max(result.target[x], result.draft[x]))[:MOST_ROWS]
    columns = [getattr(result, name) for name in COLUMNS]
    rows = [
        (pair.tokens[x], *("never" if column is None else number(column[x]) for column in columns))
        for x in sorted(order)
    ]
    if pair.vocab_size > MOST_ROWS:
        rows.append(("...", *[""] * len(columns)))
    totals = ("sum", *("" if column is None else number(column.sum()) for column in columns))
    after = " ".join(pair.tokens[token] for token in result.prefix) or "the start"
    headings = ("token", "p", "q", "accepted", "residual", "res. law", "emitted", "naive")
    title = f"{problem.name}: the next token after {after}"
    if pair.vocab_size > MOST_ROWS:
        title += f" (the {MOST_ROWS} likeliest of {pair.vocab_size})"
    show(table(headings, rows, footer=totals, right=tuple(range(1, 8)), title=title))
    emitted, naive = number(result.law_error), number(result.naive_law_error)
    print(f"accepted = min(p, q), mass {number(result.accepted_mass)}; residual = p - min(p, q)")
    print(f"emitted  = accepted + {number(result.rejected_mass)} * residual law: total variation to p {emitted}")
    print(f"naive    = accepted + {number(result.rejected_mass)} * p:            total variation to p {naive}")
