"""``lpverify sweep``: many problems and algorithms, from a configuration file to a file of rows."""

from __future__ import annotations

from typing import Annotated

import typer

from lpverify import errors
from lpverify.cli.options import Jobs, flag, option
from lpverify.cli.output import check_rows
from lpverify.files import distinct


def run(
    config: Annotated[str, typer.Argument(metavar="CONFIG.toml", help="Families, sizes, algorithms, seeds.")],
    output: Annotated[str, option("OUT.jsonl", "File that the rows are appended to.", "--output", "-o")],
    jobs: Jobs = 1,
    dask: Annotated[str | None, option("ADDRESS", "Compute on the dask cluster of this scheduler instead.")] = None,
    retry: Annotated[bool, flag("--retry", "Compute the rows again that failed before.")] = False,
) -> None:
    """Every algorithm on many problems; interrupted runs resume.

    Writes one JSON object a line: what it depends on, block efficiency, gap to the optimum, bounds, the error if it
    failed, versions. Example of a configuration:

    \b
    vocab = [3, 4]
    depth = 2
    paths = [1, 2, 4]
    seeds = 5
    algorithms = ["bv", "gbv", "pbv"]
    [[family]]
    name = "softmax"
    temperature = [0.3, 1.0]
    [[family]]
    name = "folder"
    path = "trees"

    The last family consists of every problem file of a folder, for example one that `lpverify extract` wrote.
    """
    from lpverify.cli.progress import bar
    from lpverify.sweep.config import SCHEMA, load_tasks
    from lpverify.sweep.run import run_sweep

    distinct({"--output": output}, {"CONFIG": config})
    check_rows("--output", output, SCHEMA)
    errors.integer("--jobs", jobs, min=1)
    if dask is not None and jobs != 1:
        raise errors.fail("--jobs", got=jobs, expected="no such option together with --dask")
    tasks = load_tasks(config)
    with bar("rows", None) as update:

        def begin(existing: int, total: int) -> None:
            update(total=total, completed=existing)

        def advance(rows: int) -> None:
            update(advance=rows)

        outcome = run_sweep(tasks, output, jobs=jobs, dask=dask, retry=retry, begin=begin, advance=advance)
    failed = f", {outcome.failures} of them failed (their error says why)" if outcome.failures else ""
    others = f", {outcome.others} of other sweeps or versions" if outcome.others else ""
    print(f"{output}: {outcome.computed} rows computed, {outcome.existing} found{failed}{others}")
    if outcome.failures == outcome.computed + outcome.existing:
        got = f"{outcome.failures} rows that all failed, the first with: {outcome.error}"
        raise errors.fail(output, got=got, expected="at least one row that can be computed")
