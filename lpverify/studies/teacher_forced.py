"""Teacher-forced estimate of block efficiency: measured along the target's own text, without drafting (theory 10.1).

The estimate is 1 + sum_j f(y_1..y_j) / P(y_1..y_j) on a text y. Dividing f(cx) = min(p(x|c) f(c), M(cx)) by P gives

    f / P  (y_1..y_j)  =  min over i <= j of  M / P  (y_1..y_i),

the running minimum of M / P, computed with logarithms so that nothing underflows. M is phi(Q) for the node relaxation
(theory 10.2), Q for block verification of the first path, and Q* for verifiers with a ``split``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lpverify.drafting.iid_paths import mean_density
from lpverify.numerics import divide
from lpverify.verifiers import Verifier
from lpverify.verifiers.rank_measure import compact, whole
from lpverify.verifiers.residual import acceptance
from lpverify.verifiers.token_buckets import children_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ROWS_AT_ONCE = 32  # of the whole vocabulary that are put into buckets: bounds the memory of temporaries


@dataclass(frozen=True, eq=False)
class Children:
    """The children that a split sees at each of T positions of a text: tokens or buckets of tokens."""

    target: Floats  # (T, m), probabilities of the children
    draft: Floats  # (T, m)
    child: Ints  # (T,), the child that contains the text's token
    share: Floats  # (T,), the token's part of the child's draft mass


class TextRows:
    """The rows of both models, (T, V) arrays or tensors of any device, before each token of a text (T,).

    The methods take ``starts`` (C,), positions of contexts, and a depth L with start + L <= T for all of them.
    """

    def __init__(self, tokens: Sequence[int], target: Any, draft: Any) -> None:
        self._tokens = np.array(tokens, dtype=np.int64)
        self._target, self._draft = (
            np.asarray(rows.cpu() if isinstance(rows, torch.Tensor) else rows, dtype=np.float64)
            for rows in (target, draft)
        )
        assert self._target.shape == self._draft.shape
        index = np.arange(len(self._tokens)), self._tokens
        self._p, self._q = self._target[index], self._draft[index]  # of the text's tokens, (T,)
        self._seen: dict[int | None, Children] = {}

    def acceptance(self, verifier: Verifier, starts: Ints, depth: int, num_paths: int) -> Floats:
        """Probability that a round from each context accepts the next 0..L tokens of the text, given the text: f / P.

        ``verifier`` has a closed form. Returns (C, L+1), in [0, 1], first column 1, falling along each row.
        """
        assert verifier.closed_form is not None
        steps = starts[:, None] + np.arange(depth)
        with np.errstate(divide="ignore"):
            if verifier.closed_form == "token":
                return self._after_start(np.cumsum(np.log(acceptance(self._q, self._p))[steps], axis=1))
            if verifier.split is None or num_paths == 1:
                return self._running_minimum(steps, np.cumsum(np.log(self._q)[steps], axis=1))
            return self._running_minimum(steps, self._selected(verifier, steps, num_paths))

    def relaxation(self, starts: Ints, depth: int, num_paths: int) -> Floats:
        """f / P of the node relaxation, f(cx) = min(p(x|c) f(c), phi(Q(cx))); arguments as of `acceptance`."""
        steps = starts[:, None] + np.arange(depth)
        mass = np.cumprod(self._q[steps], axis=1)
        with np.errstate(divide="ignore"):
            mean = mean_density(1 - mass, np.ones_like(mass), num_paths)  # phi(Q) / Q
            return self._running_minimum(steps, np.cumsum(np.log(self._q)[steps], axis=1) + np.log(mean))

    def _running_minimum(self, steps: Ints, log_cap: Floats) -> Floats:
        """Running minimum of M / P from log M after 1..L tokens, (C, L)."""
        ratio = log_cap - np.cumsum(np.log(self._p[steps]), axis=1)
        return self._after_start(np.minimum.accumulate(np.minimum(ratio, 0.0), axis=1))

    @staticmethod
    def _after_start(logs: Floats) -> Floats:
        return np.concatenate([np.ones((len(logs), 1)), np.exp(logs)], axis=1)

    def _selected(self, verifier: Verifier, steps: Ints, num_paths: int) -> Floats:
        """log Q* along the text, (C, L): the rank measures and weights of all contexts go down the text together."""
        seen = self._children(verifier.blocks)
        context, weight = np.arange(len(steps)), np.ones(len(steps))
        measure = whole(len(steps), weight)
        q_star = []
        for at in steps.T:
            child = seen.child[at]
            split = verifier.split(measure, seen.target[at], seen.draft[at], weight, num_paths)
            measure = compact(split.children(context, child))
            q_star.append(split.q_star[context, child] * seen.share[at])
            weight = acceptance(weight * self._p[at], q_star[-1])
        return np.cumsum(np.log(np.stack(q_star, axis=1)), axis=1)

    def _children(self, blocks: int | None) -> Children:
        """Every token, or the ``blocks`` buckets that the verifier puts a larger vocabulary into."""
        if blocks is None or self._draft.shape[1] <= blocks:
            return Children(self._target, self._draft, self._tokens, np.ones(len(self._tokens)))
        if blocks not in self._seen:
            targets, drafts, child = [], [], []
            for start in range(0, len(self._tokens), ROWS_AT_ONCE):
                part = slice(start, start + ROWS_AT_ONCE)
                merged = children_of(self._target[part], self._draft[part], blocks)
                targets.append(merged.target)
                drafts.append(merged.draft)
                child.append(merged.of(np.arange(len(merged.draft)), self._tokens[part]))
            draft, buckets = np.concatenate(drafts), np.concatenate(child)
            share = divide(self._q, draft[np.arange(len(buckets)), buckets], where_zero=0.0)
            self._seen[blocks] = Children(np.concatenate(targets), draft, buckets, share)
        return self._seen[blocks]
