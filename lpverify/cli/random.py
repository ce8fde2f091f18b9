"""``lpverify random``: a problem file from a random family with known parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from lpverify.cli.options import option

if TYPE_CHECKING:
    from lpverify.core.model_pair import ModelPair


def run(
    vocab: Annotated[int, option("V", "Vocabulary size.")],
    depth: Annotated[int, option("L", "Draft depth, in tokens.")],
    seed: Annotated[int, option("S", "The same seed gives the same file.")],
    output: Annotated[str, option("FILE|-", "Problem file to write, or - for standard output.", "--output", "-o")],
    family: Annotated[
        str,
        option(
            "NAME",
            "dirichlet, markov, softmax, rational, or an edge case: one-hot-target, one-hot-draft, disjoint,"
            " zero-draft-mass, equal, ties, subnormal.",
        ),
    ] = "dirichlet",
    alpha: Annotated[float | None, option("A", "dirichlet, markov: concentration; small is peaked.")] = None,
    temperature: Annotated[float | None, option("T", "softmax: temperature of target and draft.")] = None,
    draft_noise: Annotated[float | None, option("X", "softmax: scale of the noise in the draft's logits.")] = None,
    denominator: Annotated[int | None, option("D", "rational: common denominator of all entries.")] = None,
) -> None:
    """Write a random problem file."""
    from lpverify.cli.output import STDOUT, check_writable
    from lpverify.core.problem import VerifyProblem, save_problem
    from lpverify.core.problem_file import format_problem

    check_writable("--output", output)
    options = {"alpha": alpha, "temperature": temperature, "draft_noise": draft_noise, "denominator": denominator}
    options = {name: value for name, value in options.items() if value is not None}
    pair = _make(family, vocab, depth, seed, options)
    size = f"V = {vocab}, L = {depth}, seed {seed}"
    settings = "".join(f", {name} {value:g}" for name, value in options.items())
    problem = VerifyProblem(
        pair, 1, f"{family}-v{vocab}-l{depth}-s{seed}", f"random, family {family}, {size}{settings}"
    )
    if output == STDOUT:
        print(format_problem(problem), end="")
        return
    save_problem(problem, output)
    print(f"{output}: {problem.name}, {pair.nodes} nodes. Next: lpverify solve {output} --paths 2")


def _make(family: str, vocab: int, depth: int, seed: int, options: dict[str, Any]) -> ModelPair:
    from lpverify import errors
    from lpverify.core import families as make

    errors.choice("--family", family, make.FAMILIES)
    takes = make.PARAMETERS.get(family, ())
    for name in options:
        if name not in takes:
            allowed = " and ".join("--" + option.replace("_", "-") for option in takes) or "no parameter"
            expected = f"{allowed} with --family {family}"
            raise errors.fail("--" + name.replace("_", "-"), got=f"{options[name]:g}", expected=expected)
    for name, value in (("vocab", vocab), ("depth", depth)):
        errors.integer(f"--{name}", value, min=1)
    errors.integer("--seed", seed, min=0)
    return make.family(family, vocab, depth, seed, **options)
