"""The whole prefix tree below a context as a small problem, exact for every verifier.

Sampling with top-k leaves at most k tokens in the target's row p and in the draft's row q of a node. The children of
each node are numbered by *slots*: the draftable tokens (q > 0) in the order of their ids, then one slot for the mass of
all tokens that only the target has; V is the largest number of slots at any node, at most k + 1 without ties. With
phi(s) = 1 - (1-s)^K the budgets of any lossless verifier satisfy f(c) <= min(P(c), phi(Q(c))), so only tokens with
p > 0 and q > 0 have subtrees that matter. They alone are scored; the rows below other slots are never reached with
positive mass, and are all mass on slot 0.

**No value changes.** A token with q = 0 is never drafted, so it is only ever emitted where a round stops. Every rule
treats such tokens alike: it leaves p there as it is (up to the norm of the whole row), and whatever else it computes
from the row are sums over draftable tokens or over max(w p - q, 0), which is w p there and adds up. So p-only tokens
may be merged: each verifier stops at the same nodes with the same probability, and the LP has the same live variables.
Draftable tokens keep their order, so ties are broken as at full vocabulary.

**Tokens that only the draft has are not merged.** They are never accepted, but two verifiers tell them apart: Traversal
takes the rejected token alone out of q, and the sets of drafted tokens that OT's coupling is built on get fewer.
Merging two of them cost Traversal 0.10 of 1.96 tokens on a tree of V = 5, L = 2 with K = 2, and moved OT by 4e-4.

TGBV and PBV merge tokens into blocks where the vocabulary is large; on an extracted problem each token is its own
block, so their values there are those of the unmerged algorithms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from lpverify import errors
from lpverify.core import prefix_tree as tree
from lpverify.core.draft_tree import topology
from lpverify.core.model_pair import ModelPair
from lpverify.decode.models import Model, Pair, State, padded
from lpverify.decode.sampling import Sampling, probabilities
from lpverify.studies.contexts import Context, text_length

Floats = npt.NDArray[np.float64]
LEAST_TOP_K, MOST_TOP_K = 2, 8
MAX_NODES = 20_000
"""Most nodes of a problem unless told otherwise; the optimum of as many takes about a minute."""
CHUNK = 2**25
"""Entries of the rows that one tree pass gives ..."""
MOST_PREFIXES = 1024
"""... and most prefixes in it; its mask is quadratic in them."""


@dataclass(frozen=True)
class Settings:
    """L = ``depth``; of each prompt ``contexts``, one every ``stride`` tokens.

    Raises InputError for impossible numbers and a top-k outside `LEAST_TOP_K` .. `MOST_TOP_K`, SizeError where V^L
    leaves are too many.
    """

    depth: int
    sampling: Sampling
    contexts: int = 1
    stride: int = 16
    seed: int = 0
    max_nodes: int = MAX_NODES

    def __post_init__(self) -> None:
        errors.integer("depth (L)", self.depth, least=1)
        text_length(self.contexts, self.stride)
        errors.integer("seed", self.seed, least=0, most=2**63 - 1)
        errors.integer("nodes", self.max_nodes, least=1)
        if self.sampling.top_k is None:
            expected = f"an integer in {LEAST_TOP_K}..{MOST_TOP_K}: the whole tree is only small after top-k"
            raise errors.fail("top-k", got="none", expected=expected)
        slots = errors.integer("top-k", self.sampling.top_k, least=LEAST_TOP_K, most=MOST_TOP_K) + 1
        check_nodes(f"top-k {slots - 1}", slots, self.depth, self.max_nodes)

    def describe(self) -> dict[str, Any]:
        """What decides a problem, as plain data: not how many there are."""
        names = ("temperature", "top_k", "top_p")
        sampling = {name: getattr(self.sampling, name) for name in names}
        return {"depth": self.depth, **sampling, "stride": self.stride, "seed": self.seed}


def check_nodes(what: str, slots: int, depth: int, most: int) -> None:
    """Raise SizeError for more than ``most`` nodes.

    >>> check_nodes("top-k 8", 9, 5, 20_000)
    Traceback (most recent call last):
    ...
    lpverify.errors.SizeError: top-k 8: 9 slots and depth 5, 66429 nodes is more than 20000 nodes; use a smaller ...
    """
    nodes = tree.node_count(slots, depth)
    if nodes > most:
        size = f"{slots} slots and depth {depth}, {nodes} nodes"
        raise errors.too_large(
            what, size=size, limit=f"{most} nodes", instead="use a smaller top-k or depth, or --nodes"
        )


@dataclass(frozen=True, eq=False)
class Slots:
    """A node's row: ``tokens``, the draftable ones; ``target`` and ``draft`` (slots,), the last slot for p only."""

    tokens: tuple[int, ...]
    target: Floats
    draft: Floats

    @property
    def shared(self) -> Iterator[tuple[int, int]]:
        """(slot, token) of those that target and draft both have."""
        return ((slot, token) for slot, token in enumerate(self.tokens) if self.target[slot] > 0)


def slots(tokens: npt.NDArray[np.int64], target: Floats, draft: Floats) -> Slots:
    """The row in which ``tokens`` (ascending) have these probabilities, all others none.

    >>> row = slots(np.array([3, 5, 7, 9]), np.array([0.2, 0.5, 0.0, 0.3]), np.array([0.0, 0.4, 0.6, 0.0]))
    >>> row.tokens, row.target.tolist(), row.draft.tolist(), list(row.shared)
    ((5, 7), [0.5, 0.0, 0.5], [0.4, 0.6, 0.0], [(0, 5)])
    """
    draftable = draft > 0
    law = (target[draftable], draft[draftable])
    if not target[~draftable].any():
        return Slots(tuple(tokens[draftable].tolist()), *law)
    merged = np.append(law[0], target[~draftable].sum())
    return Slots(tuple(tokens[draftable].tolist()), merged, np.append(law[1], 0.0))


@dataclass(frozen=True, eq=False)
class Extract:
    """The problem below a context, and the tokens of the root's draftable slots."""

    pair: ModelPair
    tokens: tuple[int, ...]


def extract(pair: Pair, context: Context, settings: Settings) -> Extract:
    """Score the prefix tree of ``settings.depth`` levels below ``context`` with both models.

    Level by level, each in one tree pass of each model (more where the rows would fill the memory). An end-of-text
    token is a token like any other. Raises InputError where logits are not numbers, SizeError where ties at the k-th
    logit make more than ``settings.max_nodes`` nodes.
    """
    known: list[dict[tuple[int, ...], Slots]] = []  # of each level: slots that lead to a live node -> its row
    live: dict[tuple[int, ...], tuple[int, ...]] = {(): ()}  # the same keys -> the tokens that lead there
    with torch.inference_mode():
        scorer = Scorer(pair, context.tokens, settings.sampling)
        for _ in range(settings.depth):
            rows = dict(zip(live, scorer.rows(list(live.values())), strict=True))
            known.append(rows)
            live = {(*at, x): (*live[at], token) for at, row in rows.items() for x, token in row.shared}
    size = max(len(row.target) for rows in known for row in rows.values())
    check_nodes(f"position {context.position}", size, settings.depth, settings.max_nodes)
    levels = [[_level(rows, name, i, size) for i, rows in enumerate(known)] for name in ("target", "draft")]
    return Extract(ModelPair.from_levels(*levels), known[0][()].tokens)


def _level(rows: dict[tuple[int, ...], Slots], name: str, depth: int, size: int) -> Floats:
    """(V^depth, V) rows; all mass on slot 0 where no node is live."""
    level = np.zeros((tree.level_size(size, depth), size))
    level[:, 0] = 1.0
    for at, row in rows.items():
        law = getattr(row, name)
        level[tree.index_of(at, size), : len(law)] = law
    return level


class Scorer:
    """Rows of both models after prefixes below one context, which both are fed once."""

    def __init__(self, pair: Pair, context: Sequence[int], sampling: Sampling) -> None:
        self._pair, self._pending, self._sampling = pair, context[-1], sampling
        self._states = [(model, model.start(context[:-1])) for model in (pair.target, pair.draft)]
        self._chunk = min(MOST_PREFIXES, max(1, CHUNK // pair.vocab_size))

    def rows(self, prefixes: list[tuple[int, ...]]) -> list[Slots]:
        """The row after each of ``prefixes``, all of one length. Raises InputError where logits are not numbers."""
        found: list[Slots] = []
        for start in range(0, len(prefixes), self._chunk):
            target, draft = (self._score(*of, prefixes[start : start + self._chunk]) for of in self._states)
            found += _sparse(target, draft.to(target.device))
        return found

    def _score(self, model: Model, state: State, prefixes: list[tuple[int, ...]]) -> torch.Tensor:
        fed = state.length
        parent, depth, tokens, ends = [-1], [0], [self._pending], [0]
        if prefixes[0]:
            shape = topology(prefixes)
            parent, depth = shape.parent.tolist(), shape.depth.tolist()
            tokens += shape.token[1:].tolist()
            ends = shape.node_of[:, -1].tolist()
        logits = state.tree(torch.tensor(tokens, device=model.device), parent, depth)[ends]
        state.keep_branch(0, fed)
        rows = probabilities(padded(logits, self._pair.vocab_size), self._sampling)
        if bool(torch.isnan(rows[:, 0]).any()):
            raise errors.fail(f"model {model.name}", got="logits that are NaN or infinite", expected="numbers")
        return rows


def _sparse(target: torch.Tensor, draft: torch.Tensor) -> list[Slots]:
    """Rows (n, V) as slots."""
    mask = (target > 0) | (draft > 0)
    tokens = mask.nonzero()[:, 1].cpu().numpy()
    ends = mask.sum(dim=1).cumsum(dim=0)[:-1].tolist()
    parts = (np.split(values, ends) for values in (tokens, *(law[mask].cpu().numpy() for law in (target, draft))))
    return [slots(*cast(tuple[npt.NDArray[np.int64], Floats, Floats], row)) for row in zip(*parts, strict=True)]
