"""The whole prefix tree below a context of a real pair as a small problem, exact for every verifier (theory 10.7).

With top-k sampling a node has at most k tokens in the target's row p and in the draft's row q. The children of a node
are numbered by *slots*: the draftable tokens (q > 0) in the order of their ids, then one slot with the mass of all
tokens that only the target has. V is the largest number of slots at any node, without ties at most k + 1. Only tokens
with p > 0 and q > 0 have subtrees that matter, and only those are scored. Rows below other slots are never reached and
get all mass on slot 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lpverify import errors
from lpverify.core import prefix_tree as tree
from lpverify.core.draft_tree import topology
from lpverify.core.model_pair import ModelPair
from lpverify.decode.models import Model, Pair, State
from lpverify.decode.sampling import Sampling, check_defined, probabilities
from lpverify.studies.text import Context, text_length

Floats = npt.NDArray[np.float64]
MIN_TOP_K, MAX_TOP_K = 2, 8
CHUNK = 2**25  # limit of the entries (rows times V) that one tree pass returns
MAX_PREFIXES = 1024  # limit of the prefixes in one tree pass, whose mask is quadratic in them


@dataclass(frozen=True)
class Settings:
    """Trees of L = ``depth`` levels below ``contexts`` positions of each prompt, one every ``stride`` tokens.

    Raises InputError for impossible numbers and a top-k outside `MIN_TOP_K` .. `MAX_TOP_K`, SizeError if a tree without
    ties would exceed ``max_nodes``. Solving a problem of 20,000 nodes takes about a minute.
    """

    depth: int
    sampling: Sampling
    contexts: int = field(default=1, metadata={"described": False})
    stride: int = 16
    seed: int = 0
    max_nodes: int = field(default=20_000, metadata={"described": False})

    def __post_init__(self) -> None:
        errors.integer("depth (L)", self.depth, min=1)
        text_length(self.contexts, self.stride)
        errors.integer("seed", self.seed, min=0, max=2**63 - 1)
        errors.integer("nodes", self.max_nodes, min=1)
        if self.sampling.top_k is None:
            expected = f"an integer in {MIN_TOP_K}..{MAX_TOP_K}: the whole tree is only small after top-k"
            raise errors.fail("top-k", got="none", expected=expected)
        top_k = errors.integer("top-k", self.sampling.top_k, min=MIN_TOP_K, max=MAX_TOP_K)
        check_nodes(f"top-k {top_k}", top_k + 1, self.depth, self.max_nodes)


def check_nodes(what: str, slots: int, depth: int, limit: int) -> None:
    """Raise SizeError if a tree with ``slots`` children per node has more than ``limit`` nodes.

    >>> check_nodes("top-k 8", 9, 5, 20_000)
    Traceback (most recent call last):
    ...
    lpverify.errors.SizeError: top-k 8: got 9 slots and depth 5, 66429 nodes, expected at most 20000 nodes; ...
    """
    nodes = tree.node_count(slots, depth)
    if nodes > limit:
        size, instead = f"{slots} slots and depth {depth}, {nodes} nodes", "use a smaller top-k or depth, or --nodes"
        raise errors.too_large(what, size=size, limit=f"{limit} nodes", instead=instead)


@dataclass(frozen=True, eq=False)
class Slots:
    """The row of a node by slot."""

    tokens: tuple[int, ...]  # of the first slots, the draftable ones
    target: Floats  # (slots,)
    draft: Floats  # (slots,)


def slots(tokens: npt.NDArray[np.int64], target: Floats, draft: Floats) -> Slots:
    """The row from the probabilities of ``tokens`` (ascending); all other tokens have none.

    >>> row = slots(np.array([3, 5, 7, 9]), np.array([0.2, 0.5, 0.0, 0.3]), np.array([0.0, 0.4, 0.6, 0.0]))
    >>> row.tokens, row.target.tolist(), row.draft.tolist()
    ((5, 7), [0.5, 0.0, 0.5], [0.4, 0.6, 0.0])
    """
    draftable = draft > 0
    rest = [target[~draftable].sum()] if target[~draftable].any() else []
    of_slots = np.append(target[draftable], rest), np.append(draft[draftable], [0.0] * len(rest))
    return Slots(tuple(tokens[draftable].tolist()), *of_slots)


class Extract(NamedTuple):
    """The problem below a context."""

    pair: ModelPair
    tokens: tuple[int, ...]  # the root's draftable ones, by slot


def extract(pair: Pair, context: Context, settings: Settings) -> Extract:
    """Score the prefix tree of ``settings.depth`` levels below a context with both models.

    Each level takes one tree pass of each model, or more if the rows would exceed `CHUNK`. An end of text is a token
    like any other. Raises InputError if logits are NaN or infinite, SizeError if ties at the k-th logit make more than
    ``settings.max_nodes`` nodes.
    """
    known: list[dict[tuple[int, ...], Slots]] = []  # per level: slots of the path to a node -> its row
    live: dict[tuple[int, ...], tuple[int, ...]] = {(): ()}  # slots -> tokens of the path to the level's nodes
    with torch.inference_mode():
        states = [(model, model.start(context.tokens[:-1])) for model in (pair.target, pair.draft)]
        chunk = min(MAX_PREFIXES, max(1, CHUNK // pair.vocab_size))
        for _ in range(settings.depth):
            prefixes, level = list(live.values()), []
            for start in range(0, len(prefixes), chunk):
                part = prefixes[start : start + chunk]
                scored = (_score(*state, context.tokens[-1], part) for state in states)
                target, draft = (probabilities(logits, settings.sampling, pair.vocab_size) for logits in scored)
                check_defined(target, f"model {pair.target.name}")
                check_defined(draft, f"model {pair.draft.name}")
                level += _sparse(target, draft.to(target.device))
            rows = dict(zip(live, level, strict=True))
            known.append(rows)
            live = {
                (*path, slot): (*live[path], token)
                for path, row in rows.items()
                for slot, token in enumerate(row.tokens)
                if row.target[slot] > 0
            }
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


def _score(model: Model, state: State, pending: int, prefixes: list[tuple[int, ...]]) -> torch.Tensor:
    """The logits (n, V) after each of ``prefixes``, all of one length; leaves no trace in the state."""
    length = state.length
    parent, depth, tokens, ends = [-1], [0], [pending], [0]
    if prefixes[0]:
        shape = topology(prefixes)
        parent, depth, ends = shape.parent.tolist(), shape.depth.tolist(), shape.node_of[:, -1].tolist()
        tokens += shape.token[1:].tolist()
    logits = state.tree(torch.tensor(tokens, device=model.device), parent, depth)[ends]
    state.keep_branch(0, length)
    return logits


def _sparse(target: torch.Tensor, draft: torch.Tensor) -> list[Slots]:
    """Rows (n, V) as slots."""
    mask = (target > 0) | (draft > 0)
    tokens = mask.nonzero()[:, 1].cpu().numpy()
    ends = mask.sum(dim=1).cumsum(dim=0)[:-1].tolist()
    parts = (np.split(values, ends) for values in (tokens, target[mask].cpu().numpy(), draft[mask].cpu().numpy()))
    return [slots(*row) for row in zip(*parts, strict=True)]
