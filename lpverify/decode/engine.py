"""The decoding loop. One decoding round:

    draft    K paths of L tokens after the pending token, with the rows they were drawn from
    target   ONE target pass over the pending token and the tree of drafted prefixes: the target's row at every node
    verify   DraftTree -> stop distribution -> one draw: the node at which the round stops, and one more token
    cache    commit the node's prefix and the token; both states keep all committed tokens but the new pending one

Only the verifier differs between algorithms; for one that looks at the first path only, one path is drafted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from lpverify import errors
from lpverify.core.draft_tree import DraftTree, Topology
from lpverify.decode.drafter import draft_paths
from lpverify.decode.metrics import Generation, RoundRecord, Stopwatch
from lpverify.decode.models import Pair
from lpverify.decode.rng import Keys
from lpverify.decode.sampling import Process, Sampling, check_defined, probabilities
from lpverify.verifiers import StopDistribution, Verifier
from lpverify.verifiers.sample import sample


@dataclass(frozen=True)
class Settings:
    """What a decoding run depends on besides models, verifier and prompt. Raises InputError for impossible numbers."""

    num_paths: int = 1  # K
    depth: int = 8  # L, drafted tokens per path
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 128  # the text ends after so many tokens at the latest
    seed: int = 0
    eos: frozenset[int] = frozenset()  # the text ends with the first of these tokens

    def __post_init__(self) -> None:
        errors.integer("paths (K)", self.num_paths, min=1)
        errors.integer("depth (L)", self.depth, min=1)
        errors.integer("new tokens", self.max_new_tokens, min=1)
        errors.integer("seed", self.seed, min=0, max=2**63 - 1)


@dataclass(frozen=True)
class Request:
    """A prompt of at least one token; ``key`` is its address in the random numbers, ``text`` what the tokens say."""

    tokens: tuple[int, ...]
    key: str
    text: str = ""


class ActiveRequest:
    """One request while it is decoded.

    ``target`` and ``draft`` are the models' states, fed with all tokens but the last committed one, ``pending``;
    ``keys`` has the random numbers, ``watch`` the seconds by stage. With ``process`` the logits of both models are
    changed at every node by its own prefix. With ``keep_logits`` the target's logits (n, V) at the nodes of a tree are
    ``logits`` until `commit`, and then those that the committed tokens were drawn from.
    """

    def __init__(
        self,
        pair: Pair,
        request: Request,
        sampling: Sampling,
        seed: int,
        process: Process | None = None,
        *,
        keep_logits: bool = False,
    ) -> None:
        self.pair, self.sampling, self.pending = pair, sampling, request.tokens[-1]
        self.process, self.text = process, torch.tensor(request.tokens, device=pair.target.device)  # committed tokens
        self.keep_logits, self.logits = keep_logits, torch.empty(0)
        self.keys, self.watch = Keys(seed, request.key), Stopwatch(pair.target.device)
        with torch.inference_mode(), self.watch("prefill"):
            self.target = pair.target.start(request.tokens[:-1])
            self.draft = pair.draft.start(request.tokens[:-1])

    def draft_tree(self, num_paths: int, depth: int, round_: int, *, check: bool = True) -> DraftTree:
        """Draft K paths of L >= 0 tokens after the pending token and score their prefixes in one target pass.

        Both states then hold the drafted tokens too, until `commit` or `forget`. ``round_`` addresses the random
        numbers. Raises InputError if logits are NaN or infinite; ``check`` includes the target's, which on a device
        takes a synchronisation.
        """
        assert self.draft.length == self.target.length
        with self.watch("draft"):
            process = None if self.process is None else self.processed
            uniforms = self.keys.drafting(round_, num_paths, depth)
            drafted = draft_paths(self.pair, self.draft, self.pending, uniforms, self.sampling, process)
        tree = drafted.tree
        with self.watch("target"):
            tokens = torch.tensor(tree.token, device=self.pair.target.device)
            tokens[0] = self.pending
            logits = self.target.tree(tokens, tree.parent.tolist(), tree.depth.tolist())
            if self.keep_logits:
                self.logits = logits
            if process is not None:
                logits = self._processed_tree(tree, logits)
            rows = self.rows(logits)
        with self.watch("verify"):
            if check:
                check_defined(rows, f"target {self.pair.target.name}")
            return DraftTree.of(tree, rows, drafted.rows.to(rows.device))

    def processed(self, drafted: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """What `process` makes of ``logits`` (R, n), after the committed text and the tokens ``drafted`` (R, d)."""
        assert self.process is not None
        text = self.text.expand(len(drafted), -1)
        return self.process(torch.cat([text, drafted.to(text.device)], dim=1), logits)

    def _processed_tree(self, tree: Topology, logits: torch.Tensor) -> torch.Tensor:
        """`processed` at every node of the tree, the nodes of one depth at once: their prefixes have one length."""
        paths, starts = torch.tensor(tree.paths, device=self.text.device), tree.level_starts
        levels = []
        for depth, firsts in enumerate(tree.first_paths):
            levels.append(self.processed(paths[firsts, :depth], logits[starts[depth] : starts[depth + 1]]))
        return torch.cat(levels)

    def rows(self, logits: torch.Tensor) -> torch.Tensor:
        """Probabilities (R, V) from logits of either model."""
        return probabilities(logits, self.sampling, self.pair.vocab_size)

    def commit(self, tree: DraftTree, node: int, token: int) -> list[int]:
        """Keep the drafted tokens up to ``node`` in both states and return them with ``token``, the new pending one."""
        level, depth = int(tree.depth[node]), tree.paths.shape[1]
        path = int((tree.node_of[:, level] == node).argmax())
        accepted = tree.paths[path, :level].tolist()
        fed = self.draft.length - depth  # without the pending token and the drafted ones
        nodes = tree.node_of[path, : level + 1].tolist()
        self.target.keep_nodes(nodes)
        self.draft.keep_branch(path, fed + 1 + min(len(accepted), depth - 1))
        if len(accepted) == depth:  # the last token of a path, or at L = 0 the pending one, is not fed yet
            last = accepted[-1] if accepted else self.pending
            self.draft.append(torch.tensor([last], device=self.pair.draft.device))
        committed = [*accepted, token]
        if self.keep_logits:
            self.logits = self.logits[nodes]
        if self.process is not None:
            self.text = torch.cat([self.text, torch.tensor(committed, device=self.text.device)])
        self.pending = token
        return committed

    def forget(self, length: int) -> None:
        """Take both states back to their first ``length`` tokens, as if nothing had been drafted."""
        for state in (self.target, self.draft):
            state.keep_branch(0, length)


def generate(
    pair: Pair,
    verifier: Verifier,
    request: Request,
    settings: Settings,
    on_round: Callable[[RoundRecord], None] = lambda record: None,
) -> Generation:
    """Continue one prompt; the tokens depend on nothing but the arguments. ``on_round`` is called after every round.

    Raises InputError if the prompt is empty, the text may outgrow a model's context, or logits are NaN or infinite.
    """
    pair.check_context(len(request.tokens), settings.max_new_tokens)
    pair.check_tree(1 if verifier.first_path_only else settings.num_paths, settings.depth)
    new: list[int] = []
    rounds: list[RoundRecord] = []
    active = ActiveRequest(pair, request, settings.sampling, settings.seed)
    with torch.inference_mode():
        while len(new) < settings.max_new_tokens and not (new and new[-1] in settings.eos):
            room = settings.max_new_tokens - len(new)
            emitted, record = decoding_round(active, verifier, settings, len(rounds), room)
            new += emitted
            rounds.append(record)
            on_round(record)
    return Generation.measured(verifier.name, request.key, new, rounds, active.watch)


def decoding_round(
    active: ActiveRequest, verifier: Verifier, settings: Settings, round_: int, room: int
) -> tuple[list[int], RoundRecord]:
    """One round; the text has ``room`` for so many more tokens. Returns its tokens and its record.

    Near the end of the models' context drafted paths are as long as there is space for; with a process also near the
    end of the text, so that it is asked for no prefix that the text cannot have.
    """
    num_paths = 1 if verifier.first_path_only else settings.num_paths
    limit, length = active.pair.limit, active.target.length + 1
    depth = settings.depth if limit is None else min(settings.depth, limit - length)
    if active.process is not None:
        depth = min(depth, room - 1)
    on_host = active.pair.target.device.type == "cpu"
    tree = active.draft_tree(num_paths, depth, round_, check=on_host)
    with active.watch("verify"):
        stops = verifier(tree)
        node, token = sample(stops, active.keys.verifying(round_))
    with active.watch("cache"):
        emitted = cut(active.commit(tree, node, token), room, settings.eos)
    accepted, expected = min(int(tree.depth[node]), len(emitted)), expected_committed(stops, room, settings.eos)
    return emitted, RoundRecord(depth, len(tree.parent) - 1, accepted, len(emitted), expected)


def cut(tokens: list[int], room: int, eos: frozenset[int]) -> list[int]:
    """At most ``room`` tokens, up to and with the first one that ends the text.

    >>> cut([7, 2, 9, 3], 10, frozenset({2})), cut([7, 2, 9, 3], 1, frozenset({2}))
    ([7, 2], [7])
    """
    end = next((i + 1 for i, token in enumerate(tokens) if token in eos), room)
    return tokens[: min(end, room)]


def expected_committed(stops: StopDistribution, room: int, eos: frozenset[int]) -> Any:
    """Expected number of committed tokens given the drafted tree (theory 8).

    This is 1 + `lpverify.verifiers.expected_accepted`, except that each node counts the tokens that `cut` leaves.
    """
    tree = stops.tree
    counts: list[int] = []
    ends: list[int | None] = []  # depth of the first end of text on the way to each node
    for parent, token, depth in zip(tree.parent.tolist(), tree.token.tolist(), tree.depth.tolist(), strict=True):
        end = ends[parent] if parent >= 0 else None
        ends.append(depth if end is None and parent >= 0 and token in eos else end)
        counts.append(min(room, depth + 1 if ends[-1] is None else ends[-1]))
    return stops.expected(counts)
