"""``lpverify figures``: compute, store and draw the figures."""

from __future__ import annotations

from typing import Annotated

import typer

from lpverify.cli._parse import integer


def run(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and smaller instances: about a minute.")] = False,
    only: Annotated[str | None, typer.Option(metavar="NAME,...", help="These figures; default: all.")] = None,
    out: Annotated[str, typer.Option("--out", "-o", metavar="DIR", help="For data and pictures.")] = "paper_figs",
    draw: Annotated[bool, typer.Option("--draw", help="Only draw, from the data that are in DIR.")] = False,
    jobs: Annotated[int, typer.Option(metavar="N", parser=integer, help="Local processes (joblib).")] = 1,
    list_: Annotated[bool, typer.Option("--list", help="List the figures and stop.")] = False,
) -> None:
    """Compute, store and draw the figures: NAME.json, then NAME.svg, NAME.png and NAME.md (caption) from it.

    Without --quick this is what is published and takes about twenty minutes, most of them for
    solver_scaling; --draw takes seconds.
    """
    from pathlib import Path

    from lpverify import _check
    from lpverify.cli._progress import SolveProgress
    from lpverify.exact.sweep_run import executor
    from lpverify.report.figure_data import Work
    from lpverify.report.figures import FIGURES, make

    if list_:
        for name, figure in FIGURES.items():
            print(f"{name:16} {figure.title}")
        return
    if quick and draw:
        raise _check.fail("--draw", got="--quick as well", expected="one of them, nothing is computed with --draw")
    _check.integer("--jobs", jobs, least=1)
    names = list(FIGURES) if only is None else [name.strip() for name in only.split(",")]
    for name in names:
        _check.choice("--only", name, tuple(FIGURES))
    if Path(out).exists() and not Path(out).is_dir():
        raise _check.fail("--out", got=f"the file {out}", expected="a folder")
    for name in names:
        with SolveProgress(f"figure {name}") as progress:
            work = None if draw else Work("quick" if quick else "full", executor(jobs), progress.stage)
            [(_, seconds)] = make([name], out, work=work)
        print(f"{Path(out) / name}.{{json,svg,png,md}}: {seconds:.1f} s", flush=True)
