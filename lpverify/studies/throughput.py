"""Predict tokens per second from costs and block efficiency: which algorithm, K and L are fastest on a machine.

A round that scores n tokens takes, on average, and in the notation of theory 10.6,

    draft  = s_1 + (L - 1) s_K                     the first step is the same for all paths
    target = t(n)
    verify = v_A(K, L)
    cache  = r(K) + Pr(tau = L) c

seconds, and tokens per second are BE_A(K, L) / (draft + target + verify + cache). Standard errors are those of BE
alone; costs are taken as known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.interpolate import PchipInterpolator

from lpverify import errors

STAGES = ("draft", "target", "verify", "cache")


@dataclass(frozen=True)
class Table:
    """Seconds as a function of one or more numbers, linear between the given values of each.

    ``at``: the given values of the first number, ascending; empty if the seconds do not depend on it. ``entries``: the
    seconds at each of them, or a `Table` of the remaining numbers. ``name`` and ``unit`` (what the first number counts)
    are for messages.

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
    """Seconds of the parts of a round."""

    draft_step: Table  # s_K, by K
    target_pass: Table  # t, by n
    verify: Mapping[str, Table]  # v_A for each algorithm A, by K and L
    round: Table  # r, by K
    catch_up: float  # c
    target_step: float | None = None  # one token by the target alone; None if it is not known


@dataclass(frozen=True)
class Cell:
    """What was measured of one algorithm at K = ``num_paths`` and L = ``depth``."""

    algorithm: str
    num_paths: int
    depth: int
    nodes: float  # mean number of distinct drafted nodes, n - 1
    block_efficiency: float  # mean number of tokens a round
    se: float | None = None  # standard error of block_efficiency; None if it is not known
    full: float | None = None  # Pr(tau = L); None if `with_full_acceptance` is to compute it
    interpolated: bool = False  # whether L lies between measured ones

    @property
    def key(self) -> tuple[str, int, int]:
        """Algorithm, K and L."""
        return self.algorithm, self.num_paths, self.depth


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of a round by stage; ``target_step`` as in `Costs`."""

    cell: Cell
    seconds: Mapping[str, float]
    target_step: float | None

    @property
    def round_seconds(self) -> float:
        """Seconds of a whole round."""
        return sum(self.seconds.values())

    @property
    def tokens_per_second(self) -> float:
        """The mean number of tokens of a round, divided by its seconds."""
        return self.cell.block_efficiency / self.round_seconds

    @property
    def se(self) -> float | None:
        """Standard error of `tokens_per_second`."""
        return None if self.cell.se is None else self.cell.se / self.round_seconds

    @property
    def speed_up(self) -> float | None:
        """Ratio to the tokens per second of the target alone; None if that is not known."""
        return None if self.target_step is None else self.tokens_per_second * self.target_step


def with_full_acceptance(cells: Iterable[Cell], *, interpolate: bool = False) -> list[Cell]:
    """Fill in Pr(tau = L), and with ``interpolate`` add a cell for every L between the measured ones.

    Pr(tau = L) = BE(L) - BE(L - 1) (theory 10.6), where BE is the monotone cubic (PCHIP) through BE(0) = 1 and the
    measured values of the same algorithm and K. That is exact if L - 1 was measured or L = 1. Otherwise it is near the
    mean increment since the last measured L, which is an upper bound. Standard errors are linear between the measured
    ones. Cells may come in any order; they are returned by algorithm and K, then by L.

    >>> cells = with_full_acceptance([Cell("bv", 1, 1, 1, 1.5), Cell("bv", 1, 2, 2, 1.75)])
    >>> [round(cell.full, 9) for cell in cells]
    [0.5, 0.25]
    """
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.algorithm, cell.num_paths), []).append(cell)
    result = []
    for group in groups.values():
        known = {cell.depth: cell for cell in sorted(group, key=lambda cell: cell.depth)}
        depths = [0, *known]
        efficiency = PchipInterpolator(depths, [1.0, *(cell.block_efficiency for cell in known.values())])
        nodes = PchipInterpolator(depths, [0.0, *(cell.nodes for cell in known.values())])
        ses = [cell.se for cell in known.values() if cell.se is not None]
        for depth in range(depths[1], depths[-1] + 1) if interpolate else known:
            if depth in known:
                cell = known[depth]
            else:
                se = float(np.interp(depth, depths, [0.0, *ses])) if len(ses) == len(known) else None
                values = (float(nodes(depth)), float(efficiency(depth)), se, None, True)
                cell = Cell(group[0].algorithm, group[0].num_paths, depth, *values)
            if cell.full is None:
                step = float(efficiency(depth) - efficiency(depth - 1))
                cell = replace(cell, full=min(max(step, 0.0), 1.0))  # sampled values need not be monotone
            result.append(cell)
    return result


def predict(costs: Costs, cells: Iterable[Cell]) -> list[Prediction]:
    """Tokens per second of every cell, in order. Raises InputError if the costs do not cover one or its algorithm."""
    predictions = []
    for cell in cells:
        if cell.algorithm not in costs.verify:
            known = ", ".join(costs.verify) or "none"
            raise errors.fail("costs verify", got=f"no {cell.algorithm}", expected=f"its seconds (there are {known})")
        assert cell.full is not None
        seconds = {
            "draft": costs.draft_step(1) + (cell.depth - 1) * costs.draft_step(cell.num_paths),
            "target": costs.target_pass(cell.nodes + 1),
            "verify": costs.verify[cell.algorithm](cell.num_paths, cell.depth),
            "cache": costs.round(cell.num_paths) + cell.full * costs.catch_up,
        }
        predictions.append(Prediction(cell, seconds, costs.target_step))
    return predictions


def by_speed(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Fastest first; of equal ones that of the smallest K, then of the smallest L."""
    return sorted(predictions, key=lambda p: (-p.tokens_per_second, p.cell.num_paths, p.cell.depth))


def within(predictions: Sequence[Prediction], share: float) -> list[Prediction]:
    """The predictions that are slower than the fastest by at most ``share``, fastest first."""
    ordered = by_speed(predictions)
    return [p for p in ordered if p.tokens_per_second >= (1 - share) * ordered[0].tokens_per_second]
