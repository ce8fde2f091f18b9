"""The tensor contract of vLLM's rejection sampler: the drafted tokens of all requests, one after the other.

Requests may have different numbers of drafted tokens. Shapes, for B requests with T drafted tokens together, at most L
of one request, and V tokens:

    draft_token_ids         (T,)       drafted tokens
    num_draft_tokens        list       how many each request has
    cu_num_draft_tokens     (B,)       their running sum
    max_spec_len            L
    draft_probs             (T, V)     the draft's rows; None where the drafter has no probabilities (n-grams)
    target_probs            (T, V)     the target's rows
    bonus_token_ids         (B, 1)     a token drawn from the target's row after all drafted tokens
    uniform_probs           (T,)       uniforms
    recovered_token_ids     (T,)       a token drawn from the residual distribution max(p - q, 0) at each position
    inv_q                   (B, V)     for functions that draw recovered tokens themselves: 1 over exponentials, the
                                       token of the largest max(p - q, 0) inv_q being the recovered one
    q                       (B, V)     the exponentials
    is_greedy               (B,)       False

    output_token_ids        (B, L+1)   written or returned: the accepted tokens, one more, and -1 after them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import log1p
from typing import Any, ClassVar

import numpy as np

from lpverify.auditing.adapter import Tokens
from lpverify.auditing.choices import Choices
from lpverify.integrations.contract import NO_TOKEN, Answer, Arrays, Contract, Request
from lpverify.integrations.flashinfer import row_answer
from lpverify.numerics import Array

SMALLEST = 2**-53
"""Of the uniforms that exponentials are made of, which are positive."""


class Chain(Contract):
    """One path for every request, verified with draft probabilities. The request in front has one token less."""

    name, max_paths = "vllm-chain", 1
    help = "vLLM's rejection sampler with draft probabilities (rejection_random_sample_kernel)"
    source = "vllm-project/vllm, v1/sample/rejection_sampler.py"
    read_only: ClassVar[tuple[str, ...]] = (
        "draft_token_ids", "cu_num_draft_tokens", "draft_probs", "target_probs", "bonus_token_ids",
    )  # fmt: skip
    outputs = ("output_token_ids",)

    def first_paths(self, path: Tokens) -> tuple[Tokens, ...]:
        return (path[:-1],)

    def tensors(self, requests: Sequence[Request], arrays: Arrays, rng: Choices) -> Mapping[str, Callable[[], Any]]:
        numbers = [len(request.path) for request in requests]
        count, length, size = len(requests), max(numbers, default=0), len(requests[0].target[0]) if requests else 0

        def uniforms() -> Any:
            values = [[0.5] * numbers[0], *([rng.uniform() for _ in range(number)] for number in numbers[1:])]
            return arrays.uniforms([value for of_one in values for value in of_one])

        def recovered() -> Any:
            drawn = [[int(np.argmax(row)) for row in self.residuals(requests[0])]]
            drawn += [[rng.categorical(row) for row in self.residuals(request)] for request in requests[1:]]
            return arrays.integers([token for of_one in drawn for token in of_one], "int32")

        def bonus() -> Any:
            first, *others = (request.target[-1] for request in requests)
            return arrays.integers([[int(np.argmax(first))], *([rng.categorical(row)] for row in others)], "int32")

        def exponentials(power: int) -> Any:
            drawn = [
                [1.0] * size,
                *([-log1p(-max(rng.uniform(), SMALLEST)) for _ in range(size)] for _ in requests[1:]),
            ]
            return arrays.rows(np.array(drawn) ** power)

        return {
            "draft_token_ids": lambda: arrays.integers([x for request in requests for x in request.path], "int32"),
            "num_draft_tokens": lambda: numbers,
            "cu_num_draft_tokens": lambda: arrays.integers(list(accumulate(numbers)), "int32"),
            "max_spec_len": lambda: length,
            "draft_probs": lambda: self.draft(requests, arrays),
            "target_probs": lambda: arrays.rows([row for request in requests for row in request.target[:-1]]),
            "bonus_token_ids": bonus,
            "uniform_probs": uniforms,
            "recovered_token_ids": recovered,
            "inv_q": lambda: exponentials(-1),
            "q": lambda: exponentials(1),
            "is_greedy": lambda: arrays.integers([0] * count, "bool"),
            "vocab_size": lambda: size,
            "output_token_ids": lambda: arrays.integers([[NO_TOKEN] * (length + 1)] * count, "int32"),
        }

    def draft(self, requests: Sequence[Request], arrays: Arrays) -> Any:
        """``draft_probs``."""
        return arrays.rows([row for request in requests for row in request.draft])

    def residuals(self, request: Request) -> list[Array]:
        """The weights of the recovered token at each position; the target's row where rejection is impossible."""
        rows = [np.maximum(p - q, p * 0) for p, q in zip(request.target, request.draft, strict=False)]
        return [row if row.sum() > 0 else p for row, p in zip(rows, request.target, strict=False)]

    def answers(self, outputs: Mapping[str, Any], requests: Sequence[Request]) -> list[Answer]:
        rows = outputs["output_token_ids"].tolist()
        return [row_answer(row, request.path) for row, request in list(zip(rows, requests, strict=True))[1:]]


class Ngram(Chain):
    """One path for every request and no draft probabilities: the drafter is taken to be certain of its tokens."""

    name = "vllm-ngram"
    help = "vLLM's rejection sampler without draft probabilities, q = 1 at the drafted token"
    read_only = ("draft_token_ids", "cu_num_draft_tokens", "target_probs", "bonus_token_ids")

    def draft(self, requests: Sequence[Request], arrays: Arrays) -> Any:
        return None

    def residuals(self, request: Request) -> list[Array]:
        rows = []
        for row, token in zip(request.target, request.path, strict=False):
            rest = row.copy()
            rest[token] = row[token] * 0
            rows.append(rest if rest.sum() > 0 else row)
        return rows
