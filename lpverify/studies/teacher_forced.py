"""Teacher-forced estimate of block efficiency: measured along the target's own text, without drafting (theory 10.1).

Let f(c) be the probability that the accepted prefix passes through the node c, in a verifier with

    f(root) = 1,      f(cx) = min(p(x|c) f(c), M(cx)),      M(root) = 1.

If the target wrote y_1, y_2, ... after a context, 1 + sum_j f(y_1..y_j) / P(y_1..y_j) is an unbiased estimate of the
block efficiency sum_c f(c), for all depths at once. Dividing the recursion by P gives

    f / P  (y_1..y_j)  =  min over i <= j of  M / P  (y_1..y_i),

the running minimum of M / P, computed with logarithms so that nothing underflows. Here M is

* phi(Q), phi(s) = 1 - (1-s)^K, for the node relaxation: an upper bound for all lossless verifiers (theory 10.2);
* Q for block verification of the first path;
* Q*, the distribution of the path of smallest rank, for verifiers with a ``split`` (GBV, TGBV, PBV, EBV).

For the token rule f(cx) = f(c) min(p(x|c), q(x|c)). All of them depend on the rows along the text only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lpverify.numerics import divide
from lpverify.verifiers import Verifier
from lpverify.verifiers.rank_measure import compact, mean_density, whole
from lpverify.verifiers.residual import acceptance
from lpverify.verifiers.token_buckets import children_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ROWS_AT_ONCE = 32
"""Rows of the whole vocabulary that are put into buckets at once: bounds the memory of temporaries."""


@dataclass(frozen=True, eq=False)
class Children:
    """The children that a split sees at each of T positions of a text: tokens or buckets of tokens.

    * ``target``, ``draft`` (T, m): probabilities of the children.
    * ``child`` (T,): the child that contains the text's token. ``share`` (T,): the token's part of its draft mass.
    """

    target: Floats
    draft: Floats
    child: Ints
    share: Floats


class TextRows:
    """The rows of both models along a text of T tokens.

    Args:
        tokens: (T,), the text.
        target, draft: (T, V), the rows before each token; arrays or tensors of any device.

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

        Args:
            verifier: one with a closed form.
            starts: (C,). depth: L. num_paths: K.

        Returns:
            (C, L+1), in [0, 1], first column 1, falling along each row.
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
        logs: Floats = np.cumsum(np.log(np.stack(q_star, axis=1)), axis=1)
        return logs

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
