"""Functions with the tensor contracts of serving engines, right and wrong: our own reference implementations.

``fault`` is a small change of a right one, mostly a fault of a real implementation (S1 to S14). They take numpy arrays
of Fractions as well as tensors: everything is read as lists.
"""

from __future__ import annotations

from typing import Any

import numpy as np

TREE_FAULTS = (
    "inclusive",
    "threshold",
    "mass kept",
    "coin kept",
    "coin used for the last token",
    "rejected siblings stay",
    "not renormalised",
    "own mass only",
    "row of the child",
    "coins of the first request",
    "coins shared by requests",
    "index in the request",
    "counts the next token",
    "stale index",
    "writes to the target",
)
CHAIN_FAULTS = (
    "inclusive",
    "residual is p",
    "not renormalised",
    "one uniform",
    "uniform used for the last token",
    "residual of the next position",
    "zeros after the end",
    "counts the next token",
    "uniforms shared by requests",
)
VLLM_FAULTS = (
    "inclusive",
    "start of the first request",
    "bonus after a rejection",
    "recovered at the next position",
    "q taken as 1",
    "one uniform",
    "continues after a rejection",
)


def draw(row: list[Any], u: Any, normalise: bool = True) -> int:
    """The token in whose part of the cumulative sum ``u`` falls."""
    below, total = 0, sum(row) if normalise else 1
    for token, mass in enumerate(row):
        below = below + mass
        if mass > 0 and u * total < below:
            return token
    return max(token for token, mass in enumerate(row) if mass > 0) if normalise else len(row) - 1


def positive(p: list[Any], q: list[Any], weight: Any = 1) -> list[Any]:
    return [max(weight * a - b, 0) for a, b in zip(p, q, strict=True)]


def tree(
    predicts: Any,
    accept_index: Any,
    accept_token_num: Any,
    candidates: Any,
    retrive_index: Any,
    retrive_next_token: Any,
    retrive_next_sibling: Any,
    uniform_samples: Any,
    uniform_samples_for_final_sampling: Any,
    target_probs: Any,
    draft_probs: Any,
    threshold_single: float = 1.0,
    fault: str = "",
) -> None:
    """sglang-tree: accept the first sibling at which the sum of target probabilities exceeds the coin."""
    token, index, child_of, sibling_of, coins, last_coins, target = (
        of.tolist()
        for of in (
            candidates,
            retrive_index,
            retrive_next_token,
            retrive_next_sibling,
            uniform_samples,
            uniform_samples_for_final_sampling,
            target_probs,
        )
    )
    for b in range(len(token)):
        u = coins[{"coins of the first request": 0, "coins shared by requests": min(b, 1)}.get(fault, b)]
        node, accepted, coin, mass = 0, 0, u[0], 0
        accept_index[b, 0] = index[b][0]
        row = list(target[b][0])
        while True:
            child, mass = child_of[b][node], mass if fault == "mass kept" else 0
            while child != -1:
                p = target[b][child if fault == "row of the child" else node][token[b][child]]
                mass = p if fault == "own mass only" else mass + p
                inside = coin <= mass if fault == "inclusive" else coin < mass
                if inside or (fault == "threshold" and p >= 0.6):
                    break
                if fault != "rejected siblings stay":
                    row[token[b][child]] = row[0] * 0
                    if fault == "writes to the target":
                        target_probs[b, node, token[b][child]] = 0
                child = sibling_of[b][child]
            if child == -1:
                break
            offset = index[b][0] if fault == "index in the request" else 0
            predicts[index[b][node] - offset] = token[b][child]
            accepted += 1
            accept_index[b, accepted] = index[b][child] - offset
            node, row, coin = child, list(target[b][child]), coin if fault == "coin kept" else u[child]
        last = coin if fault == "coin used for the last token" else last_coins[b]
        predicts[index[b][node]] = draw(row, last, fault != "not renormalised")
        accept_token_num[b] = accepted + (fault == "counts the next token")
        if fault == "stale index" and accepted == 0 and accept_index.shape[1] > 1:
            accept_index[b, 1] = index[b][0]


def chain(
    draft_probs: Any, draft_token_ids: Any, uniform_samples: Any, target_probs: Any, fault: str = ""
) -> tuple[Any, Any, Any]:
    """flashinfer-chain: the token rule."""
    tokens, uniforms, target, draft = (
        of.tolist() for of in (draft_token_ids, uniform_samples, target_probs, draft_probs)
    )
    output = np.full((len(tokens), len(tokens[0]) + 1), 0 if fault == "zeros after the end" else -1)
    emitted = []
    for b, path in enumerate(tokens):
        p, q, u = target[b], draft[b], uniforms[min(b, 1) if fault == "uniforms shared by requests" else b]
        i = 0
        while i < len(path):
            coin, x = u[0 if fault == "one uniform" else i], path[i]
            if not (coin * q[i][x] <= p[i][x] if fault == "inclusive" else coin * q[i][x] < p[i][x]):
                break
            output[b, i] = x
            i += 1
        row = p[i]
        if i < len(path) and fault != "residual is p":
            row = positive(p[i + (fault == "residual of the next position")], q[i])
        last = u[i] if fault == "uniform used for the last token" else u[-1]
        output[b, i] = draw(row if sum(row) else p[i], last, fault != "not renormalised")
        emitted.append(i + (fault == "counts the next token"))
    return output, np.array(emitted), np.array(emitted)


def block(draft_probs: Any, draft_token_ids: Any, uniform_samples: Any, target_probs: Any, fault: str = "") -> Any:
    """flashinfer-chain: block verification, from the last position to the first."""
    tokens, uniforms, target, draft = (
        of.tolist() for of in (draft_token_ids, uniform_samples, target_probs, draft_probs)
    )
    output = np.full((len(tokens), len(tokens[0]) + 1), -1)
    for b, path in enumerate(tokens):
        p, q, u, length = target[b], draft[b], uniforms[b], len(path)
        weights = [p[0][0] * 0 + 1]
        for i, x in enumerate(path):
            weights.append(min(1, weights[i] * p[i][x] / q[i][x]))
        passed = 0
        for i in range(1, length + 1):
            mass = weights[i] if i == length else sum(positive(p[i], q[i], weights[i]))
            whole = 1 if i == length else mass + 1 - weights[i]
            if mass >= whole or u[i - 1] * whole < mass:  # 0/0 is 1
                passed = i
            elif fault == "stops at the first":
                break
        weight = 1 if fault == "token residual" else weights[passed]
        row = p[-1] if passed == length else positive(p[passed], q[passed], weight)
        output[b, : passed + 1] = [*path[:passed], draw(row if sum(row) else p[passed], u[-1])]
    return output


def ragged(
    output_token_ids: Any,
    cu_num_draft_tokens: Any,
    draft_token_ids: Any,
    draft_probs: Any,
    target_probs: Any,
    bonus_token_ids: Any,
    recovered_token_ids: Any,
    uniform_probs: Any,
    fault: str = "",
) -> None:
    """vllm-chain and vllm-ngram: the token rule, with recovered and bonus tokens that are drawn outside."""
    ends, tokens, target, bonus, recovered, u = (
        of.tolist()
        for of in (
            cu_num_draft_tokens,
            draft_token_ids,
            target_probs,
            bonus_token_ids,
            recovered_token_ids,
            uniform_probs,
        )
    )
    draft = None if draft_probs is None else draft_probs.tolist()
    for b, end in enumerate(ends):
        start = 0 if b == 0 else ends[b - 1]
        shift = start if fault == "start of the first request" else 0
        rejected = False
        for i in range(start, end):
            if rejected and fault != "continues after a rejection":
                break
            x = tokens[i - shift]
            q = 1 if draft is None or fault == "q taken as 1" else draft[i][x]
            coin = u[start] if fault == "one uniform" else u[i]
            rejected = not (coin * q <= target[i][x] if fault == "inclusive" else coin * q < target[i][x])
            at = min(i + 1, end - 1) if fault == "recovered at the next position" else i
            output_token_ids[b, i - start] = recovered[at] if rejected else x
        if not rejected or fault == "bonus after a rejection":
            place = output_token_ids[b].tolist().index(-1)
            output_token_ids[b, place] = bonus[b][0]


def block_without_q(
    draft_token_ids: Any, num_draft_tokens: Any, target_probs: Any, bonus_token_ids: Any, recovered_token_ids: Any,
    uniform_probs: Any, max_spec_len: int, draft_probs: Any,
) -> Any:  # fmt: skip
    """vllm-ngram, wrong (S5): the block rule with the cumulative product of p, as if q were 1."""
    assert draft_probs is None
    output, start = np.full((len(num_draft_tokens), max_spec_len + 1), -1), 0
    tokens, target, u = (of.tolist() for of in (draft_token_ids, target_probs, uniform_probs))
    for b, number in enumerate(num_draft_tokens):
        weight, passed = 1, 0
        for i in range(number):
            weight = weight * target[start + i][tokens[start + i]]
            passed = i + 1 if u[start + i] < weight else passed
        last = bonus_token_ids[b, 0] if passed == number else recovered_token_ids[start + passed]
        output[b, : passed + 1] = [*tokens[start : start + passed], last]
        start += number
    return output


def own_recovered(
    draft_token_ids: Any, num_draft_tokens: Any, target_probs: Any, draft_probs: Any, bonus_token_ids: Any,
    uniform_probs: Any, inv_q: Any, max_spec_len: int, fault: str = "",
) -> Any:  # fmt: skip
    """vllm-chain in torch, which draws the recovered tokens itself by an exponential race."""
    import torch

    output, start = torch.full((len(num_draft_tokens), max_spec_len + 1), -1), 0
    for b, number in enumerate(num_draft_tokens):
        rows = slice(start, start + number)
        tokens = draft_token_ids[rows].long()[:, None]
        p, q = target_probs[rows].gather(1, tokens)[:, 0], draft_probs[rows].gather(1, tokens)[:, 0]
        passed = int((uniform_probs[rows] * q < p).long().cumprod(0).sum())
        output[b, :passed] = tokens[:passed, 0]
        if passed == number:
            output[b, passed] = bonus_token_ids[b, 0]
        else:
            at = start + passed
            residual = target_probs[at] if fault else torch.relu(target_probs[at] - draft_probs[at])
            output[b, passed] = (residual * inv_q[b]).argmax()
        start += number
    return output


def vectorised(draft_probs: Any, draft_token_ids: Any, uniform_samples: Any, target_probs: Any, fault: str = "") -> Any:
    """flashinfer-chain in torch, all requests at once."""
    import torch

    requests, length = draft_token_ids.shape
    ids = draft_token_ids.long()[..., None]
    p, q = target_probs[:, :length].gather(2, ids)[..., 0], draft_probs.gather(2, ids)[..., 0]
    u = uniform_samples[:, :length] * q
    passed = (u <= p if fault == "inclusive" else u < p).long().cumprod(1).sum(1)
    padded = torch.cat([draft_probs, torch.zeros_like(draft_probs[:, :1])], dim=1)
    every = torch.arange(requests)
    row = target_probs[every, passed] if fault == "residual is p" else torch.relu(target_probs - padded)[every, passed]
    sums = row.cumsum(1)
    at = uniform_samples[:, -1:] * (1 if fault == "not renormalised" else sums[:, -1:])
    last = (at < sums).long() * (row > 0)
    token = torch.where(last.any(1), last.argmax(1), row.argmax(1))
    output = torch.where(
        torch.arange(length + 1) < passed[:, None], torch.nn.functional.pad(draft_token_ids, (0, 1)), -1
    )
    output[every, passed] = token.int()
    return output
