"""Node budgets measured on the target's own text, without drafting (THEORY 1, 2.6, 5).

Let y_1, y_2, ... be a text that the target wrote after a context, so Pr(y_1..y_j = c) = P(c). For any node budgets f
that vanish where P does

    sum over |c| = j of f(c)  =  E[f(y_1..y_j) / P(y_1..y_j)],

so 1 + sum_{j=1..L} f/P along one text is an unbiased estimate of sum_c f(c), for all L at once. Budgets of the form

    f(root) = 1,      f(cx) = min(p(x|c) f(c), M(cx)),      M(root) = 1,

never exceed P, so every term lies in [0, 1], falls with j, and the estimate lies in [1, L+1] with a variance of at most
(L/2)^2. Here M is phi(Q) for the node relaxation, which no lossless verifier with K i.i.d. paths exceeds; Q for block
verification; and Q*, the law of the selected path, for GBV, TGBV, PBV and whatever else selects a path by rank: their
block efficiency. For the token rule f(cx) = f(c) min(p, q). All of them depend on the rows along the path only. As f <=
phi(Q) for all of them, the estimate of the relaxation is never below theirs on the same text.

With m(x|c) = M(cx) / M(c) and w = f/M, which is block verification's weight, the quotient r = f/P follows

    r(cx) = r(c) min(1, m / (w p)),      w(cx) = min(1, w p / m),

where neither P nor Q appears: nothing underflows. phi(Q) is a quotient too, phi(s) = s * (mean of phi' on [0, s]).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lpverify.numerics import Array, as_index, divide, in_double, namespace, take_in_rows, to_host, zero
from lpverify.verifiers import Verifier
from lpverify.verifiers.rank_measure import compact, mean_density, ratio_order, whole
from lpverify.verifiers.rank_selection import SelectedPath
from lpverify.verifiers.residual import acceptance
from lpverify.verifiers.splits import ordered_split
from lpverify.verifiers.token_buckets import merged

Ints = npt.NDArray[np.int64]

ROWS_AT_ONCE = 32
"""Rows of the whole vocabulary that are worked on at a time: bounds the memory of temporaries."""


def has_closed_form(verifier: Verifier) -> bool:
    """Can the verifier's block efficiency be measured on the path."""
    return verifier.closed_form is not None


def selection(verifier: Verifier) -> SelectedPath | None:
    """How the verifier splits rank measures, None where it does not select a path by rank."""
    return None if verifier.split is None else SelectedPath(verifier.split, verifier.blocks)


@dataclass(frozen=True, eq=False)
class Children:
    """The children that a split sees at each of T positions of a text, on the host.

    ``target``, ``draft`` (T, m): their masses; ``child`` (T,): the one that the text's token belongs to; ``share``
    (T,): the token's part of that child's draft mass.
    """

    target: Array
    draft: Array
    child: Ints
    share: Array


class TextRows:
    """The rows along a text: ``tokens`` (T,), and ``target``, ``draft`` (T, V), the laws at each token's place.

    Every method takes ``starts`` (C,), places of contexts, and a depth L with start + L <= T for each; it returns f/P
    after 0..L tokens of each context, (C, L+1).
    """

    def __init__(self, tokens: Sequence[int], target: Array, draft: Array) -> None:
        assert target.shape == draft.shape
        assert len(tokens) == len(target)
        self._tokens = np.array(tokens, dtype=np.int64)
        self._target, self._draft = in_double(target), in_double(draft)
        self._seen: dict[Any, Children] = {}

    def budgets(self, verifier: Verifier, starts: Ints, depth: int, paths: int) -> Array:
        """f/P of a verifier with K = ``paths``; it must have a closed form (`has_closed_form`)."""
        assert has_closed_form(verifier)
        selecting = selection(verifier)
        if selecting is not None and paths > 1:
            return self._selected(selecting, starts, depth, paths)
        caps = self._on_draft[self._places(starts, depth)]  # of one path, or the first: Q* = Q
        return self._capped(starts, caps, forget=verifier.closed_form == "token")

    def relaxation(self, starts: Ints, depth: int, paths: int) -> Array:
        """f/P of the node relaxation, f(cx) = min(p f(c), phi(Q(cx))), with K = ``paths``."""
        steps = self._on_draft[self._places(starts, depth)]
        masses = np.cumprod(np.concatenate([np.ones((len(starts), 1)), steps], axis=1), axis=1)
        means = mean_density(1 - masses, np.ones_like(masses), paths)
        return self._capped(starts, steps * (means[:, 1:] / means[:, :-1]))

    @cached_property
    def _on_target(self) -> Array:
        return self._along(self._target)

    @cached_property
    def _on_draft(self) -> Array:
        return self._along(self._draft)

    def _along(self, rows: Array) -> Array:
        places = as_index(rows, np.arange(len(self._tokens)))
        return to_host(rows[places, as_index(rows, self._tokens)])

    def _places(self, starts: Ints, depth: int) -> Ints:
        places: Ints = starts[:, None] + np.arange(depth)
        return places

    def _capped(self, starts: Ints, caps: Array, *, forget: bool = False) -> Array:
        """f/P for ``caps`` m(x|c), (C, L). ``forget``: w stays 1, which is the token rule."""
        on_target = self._on_target[self._places(starts, caps.shape[1])]
        weight = quotient = np.ones(len(starts))
        result = [quotient]
        for p, cap in zip(on_target.T, caps.T, strict=True):
            quotient = quotient * acceptance(cap, weight * p)
            result.append(quotient)
            if not forget:
                weight = acceptance(weight * p, cap)
        return np.stack(result, axis=1)

    def _selected(self, law: SelectedPath, starts: Ints, depth: int, paths: int) -> Array:
        """f/P for M = Q*: the rank measures go down the text with the weights, all contexts at once."""
        seen = self._children(law)
        context = np.arange(len(starts))
        weight = np.ones(len(starts))
        measure = whole(len(starts), weight)
        caps = []
        for i in range(depth):
            here = starts + i
            child = seen.child[here]
            done = law.split(measure, seen.target[here], seen.draft[here], weight, paths)
            measure = compact(done.children(context, child))
            caps.append(done.q_star[context, child] * seen.share[here])
            weight = acceptance(weight * self._on_target[here], caps[-1])
        return self._capped(starts, np.stack(caps, axis=1))

    def _children(self, law: SelectedPath) -> Children:
        """What the verifier's split sees: blocks of tokens as in `selected_path_law`, or every token.

        The ordered split depends on the order alone: the tokens ranked before, the token and those ranked after it will
        do, with any target masses that keep that order.
        """
        blocks = law.blocks if law.blocks is not None and self._draft.shape[1] > law.blocks else None
        ranked = blocks is None and law.split is ordered_split
        key = "ranked" if ranked else blocks
        if key not in self._seen:
            if blocks is not None:
                self._seen[key] = self._in_blocks(blocks)
            else:
                self._seen[key] = self._ranked() if ranked else self._every_token()
        return self._seen[key]

    def _every_token(self) -> Children:
        share = np.ones(len(self._tokens))
        return Children(to_host(self._target), to_host(self._draft), self._tokens, share)

    def _in_blocks(self, most: int) -> Children:
        targets, drafts, children = [], [], []
        for part in self._parts():
            block, p, q = merged(self._target[part], self._draft[part], most)
            token = as_index(block, self._tokens[part][:, None])
            targets.append(to_host(p))
            drafts.append(to_host(q))
            children.append(to_host(take_in_rows(block, token))[:, 0])
        draft, child = np.concatenate(drafts), np.concatenate(children)
        mass = draft[np.arange(len(child)), child]
        share = divide(self._on_draft, mass, where_zero=zero(mass))
        return Children(np.concatenate(targets), draft, child, share)

    def _ranked(self) -> Children:
        masses = []
        for part in self._parts():
            draft = self._draft[part]
            xp = namespace(draft)
            order = ratio_order(self._target[part], draft)
            ranked = take_in_rows(draft, order)
            place = xp.argmax(xp.astype(order == as_index(order, self._tokens[part][:, None]), xp.int8), axis=-1)
            index, place = xp.arange(draft.shape[1], device=draft.device)[None, :], place[:, None]
            sums = [
                xp.sum(xp.where(inside, ranked, zero(ranked)), axis=-1) for inside in (index < place, index > place)
            ]
            masses.append(np.stack([to_host(part_sum) for part_sum in sums], axis=1))
        before, after = np.concatenate(masses).T
        draft = np.stack([before, self._on_draft, after], axis=1)
        size = len(self._tokens)
        return Children(draft * [2.0, 1.0, 0.0], draft, np.ones(size, dtype=np.int64), np.ones(size))

    def _parts(self) -> list[slice]:
        return [slice(start, start + ROWS_AT_ONCE) for start in range(0, len(self._tokens), ROWS_AT_ONCE)]
