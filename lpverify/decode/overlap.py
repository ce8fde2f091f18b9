"""Token acceptance: how much of the draft's next-token law the target's covers, along given token sequences.

At one context the token rule accepts a drafted token with probability ``sum_x min(p(x), q(x)) = 1 - TV(p, q)``
(Leviathan et al. 2023). Averaged over the contexts of a text, it is the one number that says how near a draft is.
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
        sampling: temperature and filters of both models; temperature 1 where not given.
        skip: leave out this many positions at the start, such as those of a prompt.

    Returns:
        Shape (batch, length - skip), float64 in [0, 1].
    """
    laws = []
    for model in (target, draft):
        logits = model(input_ids=tokens, use_cache=False).logits[:, skip:]
        laws.append(probabilities(logits.flatten(0, 1), sampling or Sampling()).view(logits.shape))
    return torch.minimum(*laws).sum(dim=-1)
