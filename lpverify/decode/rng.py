"""Random numbers by address: one uniform per (seed, request, round, role, path, depth).

A uniform is a hash of its address, so it depends on nothing else: not on the order of requests, on the number of paths,
or on how many numbers were drawn before. No two places of one run share an address, and no state is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from struct import pack


class Role(IntEnum):
    """What a uniform decides."""

    DRAFT = 0  # a drafted token
    NODE = 1  # the node at which a round stops
    TOKEN = 2  # the token emitted there
    TARGET = 3  # a token of the target alone
    OTHER = 4  # the seed of a generator that is not ours


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

    def verifying(self, round_: int) -> RoundUniforms:
        """The two uniforms of `lpverify.verifiers.sample` in one round."""
        return RoundUniforms(self, round_)


class RoundUniforms:
    """A source for `lpverify.verifiers.sample`: first the node's uniform, then the token's."""

    def __init__(self, keys: Keys, round_: int) -> None:
        self._rest = iter([keys.uniform(round_, Role.NODE), keys.uniform(round_, Role.TOKEN)])

    def random(self) -> float:
        return next(self._rest)
