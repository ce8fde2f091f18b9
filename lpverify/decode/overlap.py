"""Token acceptance: how much of the draft's next-token law the target's covers, along given token sequences.

At one context the token rule accepts a drafted token with probability ``sum_x min(p(x), q(x)) = 1 - TV(p, q)``
(Leviathan et al. 2023). Averaged over the contexts of a text, it is the one number that says how near a draft is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.inference_mode()
def token_acceptance(
    target: Any, draft: Any, tokens: Tensor, *, temperature: float = 1.0, skip: int = 0, mask: Tensor | None = None
) -> Tensor:
    """``sum_x min(p, q)`` at every position, in float32.

    Args:
        target, draft: causal language models over one vocabulary.
        tokens: (batch, length) token ids.
        temperature: divides both models' logits; > 0.
        skip: leave out the first positions, such as a prompt's.
        mask: (batch, length), 1 where there is a token; padding stands on the right.

    Returns:
        Shape (batch, length - skip); at a padded position the number means nothing.
    """
    rows = []
    for model in (target, draft):
        logits = model(input_ids=tokens, attention_mask=mask).logits[:, skip:]
        rows.append(torch.softmax(logits.float() / temperature, dim=-1))
    return torch.minimum(*rows).sum(dim=-1)
