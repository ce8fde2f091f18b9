"""What the engine needs of a model: a state per request that can append tokens, score a tree and forget.

A model makes a `State` for each request: its memory (a key-value cache) of the tokens it has been fed. Between rounds
the engine keeps one invariant: a state has been fed all committed tokens but the last one, the *pending* token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from lpverify import errors

ROLES = ("target", "draft")
MAX_ROWS = 2**30  # probabilities in the rows of a drafted tree: 8 GiB


class State(Protocol):
    """Memory of one request, in one branch or in B parallel branches."""

    @property
    def length(self) -> int:
        """Number of tokens fed to each branch."""

    def append(self, tokens: torch.Tensor) -> torch.Tensor:
        """Feed one token to each branch, (B,), and return the logits after them, (B, V).

        A state with one branch that gets B > 1 tokens is copied to B branches first.
        """

    def tree(self, tokens: torch.Tensor, parent: Sequence[int], depth: Sequence[int]) -> torch.Tensor:
        """Feed a tree of n tokens in one pass and return the logits after each node, (n, V).

        Node 0 is the pending token. The parent of node c > 0 is ``parent[c]`` < c, its distance to node 0 ``depth[c]``.
        """

    def keep_nodes(self, nodes: Sequence[int]) -> None:
        """After `tree`: keep the nodes of one path, given from node 0 downwards, and forget all others."""

    def keep_branch(self, branch: int, length: int) -> None:
        """Keep one branch and its first ``length`` tokens, and forget everything else."""


class Tokenizer(Protocol):
    """Text to token ids and back. ``vocabulary``: token string -> id; ``eos``: the ids that end a text.

    ``content`` identifies what it does, wherever it was loaded from.
    """

    @property
    def eos(self) -> frozenset[int]: ...
    @property
    def vocabulary(self) -> dict[str, int]: ...

    def encode(self, text: str, *, chat: bool = False) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def content(self) -> str: ...


class Model(Protocol):
    """A causal language model.

    ``limit``: the longest context in tokens, None if there is no limit; ``limit_reason``: what limits it.
    """

    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def limit_reason(self) -> str: ...

    def start(self, tokens: Sequence[int]) -> State:
        """A new state that has been fed ``tokens``."""

    def content(self) -> dict[str, str]:
        """What the model computes with now, by content: names of its parts and their hashes."""


@dataclass(frozen=True)
class Pair:
    """Target and draft over one vocabulary of ``vocab_size`` tokens, the larger of the two sizes."""

    target: Model
    draft: Model

    @classmethod
    def checked(cls, target: Model, draft: Model, *tokenizers: Tokenizer) -> Pair:
        """The pair, if both models use the same tokens; InputError if not.

        With the tokenizers of target and draft their token strings are compared, and the numbers of logits may differ:
        some models pad their vocabulary, and `lpverify.decode.sampling.probabilities` gives tokens that a model lacks
        probability 0. Without them the sizes must be equal.
        """
        if tokenizers:
            ours, theirs = (tokenizer.vocabulary for tokenizer in tokenizers)
            differing = sorted(ours.keys() ^ theirs.keys()) or sorted(t for t in ours if ours[t] != theirs[t])
            if differing:
                token = differing[0]
                got = f"token {token!r} with id {theirs.get(token)} in the draft, {ours.get(token)} in the target"
                expected = f"the same token strings in both ({len(differing)} differ)"
                raise errors.fail(f"draft {draft.name}", got=got, expected=expected)
        elif target.vocab_size != draft.vocab_size:
            got = f"{draft.vocab_size} tokens, {target.vocab_size} in the target {target.name}"
            raise errors.fail(f"draft {draft.name}", got=got, expected="the same vocabulary")
        return cls(target, draft)

    @property
    def vocab_size(self) -> int:
        return max(self.target.vocab_size, self.draft.vocab_size)

    @property
    def limit(self) -> int | None:
        """The longest context of both models in tokens, None if there is no limit."""
        return min((model.limit for model in (self.target, self.draft) if model.limit is not None), default=None)

    def check_tree(self, num_paths: int, depth: int) -> None:
        """Raise SizeError if the rows of a drafted tree of K paths of L tokens take more than `MAX_ROWS` numbers."""
        numbers = 2 * (num_paths * depth + 1) * self.vocab_size
        if numbers > MAX_ROWS:
            size, instead = f"{num_paths} paths of {depth} tokens", "use fewer or shorter paths"
            limit = f"{MAX_ROWS // 2 // self.vocab_size} drafted tokens with a vocabulary of {self.vocab_size}"
            raise errors.too_large("drafted tree", size=size, limit=limit, instead=instead)

    def check_context(self, prompt: int, new: int, drafted: int = 0) -> None:
        """Raise InputError for an empty prompt, and if so many tokens do not fit into the context of a model."""
        if prompt < 1:
            raise errors.fail("prompt", got="no token", expected="at least one (a begin-of-text token will do)")
        for role, model in (("target", self.target), ("draft", self.draft)):
            if model.limit is not None and prompt + new + drafted > model.limit:
                got = f"{prompt} prompt + {new} new" + (f" + {drafted} drafted tokens" if drafted else " tokens")
                raise errors.fail(
                    f"{role} {model.name}", got=got, expected=f"at most {model.limit} in all ({model.limit_reason})"
                )


def known(tokens: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """``tokens`` with those outside the model's vocabulary replaced by token 0.

    The replacement has no effect on the output: the target never accepts a token that it lacks (its probability is 0),
    and verification is lossless for any draft.
    """
    return torch.where((tokens >= 0) & (tokens < vocab_size), tokens, 0)
