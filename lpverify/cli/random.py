"""``lpverify random``: a problem file from a random family with a stated law."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpverify.cli.options import integer, number

if TYPE_CHECKING:
    from lpverify.core.model_pair import ModelPair


def run(
    vocab: Annotated[int, typer.Option(metavar="V", parser=integer, help="Vocabulary size.")],
    depth: Annotated[int, typer.Option(metavar="L", parser=integer, help="Draft depth.")],
    seed: Annotated[int, typer.Option(metavar="S", parser=integer, help="The same seed gives the same file.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Problem file to write.")],
    family: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="dirichlet, markov, softmax, rational, or an edge case: one-hot-target, one-hot-draft, disjoint,"
            " zero-draft-mass, equal, ties, subnormal.",
        ),
    ] = "dirichlet",
    alpha: Annotated[
        float | None, typer.Option(metavar="A", parser=number, help="dirichlet, markov: small is peaked.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(metavar="T", parser=number, help="softmax: temperature of both laws.")
    ] = None,
    draft_noise: Annotated[
        float | None, typer.Option(metavar="X", parser=number, help="softmax: noise in the draft's logits.")
    ] = None,
    denominator: Annotated[
        int | None, typer.Option(metavar="D", parser=integer, help="rational: common denominator of all entries.")
    ] = None,
) -> None:
    """Write a random problem file."""
    from lpverify.cli.output import STDOUT, check_writable
    from lpverify.core.problem_files import save_problem
    from lpverify.core.problem_format import ProblemFile, format_problem

    check_writable("--output", output)
    given = {"alpha": alpha, "temperature": temperature, "draft_noise": draft_noise, "denominator": denominator}
    given = {name: value for name, value in given.items() if value is not None}
    pair = _make(family, vocab, depth, seed, given)
    size = f"V = {vocab}, L = {depth}, seed {seed}"
    settings = "".join(f", {name} {value:g}" for name, value in given.items())
    problem = ProblemFile(pair, f"{family}-v{vocab}-l{depth}-s{seed}", f"random, family {family}, {size}{settings}")
    if output == STDOUT:
        print(format_problem(problem), end="")
        return
    save_problem(problem, output)
    print(f"{output}: {problem.name}, {pair.nodes} nodes. Next: lpverify solve {output} --paths 2")


def _make(family: str, vocab: int, depth: int, seed: int, given: dict[str, Any]) -> ModelPair:
    from lpverify import errors
    from lpverify.core import families as make

    errors.choice("--family", family, make.FAMILIES)
    takes = make.PARAMETERS.get(family, ())
    for name in given:
        if name not in takes:
            options = " and ".join("--" + option.replace("_", "-") for option in takes) or "no parameter"
            expected = f"{options} with --family {family}"
            raise errors.fail("--" + name.replace("_", "-"), got=f"{given[name]:g}", expected=expected)
    for name, value in (("vocab", vocab), ("depth", depth)):
        errors.integer(f"--{name}", value, min=1)
    errors.integer("--seed", seed, min=0)
    return make.family(family, vocab, depth, seed, **given)
