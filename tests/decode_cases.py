"""Shared by the decoding tests: an engine run on tables against exact evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from math import log, prod, sqrt
from typing import Any

import numpy as np
import torch

from lpverify.core.draft_tree import DraftTree
from lpverify.core.model_pair import ModelPair
from lpverify.core.problem import VerifyProblem, load_problem
from lpverify.decode.engine import ActiveRequest, Generation, Request, Settings, decoding_round, generate
from lpverify.decode.models import Pair
from lpverify.decode.table import TableModel
from lpverify.exact.evaluate import evaluate
from lpverify.verifiers import StopDistribution, Verifier

FALSE_ALARM = 1e-6
"""Probability that a correct engine exceeds the bound on the joint law (McDiarmid's inequality)."""


def tables(name: str) -> Pair:
    """Target and draft tables of a built-in problem."""
    levels = load_problem(name).pair.floats
    return table_pair(levels.target, levels.draft)


def table_pair(target: Sequence[Any], draft: Sequence[Any]) -> Pair:
    """Target and draft from one (V^i, V) array-like per level each."""
    models = [TableModel.from_levels([np.array(level) for level in levels]) for levels in (target, draft)]
    return Pair.checked(*models)


def rooted(model: TableModel, state: int, depth: int) -> list[np.ndarray]:
    """The levels (V^i, V), i < ``depth``, of the model's conditional distributions from one of its states on."""
    states = np.array([state])
    step, rows = model.step.cpu().numpy(), np.exp(model.log_rows.cpu().numpy())
    levels = []
    for _ in range(depth):
        levels.append(rows[states] / rows[states].sum(axis=1, keepdims=True))
        states = step[states].reshape(-1)
    return levels


def rooted_pair(target: TableModel, draft: TableModel, states: tuple[int, int], depth: int) -> ModelPair:
    """The problem that one decoding round solves if it begins at these states."""
    levels = rooted(target, states[0], depth + 1)
    return ModelPair.from_levels(levels[:depth], rooted(draft, states[1], depth), bonus=levels[depth])


def processed_text(
    pair: Pair, verifier: Verifier, request: Request, settings: Settings, process: Any
) -> tuple[list[int], list[Any]]:
    """A text as `generate` writes it, with a process, and the target's logits before each of its tokens."""
    text: list[int] = []
    logits: list[Any] = []
    active = ActiveRequest(pair, request, settings.sampling, settings.seed, process, keep_logits=True)
    with torch.inference_mode():
        for round_ in range(settings.max_new_tokens):
            room = settings.max_new_tokens - len(text)
            if room == 0:
                break
            text += decoding_round(active, verifier, settings, round_, room)[0]
            logits += [*active.logits]
    return text, logits


def memoized(verifier: Verifier) -> Verifier:
    """The same map, computed once for each drafted tree: verifiers are deterministic, tables repeat."""
    known: dict[tuple[bytes, ...], StopDistribution] = {}

    def law(view: DraftTree) -> StopDistribution:
        key = (view.paths.tobytes(), np.asarray(view.target).tobytes(), np.asarray(view.draft).tobytes())
        if key not in known:
            known[key] = verifier.stop_distribution(view)
        return known[key]

    return replace(verifier, stop_distribution=law)


def text_distribution(model: TableModel, length: int) -> np.ndarray:
    """Probability of every text of ``length`` tokens, lexicographic."""
    step, rows = model.step.tolist(), model.log_rows.exp().tolist()
    masses = []
    for text in product(range(model.vocab_size), repeat=length):
        state, factors = 0, []
        for token in text:
            factors.append(rows[state][token])
            state = step[state][token]
        masses.append(prod(factors))
    return np.array(masses)


def assert_matches_exact_evaluation(
    models: Pair,
    verifier: Verifier,
    *,
    paths: int,
    depth: int,
    requests: int,
    tokens: int,
    seed: int = 0,
    run: Callable[[Pair, Verifier, Request, Settings], Generation] = generate,
) -> int:
    """Run ``requests`` requests of ``tokens`` tokens (several rounds each); return the number of rounds.

    Joint law of all tokens of a text: total variation to the target's at most its mean bound
    sum sqrt(p (1-p) / N) / 2 plus sqrt(log(1 / FALSE_ALARM) / 2N). Block efficiency: every round that the limit cannot
    cut, minus the exact value for the state in which the round began, averages to 0 within 4 standard errors.
    """
    assert isinstance(models.target, TableModel)
    assert isinstance(models.draft, TableModel)
    target, draft = models.target, models.draft

    @cache
    def exact(states: tuple[int, int]) -> float:
        problem = VerifyProblem(rooted_pair(target, draft, states, depth), paths)
        return float(evaluate(problem, verifier.name).block_efficiency)

    settings = Settings(num_paths=paths, depth=depth, max_new_tokens=tokens, seed=seed)
    engine_verifier = memoized(verifier)
    texts: Counter[tuple[int, ...]] = Counter()
    surplus, smooth, rounds = [], [], 0
    for i in range(requests):
        result = run(models, engine_verifier, Request((0,), f"request {i}"), settings)
        texts[result.tokens] += 1
        rounds += len(result.rounds)
        done = 0
        for record in result.rounds:
            if tokens - done > depth:
                begun = (0, *result.tokens[:done])
                expected = exact((int(target.start(begun).history[-1]), int(draft.start(begun).history[-1])))
                surplus.append(record.committed - expected)
                smooth.append(float(record.expected_committed) - expected)
            done += record.committed
        assert done == len(result.tokens) == tokens
    law = text_distribution(target, tokens)
    counts = np.array([texts[text] for text in product(range(target.vocab_size), repeat=tokens)]) / requests
    distance = np.abs(counts - law).sum() / 2
    bound = np.sqrt(law * (1 - law) / requests).sum() / 2 + sqrt(log(1 / FALSE_ALARM) / (2 * requests))
    assert distance <= bound, f"{verifier.name}: total variation {distance} of the joint law is above {bound}"
    for name, values in (("sampled", surplus), ("Rao-Blackwell", smooth)):
        error = np.std(values) / sqrt(len(values))
        off = abs(np.mean(values))
        assert off <= 4 * error + 1e-12, f"{verifier.name}: {name} block efficiency is off by {off}"
    return rounds
