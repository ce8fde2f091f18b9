"""``lpverify sweep``: many problems and algorithms, from a configuration file to a file of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lpverify.cli.options import integer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lpverify.sweep.config import Task
    from lpverify.sweep.run import Outcome


def run(
    config: Annotated[str, typer.Argument(metavar="CONFIG.toml", help="Families, sizes, algorithms, seeds.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="OUT.jsonl", help="File to append rows to.")],
    jobs: Annotated[int, typer.Option(metavar="N", parser=integer, help="Local processes (joblib).")] = 1,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on the dask cluster of this scheduler instead.")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Compute rows again that failed.")] = False,
) -> None:
    """Every algorithm on many problems; interrupted runs resume.

    One JSON object a line: what it depends on, block efficiency, gap to the optimum, bounds, error if it failed,
    versions. Example of a configuration:

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

    The last one is every problem file of a folder, for example one that `lpverify extract` wrote.
    """
    import signal

    from lpverify import errors
    from lpverify.cli.output import STDOUT, check_writable
    from lpverify.files import distinct
    from lpverify.sweep.config import load_tasks

    if output == STDOUT:
        raise errors.fail("--output", got=output, expected="a file: a sweep reads what is already there")
    check_writable("--output", output)
    distinct({"CONFIG": config, "--output": output})
    errors.integer("--jobs", jobs, min=1)
    if dask is not None and jobs != 1:
        raise errors.fail("--jobs", got=jobs, expected="not given with --dask, the cluster has its own workers")
    tasks = load_tasks(config)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop as on Ctrl-C: workers end, too
    try:
        outcome = _run(tasks, output, jobs, dask, retry)
    finally:
        signal.signal(signal.SIGTERM, before)
    total = outcome.computed + outcome.existing
    parts = [f"{outcome.computed} rows computed", f"{outcome.existing} found"]
    if outcome.failures:
        parts.append(f"{outcome.failures} of them failed (their error says why)")
    if outcome.others:
        parts.append(f"{outcome.others} of other sweeps")
    print(f"{output}: {', '.join(parts)}")
    if outcome.failures == total:
        got = f"{total} rows that all failed, the first with: {outcome.error}"
        raise errors.fail(output, got=got, expected="at least one row that can be computed")


def _run(tasks: Sequence[Task], output: str, jobs: int, dask: str | None, retry: bool) -> Outcome:
    from lpverify.cli.progress import bar
    from lpverify.sweep.run import run_sweep

    with bar("rows", None) as update:
        return run_sweep(
            tasks,
            output,
            jobs=jobs,
            dask=dask,
            retry=retry,
            begin=lambda done, total: update(total=total, completed=done),
            advance=lambda rows: update(advance=rows),
        )
