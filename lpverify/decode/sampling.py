"""From logits to the law that is sampled: temperature, top-k, top-p; one function for target and draft.

The rows it returns are the ones that drafts are drawn from and the ones that verifiers get, so the declared law is the
sampled law whatever the filters do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lpverify import errors


@dataclass(frozen=True)
class Sampling:
    """``temperature`` >= 0; ``top_k`` None or >= 1; ``top_p`` None or in (0, 1]. Raises InputError otherwise.

    Applied in this order. Temperature 0 is the limit: all mass on the largest logit, the smallest token id on ties.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise errors.fail("temperature", got=self.temperature, expected="a finite number >= 0")
        if self.top_k is not None:
            errors.integer("top-k", self.top_k, least=1)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise errors.fail("top-p", got=self.top_p, expected="a number in (0, 1]")


def probabilities(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Rows of logits (R, V) of any floating type to rows of probabilities (R, V) in float64.

    Top-k keeps every token tied with the k-th largest logit. Top-p keeps the smallest set of most probable tokens that
    has mass >= p, ties to the smaller id. A row with a NaN or +inf logit, or all logits -inf, becomes all NaN.

    >>> probabilities(torch.tensor([[3.0, 3.0, 1.0]]), Sampling(temperature=0)).tolist()
    [[1.0, 0.0, 0.0]]
    >>> probabilities(torch.tensor([[3.0, 3.0, 1.0]]), Sampling(temperature=1e-6)).tolist()
    [[0.5, 0.5, 0.0]]
    """
    logits = logits.to(torch.float64)
    largest = logits.amax(dim=-1, keepdim=True)
    undefined = ~torch.isfinite(largest)  # amax passes NaN on
    if sampling.temperature == 0:
        index = torch.arange(logits.shape[-1], device=logits.device)
        first = torch.where(logits == largest, index, logits.shape[-1]).amin(dim=-1, keepdim=True)
        rows = (index == first).to(torch.float64)
        return rows.masked_fill_(undefined, torch.nan)
    # the largest is subtracted first, or 1e-6 would overflow; the quotient may reach -inf, which is right
    scaled = (logits - largest) / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        kth = torch.topk(scaled, sampling.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < kth, -torch.inf)
    rows = torch.softmax(scaled, dim=-1)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = torch.sort(rows, dim=-1, descending=True, stable=True)
        before = torch.cumsum(ordered, dim=-1) - ordered
        kept = torch.zeros_like(rows, dtype=torch.bool).scatter_(-1, order, before < sampling.top_p)
        rows = torch.where(kept, rows, 0.0)
        rows = rows / rows.sum(dim=-1, keepdim=True)
    return rows
