"""docs/theory.md: what the code cites is there, and its examples have the values that it states."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from lpverify import compare, evaluate, load_problem

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "theory.md").read_text()
SECTIONS = set(re.findall(r"^#+ ([0-9]+(?:\.[0-9]+)?) ", TEXT, flags=re.M))
SOURCES = sorted(
    path for folder in ("lpverify", "experiments", "notebooks", "tests") for path in (ROOT / folder).rglob("*.py")
)


def citations(text: str) -> list[str]:
    """Sections cited as "theory 2.4" or "theory 1, 2.6 and 5"."""
    lists = re.findall(r"theory ([0-9]+(?:\.[0-9]+)?(?:(?:, | and | to )[0-9]+(?:\.[0-9]+)?)*)", text)
    return [section for listed in lists for section in re.findall(r"[0-9.]+", listed)]


def test_citations_are_recognised() -> None:
    assert citations("(theory 2.4) theory 1, 2.6 and 5. In theory it is 3") == ["2.4", "1", "2.6", "5"]


def test_sections() -> None:
    assert {str(section) for section in range(12)} <= SECTIONS
    assert {"2.7", "5.4", "9.4", "10.6"} <= SECTIONS
    assert "9.5" not in SECTIONS


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_cited_sections_exist(path: Path) -> None:
    assert set(citations(path.read_text())) <= SECTIONS


def test_links_inside_the_page() -> None:
    def anchor(heading: str) -> str:
        return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")

    anchors = {anchor(heading) for heading in re.findall(r"^#+ (.*)$", TEXT, flags=re.M)}
    links = re.findall(r"\]\(#([^)]+)\)", TEXT)
    assert len(links) > 10
    assert set(links) <= anchors


def test_files_named_exist() -> None:
    for name in re.findall(r"`((?:lpverify|paper_figs|tests)/[a-z_/.]+)`", TEXT):
        assert (ROOT / name).exists(), name


def one_step(folder: Path, target: list[str], draft: list[str]) -> str:
    """A problem file with these rows and L = 1."""
    tables = {side: {"kind": "iid", "probs": row} for side, row in (("target", target), ("draft", draft))}
    document = {"format": "lpverify/problem@1", "name": "one step", "vocab": len(target), "depth": 1, **tables}
    path = folder / "one-step.json"
    path.write_text(json.dumps(document))
    return str(path)


@pytest.mark.parametrize(("paths", "gbv"), [(2, Fraction(39, 16)), (3, Fraction(141, 64))])
def test_gbv_does_not_dominate_and_is_not_monotone(paths: int, gbv: Fraction) -> None:
    """Section 2.7."""
    problem = load_problem("fair-coin", num_paths=paths)
    assert evaluate(problem, "bv").block_efficiency == 3
    assert evaluate(problem, "gbv").block_efficiency == gbv


def test_gbv_is_not_optimal_at_one_step(tmp_path: Path) -> None:
    """Section 2.7, and 5.2: PBV is."""
    frame = compare(
        load_problem(one_step(tmp_path, ["3/10", "7/10"], ["1/2", "1/2"]), num_paths=2), algorithms=["gbv", "pbv"]
    )
    values = dict(zip(frame["name"], frame["block_efficiency"], strict=True))
    assert values["gbv"] == pytest.approx(1.95)
    assert values["optimum"] == pytest.approx(2.0)
    assert values["pbv"] == pytest.approx(2.0)


def test_closed_form_of_specinfer(tmp_path: Path) -> None:
    """Section 6: some of k children is accepted with probability 1 - R_k."""
    p, q = ([Fraction(n, 10) for n in row] for row in ((2, 4, 4), (6, 3, 1)))
    path = one_step(tmp_path, *([str(x) for x in row] for row in (p, q)))
    total, remaining = Fraction(0), Fraction(1)
    for paths in (1, 2, 3, 4):
        total += remaining
        remaining = sum((max(x - total * y, Fraction(0)) for x, y in zip(p, q, strict=True)), Fraction(0))
        assert evaluate(load_problem(path, num_paths=paths), "specinfer").block_efficiency == 2 - remaining


def test_naive_correction() -> None:
    """Section 7."""
    p, q = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.3, 0.1])
    accepted = np.minimum(p, q)
    assert accepted + (1 - accepted.sum()) * p == pytest.approx([0.28, 0.50, 0.22])
