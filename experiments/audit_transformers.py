"""The speculative sampling of transformers under audit, as an example of somebody else's code.

    lpverify audit experiments/audit_transformers.py:as_released --draws 2000
    lpverify audit experiments/audit_transformers.py:offered_uniforms --draws 2000
    lpverify audit experiments/audit_transformers.py:ensemble --draws 2000

`as_released` calls `transformers.generation.utils._speculative_sampling` (a private function, one draft path, float32
logits) as it is: it draws with torch's global generator. `offered_uniforms` has the same code draw through the offered
rng, so that its uniforms can be set to the ends of [0, 1). `ensemble` uses its documented lossy option and must fail.

With transformers 5.24.0: `as_released` is lossless as far as the draws tell. `offered_uniforms` is not: the comparison
``r_i <= probability_ratio`` accepts a drafted token of target probability 0 when the uniform is exactly 0, which
torch.rand in float32 returns once in 2^24 draws. `ensemble` fails as it should.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from transformers.generation.utils import _speculative_sampling

Answer = tuple[list[int], int]
LARGEST_BELOW_ONE = 1 - 2**-24
"""torch.rand in float32 gives multiples of 2^-24."""


def as_released(
    paths: Any, target: Callable[[Any], Any], draft: Callable[[Any], Any], rng: Any, **options: Any
) -> Answer:
    """The first path through transformers' function, K = 1 as there."""
    path = paths[0]
    tokens, matches = _speculative_sampling(
        torch.tensor([path]),
        _logits(path, draft, len(path)),
        len(path),
        _logits(path, target, len(path) + 1),
        **options,
    )
    return tokens[0, : int(matches)].tolist(), int(tokens[0, -1])


def ensemble(paths: Any, target: Callable[[Any], Any], draft: Callable[[Any], Any], rng: Any) -> Answer:
    """Verification against 0.9 p + 0.1 q: lossy on purpose."""
    return as_released(paths, target, draft, rng, assistant_ensemble_weight=0.9)


def offered_uniforms(paths: Any, target: Callable[[Any], Any], draft: Callable[[Any], Any], rng: Any) -> Answer:
    """The same code with its two sources of randomness replaced by the offered one."""

    def rand_like(like: torch.Tensor) -> torch.Tensor:
        return torch.tensor([min(rng.uniform(), LARGEST_BELOW_ONE) for _ in range(like.numel())]).reshape(like.shape)

    def multinomial(weights: torch.Tensor, num_samples: int) -> torch.Tensor:
        return torch.tensor([[rng.categorical(weights.flatten())]])

    with mock.patch.object(torch, "rand_like", rand_like), mock.patch.object(torch, "multinomial", multinomial):
        return as_released(paths, target, draft, rng)


def _logits(path: Any, rows: Callable[[Any], Any], count: int) -> torch.Tensor:
    """log of the rows along the path, (1, count, V): softmax gives the rows back, zeros stay zeros."""
    along = np.array([rows(path[:i]) for i in range(count)], dtype=np.float64)
    return torch.tensor(along).log()[None].float()
