"""``lpverify figures``: compute, store and draw the figures."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from lpverify import errors
from lpverify.cli.options import Jobs, Recompute, flag, option
from lpverify.files import distinct


def run(
    quick: Annotated[bool, flag("--quick", "Fewer and smaller instances: a few minutes.")] = False,
    full: Annotated[bool, flag("--full", "The published size; the default.")] = False,
    only: Annotated[str | None, option("NAME,...", "Only these figures; default: all.")] = None,
    out: Annotated[str, option("DIR", "Folder of data and pictures.", "--out", "-o")] = "paper_figs",
    draw: Annotated[bool, flag("--draw", "Only draw, from the data in DIR.")] = False,
    jobs: Jobs = 1,
    prompts: Annotated[
        list[str] | None, option("[LABEL=]SET|FILE", "Prompts for real models; may be repeated; default: built-in.")
    ] = None,
    pairs: Annotated[str | None, option("PAIR,...", "Real models: tiny, smollm2, ...; default: all.")] = None,
    recompute: Recompute = False,
    list_: Annotated[bool, flag("--list", "List the figures and stop.")] = False,
) -> None:
    """Compute, store and draw the paper figures: NAME.json, and from it NAME.svg, NAME.png and the caption NAME.md.

    This needs a checkout of the repository. The published size takes about twenty minutes for the figures about small
    problems, most of them for solver_scaling, and about two hours for those about real models (real_*, table_real),
    with SmolLM2 if its package is installed. Finished prompts are stored in DIR/.records: interrupted runs resume, and
    figures share measurements; delete that folder to measure all of it again. --draw takes seconds.
    """
    from lpverify.cli.progress import waiting
    from lpverify.sweep.run import executor

    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / "experiments" / "figures").is_dir():
        expected = "a checkout of the repository, where experiments/figures is (run pip install -e . in it)"
        raise errors.fail("figures", got=f"no folder experiments/figures in {checkout}", expected=expected)
    sys.path.insert(0, str(checkout))
    from experiments.figures.figure_data import Work
    from experiments.figures.figures import FIGURES, available, files, make
    from experiments.figures.real_jobs import Real, left_out

    if list_:
        for name, figure in FIGURES.items():
            print(f"{name:16} {figure.title}")
        return
    if sum((draw, quick, full)) > 1:
        name, other = "--draw" if draw else "--full", "--quick" if quick else "--full"
        detail = ": --draw computes nothing" if draw else ""
        raise errors.fail(name, got=f"{other} as well", expected=f"only one of them{detail}")
    errors.integer("--jobs", jobs, min=1)
    names = available(out) if only is None else errors.choices("--only", only, tuple(FIGURES))
    if Path(out).exists() and not Path(out).is_dir():
        raise errors.fail("--out", got=f"the file {out}", expected="a folder")
    written = {f"--out, {path.name}": path for name in names for path in files(name, Path(out))}
    distinct(written, {f"--prompts {source}": source.rpartition("=")[2] for source in prompts or ()})
    chosen = None if pairs is None else tuple(name.strip() for name in pairs.split(","))
    real = Real(Path(out), tuple(prompts or ()), chosen, recompute)
    models = not draw and any(FIGURES[name].models for name in names) and find_spec("torch") is not None
    if models and not quick and chosen is None:
        for pair, reason in left_out("full").items():
            print(f"{pair}: left out, {reason}")
    for name in names:
        with waiting(f"figure {name}") as say:
            work = None if draw else Work("quick" if quick else "full", executor(jobs), say, real)
            [(_, seconds)] = make([name], out, work=work)
        kinds = "json,tex,md" if FIGURES[name].table else "json,svg,png,md"
        print(f"{Path(out) / name}.{{{kinds}}}: {seconds:.1f} s", flush=True)
    for name, figure in FIGURES.items():
        if only is None and figure.experiment is not None and name not in names:
            print(f"{name}: left out, {Path(out) / name}.json does not exist (python {figure.experiment} writes it)")
