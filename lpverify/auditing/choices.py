"""Enumerate or sample the random choices of a third-party verifier.

The verifier gets an object with ``bernoulli(p)``, ``categorical(weights)`` and ``uniform()``, the interface `Choices`:

* `enumerate_outcomes` runs the program once per leaf of the decision tree of its choices. A run replays the choices
  before the one that changes; the probability of its outcome is the product of its branches. The result is exact, in
  Fractions where the program offers Fractions. A uniform is a `Uniform`: nothing is known of it but its interval, and
  each comparison with a number is a choice that narrows the interval.
* ``boundary=True`` does the same with ``uniform()`` as a choice among 0, 1/2 and the largest double below 1. The
  probabilities then have no meaning, but faults that occur only at the boundary show: U = 0 may accept an impossible
  token.
* `SampledChoices` draws from a seeded stream, `EndChoices` uniforms that are often at an end of [0, 1).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from numbers import Rational
from typing import Any, Protocol, TypeVar

from lpverify import errors

Outcome = TypeVar("Outcome", bound=Hashable)

MAX_CHOICES = 2_000
"""Maximum number of choices in one run: a rejection loop has no last one."""

MAX_WEIGHTS = 100_000
"""Maximum number of weights of one choice: an iterator may have no end."""

BOUNDARY = (0.0, 0.5, 1 - 2**-53)
UNREPEATABLE = "it does not repeat itself: it has a state or randomness of its own"
UNIFORMS = "it draws uniforms and does more than compare them with numbers"


class Choices(Protocol):
    """The source of randomness that a program is offered."""

    def bernoulli(self, p: Any) -> bool:
        """True with probability ``p``, like ``uniform() < p``: p outside [0, 1] counts as 0 or 1."""

    def categorical(self, weights: Any) -> int:
        """Index i with probability weights[i] / sum(weights)."""

    def uniform(self) -> float:
        """A number in [0, 1)."""


class NotEnumerable(BaseException):
    """The run cannot be part of a decision tree. A BaseException, so that the program does not catch it."""


@dataclass
class _Choice:
    """A choice of a run, with the branch it took."""

    request: tuple[Any, ...]  # what the program asked for: a replay must ask for the same
    branches: list[tuple[Any, Any]]  # (result, probability > 0)
    branch: int = 0
    mass: Any = None  # probability of the run up to and including this branch

    def take(self, branch: int, before: list[_Choice]) -> None:
        self.branch = branch
        self.mass = (before[-1].mass if before else Fraction(1)) * self.branches[branch][1]


class Uniform:
    """``scale * u + shift`` of a uniform u in [0, 1) that is not drawn: what is known of u is an interval.

    A comparison with a number is a choice, which halves the interval at that number; the chance of u < t is the part
    of the interval that is below t. So the distribution of what the program does is exact, also where it compares one
    uniform several times. Sums and products with numbers are again of this kind. Whatever else a program does with a
    number cannot be enumerated.
    """

    def __init__(self, script: _Script, number: int, interval: list[Any], scale: Any = 1, shift: Any = 0) -> None:
        self._script, self._number, self._interval, self._scale, self._shift = script, number, interval, scale, shift

    def _below(self, other: Any) -> Any:
        """Is it less than a number, or than another one of the same u? Equality has probability 0."""
        if isinstance(other, Uniform) and other._interval is self._interval:
            scale, shift = self._scale - other._scale, self._shift - other._shift
            return Uniform(self._script, self._number, self._interval, scale, shift)._below(0)
        bound = self._plain(other)
        if bound is NotImplemented:
            return NotImplemented
        if self._scale == 0 or bound != bound:
            return self._shift < bound
        cut = (bound - self._shift) / self._scale
        low, high = self._interval
        if low < cut < high:
            chance = (cut - low) / (high - low)
            request = ("uniform", self._number, cut)
            less = self._script.choose(request, lambda: [(True, chance), (False, 1 - chance)])
            self._interval[:] = (low, cut) if less else (cut, high)
        else:
            less = high <= cut
        return less if self._scale > 0 else not less

    def _plain(self, other: Any) -> Any:
        """The number that ``other`` is; NotImplemented for arrays, which numpy takes apart."""
        if isinstance(other, Uniform):
            raise self._script.refuse(UNIFORMS)
        if getattr(other, "ndim", 0):
            return NotImplemented
        try:
            return plain(other)
        except (TypeError, ValueError):
            return NotImplemented

    def _scaled(self, factor: Any, shift: Any) -> Any:
        if factor is NotImplemented or shift is NotImplemented:
            return NotImplemented
        scale, shift = self._scale * factor, self._shift * factor + shift
        return Uniform(self._script, self._number, self._interval, scale, shift)

    def __lt__(self, other: Any) -> Any:
        return self._below(other)

    def __ge__(self, other: Any) -> Any:
        less = self._below(other)
        return less if less is NotImplemented or other != other else not less  # nothing compares with NaN

    __le__, __gt__ = __lt__, __ge__

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __mul__(self, other: Any) -> Any:
        return self._scaled(self._plain(other), 0)

    def __truediv__(self, other: Any) -> Any:
        divisor = self._plain(other)
        return divisor if divisor is NotImplemented else self._scaled(1 / divisor, 0)

    def __add__(self, other: Any) -> Any:
        return self._scaled(1, self._plain(other))

    def __sub__(self, other: Any) -> Any:
        minus = self._plain(other)
        return minus if minus is NotImplemented else self._scaled(1, -minus)

    def __rsub__(self, other: Any) -> Any:
        return self._scaled(-1, self._plain(other))

    def __neg__(self) -> Any:
        return self._scaled(-1, 0)

    __rmul__, __radd__ = __mul__, __add__

    def __float__(self) -> float:
        raise self._script.refuse(UNIFORMS)

    __int__ = __index__ = __round__ = __abs__ = __float__


class _Script:
    """Replays recorded choices, then takes the first branch of every new one."""

    def __init__(self, choices: list[_Choice], boundary: bool) -> None:
        self._choices, self._boundary = choices, boundary
        self.position = 0
        self.uniforms = 0  # how many were asked for
        self.refusal: NotEnumerable | None = None  # kept, as a program may catch it

    def bernoulli(self, p: Any) -> bool:
        chance = min(max(number("bernoulli", p), 0), 1)
        return bool(self.choose(("bernoulli", chance), lambda: [(True, chance), (False, 1 - chance)]))

    def categorical(self, weights: Any) -> int:
        values = numbers(weights)
        total = sum(values)
        return int(self.choose(("categorical", values), lambda: [(i, v / total) for i, v in enumerate(values)]))

    def uniform(self) -> Any:
        self.uniforms += 1
        if not self._boundary:
            return Uniform(self, self.uniforms, [Fraction(0), Fraction(1)])
        return float(self.choose(("uniform",), lambda: [(u, 1.0) for u in BOUNDARY]))

    def choose(self, request: tuple[Any, ...], branches: Callable[[], list[tuple[Any, Any]]]) -> Any:
        if self.position == len(self._choices):
            if self.position == MAX_CHOICES:
                raise self.refuse(f"it makes more than {MAX_CHOICES} choices in one run")
            choice = _Choice(request, [(result, chance) for result, chance in branches() if chance > 0])
            choice.take(0, self._choices)
            self._choices.append(choice)
        choice = self._choices[self.position]
        if choice.request != request:
            raise self.refuse(UNREPEATABLE)
        self.position += 1
        return choice.branches[choice.branch][0]

    def refuse(self, reason: str) -> NotEnumerable:
        self.refusal = NotEnumerable(reason)
        return self.refusal


def enumerate_outcomes(
    run: Callable[[Choices], Outcome], *, max_runs: int, boundary: bool = False
) -> tuple[dict[Outcome, Any], int]:
    """Probability of every outcome of ``run``, and the number of runs.

    Args:
        run: a deterministic function of the `Choices` that it is offered.
        max_runs: maximum number of leaves of the decision tree.
        boundary: uniforms are choices too; the probabilities then have no meaning.

    Raises:
        NotEnumerable: the program does more with a uniform than to compare it with numbers, does not repeat itself, or
            has more than ``max_runs`` leaves.

    >>> two_coins = lambda choices: choices.bernoulli(Fraction(1, 3)) and choices.bernoulli(Fraction(1, 2))
    >>> enumerate_outcomes(two_coins, max_runs=10)
    ({True: Fraction(1, 6), False: Fraction(5, 6)}, 3)
    >>> enumerate_outcomes(lambda choices: choices.uniform() * 3 < 2, max_runs=10)
    ({True: Fraction(2, 3), False: Fraction(1, 3)}, 2)
    """
    masses: dict[Outcome, Any] = defaultdict(Fraction)
    choices: list[_Choice] = []
    for runs in range(1, max_runs + 1):
        script = _Script(choices, boundary)
        try:
            outcome = run(script)
        except Exception:
            if script.refusal is None:
                raise
        if script.refusal is not None:
            raise script.refusal
        if script.position != len(choices):
            raise NotEnumerable(UNREPEATABLE)
        masses[outcome] += choices[-1].mass if choices else Fraction(1)
        while choices and choices[-1].branch == len(choices[-1].branches) - 1:
            choices.pop()
        if not choices:
            return dict(masses), runs
        choices[-1].take(choices[-1].branch + 1, choices[:-1])
    raise NotEnumerable(f"it has more than {max_runs} runs")


class SampledChoices:
    """Draws from the stream of ``seed``. Comparisons are strict, so nothing of probability 0 is drawn."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)
        self.uniform = self._random.random

    def bernoulli(self, p: Any) -> bool:
        chance = number("bernoulli", p)
        return bool(self.uniform() < chance)

    def categorical(self, weights: Any) -> int:
        return self._drawn(weights, self.uniform())

    def _drawn(self, weights: Any, uniform: float) -> int:
        values = numbers(weights)
        left = uniform * float(sum(values))
        last = -1
        for index, value in enumerate(values):
            if value > 0:
                if left < value:
                    return index
                left -= value
                last = index
        return last


class EndChoices(SampledChoices):
    """`SampledChoices` whose uniforms are 0 in one of three draws, and the largest double below 1 in another."""

    def __init__(self, seed: int | str) -> None:
        super().__init__(seed)
        draw, choice = self._random.random, self._random.choice
        self.uniform = lambda: choice((0.0, draw(), BOUNDARY[-1]))

    def bernoulli(self, p: Any) -> bool:
        return bool(self._random.random() < number("bernoulli", p))

    def categorical(self, weights: Any) -> int:
        return self._drawn(weights, self._random.random())


def number(what: str, value: Any) -> Any:
    """``value`` as a Fraction if it is rational, else as a float. Raises InputError for NaN."""
    result = plain(value)
    if result != result:
        raise errors.fail(what, got="NaN", expected="a probability")
    return result


def plain(value: Any) -> Any:
    """A number, also of numpy or torch, as a Fraction if it is rational, else as a float."""
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Rational):
        return Fraction(value)
    return float(value.item() if hasattr(value, "item") else value)


def numbers(weights: Any) -> tuple[Any, ...]:
    """``weights`` as a tuple of `number`. Raises InputError unless they are finite, >= 0 and not all 0."""
    values = tuple(weights.tolist() if hasattr(weights, "tolist") else islice(weights, MAX_WEIGHTS + 1))
    if len(values) > MAX_WEIGHTS:
        raise errors.fail("categorical", got=f"more than {MAX_WEIGHTS} weights", expected="one for each token")
    if set(map(type, values)) != {float}:
        values = tuple(number("categorical", value) for value in values)
    if not values or not 0 < sum(values) < float("inf") or min(values) < 0:
        shown = "[" + ", ".join(str(value) for value in values[:8]) + (", ...]" if len(values) > 8 else "]")
        raise errors.fail("categorical", got=shown, expected="weights >= 0 with a positive sum")
    return values
