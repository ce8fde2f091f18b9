"""The tensor contract of FlashInfer's chain speculative sampling.

Shapes, for B requests with L drafted tokens each and V tokens:

    draft_probs         (B, L, V)      the draft's rows
    draft_token_ids     (B, L)         drafted tokens
    uniform_samples     (B, L+1)       uniforms; later versions draw their own
    target_probs        (B, L+1, V)    the target's rows

    output_token_ids                   (B, L+1)    returned: the accepted tokens, one more, and -1 after them
    output_accepted_token_num          (B,)        returned: how many would be accepted one by one; it is not read
    output_emitted_draft_token_num     (B,)        returned: how many were accepted
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lpverify.auditing.adapter import returned
from lpverify.auditing.choices import Choices
from lpverify.integrations.contract import NO_TOKEN, Answer, Arrays, Contract, Request


class Chain(Contract):
    """One path of the same length for every request."""

    name, max_paths = "flashinfer-chain", 1
    help = "FlashInfer's chain speculative sampling (chain_speculative_sampling)"
    source = "flashinfer-ai/flashinfer, sampling.py"
    read_only = ("draft_probs", "draft_token_ids", "target_probs")
    outputs = ("output_token_ids", "output_accepted_token_num", "output_emitted_draft_token_num")

    def tensors(self, requests: Sequence[Request], arrays: Arrays, rng: Choices) -> Mapping[str, Callable[[], Any]]:
        count, length = len(requests), len(requests[0].path) if requests else 0
        return {
            "draft_probs": lambda: arrays.rows([request.draft for request in requests]),
            "draft_token_ids": lambda: arrays.integers([request.path for request in requests], "int32"),
            "uniform_samples": lambda: arrays.uniforms(self.uniforms(rng, (count, length + 1))),
            "target_probs": lambda: arrays.rows([request.target for request in requests]),
            "deterministic": lambda: True,
        }

    def answers(self, outputs: Mapping[str, Any], requests: Sequence[Request]) -> list[Answer]:
        answers = [
            row_answer(row, request.path)
            for row, request in list(zip(outputs["output_token_ids"].tolist(), requests, strict=True))[1:]
        ]
        if "output_emitted_draft_token_num" in outputs:
            numbers = outputs["output_emitted_draft_token_num"].tolist()[1:]
            for number, (accepted, _) in zip(numbers, answers, strict=True):
                if number != len(accepted):
                    raise returned("output_emitted_draft_token_num is", number, f"{len(accepted)} accepted tokens")
        return answers


def row_answer(row: list[int], path: tuple[int, ...]) -> Answer:
    """Accepted tokens and next token of a row of output tokens that is filled up with -1.

    Raises Fault where the tokens before the last are no prefix of the drafted ``path``.
    """
    ends = row.index(NO_TOKEN) if NO_TOKEN in row else len(row)
    *accepted, token = row[:ends] or [NO_TOKEN]
    if any(entry != NO_TOKEN for entry in row[ends:]) or tuple(accepted) != path[: len(accepted)] or not ends:
        raise returned("output_token_ids is", row, f"a prefix of {list(path)}, a token, and -1 after them")
    return tuple(accepted), token
