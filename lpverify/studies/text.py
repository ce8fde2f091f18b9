"""A text that the target writes after a prompt, with the rows of both models at every token of it.

The target's rows are those that the tokens were drawn from. The draft is fed the same tokens, as many at a time as
there are, in one pass. Between two tokens of the text trees can be drafted and scored: both models then forget them.

Token t is drawn with the uniform at (seed, request, round t, `Role.TARGET`), as by the autoregressive baseline; the
tree after t tokens is drafted with those of round t and `Role.DRAFT`, so it is independent of how the text goes on.
"""

from __future__ import annotations

from typing import cast

import torch

from lpverify import errors
from lpverify.core.draft_tree import DraftTree
from lpverify.decode.engine import Request, drafted_tree
from lpverify.decode.metrics import Stopwatch
from lpverify.decode.models import Pair, padded
from lpverify.decode.rng import Keys, Role
from lpverify.decode.sampling import Sampling, probabilities
from lpverify.numerics import Array
from lpverify.verifiers.sample import pick


class Text:
    """The text so far. An end of text is a token like any other: the target goes on after it."""

    def __init__(self, pair: Pair, request: Request, sampling: Sampling, keys: Keys, watch: Stopwatch) -> None:
        self._pair, self._sampling, self._keys, self._watch = pair, sampling, keys, watch
        self._line = [request.tokens[-1]]  # from the last token of the prompt on; the models were fed all but the last
        with watch("prefill"):
            self._target = pair.target.start(request.tokens[:-1])
            self._draft = pair.draft.start(request.tokens[:-1])
        self._target_rows: list[torch.Tensor] = []
        self._draft_rows: list[torch.Tensor] = []
        self._followed = 0

    @property
    def tokens(self) -> list[int]:
        """The text, without the prompt."""
        return self._line[1:]

    def grow(self, length: int) -> None:
        """Let the target write until the text has ``length`` tokens. Raises InputError where logits are not numbers."""
        pair = self._pair
        with self._watch("text"):
            while len(self._line) <= length:
                logits = self._target.append(torch.tensor([self._line[-1]], device=pair.target.device))
                row = probabilities(padded(logits, pair.vocab_size), self._sampling)[0]
                uniform = self._keys.uniform(len(self._line) - 1, Role.TARGET)
                self._line.append(pick(cast(Array, row), uniform))
                self._target_rows.append(row)

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Target and draft rows that token 0, 1, ... of the text follow, (tokens, V) each, on the target's device."""
        self._follow()
        target = torch.stack(self._target_rows)
        return target, torch.cat(self._draft_rows).to(target.device)

    def tree(self, paths: int, depth: int) -> DraftTree:
        """K = ``paths`` paths of L = ``depth`` tokens drafted after the text so far, scored by the target."""
        self._follow()
        states, fed = (self._target, self._draft), self._target.length
        assert self._draft.length == fed
        arguments = (paths, depth, self._sampling, self._keys, len(self._line) - 1)
        view = drafted_tree(self._pair, states, self._line[-1], *arguments, self._watch)
        for state in states:
            state.keep_branch(0, fed)
        return view

    def _follow(self) -> None:
        """Feed the draft what the target has been fed."""
        new = self._line[self._followed : -1]
        if not new:
            return
        pair = self._pair
        with self._watch("text"):
            tokens = torch.tensor(new, device=pair.draft.device)
            logits = self._draft.tree(tokens, list(range(-1, len(new) - 1)), list(range(len(new))))
            self._draft.keep_nodes(list(range(len(new))))
            rows = probabilities(padded(logits, pair.vocab_size), self._sampling)
            if bool(torch.isnan(rows[:, 0]).any()):
                raise errors.fail(f"draft {pair.draft.name}", got="logits that are NaN or infinite", expected="numbers")
        self._draft_rows.append(rows)
        self._followed = len(self._line) - 1
