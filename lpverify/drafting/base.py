"""What a draft distribution is: it samples drafted trees, enumerates them, and knows its coverage (theory 9).

Another way of drafting is another file beside `lpverify.drafting.iid_paths` and one line in the table of
`lpverify.drafting`. Draft distributions depend on the draft rows only, never on the target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from lpverify import errors
from lpverify.core import prefix_tree
from lpverify.core.draft_tree import DraftTree
from lpverify.core.model_pair import ModelPair
from lpverify.numerics import Array, Levels, one, sums_after, total

Prefix = tuple[int, ...]
Ints = npt.NDArray[np.int64]


class Uniforms(Protocol):
    """A source of uniforms, such as ``numpy.random.Generator``."""

    def random(self) -> float:
        """The next uniform in [0, 1)."""


@dataclass(frozen=True)
class Draft:
    """Drafted paths and the probability of drawing them, a float or Fraction."""

    paths: tuple[Prefix, ...]
    probability: Any


class DraftDistribution(ABC):
    """The distribution of the drafted tree, given the draft tables of a `ModelPair`.

    ``kind`` is the word that specs begin with and ``help`` one line for help texts. ``provides`` says what a verifier
    may rely on, in the words of ``Verifier.needs``. ``full_depth``: every path that is drafted has the depth of the
    pair, so the coverage of sets of leaves says everything.
    """

    kind: ClassVar[str]
    help: ClassVar[str]
    provides: ClassVar[frozenset[str]] = frozenset({"any tree"})
    full_depth: ClassVar[bool] = True

    @property
    @abstractmethod
    def spec(self) -> str:
        """A short name, such as ``iid:4``."""

    @classmethod
    @abstractmethod
    def parse(cls, numbers: str) -> DraftDistribution:
        """The distribution for what follows ``kind:`` in a spec. Raises InputError."""

    def check(self, pair: ModelPair) -> None:  # noqa: B027 (most fit every pair)
        """Raise InputError if trees of this distribution cannot be drafted from ``pair``."""

    @abstractmethod
    def sample(self, pair: ModelPair, generator: Uniforms) -> DraftTree:
        """Draw one drafted tree, with the rows of ``pair``."""

    @abstractmethod
    def enumerate(self, pair: ModelPair, *, ordered: bool = True) -> Iterator[Draft]:
        """All drafts of positive probability, which sum to 1; ``ordered``: drafts differ by the order of paths too."""

    @abstractmethod
    def count(self, pair: ModelPair, *, ordered: bool = True) -> int:
        """How many drafts `enumerate` lists, without listing them; at least, where that is very many."""

    @abstractmethod
    def first_drafted(self, pair: ModelPair, order: Ints) -> Array:
        """For leaves in a given order, Pr(leaf k is drafted and none of the leaves before it is): C(S_k) - C(S_(k-1)).

        S_k are the first k leaves of ``order``. It is the distribution of the drafted leaf that comes first in the
        order, so it selects a path, and it is the greedy vertex of the base polytope of C (theory 9.1).

        Args:
            pair: Target and draft tables.
            order: Different leaves, as indices in the last level, (n,).
        """

    def expected_best(self, pair: ModelPair, values: Levels) -> Any:
        """E[the largest of ``values`` over the drafted nodes], for values that never fall along a path.

        It is the Lovasz extension of C, sum_k (v_(k) - v_(k+1)) C(S_k), S_k the k leaves of largest value (theory 9.1).

        Args:
            pair: Target and draft tables.
            values: One (V**i,) array per level i = 0..L, 0 at the root.
        """
        order = np.argsort(-values[-1], kind="stable")
        return (values[-1][order] * self.first_drafted(pair, order)).sum()

    @abstractmethod
    def node_coverage(self, pair: ModelPair) -> Levels:
        """C({c}) = Pr(node c is drafted), one (V**i,) array per level i = 0..L."""

    def coverage(self, pair: ModelPair, nodes: Sequence[Prefix]) -> Any:
        """C(A) = Pr(the drafted tree contains one of ``nodes``), none of which may be a prefix of another."""
        leaves = [np.zeros(0, dtype=np.int64)]
        for node in nodes:
            below = prefix_tree.level_size(pair.vocab_size, pair.depth - len(node))
            leaves.append(prefix_tree.index_of(node, pair.vocab_size) * below + np.arange(below))
        return self.first_drafted(pair, np.concatenate(leaves)).sum()

    def expected_nodes(self, pair: ModelPair) -> Any:
        """Expected number of distinct nodes of the drafted tree, the root not counted: what the target has to score."""
        return total(self.node_coverage(pair)) - 1


class ConcaveCoverage(DraftDistribution):
    """Draft distributions whose coverage is ``C(A) = phi(Q(A))``, phi concave with phi(0) = 0 (theory 9.1).

    They draw some number of i.i.d. paths. For them the rank-quantile program of theory 2.4 holds as it is.
    """

    @abstractmethod
    def density(self, above: Any) -> Any:
        """phi'(1 - above): the density of the smallest rank where a mass ``above`` of ranks is larger."""

    @abstractmethod
    def mean_density(self, low: Any, high: Any) -> Any:
        """Mean of phi' on pieces of [0, 1] with lengths ``low`` above their right and ``high`` above their left ends.

        Accurate however short a piece is, and defined for one of length 0.
        """

    def first_drafted(self, pair: ModelPair, order: Ints) -> Array:
        mass = pair.draft_paths[-1][order]
        # the mass outside of S_k, added from the far end; what is not in the order counts too
        above = sums_after(mass) + (one(mass) - mass.sum() if len(order) < len(pair.draft_paths[-1]) else 0 * one(mass))
        first: Array = mass * self.mean_density(above, above + mass)
        return first


def draw(weights: Array, generator: Uniforms) -> int:
    """An index with probability proportional to ``weights`` (n,), from one uniform; never one of weight 0."""
    cumulative = np.cumsum(weights)
    beyond = np.flatnonzero((weights > 0) & (cumulative > generator.random() * cumulative[-1]))
    return int(beyond[0])


def parse_integers(spec: str, numbers: str, *, count: int | None = None, min: int = 1) -> tuple[int, ...]:
    """Integers >= ``min`` separated by commas, exactly ``count`` of them unless that is None. Raises InputError."""
    parts = numbers.split(",")
    if not all(part.strip().isdecimal() and part.strip().isascii() and len(part) < 10 for part in parts) or (
        count is not None and len(parts) != count
    ):
        expected = "integers separated by commas" if count is None else f"{count} integer{'s' * (count > 1)}"
        raise errors.fail(f"draft distribution {spec}", got=errors.shown(numbers), expected=expected)
    return tuple(errors.integer(f"draft distribution {spec}", int(part), min=min) for part in parts)
