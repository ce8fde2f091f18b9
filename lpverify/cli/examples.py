"""``lpverify examples``: the built-in problems."""

from __future__ import annotations

from typing import Annotated, Any

from lpverify.cli.options import flag
from lpverify.cli.output import STDOUT, write_json


def run(json: Annotated[bool, flag("--json", "Print JSON instead of a table.")] = False) -> None:
    """List the built-in problems.

    Every command that takes a problem file takes one of these names, too.
    """
    from lpverify.core.problem import examples, load_problem
    from lpverify.report.tables import show, table

    rows: list[dict[str, Any]] = []
    for name in examples():
        problem = load_problem(name)
        size = {key: getattr(problem.pair, key) for key in ("vocab_size", "depth", "nodes", "rational")}
        rows.append({"name": name, **size, "description": problem.description})
    if json:
        write_json(STDOUT, {"schema": "lpverify/examples@1", "examples": rows})
        return
    headings = ("name", "V", "L", "nodes", "rational", "description")
    cells = [[{True: "yes", False: "no"}.get(value, str(value)) for value in row.values()] for row in rows]
    caption = "V tokens, draft depth L; rational problems allow --exact. Next: lpverify solve NAME --paths 2"
    show(table(headings, cells, right=(1, 2, 3), caption=caption))
