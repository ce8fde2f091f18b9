"""Seconds of the parts of a round on a pair of models, measured with the engine's own functions.

Each part is timed alone after a context, the parts interleaved, and every time is the median over contexts, so that a
machine that slows down for a while is unfair to none:

    draft_step, round   `draft_paths` at two depths; the slope is one step at batch K, what is left of the intercept
                        after the first step (forking the cache, numbering nodes) counts to ``round``
    target_pass         one pass over a tree of n tokens, to probabilities
    verify              law and draw on a drafted tree, cut to every K and L
    round               also: both caches brought to half an accepted path
    catch_up            feeding the draft one token
    target_step         one token by the target alone, drawn
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, cast

import torch

from lpverify import errors
from lpverify.core.draft_tree import DraftTree
from lpverify.decode.drafter import Draft, draft_paths
from lpverify.decode.engine import Request, drafted_tree, path_to, settle_draft
from lpverify.decode.metrics import Stopwatch
from lpverify.decode.models import Model, Pair, State, padded
from lpverify.decode.rng import Keys, Role
from lpverify.decode.run import versions
from lpverify.decode.sampling import Sampling, probabilities
from lpverify.numerics import Array
from lpverify.studies.contexts import target_text
from lpverify.verifiers import Verifier, sample, verifier
from lpverify.verifiers.sample import pick

Key = tuple[Any, ...]
SCHEMA = "lpverify/costs@1"
POINTS = 8
"""Sizes of target pass that are timed, at most; they are further apart the larger they are."""

LEAST_DEPTH = 8
"""Drafts are timed at 2 tokens and at the largest depth, at least this one."""

TIMES = 3
"""What can be done again after the same context is timed so often."""


def measure(
    pair: Pair,
    after: Sequence[Sequence[int]],
    algorithms: Sequence[str],
    paths: Iterable[int],
    depths: Iterable[int],
    sampling: Sampling,
    *,
    seed: int = 0,
    advance: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """The document ``lpverify/costs@1`` for these algorithms, K and L, measured ``after`` contexts of typical length.

    The first context is measured once more before all others, as a warm-up that does not count; ``advance`` is called
    after each. Raises InputError for an unknown algorithm, impossible numbers, and a context that does not fit into a
    model.
    """
    paths = sorted({1, *(errors.integer("paths (K)", count, least=1) for count in paths)})
    depths = sorted({errors.integer("depth (L)", depth, least=1) for depth in depths})
    checked = {name: verifier(name) for name in algorithms}
    deepest = max(*depths, LEAST_DEPTH)
    errors.integer("contexts", len(after), least=1)
    for context in after:
        check_room(pair, len(context), deepest)
    times: dict[Key, list[float]] = {}
    for repeat, context in enumerate((after[0], *after)):
        bench = _Bench(pair, context, sampling, Keys(seed, "costs"), repeat)
        bench.target(_sizes(paths[-1] * depths[-1] + 1), paths[-1])
        for count in paths:
            bench.draft(count, deepest)
        view = bench.view(paths[-1], depths[-1])
        for count in paths:
            for depth in depths:
                part = view.restricted(count, depth)
                for name, algorithm in checked.items():
                    if count == 1 or not algorithm.first_path_only:
                        bench.verify(name, algorithm, part)
        for count in paths:
            bench.cache(count, depths[-1])
        if repeat > 0:
            for key, seconds in bench.seconds.items():
                times.setdefault(key, []).extend(seconds)
        if advance is not None:
            advance()
    found = {key: median(values) for key, values in times.items()}
    return {"schema": SCHEMA, **_tables(found, paths, deepest), "versions": versions()}


def contexts(
    pair: Pair,
    prompts: Sequence[tuple[tuple[int, ...], str]],
    count: int,
    length: int,
    depth: int,
    sampling: Sampling,
    *,
    seed: int = 0,
    advance: Callable[[], None] | None = None,
) -> list[tuple[int, ...]]:
    """``count`` contexts of ``length`` tokens: prompts (tokens, key) in turn, continued by the target, or cut.

    A prompt that is used again is continued differently. Raises InputError where a context and ``depth`` drafted tokens
    do not fit into a model.
    """
    check_room(pair, length, depth)
    found = []
    for i in range(errors.integer("contexts", count, least=1)):
        tokens, key = prompts[i % len(prompts)]
        request = Request(tokens[:length], f"{key} {i}")
        found.append(request.tokens + target_text(pair, request, length - len(request.tokens), sampling, seed))
        if advance is not None:
            advance()
    return found


def check_room(pair: Pair, context: int, depth: int) -> None:
    """Raise InputError when a context, a pending token and a draft do not fit into a model."""
    errors.integer("context", context, least=1)
    for role, model in (("target", pair.target), ("draft", pair.draft)):
        if model.limit is not None and context + 1 + depth > model.limit:
            got = f"a context of {context} tokens and {depth} drafted ones"
            raise errors.fail(f"{role} {model.name}", got=got, expected=f"at most {model.limit} in all")


def _sizes(most: int) -> list[int]:
    """Sizes of tree from 2 to ``most`` tokens, at most `POINTS`, roughly geometric.

    >>> _sizes(33), _sizes(3)
    ([2, 3, 4, 7, 10, 15, 22, 33], [2, 3])
    """
    ratio = (most / 2) ** (1 / (POINTS - 1))
    return sorted({round(2 * ratio**i) for i in range(POINTS)})


class _Bench:
    """One context: ``seconds`` by part and its arguments."""

    def __init__(self, pair: Pair, context: Sequence[int], sampling: Sampling, keys: Keys, repeat: int) -> None:
        self._pair, self._sampling, self._keys, self._repeat = pair, sampling, keys, repeat
        self._context, self._pending = list(context[:-1]), context[-1]
        self.seconds: dict[Key, list[float]] = {}

    def _time(self, key: Key, work: Callable[[], Any], undo: Callable[[], Any] | None = None) -> None:
        """Time ``work`` once, or `TIMES` times if it can be undone; it is left undone."""
        for _ in range(1 if undo is None else TIMES):
            watch = Stopwatch(self._pair.target.device)
            with torch.inference_mode(), watch("part"):
                work()
            self.seconds.setdefault(key, []).append(watch.seconds["part"])
            if undo is not None:
                undo()

    def _rows(self, logits: torch.Tensor) -> torch.Tensor:
        return probabilities(padded(logits, self._pair.vocab_size), self._sampling)

    def target(self, sizes: Sequence[int], branches: int) -> None:
        """One step alone, and passes over the first n tokens of ``branches`` disjoint paths.

        The draft makes a step before each, as in a round: it leaves the processor's caches to its own weights.
        """
        device = self._pair.target.device
        state, other = self._start(self._pair.target), self._start(self._pair.draft)
        token = torch.tensor([self._pending], device=self._pair.draft.device)
        fed = state.length

        def step() -> int:
            rows = self._rows(state.append(torch.tensor([self._pending], device=device)))
            return pick(cast(Array, rows[0]), self._keys.uniform(self._repeat, Role.TARGET))

        def undo() -> None:
            state.keep_branch(0, fed)
            with torch.inference_mode():
                other.append(token)
            other.keep_branch(0, fed)

        undo()
        self._time(("target_step",), step, undo)
        for size in sizes:
            parent = [-1, *(max(i - branches, 0) for i in range(1, size))]
            depth = [0, *((i - 1) // branches + 1 for i in range(1, size))]
            tokens = torch.full((size,), self._pending, device=device)

            def score(tokens: torch.Tensor = tokens, parent: Any = parent, depth: Any = depth) -> torch.Tensor:
                return self._rows(state.tree(tokens, parent, depth))

            self._time(("target_pass", size), score, undo)

    def draft(self, paths: int, deepest: int) -> None:
        """Drafts of 2 and of ``deepest`` tokens, and one token fed by itself."""
        state = self._start(self._pair.draft)
        fed = state.length
        model, size = self._pair.draft, self._pair.vocab_size

        def undo() -> None:
            state.keep_branch(0, fed)

        for depth in (2, deepest):
            arguments = (paths, depth, self._sampling, self._keys, self._repeat, size)

            def draft(arguments: Any = arguments) -> Draft:
                return draft_paths(model, state, self._pending, *arguments)

            self._time(("draft", paths, depth), draft, undo)
        if paths == 1:
            token = torch.tensor([self._pending], device=self._pair.draft.device)
            self._time(("catch_up",), lambda: state.append(token), undo)

    def view(self, paths: int, depth: int) -> DraftTree:
        """A drafted tree with the target's rows, untimed."""
        return self._round(paths, depth)[0]

    def verify(self, name: str, algorithm: Verifier, view: DraftTree) -> None:
        paths, depth = view.paths.shape
        uniforms = self._keys.verifying(self._repeat)
        self._time(("verify", name, paths, depth), lambda: sample(algorithm(view), uniforms))

    def cache(self, paths: int, depth: int) -> None:
        """Half of the last path is committed."""
        view, (target, draft) = self._round(paths, depth)
        fed, kept = len(self._context), depth // 2
        node = int(view.node_of[-1, kept])

        def settle() -> None:
            nodes = path_to(view, node)
            path = int((view.node_of[:, kept] == node).argmax())
            target.keep_nodes(nodes)
            settle_draft(draft, fed, path, [int(view.token[c]) for c in nodes[1:]], depth, self._pair.draft.device)

        self._time(("cache", paths), settle)

    def _round(self, paths: int, depth: int) -> tuple[DraftTree, tuple[State, State]]:
        pair = self._pair
        states = self._start(pair.target), self._start(pair.draft)
        arguments = (paths, depth, self._sampling, self._keys, self._repeat, Stopwatch(pair.target.device))
        with torch.inference_mode():
            return drafted_tree(pair, states, self._pending, *arguments), states

    def _start(self, model: Model) -> State:
        with torch.inference_mode():
            return model.start(self._context)


def _tables(found: dict[Key, float], paths: Sequence[int], deepest: int) -> dict[str, Any]:
    """Medians by part to the tables of the document."""
    step = {count: (found["draft", count, deepest] - found["draft", count, 2]) / (deepest - 2) for count in paths}
    verify: dict[str, dict[str, dict[str, float]]] = {}
    for key, seconds in found.items():
        if key[0] == "verify":
            _, name, count, depth = key
            verify.setdefault(name, {}).setdefault(str(count), {})[str(depth)] = seconds
    # the intercept's rest is a difference of times that are nearly equal: noise may make it negative
    rest = {count: max(found["draft", count, 2] - step[1] - step[count], 0.0) for count in paths}
    return {
        "draft_step": {str(count): step[count] for count in paths},
        "target_pass": {str(key[1]): seconds for key, seconds in found.items() if key[0] == "target_pass"},
        "verify": verify,
        "round": {str(count): rest[count] + found["cache", count] for count in paths},
        "catch_up": found["catch_up",],
        "target_step": found["target_step",],
    }
