"""The whole prefix tree below a context of a real pair as a small problem, exact for every verifier.

With top-k sampling a node has at most k tokens in the target's row p and in the draft's row q. The children of a node
are numbered by *slots*: the draftable tokens (q > 0) in the order of their ids, then one slot with the mass of all
tokens that only the target has. V is the largest number of slots at any node, without ties at most k + 1. A lossless
verifier satisfies f(c) <= min(P(c), phi(Q(c))) with phi(s) = 1 - (1-s)^K, so only tokens with p > 0 and q > 0 have
subtrees that matter, and only those are scored. Rows below other slots are never reached and get all mass on slot 0.

**No value changes.** A token with q = 0 is never drafted; it is emitted only where a round stops. Every rule leaves p
at such tokens (up to a common factor of the row); everything else a rule computes from the row is a sum over draftable
tokens, or a sum of max(w p - q, 0), which is w p at such tokens and therefore additive. So they may be merged: each
verifier stops at the same nodes with the same probability, and the LP has the same variables. Draftable tokens keep
their order, so ties are broken as at full vocabulary.

**Tokens that only the draft has are not merged.** They are never accepted, but two verifiers distinguish them:
Traversal removes the rejected token alone from q, and OT's coupling depends on the sets of drafted tokens. Merging two
of them cost Traversal 0.10 of 1.96 tokens on a tree of V = 5, L = 2 with K = 2, and moved OT by 4e-4.

Verifiers that put a large vocabulary into buckets of tokens see every token of an extracted problem, so their values
are those without buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from lpverify import errors
from lpverify.core import prefix_tree as tree
from lpverify.core.draft_tree import topology
from lpverify.core.model_pair import ModelPair
from lpverify.decode.models import Model, Pair, State
from lpverify.decode.sampling import Sampling, any_undefined, probabilities, undefined
from lpverify.studies.text import Context, text_length

Floats = npt.NDArray[np.float64]
LEAST_TOP_K, MOST_TOP_K = 2, 8
MAX_NODES = 20_000
"""Default limit of the nodes of a problem; solving one of this size takes about a minute."""
CHUNK = 2**25
"""Limit of the entries (rows times V) that one tree pass returns."""
MOST_PREFIXES = 1024
"""Limit of the prefixes in one tree pass, whose mask is quadratic in them."""


@dataclass(frozen=True)
class Settings:
    """Trees of L = ``depth`` levels below ``contexts`` positions of each prompt, one every ``stride`` tokens.

    ``max_nodes``: limit of the nodes of one tree. Raises InputError for impossible numbers and a top-k outside
    `LEAST_TOP_K` .. `MOST_TOP_K`, SizeError if a tree without ties would exceed ``max_nodes``.
    """

    depth: int
    sampling: Sampling
    contexts: int = field(default=1, metadata={"described": False})
    stride: int = 16
    seed: int = 0
    max_nodes: int = field(default=MAX_NODES, metadata={"described": False})

    def __post_init__(self) -> None:
        errors.integer("depth (L)", self.depth, min=1)
        text_length(self.contexts, self.stride)
        errors.integer("seed", self.seed, min=0, max=2**63 - 1)
        errors.integer("nodes", self.max_nodes, min=1)
        if self.sampling.top_k is None:
            expected = f"an integer in {LEAST_TOP_K}..{MOST_TOP_K}: the whole tree is only small after top-k"
            raise errors.fail("top-k", got="none", expected=expected)
        slots = errors.integer("top-k", self.sampling.top_k, min=LEAST_TOP_K, max=MOST_TOP_K) + 1
        check_nodes(f"top-k {slots - 1}", slots, self.depth, self.max_nodes)


def check_nodes(what: str, slots: int, depth: int, limit: int) -> None:
    """Raise SizeError if a tree with ``slots`` children per node has more than ``limit`` nodes.

    >>> check_nodes("top-k 8", 9, 5, 20_000)
    Traceback (most recent call last):
    ...
    lpverify.errors.SizeError: top-k 8: got 9 slots and depth 5, 66429 nodes, expected at most 20000 nodes; ...
    """
    nodes = tree.node_count(slots, depth)
    if nodes > limit:
        size = f"{slots} slots and depth {depth}, {nodes} nodes"
        raise errors.too_large(
            what, size=size, limit=f"{limit} nodes", instead="use a smaller top-k or depth, or --nodes"
        )


@dataclass(frozen=True, eq=False)
class Slots:
    """The row of a node, ``target`` and ``draft`` (slots,).

    ``tokens``: the draftable ones, the first slots; a further slot has the mass of the tokens that only the target has.
    """

    tokens: tuple[int, ...]
    target: Floats
    draft: Floats

    @property
    def shared(self) -> Iterator[tuple[int, int]]:
        """(slot, token) of the tokens that target and draft both have."""
        return ((slot, token) for slot, token in enumerate(self.tokens) if self.target[slot] > 0)


def slots(tokens: npt.NDArray[np.int64], target: Floats, draft: Floats) -> Slots:
    """The row from the probabilities of ``tokens`` (ascending); all other tokens have none.

    >>> row = slots(np.array([3, 5, 7, 9]), np.array([0.2, 0.5, 0.0, 0.3]), np.array([0.0, 0.4, 0.6, 0.0]))
    >>> row.tokens, row.target.tolist(), row.draft.tolist(), list(row.shared)
    ((5, 7), [0.5, 0.0, 0.5], [0.4, 0.6, 0.0], [(0, 5)])
    """
    draftable = draft > 0
    names = tuple(tokens[draftable].tolist())
    if not target[~draftable].any():
        return Slots(names, target[draftable], draft[draftable])
    merged = np.append(target[draftable], target[~draftable].sum())
    return Slots(names, merged, np.append(draft[draftable], 0.0))


@dataclass(frozen=True, eq=False)
class Extract:
    """The problem below a context; ``tokens``: the root's draftable tokens, by slot."""

    pair: ModelPair
    tokens: tuple[int, ...]


def extract(pair: Pair, context: Context, settings: Settings) -> Extract:
    """Score the prefix tree of ``settings.depth`` levels below a context with both models.

    Each level takes one tree pass of each model, or more if the rows would exceed `CHUNK`. An end of text is a token
    like any other.

    Raises:
        InputError: logits are NaN or infinite.
        SizeError: ties at the k-th logit make more than ``settings.max_nodes`` nodes.
    """
    known: list[dict[tuple[int, ...], Slots]] = []  # per level: slots of the path to a node -> its row
    live: dict[tuple[int, ...], tuple[int, ...]] = {(): ()}  # slots -> tokens of the path to the level's nodes
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
    """Rows (V^depth, V) of one level, with all mass on slot 0 at nodes that were not scored."""
    level = np.zeros((tree.level_size(size, depth), size))
    level[:, 0] = 1.0
    for path, slots_ in rows.items():
        row = getattr(slots_, name)
        level[tree.index_of(path, size), : len(row)] = row
    return level


class Scorer:
    """Rows of both models after prefixes below one context, which both are fed once."""

    def __init__(self, pair: Pair, context: Sequence[int], sampling: Sampling) -> None:
        self._pair, self._pending, self._sampling = pair, context[-1], sampling
        self._states = [(model, model.start(context[:-1])) for model in (pair.target, pair.draft)]
        self._chunk = min(MOST_PREFIXES, max(1, CHUNK // pair.vocab_size))

    def rows(self, prefixes: list[tuple[int, ...]]) -> list[Slots]:
        """The row after each of ``prefixes``, all of one length. Raises InputError if logits are NaN or infinite."""
        rows: list[Slots] = []
        for start in range(0, len(prefixes), self._chunk):
            target, draft = (self._score(*of, prefixes[start : start + self._chunk]) for of in self._states)
            rows += _sparse(target, draft.to(target.device))
        return rows

    def _score(self, model: Model, state: State, prefixes: list[tuple[int, ...]]) -> torch.Tensor:
        length = state.length
        parent, depth, tokens, ends = [-1], [0], [self._pending], [0]
        if prefixes[0]:
            shape = topology(prefixes)
            parent, depth = shape.parent.tolist(), shape.depth.tolist()
            tokens += shape.token[1:].tolist()
            ends = shape.node_of[:, -1].tolist()
        logits = state.tree(torch.tensor(tokens, device=model.device), parent, depth)[ends]
        state.keep_branch(0, length)
        rows = probabilities(logits, self._sampling, self._pair.vocab_size)
        if bool(any_undefined(rows)):
            raise undefined(f"model {model.name}")
        return rows


def _sparse(target: torch.Tensor, draft: torch.Tensor) -> list[Slots]:
    """Rows (n, V) as slots."""
    mask = (target > 0) | (draft > 0)
    tokens = mask.nonzero()[:, 1].cpu().numpy()
    ends = mask.sum(dim=1).cumsum(dim=0)[:-1].tolist()
    parts = (np.split(values, ends) for values in (tokens, target[mask].cpu().numpy(), draft[mask].cpu().numpy()))
    return [slots(*row) for row in zip(*parts, strict=True)]
