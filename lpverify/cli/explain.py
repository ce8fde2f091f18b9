"""``lpverify explain``: one position's balance of accepted and residual mass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from lpverify import errors
from lpverify.cli.options import Normalize, Problem, option
from lpverify.cli.output import Output

if TYPE_CHECKING:
    from lpverify.core.problem import VerifyProblem
    from lpverify.exact.breakdown import Balance

COLUMNS = ("target", "draft", "accepted", "residual", "residual_law", "emitted", "naive")
SCALARS = ("accepted_mass", "rejected_mass", "law_error", "naive_law_error")
HEADINGS = ("token", "p", "q", "accepted", "residual", "res. distr.", "emitted", "naive")
MAX_ROWS = 30


def run(
    *,
    problem: Problem,
    prefix: Annotated[str, option("TOKENS", 'Tokens before the position, as in "A B"; default: none.')] = "",
    output: Output,
    normalize: Normalize = False,
) -> None:
    """The token rule at one position: accepted mass, residual and emitted distribution.

    The naive correction is shown beside it: it draws the replacement of a rejected token from the target instead of
    the residual, so the distribution that it emits is not the target's.
    """
    from lpverify.core.problem import load_problem
    from lpverify.exact.breakdown import balance, parse_prefix

    output.check("lpverify/explain@", {"PROBLEM": problem})
    loaded = load_problem(problem, normalize=normalize)
    result = balance(loaded.pair, parse_prefix(loaded.pair, prefix))
    output.write(to_json(loaded, result), lambda: _print(loaded, result))


def to_json(problem: VerifyProblem, result: Balance) -> dict[str, Any]:
    """The document ``lpverify/explain@1``; rational problems also give every number as "num/den"."""
    pair = problem.pair
    size = {name: getattr(pair, name) for name in ("vocab_size", "depth", "rational")}
    numbers = {name: getattr(result, name) for name in COLUMNS + SCALARS}
    data = {"schema": "lpverify/explain@1", "problem": {"name": problem.name, **size}}
    data |= {"prefix": [pair.tokens[token] for token in result.prefix], "tokens": list(pair.tokens), **numbers}
    if pair.rational:
        exact = {name: [str(x) for x in column] for name in COLUMNS if (column := numbers[name]) is not None}
        data["exact"] = dict.fromkeys(COLUMNS) | exact | {name: str(numbers[name]) for name in SCALARS}
    return data


def _print(problem: VerifyProblem, result: Balance) -> None:
    from lpverify.report.tables import number, show, table

    pair, columns = problem.pair, [getattr(result, name) for name in COLUMNS]
    shown = sorted(range(pair.vocab_size), key=lambda x: -max(result.target[x], result.draft[x]))[:MAX_ROWS]
    rows = [
        (errors.label(pair.tokens[x]), *("never" if c is None else number(c[x]) for c in columns))
        for x in sorted(shown)
    ]
    totals = ("sum", *("" if column is None else number(column.sum()) for column in columns))
    prefix = errors.label(" ".join(pair.tokens[x] for x in result.prefix)) or "the start"
    title = f"{errors.label(problem.name)}: the next token after {prefix}"
    if pair.vocab_size > MAX_ROWS:
        rows.append(("...", *[""] * len(columns)))
        title += f" (the {MAX_ROWS} most probable of {pair.vocab_size})"
    show(table(HEADINGS, rows, footer=totals, right=tuple(range(1, 8)), title=title))
    accepted, rejected, emitted, naive = (number(getattr(result, name)) for name in SCALARS)
    print(f"accepted = min(p, q), mass {accepted}; residual = p - min(p, q)")
    print(f"emitted  = accepted + {rejected} * residual distribution: total variation to p {emitted}")
    print(f"naive    = accepted + {rejected} * p:                     total variation to p {naive}")
