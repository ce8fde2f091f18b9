"""From logits to probabilities: temperature, top-k and top-p, one function for target and draft.

The engine draws drafted tokens from the rows that `probabilities` returns and gives the same rows to the verifier, so
the declared draft distribution is the sampled one, whatever the filters do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from lpverify import errors


@dataclass(frozen=True)
class Sampling:
    """How tokens are sampled from logits: the three steps in this order. Raises InputError for impossible values."""

    temperature: float = 1.0  # >= 0; the limit 0 puts all mass on the largest logit, on ties on the smallest token id
    top_k: int | None = None  # the k largest logits and all that tie with the k-th
    # The smallest set of most probable tokens with mass >= p, on ties those of smaller id; a mass less than p by
    # `top_p_slack` at most is p but for rounding.
    top_p: float | None = None

    @property
    def top_p_slack(self) -> float:
        """1e-6, which the float32 logits of probabilities that sum to p may be off, or less for p near 1."""
        return min(1e-6, (1 - (self.top_p or 0)) / 2)

    def __post_init__(self) -> None:
        errors.number("temperature", self.temperature, min=0)
        if self.top_k is not None:
            errors.integer("top-k", self.top_k, min=1)
        if self.top_p is not None:
            errors.number("top-p", self.top_p, above=0, max=1)


class Process(Protocol):
    """Changes the logits of either model before `probabilities`, each row by its own prefix: bans, penalties, filters.

    The result is lossless for the target's processed distribution if each row depends on nothing but its prefix and its
    logits.
    """

    def __call__(self, tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """New logits (R, V) from ``logits`` (R, n) after all the ``tokens`` (R, T) of a text, prompt included."""


def probabilities(logits: torch.Tensor, sampling: Sampling, vocab_size: int | None = None) -> torch.Tensor:
    """Rows of probabilities from rows of logits.

    Args:
        logits: (R, n), of any floating type.
        sampling: temperature and filters.
        vocab_size: V >= n, by default n; tokens that the model lacks have probability 0.

    Returns:
        (R, V) in float64. A row with a NaN or +inf logit, or with all logits -inf, is NaN as a whole.

    >>> probabilities(torch.tensor([[3.0, 3.0, 1.0]]), Sampling(temperature=0)).tolist()
    [[1.0, 0.0, 0.0]]
    >>> probabilities(torch.tensor([[3.0, 3.0]]), Sampling(temperature=1e-6), vocab_size=3).tolist()
    [[0.5, 0.5, 0.0]]
    >>> probabilities(torch.zeros(1, 4), Sampling(top_p=0.5)).tolist()
    [[0.5, 0.5, 0.0, 0.0]]
    """
    missing = 0 if vocab_size is None else vocab_size - logits.shape[-1]
    if missing:
        logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
    logits = logits.to(torch.float64)
    largest = logits.amax(dim=-1, keepdim=True)  # NaN if there is a NaN in the row
    if sampling.temperature == 0:
        index = torch.arange(logits.shape[-1], device=logits.device)
        first = torch.where(logits == largest, index, logits.shape[-1]).amin(dim=-1, keepdim=True)
        return (index == first).to(torch.float64).masked_fill_(~torch.isfinite(largest), torch.nan)
    # subtract the largest first: dividing by 1e-6 would overflow; the quotient may reach -inf, which is right
    scaled = (logits - largest) / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        kth = torch.topk(scaled, sampling.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < kth, -torch.inf)
    rows = torch.softmax(scaled, dim=-1)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = torch.sort(rows, dim=-1, descending=True, stable=True)
        before = torch.cumsum(ordered, dim=-1) - ordered
        selected = torch.zeros_like(rows, dtype=torch.bool).scatter_(
            -1, order, before < sampling.top_p - sampling.top_p_slack
        )
        rows = torch.where(selected, rows, 0.0)
        rows = rows / rows.sum(dim=-1, keepdim=True)
    return rows


def check_defined(rows: torch.Tensor, model: str) -> None:
    """Raise InputError if one of the ``rows`` (R, V) is NaN; ``model``: role and name. One synchronisation."""
    if bool(torch.isnan(rows[:, 0]).any()):
        raise errors.fail(model, got="logits that are NaN or infinite", expected="numbers")
