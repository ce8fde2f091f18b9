"""Contexts: positions in texts that the target sampled itself after each prompt, every few tokens.

A context at position t of a text has the law of the target's own first t tokens, whatever algorithm is measured there,
so all algorithms are compared on the same contexts. The text is that of the autoregressive baseline with the same seed:
token t of a request is drawn with the uniform at (seed, request, round t, `Role.TARGET`), so a longer text begins with
a shorter one. Contexts after an end-of-text token are left out; below a context it is a token like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lpverify import errors
from lpverify.decode.baselines import autoregressive
from lpverify.decode.engine import Request, Settings
from lpverify.decode.models import Pair
from lpverify.decode.sampling import Sampling


@dataclass(frozen=True)
class Context:
    """``tokens``: the prompt and the first ``position`` tokens of the text after it; the last one is pending."""

    position: int
    tokens: tuple[int, ...]


def contexts(
    pair: Pair,
    request: Request,
    count: int,
    stride: int,
    sampling: Sampling,
    seed: int = 0,
    eos: Collection[int] = (),
) -> list[Context]:
    """At most ``count`` contexts of one prompt, every ``stride`` tokens, the first at the end of the prompt.

    Raises InputError for count or stride below 1, an empty prompt, and a text that does not fit into the target.
    """
    text = target_text(pair, request, text_length(count, stride), sampling, seed, eos)
    return [Context(at, request.tokens + text[:at]) for at in positions(text, count, stride, eos)]


def text_length(count: int, stride: int) -> int:
    """Tokens of the text before the last of ``count`` contexts. Raises InputError for numbers below 1."""
    return (errors.integer("contexts", count, least=1) - 1) * errors.integer("stride", stride, least=1)


def positions(text: Sequence[int], count: int, stride: int, eos: Collection[int] = ()) -> list[int]:
    """Where the contexts of a text are: at most ``count`` multiples of ``stride``, none after an end of text.

    >>> positions([5, 6, 7, 2, 8], count=4, stride=2), positions([5, 6, 7, 2, 8], count=4, stride=2, eos={2})
    ([0, 2, 4], [0, 2])
    """
    ended = next((i for i, token in enumerate(text) if token in eos), len(text))
    return list(range(0, min(ended, text_length(count, stride)) + 1, stride))


def target_text(
    pair: Pair, request: Request, length: int, sampling: Sampling, seed: int = 0, eos: Collection[int] = ()
) -> tuple[int, ...]:
    """The first ``length`` tokens that the target samples after the prompt, or up to an end of text, included."""
    if length == 0:
        return ()
    settings = Settings(depth=1, sampling=sampling, max_new_tokens=length, seed=seed, eos=frozenset(eos))
    return autoregressive(pair, request, settings).tokens
