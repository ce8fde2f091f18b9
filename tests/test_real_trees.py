"""``experiments/real_trees.py``: every step on tables; the summary against numbers made by hand; refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from experiments import real_trees
from experiments.figures import figures


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(real_trees, "FOLDER", tmp_path)
    (tmp_path / "p.jsonl").write_text('{"text": "A"}\n{"text": "B C"}\n')
    return tmp_path


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    prompts = str(folder / "p.jsonl")
    common = ["--target", "markov-3", "--draft", "markov-3", "--prompts", prompts, "--top-k", "2", "--depth", "2"]
    options = [*common, "--contexts", "2", "--stride", "2", "--paths", "2", *arguments]
    monkeypatch.setattr(sys, "argv", ["real_trees.py", *options])
    real_trees.main()
    data: dict[str, Any] = figures.stored("real_gap", folder)["data"]
    return data


def test_all_steps_on_tables(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    first = run(folder, monkeypatch)
    names = {*real_trees.REFERENCES, *real_trees.ALGORITHMS}
    assert "ebv" in names
    assert [row["name"] for row in first["rows"]] == list(dict.fromkeys(row["name"] for row in first["rows"]))
    assert {row["name"] for row in first["rows"]} == names
    for row in first["rows"]:
        assert (row["pair"], row["paths"], row["prompts"], row["contexts"]) == ("markov-3", 2, 2, 4)
        lowest = -100.0 if row["name"] == "node relaxation" else -1e-5
        assert lowest <= row["least"] <= row["gap"] + 1e-9 < 100
    assert first["settings"]["pairs"]["markov-3"]["top_k"] == 2
    second = run(folder, monkeypatch, "--label", "other")
    assert second["rows"][: len(first["rows"])] == first["rows"]
    assert list(second["settings"]["pairs"]) == ["markov-3", "other"]
    assert run(folder, monkeypatch, "--label", "other")["rows"] == second["rows"]
    printed = capsys.readouterr().out
    assert "0 problems written, 4 found\n44 of 44 rows" in printed
    assert printed.rstrip().splitlines()[-1] in (folder / "real_gap.md").read_text()


def test_summary_by_hand() -> None:
    """Relative gaps 0.1 and 0.3 in prompt a, 0.5 in prompt b: mean 0.3, error from sums 0.4 and 0.5 of 2 and 1."""
    rows = [
        {"parameters": {"file": f"folder/{file}.json"}, "paths": 2, "name": name, "block_efficiency": value}
        for file, values in {"a-0": (2.0, 1.8), "a-1": (3.0, 2.1), "b-0": (4.0, 2.0)}.items()
        for name, value in zip(("optimum", "bv"), values, strict=True)
    ]
    optimum, bv = real_trees.summary("x", rows)
    assert optimum["value"] == 3.0
    assert (optimum["gap"], optimum["gap_se"]) == (0, 0)
    assert bv["gap"] == pytest.approx(30)
    assert bv["gap_se"] == pytest.approx(100 * (2 * (0.2**2 + 0.2**2)) ** 0.5 / 3)
    assert bv["least"] == pytest.approx(10)


@pytest.mark.parametrize("spoil", [{"certified": False}, {"upper_bound": 99.0}, {"error": "refused"}])
def test_what_is_not_proved_stops_it(folder: Path, monkeypatch: pytest.MonkeyPatch, spoil: dict[str, Any]) -> None:
    run(folder, monkeypatch)
    before = (folder / "real_gap.json").read_bytes()
    path = folder / ".records" / "real_trees-markov-3" / "rows.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[7].update(spoil)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SystemExit, match=lines[7]["name"]):
        run(folder, monkeypatch)
    assert (folder / "real_gap.json").read_bytes() == before
