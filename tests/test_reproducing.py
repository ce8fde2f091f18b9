"""REPRODUCING.md says what the stored data say, and names commands that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from experiments import reproducing
from experiments.figures.figures import FIGURES
from lpverify.cli import app

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "REPRODUCING.md").read_text()


def test_written_from_the_stored_data() -> None:
    assert reproducing.written(TEXT) == TEXT


def test_commands() -> None:
    named = re.findall(r"`([^`]+)` \| [^|]+ \| \*\*", TEXT)
    assert len(named) >= 15
    known = {command.name for command in app.registered_commands}
    for command in named:
        program, verb, *rest = command.split()
        if program == "python":
            assert (ROOT / verb).is_file()
            continue
        assert program == "lpverify"
        assert verb in known
        if verb == "figures":
            assert set(rest[-1].split(",")) <= set(FIGURES)
    for path in re.findall(r"python (experiments/\w+\.py)", TEXT):
        assert (ROOT / path).is_file()


def test_every_paper_is_named() -> None:
    claims = [*reproducing.exact_claims(), *reproducing.model_claims()]
    assert {paper for claim in claims for paper in claim.paper.split(", ")} - {"all"} == set(reproducing.PAPERS)
    allowed = {"reproduced", "partly", "not reproduced", "refuted", "not testable here", "shown", reproducing.OPEN}
    assert {claim.verdict for claim in claims} <= allowed


def test_verdicts() -> None:
    above, near, below = (1.5, 0.05), (1.28, 0.02), (1.1, 0.05)
    for gains, verdict in (
        ([above], "reproduced"),
        ([above, near], "reproduced"),
        ([near], reproducing.OPEN),
        ([below, below], "not reproduced"),
        ([near, below], "not reproduced"),
        ([(1.32, 0.02), below], "partly"),
        ([above, below], "partly"),
    ):
        assert reproducing.judged(gains, 0.3) == verdict


def test_one_step_formula() -> None:
    """Values by hand: one path is 1 - TV; two paths, H = {0, 1}: 1 + .6 - .81."""
    p, q = (0.2, 0.4, 0.4), (0.6, 0.3, 0.1)
    assert reproducing.formula(p, q, 1) == pytest.approx(0.6)
    assert reproducing.formula(p, q, 2) == pytest.approx(0.79)
    assert reproducing.formula(p, q, 3) == pytest.approx(0.871)
    assert reproducing.formula((0.3, 0.7), (0.5, 0.5), 2) == pytest.approx(1.0)
