"""Random numbers by address: one uniform for each (seed, request, round, role, path, depth).

A uniform is a hash of its address and depends on nothing else: not on the order of the requests, the number of paths,
or how many numbers were drawn before. No two decisions of a run share an address, and there is no state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from struct import pack
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt


class Role(IntEnum):
    """What a uniform decides."""

    DRAFT = 0  # a drafted token
    NODE = 1  # the node at which a round stops
    TOKEN = 2  # the token emitted there
    TARGET = 3  # a token that the target samples alone
    OTHER = 4  # the seed of another library's generator


@dataclass(frozen=True)
class Keys:
    """The uniforms of one request; ``request`` is any text that identifies it.

    >>> keys = Keys(seed=0, request="a")
    >>> keys.uniform(0, Role.DRAFT, path=1, depth=2) == Keys(0, "a").uniform(0, Role.DRAFT, path=1, depth=2)
    True
    >>> keys.uniform(0, Role.DRAFT, path=1, depth=2) == keys.uniform(0, Role.DRAFT, path=2, depth=1)
    False
    """

    seed: int
    request: str

    def bits(self, round_: int, role: Role, path: int = 0, depth: int = 0) -> int:
        """64 uniform bits."""
        address = pack("<5q", self.seed, round_, role, path, depth) + self.request.encode()
        return int.from_bytes(blake2b(address, digest_size=8).digest(), "little")

    def uniform(self, round_: int, role: Role, path: int = 0, depth: int = 0) -> float:
        """A multiple of 2^-53 in [0, 1)."""
        return (self.bits(round_, role, path, depth) >> 11) * 2.0**-53

    def drafting(self, round_: int, num_paths: int, depth: int) -> npt.NDArray[np.float64]:
        """The uniforms of the drafted tokens of one round, (L, K)."""
        uniforms = [self.uniform(round_, Role.DRAFT, path, i) for i in range(depth) for path in range(num_paths)]
        return np.array(uniforms).reshape(depth, num_paths)

    def verifying(self, round_: int) -> Any:
        """The generator for `lpverify.verifiers.sample` in one round: first the node's uniform, then the token's."""
        return SimpleNamespace(random=(self.uniform(round_, role) for role in (Role.NODE, Role.TOKEN)).__next__)
