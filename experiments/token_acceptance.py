"""Token acceptance: the probability that the token rule accepts a drafted token, along given token sequences.

In one context it is ``sum_x min(p(x), q(x)) = 1 - TV(p, q)`` (Leviathan et al. 2023). Averaged over the contexts of a
text it says in one number how near a draft is to its target.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lpverify.decode.sampling import Sampling, probabilities


@torch.inference_mode()
def token_acceptance(
    target: Any, draft: Any, tokens: Tensor, sampling: Sampling | None = None, *, skip: int = 0
) -> Tensor:
    """``sum_x min(p(x), q(x))`` for the token after each position.

    Args:
        target, draft: transformers causal language models over one vocabulary.
        tokens: (batch, length) token ids, no padding.
        sampling: temperature and filters of both models; temperature 1 if not given.
        skip: leave out this many positions at the start, such as those of a prompt.

    Returns:
        Shape (batch, length - skip), float64 in [0, 1].
    """
    rows = []
    for model in (target, draft):
        logits = model(input_ids=tokens, use_cache=False).logits[:, skip:]
        rows.append(probabilities(logits.flatten(0, 1), sampling or Sampling()).view(logits.shape))
    return torch.minimum(*rows).sum(dim=-1)
