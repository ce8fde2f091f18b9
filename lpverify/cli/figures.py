"""``lpverify figures``: compute, store and draw the figures."""

from __future__ import annotations

from typing import Annotated

import typer

from lpverify.cli.options import integer


def run(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and smaller instances: a few minutes.")] = False,
    full: Annotated[bool, typer.Option("--full", help="What is published. This is the default.")] = False,
    only: Annotated[str | None, typer.Option(metavar="NAME,...", help="These figures; default: all.")] = None,
    out: Annotated[str, typer.Option("--out", "-o", metavar="DIR", help="For data and pictures.")] = "paper_figs",
    draw: Annotated[bool, typer.Option("--draw", help="Only draw, from the data that are in DIR.")] = False,
    jobs: Annotated[int, typer.Option(metavar="N", parser=integer, help="Local processes (joblib).")] = 1,
    prompts: Annotated[
        list[str] | None,
        typer.Option(metavar="[LABEL=]SET|FILE", help="Of real models; repeat for several sets. Default: built-in."),
    ] = None,
    pairs: Annotated[
        str | None, typer.Option(metavar="PAIR,...", help="Of real models: tiny, smollm2, smollm2-distilled, ...")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the figures and stop.")] = False,
) -> None:
    """Compute, store and draw the figures: NAME.json, then NAME.svg, NAME.png and NAME.md (caption) from it.

    Without --quick this is what is published. The figures about small problems then take about twenty minutes, most of
    them for solver_scaling; those about real models (real_*, table_real) about two hours, with SmolLM2 where its
    package is installed. They keep every finished prompt in DIR/.records, so a rerun goes on where the last one
    stopped and figures share what they measure; delete that folder to measure anew. --draw takes seconds.
    """
    import sys
    from importlib.util import find_spec
    from pathlib import Path

    from lpverify import errors
    from lpverify.cli.progress import SolveProgress
    from lpverify.sweep.run import executor

    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / "experiments" / "figures").is_dir():
        expected = "a checkout of the repository, where experiments/figures is (pip install -e . there)"
        raise errors.fail("figures", got="an installation without the figures' programs", expected=expected)
    sys.path.insert(0, str(checkout))
    from experiments.figures.figure_data import Work
    from experiments.figures.figures import FIGURES, available, make
    from experiments.figures.real_jobs import Real, left_out

    if list_:
        for name, figure in FIGURES.items():
            print(f"{name:16} {figure.title}")
        return
    if draw and (quick or full):
        size = "--quick" if quick else "--full"
        raise errors.fail("--draw", got=f"{size} as well", expected="one of them, nothing is computed with --draw")
    if quick and full:
        raise errors.fail("--full", got="--quick as well", expected="one of them")
    errors.integer("--jobs", jobs, min=1)
    names = available(out) if only is None else [name.strip() for name in only.split(",")]
    for name in names:
        errors.choice("--only", name, tuple(FIGURES))
    if Path(out).exists() and not Path(out).is_dir():
        raise errors.fail("--out", got=f"the file {out}", expected="a folder")
    chosen = None if pairs is None else tuple(name.strip() for name in pairs.split(","))
    real = Real(Path(out), tuple(prompts or ()), chosen)
    models = not draw and any(FIGURES[name].models for name in names) and find_spec("torch") is not None
    if models and not quick and chosen is None:
        for pair, reason in left_out("full").items():
            print(f"{pair}: left out, {reason}")
    for name in names:
        with SolveProgress(f"figure {name}") as progress:
            work = None if draw else Work("quick" if quick else "full", executor(jobs), progress.stage, real)
            [(_, seconds)] = make([name], out, work=work)
        kinds = "json,tex,md" if FIGURES[name].table else "json,svg,png,md"
        print(f"{Path(out) / name}.{{{kinds}}}: {seconds:.1f} s", flush=True)
    for name, figure in FIGURES.items():
        if only is None and figure.experiment is not None and name not in names:
            script, file = figure.experiment
            print(f"{name}: left out, {Path(out) / file} is not there (python {script} writes it)")
