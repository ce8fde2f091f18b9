"""``lpverify random``: a problem file from a random family with known parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from lpverify import errors
from lpverify.cli.options import option
from lpverify.cli.output import STDOUT, check_output

FAMILIES = "dirichlet, markov, softmax, rational, or an edge case: one-hot-target, one-hot-draft, disjoint, \
zero-draft-mass, equal, ties, subnormal."


def run(
    vocab: Annotated[int, option("V", "Vocabulary size.")],
    depth: Annotated[int, option("L", "Draft depth, in tokens.")],
    seed: Annotated[int, option("S", "The same seed gives the same file.")],
    output: Annotated[str, option("FILE|-", "Problem file to write, or - for standard output.", "--output", "-o")],
    family: Annotated[str, option("NAME", FAMILIES)] = "dirichlet",
    alpha: Annotated[float | None, option("A", "dirichlet, markov: concentration; small is peaked.")] = None,
    temperature: Annotated[float | None, option("T", "softmax: temperature of target and draft.")] = None,
    draft_noise: Annotated[float | None, option("X", "softmax: scale of the noise in the draft's logits.")] = None,
    denominator: Annotated[int | None, option("D", "rational: common denominator of all entries.")] = None,
) -> None:
    """Write a random problem file."""
    from lpverify.core import families
    from lpverify.core.problem import VerifyProblem, save_problem
    from lpverify.core.problem_file import format_problem

    check_output("--output", output, lambda content: True)
    options: dict[str, Any] = {"alpha": alpha, "temperature": temperature, "draft_noise": draft_noise}
    options = {name: value for name, value in (options | {"denominator": denominator}).items() if value is not None}
    takes = families.PARAMETERS.get(errors.choice("--family", family, families.FAMILIES), ())
    for name, value in options.items():
        if name not in takes:
            allowed = " and ".join("--" + other.replace("_", "-") for other in takes) or "no parameter"
            expected = f"{allowed} with --family {family}"
            raise errors.fail("--" + name.replace("_", "-"), got=f"{value:g}", expected=expected)
    errors.integer("--vocab", vocab, min=1)
    errors.integer("--depth", depth, min=1)
    errors.integer("--seed", seed, min=0)
    pair = families.family(family, vocab, depth, seed, **options)
    settings = "".join(f", {name} {value:g}" for name, value in options.items())
    description = f"random, family {family}, V = {vocab}, L = {depth}, seed {seed}{settings}"
    problem = VerifyProblem(pair, 1, f"{family}-v{vocab}-l{depth}-s{seed}", description)
    if output == STDOUT:
        print(format_problem(problem), end="")
    else:
        file = Path(output)
        if file.is_file() and file.read_bytes() not in (b"", format_problem(problem).encode()):
            expected = "a new file, or one that has the same problem"
            raise errors.fail("--output", got=f"{output}, which has other content", expected=expected)
        save_problem(problem, output)
        print(f"{output}: {errors.label(problem.name)}, {pair.nodes} nodes. Next: lpverify solve {output} --paths 2")
