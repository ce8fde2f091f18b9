"""Rounds of a decoding run from the target's own text, against enumeration of all drafts and stops."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch")

from lpverify import InputError
from lpverify.core.draft_tree import DraftTree
from lpverify.core.model_pair import ModelPair
from lpverify.studies.rounds import run_on_text
from lpverify.studies.teacher_forced import TextRows
from lpverify.verifiers import verifier

VOCAB, DEPTH, LENGTH = 2, 2, 3
TARGET = np.array([[0.9, 0.1], [0.35, 0.65]])  # Markov: the row after token 0, after token 1
DRAFT = np.array([[0.8, 0.2], [0.7, 0.3]])


def chain(table: npt.NDArray[np.float64], last: int, depth: int) -> list[npt.NDArray[np.float64]]:
    """The levels of the Markov chain after token ``last``."""
    return [table[[last]], *(np.tile(table, (VOCAB ** (i - 1), 1)) for i in range(1, depth))]


def enumerated_rounds(name: str, paths: int) -> float:
    """Expected rounds that commit the first LENGTH tokens after token 0, over all drafts, stops and next tokens."""
    algorithm = verifier(name)

    @cache
    def ends(last: int) -> list[tuple[int, int, float]]:
        """(tokens committed, last of them, probability) of one round after token ``last``."""
        levels = chain(TARGET, last, DEPTH + 1)
        pair = ModelPair.from_levels(levels[:DEPTH], chain(DRAFT, last, DEPTH), bonus=levels[DEPTH])
        found = []
        for drafted in itertools.product(itertools.product(range(VOCAB), repeat=DEPTH), repeat=paths):
            mass = np.prod([DRAFT[a, b] for path in drafted for a, b in zip((last, *path), path, strict=False)])
            law = algorithm(DraftTree.from_pair(pair, drafted))
            for node, stop in enumerate(law.stop):
                if stop > 0:
                    for token, p in enumerate(law.next_token(node)):
                        found.append((int(law.tree.depth[node]) + 1, token, float(mass * stop * p)))
        return found

    @cache
    def rounds(last: int, room: int) -> float:
        if room <= 0:
            return 0.0
        return 1.0 + sum(mass * rounds(token, room - count) for count, token, mass in ends(last))

    return rounds(0, LENGTH)


@pytest.mark.parametrize(
    ("name", "paths"), [("token", 1), ("bv", 1), ("gbv", 2), ("tgbv", 2), ("pbv", 2), ("pbv", 3), ("ebv", 2)]
)
def test_mean_over_texts_is_the_mean_of_the_run(name: str, paths: int) -> None:
    """E_y[rounds | y] over all texts of the target is the expected number of rounds, to rounding."""
    total = 0.0
    for text in itertools.product(range(VOCAB), repeat=LENGTH + DEPTH):
        before = [0, *text[:-1]]
        mass = np.prod(TARGET[before, text])
        rows = TextRows(text, TARGET[before], DRAFT[before])
        total += mass * run_on_text(rows.acceptance(verifier(name), np.arange(LENGTH), DEPTH, paths)).rounds
    assert total == pytest.approx(enumerated_rounds(name, paths), abs=1e-12)


def test_the_mean_over_places_is_another_number() -> None:
    """Rounds of 3 tokens in an easy stretch, of 1 token in a hard one as long: 60 tokens in 10 + 30 rounds, not 30."""
    easy, hard = [[1.0, 1.0, 1.0]] * 30, [[1.0, 0.0, 0.0]] * 30
    reached = np.array(easy + hard)
    run = run_on_text(reached)
    assert (run.tokens, run.rounds, run.full) == (60, 40.0, 10.0)
    assert reached.sum() / len(reached) == 2.0


def test_runs_of_a_pair_end_where_its_texts_end() -> None:
    """As many tokens as the target alone writes with the same uniforms; ratios are of totals over prompts."""
    import torch

    from lpverify.decode import table
    from lpverify.decode.engine import Request
    from lpverify.decode.models import Pair
    from lpverify.decode.sampling import Sampling
    from lpverify.studies import rounds
    from lpverify.studies.text import target_text

    device = torch.device("cpu")
    pair = Pair(*(table.load("markov-3", role, device)[0] for role in ("target", "draft")))
    settings = rounds.RunSettings((1, 3), (2, 4), tokens=12, stride=5, seed=3, eos={1})
    requests = [Request((0, 2), key) for key in "abcdef"]
    checked = {name: verifier(name) for name in ("bv", "pbv")}
    found = [rounds.measure(pair, checked, request, settings) for request in requests]
    lengths = [len(target_text(pair, request, 12, Sampling(), 3, {1})) for request in requests]
    assert min(lengths) < 12
    assert [one.runs["pbv"][0].tokens for one in found] == lengths
    document = rounds.measure_runs(pair, ["bv", "pbv"], requests, settings)
    assert document == rounds.summarize(found, settings)
    for cell, i in zip(document["cells"], range(4), strict=True):
        expected = sum(one.runs["pbv"][i].rounds for one in found)
        assert cell["algorithms"]["pbv"]["block_efficiency"] == pytest.approx(sum(lengths) / expected)
        assert cell["depth"] <= cell["nodes"] <= cell["paths"] * cell["depth"]
    again = [rounds.PromptRuns.from_json(json.loads(json.dumps(asdict(one)))) for one in found]
    assert again == found
    with pytest.raises(InputError, match="algorithm: got 'traversal', expected one of token, bv, gbv"):
        rounds.measure_runs(pair, ["traversal"], requests, settings)
