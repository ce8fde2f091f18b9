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

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
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

SCHEMA = "lpverify/costs@1"
POINTS = 8  # limit of the number of tree sizes at which the target pass is timed
DRAFT_DEPTH = 8  # drafts are timed at 2 tokens and at the largest depth, or at this one if it is larger
TIMES = 3  # repetitions per context for operations that can be undone


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

    The first context is measured once more before all others, as a warm-up that does not count. ``contexts`` are token
    ids, as of `typical_contexts`; ``advance`` is called after each, the warm-up included. Raises InputError for unknown
    algorithms, impossible numbers, no context, or one that does not fit.
    """
    counts = sorted({1, *errors.integers("paths (K)", num_paths, min=1)})
    depths = sorted(errors.integers("depth (L)", depths, min=1))
    verifiers = {name: verifier(name) for name in algorithms}
    deepest = max(*depths, DRAFT_DEPTH)
    errors.integer("contexts", len(contexts), min=1)
    for context in contexts:
        pair.check_context(len(context), 1, deepest)
        pair.check_tree(max(num_paths), deepest)
    timer = _Timer(pair.target.device)
    with torch.inference_mode():
        for repeat, context in enumerate((contexts[0], *contexts)):
            start = partial(ActiveRequest, pair, Request(tuple(context), "costs"), sampling, seed)
            active = start()
            _time_target(timer, active, repeat, _sizes(counts[-1] * depths[-1] + 1), counts[-1])
            for count in counts:
                _time_draft(timer, active, repeat, count, deepest)
            tree = active.draft_tree(counts[-1], depths[-1], repeat)
            for count, depth in product(counts, depths):
                part = tree.restricted(count, depth)
                for name, algorithm in verifiers.items():
                    if count == 1 or not algorithm.first_path_only:
                        uniforms = active.keys.verifying(repeat)
                        timer(("verify", name, count, depth), partial(_verify, algorithm, part, uniforms))
            for count in counts:
                active = start()
                tree = active.draft_tree(count, depths[-1], repeat)
                half = int(tree.node_of[-1, depths[-1] // 2])
                timer(("cache", count), partial(active.commit, tree, half, active.pending))
            if repeat == 0:
                timer.seconds.clear()
            advance()
    medians = {key: median(seconds) for key, seconds in timer.seconds.items()}
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


class _Timer:
    """Collects ``seconds`` by part and its arguments."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds: dict[tuple[Any, ...], list[float]] = defaultdict(list)

    def __call__(self, key: tuple[Any, ...], work: Callable[[], Any], undo: Callable[[], Any] | None = None) -> None:
        """Time ``work`` once, or `TIMES` times if it can be undone; afterwards it is undone."""
        for _ in range(1 if undo is None else TIMES):
            watch = Stopwatch(self._device)
            with watch("part"):
                work()
            self.seconds[key].append(watch.seconds["part"])
            if undo is not None:
                undo()


def _time_target(timer: _Timer, active: ActiveRequest, round_: int, sizes: Sequence[int], branches: int) -> None:
    """One step of the target alone, and passes over the first n tokens of ``branches`` disjoint paths.

    The draft makes a step before each, as in a round: so the processor's caches hold the draft's weights.
    """
    length, token = active.target.length, torch.tensor([active.pending], device=active.pair.target.device)

    def step() -> int:
        row = active.rows(active.target.append(token))[0]
        return pick(row, active.keys.uniform(round_, Role.TARGET))

    def score(*tree: Any) -> torch.Tensor:
        return active.rows(active.target.tree(*tree))

    def undo() -> None:
        active.draft.append(token.to(active.pair.draft.device))
        active.forget(length)

    undo()
    timer(("target_step",), step, undo)
    for size in sizes:
        parent = [-1, *(max(i - branches, 0) for i in range(1, size))]
        depth = [0, *((i - 1) // branches + 1 for i in range(1, size))]
        timer(("target_pass", size), partial(score, token.repeat(size), parent, depth), undo)


def _time_draft(timer: _Timer, active: ActiveRequest, round_: int, num_paths: int, deepest: int) -> None:
    """Drafts of 2 and of ``deepest`` tokens; with the first path alone also one token fed by itself."""
    token = torch.tensor([active.pending], device=active.pair.draft.device)

    def draft(depth: int) -> Any:
        uniforms = active.keys.drafting(round_, num_paths, depth)
        return draft_paths(active.pair, active.draft, active.pending, uniforms, active.sampling)

    undo = partial(active.draft.keep_branch, 0, active.draft.length)
    for depth in (2, deepest):
        timer(("draft", num_paths, depth), partial(draft, depth), undo)
    if num_paths == 1:
        timer(("catch_up",), partial(active.draft.append, token), undo)


def _verify(algorithm: Verifier, tree: DraftTree, uniforms: Any) -> tuple[int, int]:
    return sample(algorithm(tree), uniforms)


def _tables(medians: dict[tuple[Any, ...], float], counts: Sequence[int], deepest: int) -> dict[str, Any]:
    """Medians by part as the tables of the document."""
    step = {count: (medians["draft", count, deepest] - medians["draft", count, 2]) / (deepest - 2) for count in counts}
    # the remainder is a difference of nearly equal times: noise may make it negative
    remainder = {count: max(medians["draft", count, 2] - step[1] - step[count], 0.0) for count in counts}
    verify: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for (part, *arguments), seconds in medians.items():
        if part == "verify":
            name, count, depth = arguments
            verify[name][str(count)][str(depth)] = seconds
    return {
        "draft_step": {str(count): step[count] for count in counts},
        "target_pass": {str(key[1]): seconds for key, seconds in medians.items() if key[0] == "target_pass"},
        "verify": verify,
        "round": {str(count): remainder[count] + medians["cache", count] for count in counts},
        "catch_up": medians["catch_up",],
        "target_step": medians["target_step",],
    }
