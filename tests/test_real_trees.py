"""``experiments/real_trees.py``: every step on tables; the summary against numbers made by hand; refusals."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[1] / "experiments" / "real_trees.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="an installation without experiments/")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("real_trees", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "DATA", tmp_path / "real_trees.json")
    (tmp_path / "p.jsonl").write_text('{"text": "A"}\n{"text": "B C"}\n')
    return module


def run(script: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    prompts = str(script.DATA.parent / "p.jsonl")
    common = ["--target", "markov-3", "--draft", "markov-3", "--prompts", prompts, "--top-k", "2", "--depth", "2"]
    options = [*common, "--contexts", "2", "--stride", "2", "--paths", "2", *arguments]
    monkeypatch.setattr(sys, "argv", ["real_trees.py", *options])
    script.main()
    document: dict[str, Any] = json.loads(script.DATA.read_text())
    return document


def test_all_steps_on_tables(script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    first = run(script, monkeypatch)
    assert first["schema"] == "lpverify/real-trees@1"
    names = {*script.REFERENCES, *script.ALGORITHMS}
    assert len(first["rows"]) == 4 * len(names)
    assert {row["name"] for row in first["rows"]} == names
    assert {row["file"].rpartition("-")[0] for row in first["rows"]} == {row["prompt"] for row in first["rows"]}
    for row in first["summary"]:
        assert (row["pair"], row["paths"], row["prompts"], row["contexts"]) == ("markov-3", 2, 2, 4)
        lowest = -1.0 if row["name"] == "node relaxation" else -1e-7
        assert lowest <= row["relative_gap"] < 1
    assert first["settings"]["markov-3"]["top_k"] == 2
    second = run(script, monkeypatch, "--label", "other")
    assert second["rows"][: len(first["rows"])] == first["rows"]
    assert list(second["settings"]) == ["markov-3", "other"]
    assert run(script, monkeypatch, "--label", "other")["rows"] == second["rows"]
    printed = capsys.readouterr().out
    assert printed.endswith(script.DATA.with_suffix(".md").read_text())
    assert "0 problems written, 4 found\n44 of 44 rows" in printed
    assert "other: 4 contexts of 2 prompts (p), T = 1, top-k 2, L = 2." in printed
    assert "| pbv | " in printed


def test_summary_by_hand(script: Any) -> None:
    """Relative gaps 0.1 and 0.3 in prompt a, 0.5 in prompt b: mean 0.3, error from sums 0.4 and 0.5 of 2 and 1."""
    rows = [
        {"pair": "x", "file": file, "prompt": file[0], "paths": 2, "name": name, "block_efficiency": value}
        for file, values in {"a-0": (2.0, 1.8), "a-1": (3.0, 2.1), "b-0": (4.0, 2.0)}.items()
        for name, value in zip(("optimum", "bv"), values, strict=True)
    ]
    optimum, bv = script.summary(rows)
    assert optimum["tokens"] == 3.0
    assert (optimum["relative_gap"], optimum["relative_gap_se"]) == (0, 0)
    assert bv["relative_gap"] == pytest.approx(0.3)
    assert bv["relative_gap_se"] == pytest.approx((2 * (0.2**2 + 0.2**2)) ** 0.5 / 3)


@pytest.mark.parametrize("spoil", [{"certified": False}, {"upper_bound": 99.0}, {"error": "refused"}])
def test_what_is_not_proved_stops_it(script: Any, monkeypatch: pytest.MonkeyPatch, spoil: dict[str, Any]) -> None:
    run(script, monkeypatch)
    before = script.DATA.read_bytes()
    path = script.DATA.parent / ".records" / "real_trees-markov-3" / "rows.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[7].update(spoil)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SystemExit, match=lines[7]["name"]):
        run(script, monkeypatch)
    assert script.DATA.read_bytes() == before
