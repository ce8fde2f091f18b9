"""Seconds of the parts of a round on a pair of models, measured with the engine's own functions.

Each part is timed alone after a context, the parts interleaved, and every result is the median over contexts, which
balances temporary drift in the machine's speed:

    draft_step, round   drafting at two depths: the slope is one draft step at batch K; the remainder after the first
                        step (copying the cache to K branches, numbering nodes) counts as part of ``round``
    target_pass         one pass over a tree of n tokens, to probabilities
    verify              stop distribution and draw on a drafted tree, cut to every K and L
    round               also: both caches cut back to half an accepted path
    catch_up            one token fed to the draft
    target_step         one token drawn from the target alone
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

import torch

from lpverify import errors
from lpverify.core.draft_tree import DraftTree
from lpverify.decode.drafter import draft_paths
from lpverify.decode.engine import ActiveRequest, Request
from lpverify.decode.metrics import Stopwatch
from lpverify.decode.models import Pair
from lpverify.decode.rng import Role
from lpverify.decode.run import versions
from lpverify.decode.sampling import Sampling
from lpverify.studies.text import target_text
from lpverify.verifiers import Verifier, sample, verifier
from lpverify.verifiers.sample import pick

Key = tuple[Any, ...]
SCHEMA = "lpverify/costs@1"
POINTS = 8
"""Limit of the number of tree sizes at which the target pass is timed; they are roughly geometric."""

DRAFT_DEPTH = 8
"""Drafts are timed at 2 tokens and at the largest depth, or at this one if it is larger."""

TIMES = 3
"""Repetitions per context for operations that can be undone."""


def measure(
    pair: Pair,
    contexts: Sequence[Sequence[int]],
    algorithms: Sequence[str],
    num_paths: Iterable[int],
    depths: Iterable[int],
    sampling: Sampling,
    *,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The document ``lpverify/costs@1``, for every K of ``num_paths`` with every L of ``depths``.

    The first context is measured once more before all others, as a warm-up that does not count.

    Args:
        contexts: token ids, of typical length; see `typical_contexts`.
        algorithms: names of verifiers.
        num_paths, depths: all K and L that the costs are needed for.
        advance: called after each context, the warm-up included.

    Raises:
        InputError: an algorithm is unknown, a number impossible, there is no context, or one does not fit.
    """
    counts = sorted({1, *(errors.integer("paths (K)", count, min=1) for count in num_paths)})
    depths = sorted({errors.integer("depth (L)", depth, min=1) for depth in depths})
    verifiers = {name: verifier(name) for name in algorithms}
    deepest = max(*depths, DRAFT_DEPTH)
    errors.integer("contexts", len(contexts), min=1)
    for context in contexts:
        pair.check_context(len(context), 1, deepest)
    times: dict[Key, list[float]] = {}
    for repeat, context in enumerate((contexts[0], *contexts)):
        bench = _Bench(pair, Request(tuple(context), "costs"), sampling, seed, repeat)
        bench.target(_sizes(counts[-1] * depths[-1] + 1), counts[-1])
        for count in counts:
            bench.draft(count, deepest)
        tree = bench.tree(counts[-1], depths[-1])
        for count in counts:
            for depth in depths:
                part = tree.restricted(count, depth)
                for name, algorithm in verifiers.items():
                    if count == 1 or not algorithm.first_path_only:
                        bench.verify(name, algorithm, part)
        for count in counts:
            bench.cache(count, depths[-1])
        if repeat > 0:
            for key, seconds in bench.seconds.items():
                times.setdefault(key, []).extend(seconds)
        advance()
    medians = {key: median(seconds) for key, seconds in times.items()}
    return {"schema": SCHEMA, **_tables(medians, counts, deepest), "versions": versions()}


def typical_contexts(
    pair: Pair,
    requests: Sequence[Request],
    count: int,
    length: int,
    depth: int,
    sampling: Sampling,
    *,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> list[tuple[int, ...]]:
    """``count`` contexts of ``length`` tokens: the prompts in turn, cut, or continued by the target.

    A prompt that is used again is continued differently. ``advance`` is called after each context. Raises InputError if
    a context and ``depth`` drafted tokens do not fit into a model.
    """
    pair.check_context(errors.integer("context", length, min=1), 1, depth)
    contexts = []
    for i in range(errors.integer("contexts", count, min=1)):
        prompt = requests[i % len(requests)]
        request = Request(prompt.tokens[:length], f"{prompt.key} {i}")
        contexts.append(request.tokens + target_text(pair, request, length - len(request.tokens), sampling, seed))
        advance()
    return contexts


def _sizes(largest: int) -> list[int]:
    """Sizes of tree from 2 to ``largest`` tokens, at most `POINTS`, roughly geometric.

    >>> _sizes(33), _sizes(3)
    ([2, 3, 4, 7, 10, 15, 22, 33], [2, 3])
    """
    factor = (largest / 2) ** (1 / (POINTS - 1))
    return sorted({round(2 * factor**i) for i in range(POINTS)})


class _Bench:
    """Times the parts after one context; ``seconds`` by part and its arguments."""

    def __init__(self, pair: Pair, request: Request, sampling: Sampling, seed: int, repeat: int) -> None:
        self._pair, self._round, self._length = pair, repeat, len(request.tokens) - 1
        self._request, self._seed = request, seed
        self._active = ActiveRequest(pair, request, sampling, seed)
        self._target_token = torch.tensor([request.tokens[-1]], device=pair.target.device)
        self._draft_token = torch.tensor([request.tokens[-1]], device=pair.draft.device)
        self.seconds: dict[Key, list[float]] = {}

    def _time(self, key: Key, work: Callable[[], Any], undo: Callable[[], Any] | None = None) -> None:
        """Time ``work`` once, or `TIMES` times if it can be undone; afterwards it is undone."""
        for _ in range(1 if undo is None else TIMES):
            watch = Stopwatch(self._pair.target.device)
            with torch.inference_mode():
                with watch("part"):
                    work()
                self.seconds.setdefault(key, []).append(watch.seconds["part"])
                if undo is not None:
                    undo()

    def target(self, sizes: Sequence[int], branches: int) -> None:
        """One step of the target alone, and passes over the first n tokens of ``branches`` disjoint paths.

        The draft makes a step before each, as in a round: so the processor's caches hold the draft's weights.
        """
        active = self._active

        def step() -> int:
            row = active.rows(active.target.append(self._target_token))[0]
            return pick(row, active.keys.uniform(self._round, Role.TARGET))

        def undo() -> None:
            active.target.keep_branch(0, self._length)
            active.draft.append(self._draft_token)
            active.draft.keep_branch(0, self._length)

        with torch.inference_mode():
            undo()
        self._time(("target_step",), step, undo)
        for size in sizes:
            parent = [-1, *(max(i - branches, 0) for i in range(1, size))]
            depth = [0, *((i - 1) // branches + 1 for i in range(1, size))]
            tokens = self._target_token.repeat(size)

            def score(tokens: torch.Tensor = tokens, parent: Any = parent, depth: Any = depth) -> torch.Tensor:
                return active.rows(active.target.tree(tokens, parent, depth))

            self._time(("target_pass", size), score, undo)

    def draft(self, num_paths: int, deepest: int) -> None:
        """Drafts of 2 and of ``deepest`` tokens; with the first path alone also one token fed by itself."""
        active = self._active

        def undo() -> None:
            active.draft.keep_branch(0, self._length)

        for depth in (2, deepest):

            def draft(depth: int = depth) -> Any:
                uniforms = active.keys.drafting(self._round, num_paths, depth)
                return draft_paths(self._pair, active.draft, active.pending, uniforms, active.sampling)

            self._time(("draft", num_paths, depth), draft, undo)
        if num_paths == 1:
            self._time(("catch_up",), lambda: active.draft.append(self._draft_token), undo)

    def tree(self, num_paths: int, depth: int) -> DraftTree:
        """A drafted tree with the target's rows, untimed."""
        with torch.inference_mode():
            tree = self._active.draft_tree(num_paths, depth, self._round)
            self._active.forget(self._length)
            return tree

    def verify(self, name: str, algorithm: Verifier, tree: DraftTree) -> None:
        num_paths, depth = tree.paths.shape
        uniforms = self._active.keys.verifying(self._round)
        self._time(("verify", name, num_paths, depth), lambda: sample(algorithm(tree), uniforms))

    def cache(self, num_paths: int, depth: int) -> None:
        """Commit half of the last path."""
        active = ActiveRequest(self._pair, self._request, self._active.sampling, self._seed)
        with torch.inference_mode():
            tree = active.draft_tree(num_paths, depth, self._round)
        node = int(tree.node_of[-1, depth // 2])
        self._time(("cache", num_paths), lambda: active.commit(tree, node, active.pending))


def _tables(medians: dict[Key, float], counts: Sequence[int], deepest: int) -> dict[str, Any]:
    """Medians by part as the tables of the document."""
    step = {count: (medians["draft", count, deepest] - medians["draft", count, 2]) / (deepest - 2) for count in counts}
    verify: dict[str, dict[str, dict[str, float]]] = {}
    for key, seconds in medians.items():
        if key[0] == "verify":
            _, name, count, depth = key
            verify.setdefault(name, {}).setdefault(str(count), {})[str(depth)] = seconds
    # the remainder is a difference of nearly equal times: noise may make it negative
    remainder = {count: max(medians["draft", count, 2] - step[1] - step[count], 0.0) for count in counts}
    return {
        "draft_step": {str(count): step[count] for count in counts},
        "target_pass": {str(key[1]): seconds for key, seconds in medians.items() if key[0] == "target_pass"},
        "verify": verify,
        "round": {str(count): remainder[count] + medians["cache", count] for count in counts},
        "catch_up": medians["catch_up",],
        "target_step": medians["target_step",],
    }
