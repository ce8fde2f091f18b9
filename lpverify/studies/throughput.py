"""Tokens per second from costs and block efficiency: which algorithm, K and L are fastest on a machine.

One round drafts K paths of L tokens, scores the pending token and the drafted nodes, n tokens in all, in one target
pass, verifies, and leaves both caches with the committed tokens. With s_K seconds of one draft step at batch K, t(n) of
a target pass, v_A(K, L) of verification by algorithm A, r(K) of all else and c of feeding the draft the last drafted
token, which has to be done after rounds that accept all L of them:

    draft  = s_1 + (L - 1) s_K                     the first step is the same for all paths
    target = t(n)
    verify = v_A(K, L)
    cache  = r(K) + Pr(tau = L) c

    tokens per second = BE_A(K, L) / (draft + target + verify + cache)

the ratio of means of a long run. Standard errors are those of BE alone: costs are taken as known.

Pr(tau >= j) is the same for every L >= j with verifiers that decide from the root down, and with those whose budgets
do (THEORY 3 to 5); then Pr(tau = L) = BE(L) - BE(L - 1) with BE(0) = 1, see `with_full_acceptance`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scipy.interpolate import PchipInterpolator

from lpverify import errors

STAGES = ("draft", "target", "verify", "cache")


@dataclass(frozen=True)
class Table:
    """Seconds as a function of one or more numbers, linear between the given values of each.

    ``at``: values of the first number, ascending; empty where it does not matter. ``entries``: seconds at each of them,
    or a `Table` of the remaining numbers. ``name`` and ``unit`` are for messages.

    >>> Table("target_pass", (1.0, 5.0), (0.1, 0.3), "tokens")(4.0)
    0.25
    >>> Table("verify.bv", (), (0.1,))(4, 8)
    0.1
    """

    name: str
    at: tuple[float, ...]
    entries: tuple[float | Table, ...]
    unit: str = ""

    def __call__(self, x: float, *rest: float) -> float:
        """Raises InputError outside the given values: nothing is extrapolated."""
        if not self.at:
            return _value(self.entries[0], rest)
        if not self.at[0] <= x <= self.at[-1]:
            expected = f"{self.at[0]:g} to {self.at[-1]:g}, which the table covers"
            raise errors.fail(self.name, got=f"{x:g} {self.unit}".strip(), expected=expected)
        above = bisect_left(self.at, x)
        if self.at[above] == x:
            return _value(self.entries[above], rest)
        low, high = self.at[above - 1 : above + 1]
        lower, upper = (_value(entry, rest) for entry in self.entries[above - 1 : above + 1])
        return lower + (upper - lower) * (x - low) / (high - low)


def _value(entry: float | Table, rest: Sequence[float]) -> float:
    return entry(*rest) if isinstance(entry, Table) else entry


@dataclass(frozen=True)
class Costs:
    """Seconds of the parts of a round.

    ``draft_step``: s_K by K; ``target_pass``: t by n; ``verify``: v_A by K and L for each algorithm A; ``round``: r by
    K; ``catch_up``: c; ``target_step``: one token by the target alone, None where it is not known.
    """

    draft_step: Table
    target_pass: Table
    verify: Mapping[str, Table]
    round: Table
    catch_up: float
    target_step: float | None = None


@dataclass(frozen=True)
class Cell:
    """What is known of one algorithm at one (K, L).

    ``nodes``: mean number of distinct drafted nodes, n - 1; ``se``: standard error of ``block_efficiency``, None where
    it is not known; ``full``: Pr(tau = L), None where it is to be found by `with_full_acceptance`; ``interpolated``:
    not measured but between measured L.
    """

    algorithm: str
    paths: int
    depth: int
    nodes: float
    block_efficiency: float
    se: float | None = None
    full: float | None = None
    interpolated: bool = False


@dataclass(frozen=True)
class Prediction:
    """Seconds of a round by stage and tokens per second with its standard error; ``speed_up`` over the target alone."""

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
        return sum(self.seconds.values())


def with_full_acceptance(cells: Iterable[Cell], *, interpolate: bool = False) -> list[Cell]:
    """``cells`` with Pr(tau = L) filled in; with ``interpolate`` also those of every L between measured ones.

    BE as a function of L is the monotone cubic (PCHIP) through BE(0) = 1 and the measured values of the same algorithm
    and K; Pr(tau = L) is its increment from L - 1, which is exact where L - 1 was measured (or L = 1), and otherwise
    near the mean of the increments since the last measured L, an upper bound. Standard errors are linear between the
    measured ones.

    >>> cells = with_full_acceptance([Cell("bv", 1, 1, 1, 1.5), Cell("bv", 1, 2, 2, 1.75)])
    >>> [round(cell.full, 9) for cell in cells]
    [0.5, 0.25]
    """
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.algorithm, cell.paths), []).append(cell)
    result = []
    for (algorithm, paths), group in groups.items():
        group = sorted(group, key=lambda cell: cell.depth)
        depths = [0, *(cell.depth for cell in group)]
        efficiency = PchipInterpolator(depths, [1.0, *(cell.block_efficiency for cell in group)])
        nodes = PchipInterpolator(depths, [0.0, *(cell.nodes for cell in group)])
        known = {cell.depth: cell for cell in group}
        errors = [0.0, *(cell.se for cell in group if cell.se is not None)]
        error = (
            Table("standard error", tuple(map(float, depths)), tuple(errors)) if len(errors) == len(depths) else None
        )
        for depth in range(depths[1], depths[-1] + 1):
            if depth in known:
                cell = known[depth]
            elif interpolate:
                se = None if error is None else error(depth)
                cell = Cell(algorithm, paths, depth, float(nodes(depth)), float(efficiency(depth)), se, None, True)
            else:
                continue
            if cell.full is None:
                step = float(efficiency(depth) - efficiency(depth - 1))
                cell = replace(cell, full=min(max(step, 0.0), 1.0))  # sampled values need not be monotone
            result.append(cell)
    return result


def predict(costs: Costs, cells: Iterable[Cell]) -> list[Prediction]:
    """Tokens per second of every cell, in order.

    Raises InputError where the costs do not cover a cell, or lack its algorithm.
    """
    found = []
    for cell in cells:
        if cell.algorithm not in costs.verify:
            known = ", ".join(costs.verify) or "none"
            raise errors.fail("costs verify", got=f"no {cell.algorithm}", expected=f"its seconds (there are {known})")
        assert cell.full is not None
        one = costs.draft_step(1)
        seconds = {
            "draft": one + (cell.depth - 1) * costs.draft_step(cell.paths),
            "target": costs.target_pass(cell.nodes + 1),
            "verify": costs.verify[cell.algorithm](cell.paths, cell.depth),
            "cache": costs.round(cell.paths) + cell.full * costs.catch_up,
        }
        alone = costs.target_step
        speed_up = None if alone is None else cell.block_efficiency / sum(seconds.values()) * alone
        found.append(Prediction(cell, seconds, speed_up))
    return found


def fastest(predictions: Iterable[Prediction]) -> Prediction:
    """The prediction of most tokens per second; of equal ones the smallest K, then the smallest L."""
    return max(predictions, key=lambda p: (p.tokens_per_second, -p.cell.paths, -p.cell.depth))


def within(predictions: Sequence[Prediction], share: float) -> list[Prediction]:
    """All that are at most the ``share`` slower than the fastest, fastest first: how flat the optimum is."""
    least = (1 - share) * fastest(predictions).tokens_per_second
    near = [prediction for prediction in predictions if prediction.tokens_per_second >= least]
    return sorted(near, key=lambda p: (-p.tokens_per_second, p.cell.paths, p.cell.depth))
