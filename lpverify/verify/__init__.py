"""Verification algorithms: deterministic maps from a drafted tree to the law of (accepted prefix, next token).

`VERIFIERS` is the one table of names; `verifier` builds from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lpverify import _check
from lpverify.verify import (
    block,
    entropic_multipath,
    greedy_multipath,
    nss,
    optimal_transport,
    policy,
    proportional_multipath,
    specinfer,
    spectr,
    tempered_multipath,
    tokenwise,
    traversal,
)
from lpverify.verify.base import StopLaw, Verifier, expected_accepted
from lpverify.verify.draw import draw

VERIFIERS: Mapping[str, Callable[..., Verifier]] = {
    "token": tokenwise.verifier,
    "bv": block.verifier,
    "nss": nss.verifier,
    "specinfer": specinfer.verifier,
    "spectr": spectr.verifier,
    "ot": optimal_transport.verifier,
    "traversal": traversal.verifier,
    "gbv": greedy_multipath.verifier,
    "tgbv": tempered_multipath.verifier,
    "pbv": proportional_multipath.verifier,
    "ebv": entropic_multipath.verifier,
    "policy": policy.verifier,
}
"""Name -> constructor. Constructors take keyword options; only that of ``policy`` needs an argument."""


def verifier(name: str, /, *arguments: Any, **options: Any) -> Verifier:
    """The verifier called ``name``. Raises InputError for an unknown name.

    >>> verifier("bv").name
    'bv'
    """
    return VERIFIERS[_check.choice("algorithm", name, tuple(VERIFIERS))](*arguments, **options)


__all__ = ["VERIFIERS", "StopLaw", "Verifier", "draw", "expected_accepted", "verifier"]
