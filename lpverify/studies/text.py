"""Texts that the target writes after a prompt, the contexts in them, and the rows of both models along them.

Token t of a text is drawn with the uniform of round t and `lpverify.decode.rng.Role.TARGET`, as by the autoregressive
baseline with the same seed. So all studies see the same text after a prompt, and a longer text begins with a shorter
one. A *context* at position t is the prompt and the first t tokens of the text; it has the distribution of the target's
own text, whatever is measured there. Contexts after an end of text are left out; an end of text among the tokens that
follow a context is a token like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch

from lpverify import errors
from lpverify.core.draft_tree import DraftTree
from lpverify.decode.baselines import autoregressive
from lpverify.decode.engine import ActiveRequest, Request, Settings
from lpverify.decode.models import Pair
from lpverify.decode.rng import Role
from lpverify.decode.sampling import Sampling, check_defined
from lpverify.verifiers.sample import pick


@dataclass(frozen=True)
class Context:
    """A context at ``position``; the last of its ``tokens`` is pending."""

    position: int
    tokens: tuple[int, ...]


def contexts(
    pair: Pair, request: Request, count: int, stride: int, sampling: Sampling, seed: int = 0, eos: Collection[int] = ()
) -> list[Context]:
    """At most ``count`` contexts of one prompt, one every ``stride`` tokens, the first at the end of the prompt.

    Contexts after an end of text are left out. Raises InputError for an empty prompt, a count or stride below 1, and a
    text that does not fit into the target.
    """
    text = target_text(pair, request, text_length(count, stride), sampling, seed, eos)
    length = sum(token not in eos for token in text)  # an end of text can only be the last token
    return [Context(at, request.tokens + text[:at]) for at in range(0, length + 1, stride)]


def text_length(count: int, stride: int) -> int:
    """Number of tokens before the last of ``count`` contexts. Raises InputError for numbers below 1."""
    return (errors.integer("contexts", count, min=1) - 1) * errors.integer("stride", stride, min=1)


def target_text(
    pair: Pair, request: Request, length: int, sampling: Sampling, seed: int = 0, eos: Collection[int] = ()
) -> tuple[int, ...]:
    """The first ``length`` tokens that the target samples after the prompt, or up to and with an end of text."""
    if length == 0:
        return ()
    settings = Settings(depth=1, sampling=sampling, max_new_tokens=length, seed=seed, eos=frozenset(eos))
    return autoregressive(pair, request, settings).tokens


@dataclass(frozen=True)
class Shapes:
    """Every K of ``num_paths`` with every L of ``depths``. Raises InputError for empty lists and numbers below 1."""

    num_paths: tuple[int, ...] = (1, 2, 3, 4)
    depths: tuple[int, ...] = (8,)

    def __post_init__(self) -> None:
        errors.integers("paths (K)", self.num_paths, min=1)
        errors.integers("depth (L)", self.depths, min=1)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The (K, L), in the order of the cells of a document."""
        return [(count, depth) for count in self.num_paths for depth in self.depths]


class Text:
    """The text after one prompt, written on demand beyond any end of text, and drafted trees inside it.

    The target's rows are those that the tokens were drawn from. The draft is fed the same tokens, as many at once as
    there are. Drafted trees leave no trace in either model's state. Call all methods in ``torch.inference_mode()``.
    """

    def __init__(self, pair: Pair, request: Request, sampling: Sampling, seed: int) -> None:
        self._active = ActiveRequest(pair, request, sampling, seed)
        self.watch = self._active.watch
        self.tokens: list[int] = []
        self._target_rows: list[torch.Tensor] = []
        self._draft_rows: list[torch.Tensor] = []
        self._fed = [request.tokens[-1]]  # tokens that the target has been fed and the draft has not, and the pending

    def grow(self, length: int) -> None:
        """Write until the text has ``length`` tokens. Raises InputError if the target's logits are undefined."""
        active = self._active
        with self.watch("text"):
            while len(self.tokens) < length:
                logits = active.target.append(torch.tensor([active.pending], device=active.pair.target.device))
                row = active.rows(logits)[0]
                active.pending = pick(row, active.keys.uniform(len(self.tokens), Role.TARGET))
                self.tokens.append(active.pending)
                self._fed.append(active.pending)
                self._target_rows.append(row)

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The target's and the draft's row before each token of the text, (T, V) each, on the target's device."""
        self._catch_up()
        target = torch.stack(self._target_rows)
        return target, torch.cat(self._draft_rows).to(target.device)

    def tree(self, num_paths: int, depth: int) -> DraftTree:
        """K paths of L tokens, drafted after the text so far and scored by the target.

        The random numbers are those of round t after t tokens, so the tree is independent of how the text continues.
        """
        self._catch_up()
        length = self._active.target.length
        tree = self._active.draft_tree(num_paths, depth, len(self.tokens))
        self._active.forget(length)
        return tree

    def trees(
        self, length: int, stride: int, num_paths: int, depth: int, eos: Collection[int]
    ) -> Iterator[tuple[int, DraftTree]]:
        """Position and drafted tree of the contexts at 0, ``stride``, ... below ``length``, up to an end of text."""
        for position in range(0, length, stride):
            self.grow(position)
            if not set(self.tokens[:position]).isdisjoint(eos):
                break
            yield position, self.tree(num_paths, depth)

    def _catch_up(self) -> None:
        """Feed the draft in one pass what the target has been fed since the last call."""
        new, model = self._fed[:-1], self._active.pair.draft
        if not new:
            return
        with self.watch("text"):
            tokens, state = torch.tensor(new, device=model.device), self._active.draft
            rows = self._active.rows(state.tree(tokens, range(-1, len(new) - 1), range(len(new))))
            state.keep_nodes(range(len(new)))
            check_defined(rows, f"draft {model.name}")
        self._draft_rows.append(rows)
        del self._fed[:-1]
