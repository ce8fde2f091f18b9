"""A random number of i.i.d. paths, independent of what is drafted (theory 9.1).

Whatever the number K of paths, a set A of nodes, none a prefix of another, is hit with a probability that depends on
its draft mass Q(A) alone, and is concave in it:

    C(A) = sum_k w_k (1 - (1 - Q(A))^k),                  K = k with probability w_k
    C(A) = 1 - exp(-t Q(A)),                              K a Poisson number of mean t
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.core.draft_tree import DraftTree
from lpverify.core.model_pair import ModelPair
from lpverify.drafting.base import ConcaveCoverage, Draft, Uniforms
from lpverify.drafting.iid_paths import IidPaths, draw_path, phi
from lpverify.numerics import Levels, as_float, divide, is_exact


@dataclass(frozen=True)
class RandomPaths(ConcaveCoverage):
    """K i.i.d. paths with probability ``weights[K]``; with K = 0 nothing is drafted.

    Verifiers that see the drafted tree know K, so whatever is lossless for every K is lossless here.

    >>> RandomPaths.parse("1=1/2,3=1/2").spec
    'random-paths:1=1/2,3=1/2'
    """

    kind = "random-paths"
    help = "random-paths:K=w,K=w,... K independent paths with probability w"
    provides = IidPaths.provides

    weights: tuple[tuple[int, Fraction], ...]

    def __post_init__(self) -> None:
        numbers = [number for number, _ in self.weights]
        for number, weight in self.weights:
            errors.integer(f"{self.kind}: number of paths", number, min=0)
            if not 0 < weight <= 1:
                raise errors.fail(
                    f"{self.kind}: weight of {number} paths", got=str(weight), expected="above 0, up to 1"
                )
        if sum(weight for _, weight in self.weights) != 1 or len(set(numbers)) != len(numbers):
            raise errors.fail(self.kind, got=self.spec, expected="each number of paths once, and weights of sum 1")

    @property
    def spec(self) -> str:
        return f"{self.kind}:" + ",".join(f"{number}={weight}" for number, weight in self.weights)

    @classmethod
    def parse(cls, numbers: str) -> RandomPaths:
        expected = "K=w,K=w,... with weights such as 1/4 or 0.25 that sum to 1"
        try:
            pairs = [part.split("=") for part in numbers.split(",")]
            return cls(tuple((int(number), Fraction(weight)) for number, weight in pairs))
        except errors.InputError:
            raise
        except (ValueError, ZeroDivisionError):
            raise errors.fail("draft distribution random-paths", got=errors.shown(numbers), expected=expected) from None

    def _in_arithmetic_of(self, like: Any) -> Iterator[tuple[IidPaths, Any]]:
        for number, weight in self.weights:
            if number:
                yield IidPaths(number), weight if is_exact(np.asarray(like)) else float(weight)

    def sample(self, pair: ModelPair, generator: Uniforms) -> DraftTree:
        uniform = generator.random()
        sums = accumulate(float(weight) for _, weight in self.weights)
        number = next((k for (k, _), s in zip(self.weights, sums, strict=True) if s > uniform), self.weights[-1][0])
        return DraftTree.from_pair(pair, [draw_path(pair, generator) for _ in range(number)] or [()])

    def enumerate(self, pair: ModelPair, *, ordered: bool = True) -> Iterator[Draft]:
        for number, weight in self.weights:
            if not number:
                yield Draft(((),), weight if pair.rational else float(weight))
        for paths, weight in self._in_arithmetic_of(pair.draft_paths[0]):
            for draft in paths.enumerate(pair, ordered=ordered):
                yield Draft(draft.paths, weight * draft.probability)

    def count(self, pair: ModelPair, *, ordered: bool = True) -> int:
        drafts = (paths.count(pair, ordered=ordered) for paths, _ in self._in_arithmetic_of(pair.draft_paths[0]))
        return sum(drafts, start=sum(number == 0 for number, _ in self.weights))

    def density(self, above: Any) -> Any:
        return sum((weight * paths.density(above) for paths, weight in self._in_arithmetic_of(above)), start=0 * above)

    def mean_density(self, low: Any, high: Any) -> Any:
        each = self._in_arithmetic_of(high)
        return sum((weight * paths.mean_density(low, high) for paths, weight in each), start=0 * high)

    def node_coverage(self, pair: ModelPair) -> Levels:
        each = list(self._in_arithmetic_of(pair.draft_paths[0]))
        below = [
            sum((weight * phi(level, paths.num_paths) for paths, weight in each), start=0 * level)
            for level in pair.draft_paths[1:]
        ]
        return (pair.draft_paths[0], *below)


@dataclass(frozen=True)
class PoissonPaths(ConcaveCoverage):
    """A Poisson number of i.i.d. paths of mean ``mean``: every leaf is drafted independently of all others.

    It has no bound on the size of the drafted tree, so it is not enumerated.

    >>> PoissonPaths(2.5).spec
    'poisson:2.5'
    """

    kind = "poisson"
    help = "poisson:T, a Poisson number of independent paths of mean T"
    provides = IidPaths.provides

    mean: float

    def __post_init__(self) -> None:
        errors.number("poisson: mean number of paths", self.mean, above=0, max=1000)

    @property
    def spec(self) -> str:
        return f"poisson:{self.mean:g}"

    @classmethod
    def parse(cls, numbers: str) -> PoissonPaths:
        try:
            return cls(float(numbers))
        except errors.InputError:
            raise
        except ValueError:
            raise errors.fail("draft distribution poisson", got=errors.shown(numbers), expected="a number") from None

    def sample(self, pair: ModelPair, generator: Uniforms) -> DraftTree:
        number, arrived = 0, -np.log1p(-generator.random())
        while arrived < self.mean:  # arrivals of a process of rate 1 up to time ``mean``
            number, arrived = number + 1, arrived - np.log1p(-generator.random())
        return DraftTree.from_pair(pair, [draw_path(pair, generator) for _ in range(number)] or [()])

    def enumerate(self, pair: ModelPair, *, ordered: bool = True) -> Iterator[Draft]:
        raise errors.fail("enumeration", got=self.spec, expected="a draft distribution of finitely many trees")

    def count(self, pair: ModelPair, *, ordered: bool = True) -> int:
        raise errors.fail("enumeration", got=self.spec, expected="a draft distribution of finitely many trees")

    def density(self, above: Any) -> Any:
        return self.mean * np.exp(self.mean * (as_float(above) - 1))

    def mean_density(self, low: Any, high: Any) -> Any:
        low, high = as_float(low), as_float(high)
        exponent = self.mean * (high - low)
        fraction = divide(-np.expm1(-exponent), exponent, where_zero=1.0)
        return self.mean * np.exp(self.mean * (high - 1)) * fraction

    def node_coverage(self, pair: ModelPair) -> Levels:
        below = (-np.expm1(-self.mean * level) for level in pair.floats.draft_paths[1:])
        return (np.ones(1), *below)
