"""What a draft distribution is: it samples drafted trees, enumerates them, and knows its coverage (theory 9).

Another way of drafting is another file beside `lpverify.drafting.iid_paths`. Draft distributions depend on the draft
rows only, never on the target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lpverify.core.draft_tree import DraftTree
from lpverify.core.model_pair import ModelPair

Prefix = tuple[int, ...]


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
    """The distribution of the drafted tree, given the draft tables of a `ModelPair`."""

    @property
    @abstractmethod
    def spec(self) -> str:
        """A short name, such as ``iid:4``."""

    @abstractmethod
    def sample(self, pair: ModelPair, generator: Uniforms) -> DraftTree:
        """Draw one drafted tree, with the rows of ``pair``."""

    @abstractmethod
    def enumerate(self, pair: ModelPair, *, ordered: bool = True) -> Iterator[Draft]:
        """All drafts of positive probability, which sum to 1; ``ordered``: drafts differ by the order of paths too."""

    @abstractmethod
    def count(self, pair: ModelPair, *, ordered: bool = True) -> int:
        """How many drafts `enumerate` lists, without listing them."""

    @abstractmethod
    def coverage(self, pair: ModelPair, nodes: Sequence[Prefix]) -> Any:
        """C(A) = Pr(the drafted tree contains one of ``nodes``), none of which may be a prefix of another."""

    @abstractmethod
    def expected_nodes(self, pair: ModelPair) -> Any:
        """Expected number of distinct nodes of the drafted tree, the root not counted: what the target has to score."""
