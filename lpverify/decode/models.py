"""What the engine needs of a model, and how names become models.

A model makes a `State` for each request: the model's memory (a key-value cache) of the tokens it has been fed. The
engine keeps one invariant between rounds: a state has been fed all committed tokens but the last, the *pending* one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from lpverify import errors

ROLES = ("target", "draft")


class State(Protocol):
    """Memory of one request, in one branch or several.

    Rows of logits are (rows, V). ``length`` counts the tokens fed to each branch.
    """

    @property
    def length(self) -> int: ...

    def append(self, tokens: torch.Tensor) -> torch.Tensor:
        """Feed one token to each branch (B,), return the logits after it; the first B > 1 tokens make B branches."""

    def tree(self, tokens: torch.Tensor, parent: Sequence[int], depth: Sequence[int]) -> torch.Tensor:
        """Feed a tree in one pass and return the logits after each node.

        Node 0 is the pending token, ``parent`` of every other node comes before it, ``depth`` is its distance to it.
        """

    def keep_nodes(self, nodes: Sequence[int]) -> None:
        """After `tree`: forget all its nodes but those on this path, given from node 0 down."""

    def keep_branch(self, branch: int, length: int) -> None:
        """Forget all branches but this one, and its tokens after the first ``length``."""


class Tokenizer(Protocol):
    """Text to token ids and back. ``vocabulary``: token string -> id; ``eos``: ids that end a text."""

    @property
    def eos(self) -> frozenset[int]: ...
    @property
    def vocabulary(self) -> dict[str, int]: ...

    def encode(self, text: str, *, chat: bool = False) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class Model(Protocol):
    """A causal language model. ``limit``: most tokens it can be fed, None where there is no limit."""

    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def limit(self) -> int | None: ...

    def start(self, tokens: Sequence[int]) -> State:
        """A state that has been fed ``tokens``."""


@dataclass(frozen=True)
class Pair:
    """Target and draft that share a vocabulary of ``vocab_size`` tokens (the larger of the two; see `pair`)."""

    target: Model
    draft: Model

    @property
    def vocab_size(self) -> int:
        return max(self.target.vocab_size, self.draft.vocab_size)


def pair(
    target: Model, draft: Model, target_tokenizer: Tokenizer | None = None, draft_tokenizer: Tokenizer | None = None
) -> Pair:
    """Check that two models speak of the same tokens.

    Where only the number of logits differs (one model pads its vocabulary) the shorter rows get zero mass. Raises
    InputError where token strings differ, or sizes differ and the strings are not known.
    """
    ours = target_tokenizer.vocabulary if target_tokenizer else None
    theirs = draft_tokenizer.vocabulary if draft_tokenizer else None
    if ours is not None and theirs is not None:
        differing = sorted(ours.keys() ^ theirs.keys()) or sorted(t for t in ours if ours[t] != theirs[t])
        if differing:
            token = differing[0]
            got = f"token {token!r} with id {theirs.get(token)} in the draft, {ours.get(token)} in the target"
            expected = f"the same token strings in both ({len(differing)} differ)"
            raise errors.fail(f"draft {draft.name}", got=got, expected=expected)
    elif target.vocab_size != draft.vocab_size:
        got = f"{draft.vocab_size} tokens, {target.vocab_size} in the target {target.name}"
        raise errors.fail(f"draft {draft.name}", got=got, expected="the same vocabulary")
    return Pair(target, draft)


def padded(logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Logits (R, <= V) with tokens the model does not have at probability 0."""
    missing = vocab_size - logits.shape[-1]
    return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf) if missing else logits


def known(tokens: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """``tokens`` with those that the model does not have replaced by 0.

    Nothing depends on what stands in: the target never accepts a token it does not have, and any draft is lossless.
    """
    return torch.where((tokens >= 0) & (tokens < vocab_size), tokens, 0)
