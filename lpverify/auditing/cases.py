"""The case table of the audit: small problems that expose faults of real implementations.

Most are rational, so that the audit is exact. Target rows after a leaf differ from the draft's; supports of target and
draft differ both ways; there are ties, one-hot rows, equal distributions, distributions that differ in the last bit
only, and probabilities at which single precision or differences of powers fail. Each case is small enough to enumerate
all drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.core import families as make
from lpverify.core.model_pair import ModelPair
from lpverify.core.problem import VerifyProblem, load_problem


@dataclass(frozen=True)
class Case:
    """A problem, and the number of consecutive decoding rounds on it with one source of randomness."""

    name: str
    problem: VerifyProblem
    rounds: int = 1


@cache
def cases() -> dict[str, Case]:
    """The table by name. Names end in the number of paths, and in ``two rounds`` where there are two."""
    step = iid(".2 .4 .4", ".6 .3 .1", 1)
    coin = iid("1/4 3/4", "3/5 2/5", 2)
    table: list[tuple[str, ModelPair, tuple[int, ...], tuple[int, ...]]] = [
        ("one step", step, (1, 2, 3), (1,)),
        ("block residual", iid(".2 .4 .4", ".1 .1 .8", 2), (1, 2), ()),
        ("coin", coin, (1, 2, 3), (1,)),
        ("deep coin", iid("1/4 3/4", "3/5 2/5", 3), (1, 2), ()),
        ("fair coin", iid("1/2 1/2", "1/2 1/2", 2), (1, 2), (1,)),
        ("sure transport", iid(".3 .7", ".5 .5", 1), (1, 2), (2,)),
        ("draft lacks tokens", iid(".1 .2 .3 .1 .1 .2", ".4 .3 .2 .1 0 0", 1), (1, 2), ()),
        ("target lacks a token", iid(".6 .4 0", ".5 .3 .2", 2), (1, 2), ()),
        ("disjoint", iid("1/3 2/3 0 0", "0 0 1/5 4/5", 1), (1, 2), ()),
        ("equal with a zero", iid(".5 .3 .2 0", ".5 .3 .2 0", 2), (1,), ()),
        ("sure target", iid("0 1 0", "1/2 1/3 1/6", 2), (1, 2), ()),
        ("sure draft", iid(".2 .4 .4", "1 0 0", 2), (1, 2), ()),
        ("ties", iid("3/8 3/16 3/16 1/4", "1/4 1/8 1/8 1/2", 1), (2, 3), ()),
        ("eight paths", iid("1/2 1/2", "1/4 3/4", 1), (8,), ()),
        ("rare draft", iid("1/1000 999/1000", "1/1000000000 999999999/1000000000", 1), (4,), ()),
        ("rare before common", iid(".9998 .000000015 .000199985", ".9999 .00000001 .00009999", 1), (4,), ()),
        ("tree of 3", tree(3, 2, seed=2), (1, 2), ()),
        ("sparse tree of 3", tree(3, 2, seed=13, denominator=4), (1, 2), ()),
        ("tree of 4", tree(4, 1, seed=3), (2, 3), ()),
        ("deep tree", tree(2, 3, seed=4), (1, 2, 3), ()),
        ("six tokens", iid("1/4 3/4", "3/5 2/5", 6), (1,), ()),
        ("six tokens, two ends", two_ends(6), (2,), ()),
        ("equal to the last bit", floats([0.5, 0.5, 0.0], [0.5 + 2**-24, 0.5 - 2**-24, 0.0]), (1, 2), ()),
        ("subnormal", floats([0.5, 0.5 - 1e-5, 1e-5, 1e-310], [0.25, 0.75, 1e-320, 0.0]), (1, 2), ()),
        ("floats", make.dirichlet(3, 2, seed=5, alpha=0.5), (1, 2), ()),
    ]
    every = []
    for name, pair, single, double in table:
        every += [Case(f"{name} K={k}", VerifyProblem(pair, k, name)) for k in single]
        every += [Case(f"{name} K={k} two rounds", VerifyProblem(pair, k, name), 2) for k in double]
    return {case.name: case for case in every}


def select(names: Sequence[str] | None) -> list[Case]:
    """Cases by name.

    Args:
        names: names of cases without or with " K=...", or ``PROBLEM:K`` for a problem file or a built-in example; None
            is the whole table.

    Raises:
        InputError: an unknown name.

    >>> [case.name for case in select(["coin", "skewed-3:2"])]
    ['coin K=1', 'coin K=2', 'coin K=3', 'coin K=1 two rounds', 'skewed-3 K=2']
    """
    table = cases()
    if names is None:
        return list(table.values())
    chosen: dict[str, Case] = {}
    for name in names:
        of_table = [case for case in table.values() if name in (case.name, case.name.split(" K=")[0])]
        problem, separator, paths = name.rpartition(":")
        if not of_table and not (separator and paths.isdecimal()):
            known = ", ".join(dict.fromkeys(case.split(" K=")[0] for case in table))
            raise errors.fail("case", got=repr(name), expected=f"PROBLEM:K, or one of {known}")
        if not of_table:
            loaded = load_problem(problem, num_paths=errors.integer(f"paths of case {problem}", int(paths), min=1))
            of_table = [Case(f"{loaded.name} K={paths}", loaded)]
        chosen |= {case.name: case for case in of_table}
    return list(chosen.values())


def iid(target: str, draft: str, depth: int) -> ModelPair:
    """The same rational rows at every prefix, the target's also after leaves.

    >>> iid("1/4 3/4", "3/5 2/5", 2).target[1].shape
    (2, 2)
    """
    rows = [np.array([Fraction(x) for x in text.split()], dtype=object) for text in (target, draft)]
    levels = [[np.tile(row, (len(row) ** i, 1)) for i in range(depth)] for row in rows]
    return ModelPair.from_levels(*levels, bonus=rows[0])


def tree(vocab: int, depth: int, seed: int, denominator: int = 12) -> ModelPair:
    """A different rational row at every prefix, also after leaves."""
    deeper = make.rational(vocab, depth + 1, seed, denominator)
    return ModelPair.from_levels(deeper.target[:-1], deeper.draft[:-1], bonus=deeper.target[-1])


def two_ends(depth: int) -> ModelPair:
    """A sure draft but for the last token, so that several long paths are cheap to enumerate."""
    step = iid("3/4 1/4", "1 0", depth)
    last = iid("1/4 3/4", "3/5 2/5", depth)
    return ModelPair.from_levels(step.target, (*step.draft[:-1], last.draft[-1]), bonus=step.bonus)


def floats(target: Any, draft: Any) -> ModelPair:
    """One position in floating point."""
    return ModelPair.from_levels([[target]], [[draft]], bonus=target)
