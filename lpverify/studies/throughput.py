"""Predict tokens per second from costs and block efficiency: which algorithm, K and L are fastest on a machine.

One round drafts K paths of L tokens, scores the pending token and the drafted nodes (n tokens) in one target pass,
verifies, and leaves both caches with the committed tokens. Let s_K be the seconds of one draft step at batch K, t(n)
those of a target pass, v_A(K, L) of verification by algorithm A, r(K) of everything else, and c of feeding the last
drafted token to the draft, which is necessary after a round that accepts all L tokens. Then

    draft  = s_1 + (L - 1) s_K                     the first step is the same for all paths
    target = t(n)
    verify = v_A(K, L)
    cache  = r(K) + Pr(tau = L) c

    tokens per second = BE_A(K, L) / (draft + target + verify + cache)

is the ratio of means of a long run. Standard errors are those of BE alone; costs are taken as known.

For top-down verifiers, and for those whose prefix acceptance probabilities are computed top-down (theory 3 to 5),
Pr(tau >= j) is the same for every L >= j. Then Pr(tau = L) = BE(L) - BE(L - 1) with BE(0) = 1.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.interpolate import PchipInterpolator

from lpverify import errors

STAGES = ("draft", "target", "verify", "cache")


@dataclass(frozen=True)
class Table:
    """Seconds as a function of one or more numbers, linear between the given values of each.

    Attributes:
        name: For messages.
        at: Values of the first number, ascending; empty if the seconds do not depend on it.
        entries: Seconds at each of these values, or a `Table` of the remaining numbers.
        unit: What the first number counts, for messages.

    >>> Table("target_pass", (1.0, 5.0), (0.1, 0.3), "tokens")(4.0)
    0.25
    >>> Table("verify.bv", (), (0.1,))(4, 8)
    0.1
    """

    name: str
    at: tuple[float, ...]
    entries: tuple[float | Table, ...]
    unit: str = ""

    def __call__(self, x: float, *others: float) -> float:
        """The seconds. Raises InputError outside the given values: nothing is extrapolated."""
        if self.at and not self.at[0] <= x <= self.at[-1]:
            expected = f"{self.at[0]:g} to {self.at[-1]:g}, which the table covers"
            raise errors.fail(self.name, got=f"{x:g} {self.unit}".strip(), expected=expected)
        i = bisect_left(self.at, x)
        between = bool(self.at) and self.at[i] != x
        entries = self.entries[i - between : i + 1]
        values = [entry(*others) if isinstance(entry, Table) else entry for entry in entries]
        if not between:
            return values[0]
        low, high = self.at[i - 1 : i + 1]
        return values[0] + (values[1] - values[0]) * (x - low) / (high - low)


@dataclass(frozen=True)
class Costs:
    """Seconds of the parts of a round.

    Attributes:
        draft_step: s_K, by K.
        target_pass: t, by n.
        verify: v_A for each algorithm A, by K and L.
        round: r, by K.
        catch_up: c.
        target_step: One token by the target alone; None if it is not known.
    """

    draft_step: Table
    target_pass: Table
    verify: Mapping[str, Table]
    round: Table
    catch_up: float
    target_step: float | None = None


@dataclass(frozen=True)
class Cell:
    """What was measured of one algorithm at K = ``num_paths`` and L = ``depth``.

    Attributes:
        nodes: Mean number of distinct drafted nodes, n - 1.
        block_efficiency: Mean number of tokens a round.
        se: Standard error of ``block_efficiency``; None if it is not known.
        full: Pr(tau = L), the share of rounds that accept all L tokens; None if `with_full_acceptance` is to compute
            it.
        interpolated: Whether L lies between measured ones.
    """

    algorithm: str
    num_paths: int
    depth: int
    nodes: float
    block_efficiency: float
    se: float | None = None
    full: float | None = None
    interpolated: bool = False

    @property
    def key(self) -> tuple[str, int, int]:
        """Algorithm, K and L."""
        return self.algorithm, self.num_paths, self.depth


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of a round by stage, and tokens per second with its standard error.

    ``speed_up`` is the ratio to the tokens per second of the target alone; None if that is not known.
    """

    cell: Cell
    seconds: Mapping[str, float]
    tokens_per_second: float = field(init=False)
    se: float | None = field(init=False)
    speed_up: float | None

    def __post_init__(self) -> None:
        total = sum(self.seconds.values())
        object.__setattr__(self, "tokens_per_second", self.cell.block_efficiency / total)
        object.__setattr__(self, "se", None if self.cell.se is None else self.cell.se / total)

    @property
    def round_seconds(self) -> float:
        """Seconds of a whole round."""
        return sum(self.seconds.values())


def with_full_acceptance(cells: Iterable[Cell], *, interpolate: bool = False) -> list[Cell]:
    """Fill in Pr(tau = L), and optionally the cells between measured L.

    BE as a function of L is the monotone cubic (PCHIP) through BE(0) = 1 and the measured values of the same algorithm
    and K. Pr(tau = L) is its increment from L - 1 to L. That is exact if L - 1 was measured or L = 1. Otherwise it is
    near the mean increment since the last measured L, which is an upper bound. Standard errors are linear between
    the measured ones.

    Args:
        cells: The measured cells, in any order.
        interpolate: Add a cell for every L between the measured ones.

    Returns:
        The cells by algorithm and K, then by L.

    >>> cells = with_full_acceptance([Cell("bv", 1, 1, 1, 1.5), Cell("bv", 1, 2, 2, 1.75)])
    >>> [round(cell.full, 9) for cell in cells]
    [0.5, 0.25]
    """
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.algorithm, cell.num_paths), []).append(cell)
    result = []
    for (algorithm, num_paths), group in groups.items():
        group = sorted(group, key=lambda cell: cell.depth)
        depths = [0, *(cell.depth for cell in group)]
        efficiency = PchipInterpolator(depths, [1.0, *(cell.block_efficiency for cell in group)])
        nodes = PchipInterpolator(depths, [0.0, *(cell.nodes for cell in group)])
        known = {cell.depth: cell for cell in group}
        errors_of_depth = [0.0, *(cell.se for cell in group if cell.se is not None)]
        for depth in range(depths[1], depths[-1] + 1):
            if depth in known:
                cell = known[depth]
            elif interpolate:
                complete = len(errors_of_depth) == len(depths)
                se = float(np.interp(depth, depths, errors_of_depth)) if complete else None
                cell = Cell(algorithm, num_paths, depth, float(nodes(depth)), float(efficiency(depth)), se, None, True)
            else:
                continue
            if cell.full is None:
                step = float(efficiency(depth) - efficiency(depth - 1))
                cell = replace(cell, full=min(max(step, 0.0), 1.0))  # sampled values need not be monotone
            result.append(cell)
    return result


def predict(costs: Costs, cells: Iterable[Cell]) -> list[Prediction]:
    """Tokens per second of every cell, in order.

    Raises InputError if the costs do not cover a cell or lack its algorithm.
    """
    predictions = []
    for cell in cells:
        if cell.algorithm not in costs.verify:
            known = ", ".join(costs.verify) or "none"
            raise errors.fail("costs verify", got=f"no {cell.algorithm}", expected=f"its seconds (there are {known})")
        assert cell.full is not None
        one = costs.draft_step(1)
        seconds = {
            "draft": one + (cell.depth - 1) * costs.draft_step(cell.num_paths),
            "target": costs.target_pass(cell.nodes + 1),
            "verify": costs.verify[cell.algorithm](cell.num_paths, cell.depth),
            "cache": costs.round(cell.num_paths) + cell.full * costs.catch_up,
        }
        alone = costs.target_step
        speed_up = None if alone is None else cell.block_efficiency / sum(seconds.values()) * alone
        predictions.append(Prediction(cell, seconds, speed_up))
    return predictions


def fastest(predictions: Iterable[Prediction]) -> Prediction:
    """The prediction with most tokens per second; of equal ones that of the smallest K, then of the smallest L."""
    return min(predictions, key=_by_speed)


def within(predictions: Sequence[Prediction], share: float) -> list[Prediction]:
    """The predictions that are slower than the fastest by at most ``share``, fastest first."""
    minimum = (1 - share) * fastest(predictions).tokens_per_second
    return sorted((p for p in predictions if p.tokens_per_second >= minimum), key=_by_speed)


def _by_speed(prediction: Prediction) -> tuple[float, int, int]:
    return -prediction.tokens_per_second, prediction.cell.num_paths, prediction.cell.depth
