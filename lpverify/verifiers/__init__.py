"""Verification algorithms: deterministic maps from a drafted tree to the distribution of (accepted prefix, next token).

`VERIFIERS` is the one table of names; `verifier` builds from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lpverify import errors
from lpverify.verifiers import (
    block,
    ebv,
    gbv,
    nss,
    optimal_transport,
    pbv,
    policy,
    specinfer,
    spectr,
    tgbv,
    token_rule,
    traversal,
)
from lpverify.verifiers.base import StopDistribution, Verifier, expected_accepted
from lpverify.verifiers.sample import sample

VERIFIERS: Mapping[str, Callable[..., Verifier]] = {
    "token": token_rule.verifier,
    "bv": block.verifier,
    "nss": nss.verifier,
    "specinfer": specinfer.verifier,
    "spectr": spectr.verifier,
    "ot": optimal_transport.verifier,
    "traversal": traversal.verifier,
    "gbv": gbv.verifier,
    "tgbv": tgbv.verifier,
    "pbv": pbv.verifier,
    "ebv": ebv.verifier,
    "policy": policy.verifier,
}
"""Name -> constructor. Constructors take keyword options; only that of ``policy`` needs an argument."""


def verifier(name: str, /, *arguments: Any, **options: Any) -> Verifier:
    """The verifier called ``name``. Raises InputError for an unknown name.

    >>> verifier("bv").name
    'bv'
    """
    return VERIFIERS[errors.choice("algorithm", name, tuple(VERIFIERS))](*arguments, **options)


def names(*, closed_form: bool | None = None, any_vocabulary: bool | None = None) -> tuple[str, ...]:
    """Names of the verifiers with the given capabilities (None: either), in the order of tables.

    The LP's policy, which belongs to one solved problem, is not among them.

    >>> names(closed_form=True)
    ('token', 'bv', 'gbv', 'tgbv', 'pbv', 'ebv')
    """
    every = {name: build() for name, build in VERIFIERS.items() if name != "policy"}
    return tuple(
        name
        for name, one in every.items()
        if closed_form in (None, one.closed_form is not None) and any_vocabulary in (None, one.any_vocabulary)
    )


__all__ = ["VERIFIERS", "StopDistribution", "Verifier", "expected_accepted", "names", "sample", "verifier"]
