"""The token rule at one position: probability accepted, rejected and emitted for every token (theory 7).

For a target row p and a draft row q the rule emits x with probability min(p(x), q(x)) as the accepted token, and as
the corrected token with probability (1 - sum_y min(p(y), q(y))) r(x), where r = max(p - q, 0) normalised. The sum is
p(x), because the rejected mass equals the mass of max(p - q, 0). The naive rule draws the corrected token from p
instead of r and emits min(p, q) + (1 - sum min(p, q)) p, which is not p.

Leviathan et al. 2023, "Fast inference from transformers via speculative decoding", algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.core.prefix_tree import index_of
from lpverify.core.problem import ProblemLike, as_problem
from lpverify.core.results import Result
from lpverify.numerics import Array


@dataclass(frozen=True, repr=False)
class Balance(Result):
    """The token rule at one prefix; every array has shape ``(V,)``, float64 or Fraction like the pair."""

    prefix: tuple[int, ...]
    target: Array  # p
    draft: Array  # q
    accepted: Array  # min(p, q)
    residual: Array  # p - min(p, q)
    residual_law: Array | None  # residual / its sum; None where no token can be rejected
    emitted: Array  # accepted + rejected mass * residual distribution
    naive: Array  # accepted + rejected mass * p
    accepted_mass: Any
    rejected_mass: Any
    law_error: Any  # total variation of ``emitted`` to p
    naive_law_error: Any  # total variation of ``naive`` to p


def balance(problem: ProblemLike, prefix: Sequence[int] = ()) -> Balance:
    """The token rule at the position after ``prefix``.

    Args:
        problem: what `as_problem` takes: a problem, a pair, a built-in name, a file.
        prefix: token ids, fewer than the depth.

    Raises:
        InputError: the prefix is too long, or a token is outside the vocabulary.

    >>> result = balance("one-position")
    >>> [round(float(x), 10) for x in result.emitted], [round(float(x), 10) for x in result.naive]
    ([0.2, 0.5, 0.3], [0.28, 0.5, 0.22])
    >>> round(float(result.naive_law_error), 10)
    0.08
    """
    pair = as_problem(problem).pair
    if len(prefix) >= pair.depth:
        expected = f"at most {pair.depth - 1} (the depth is {pair.depth})"
        raise errors.fail("prefix", got=f"{len(prefix)} tokens", expected=expected)
    for token in prefix:
        errors.integer("prefix token", token, min=0, max=pair.vocab_size - 1)
    row = index_of(prefix, pair.vocab_size)
    target, draft = pair.target[len(prefix)][row], pair.draft[len(prefix)][row]
    accepted = np.minimum(target, draft)
    residual = target - accepted
    accepted_mass, rejected_mass, residual_mass = accepted.sum(), (draft - accepted).sum(), residual.sum()
    residual_law = residual / residual_mass if residual_mass > 0 else None
    emitted = accepted if residual_law is None else accepted + rejected_mass * residual_law
    naive = accepted + rejected_mass * target
    rows = (target, draft, accepted, residual, residual_law, emitted, naive)
    law_errors = (abs(emitted - target).sum() / 2, abs(naive - target).sum() / 2)
    return Balance(tuple(prefix), *rows, accepted_mass, rejected_mass, *law_errors)


def parse_prefix(pair: ModelPair, text: str) -> tuple[int, ...]:
    """Token ids of labels separated by blanks. Raises InputError for a label that is not a token of the pair.

    >>> parse_prefix(ModelPair.from_levels([[[0.5, 0.5]]], [[[0.5, 0.5]]], tokens="AB"), "B A")
    (1, 0)
    """
    index = {label: i for i, label in enumerate(pair.tokens)}
    shown = " ".join(pair.tokens[:20]) + (" ..." if len(pair.tokens) > 20 else "")
    for label in text.split():
        if label not in index:
            raise errors.fail("prefix", got=f"the token {label!r}", expected=f"tokens of the problem: {shown}")
    return tuple(index[label] for label in text.split())
