"""``lpverify examples``: the built-in problems."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def run(
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the built-in problems.

    Each name can be used where a problem file can.
    """
    from lpverify.cli.output import STDOUT, write_json
    from lpverify.core.problem_files import examples, load_problem

    problems = [(name, load_problem(name)) for name in examples()]
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "vocab_size": problem.pair.vocab_size,
            "depth": problem.pair.depth,
            "nodes": problem.pair.nodes,
            "rational": problem.pair.rational,
            "description": problem.description,
        }
        for name, problem in problems
    ]
    if json:
        write_json(STDOUT, {"schema": "lpverify/examples@1", "examples": rows})
        return
    from lpverify.report.tables import show, table

    headings = ("name", "V", "L", "nodes", "rational", "description")
    cells = [
        [r["name"], str(r["vocab_size"]), str(r["depth"]), str(r["nodes"]), "yes" if r["rational"] else "no"]
        + [r["description"]]
        for r in rows
    ]
    caption = "V tokens, draft depth L; rational problems allow --exact. Next: lpverify solve NAME --paths 2"
    show(table(headings, cells, right=(1, 2, 3), caption=caption))
