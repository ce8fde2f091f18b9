"""Sweeps over a folder of problem files: rows against direct computation, identity of problems, bad folders."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lpverify.cli import app
from lpverify.core.problem import FOLDER_SETTINGS, VerifyProblem, load_problem, save_problem
from lpverify.exact import compare
from lpverify.sweep import config as sweep
from lpverify.sweep.config import load_tasks, run_task
from lpverify.sweep.run import run_sweep

CONFIG = """
vocab = 7
paths = [2, 3]
algorithms = ["bv", "traversal", "optimum"]
[[family]]
name = "folder"
path = "trees"
"""
PROBLEMS = ("coin-2", "skewed-3", "tree-v2-l3-a")


@pytest.fixture
def config(tmp_path: Path) -> str:
    folder = tmp_path / "trees"
    folder.mkdir()
    for name in PROBLEMS:
        save_problem(load_problem(name), folder / f"{name}.json")
    (folder / FOLDER_SETTINGS).write_text("no problem")
    (folder / "notes.txt").write_text("neither")
    path = tmp_path / "sweep.toml"
    path.write_text(CONFIG)
    return str(path)


def rows(path: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def cli(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["sweep", *arguments])


def test_rows_are_those_of_a_comparison(config: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    result = cli(config, "-o", str(out))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{out}: 18 rows computed, 0 found\n"
    found = rows(out)
    assert {(row["parameters"]["file"], row["paths"], row["name"]) for row in found} == {
        (f"{name}.json", paths, row) for name in PROBLEMS for paths in (2, 3) for row in ("bv", "traversal", "optimum")
    }
    for row in found:
        problem = load_problem(row["parameters"]["file"][:-5])
        expected = compare.compare(VerifyProblem(problem.pair, row["paths"]), algorithms=["bv", "traversal"])
        at = expected.set_index("name").loc[row["name"]]
        assert (row["family"], row["seed"], row["error"], row["certified"]) == ("folder", None, None, True)
        assert (row["vocab"], row["depth"]) == (problem.pair.vocab_size, problem.pair.depth)
        assert row["block_efficiency"] == at["block_efficiency"]
        assert row["gap"] == pytest.approx(at["gap"], abs=1e-15)


def test_a_problem_is_its_name_and_content_not_its_folder(config: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out.jsonl")
    assert run_sweep(load_tasks(config), out).computed == 18
    shutil.move(tmp_path / "trees", tmp_path / "forest")
    Path(config).write_text(CONFIG.replace("trees", str(tmp_path / "forest")))
    assert run_sweep(load_tasks(config), out).computed == 0
    save_problem(load_problem("fair-coin"), tmp_path / "forest" / "coin-2.json")
    outcome = run_sweep(load_tasks(config), out)
    assert (outcome.computed, outcome.existing, outcome.others) == (6, 12, 6)


def test_a_file_that_changes_while_the_sweep_runs_is_a_failure(config: str, tmp_path: Path) -> None:
    first = load_tasks(config)[0]
    save_problem(load_problem("skewed-3"), tmp_path / "trees" / "coin-2.json")
    assert [row["error"] for row in run_task(first)] == [
        f"{first.source}: got another content, expected that from when the sweep began"
    ] * 3


def test_a_certificate_that_does_not_hold_is_said(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    solve = sweep.solve

    def too_good(*args: Any, **options: Any) -> Any:
        solution = solve(*args, **options)
        return replace(solution, lower_bound=solution.lower_bound + 1e-6, upper_bound=solution.upper_bound + 1e-6)

    monkeypatch.setattr(sweep, "solve", too_good)
    assert {row["certified"] for row in run_task(load_tasks(config)[0])} == {False}


def test_terms_can_be_limited(config: str) -> None:
    plain = load_tasks(config)[0]
    Path(config).write_text("max_terms = 3\n" + CONFIG)
    limited = load_tasks(config)[0]
    assert not set(plain.keys.values()) & set(limited.keys.values())
    by_name = {row["name"]: row["error"] for row in run_task(limited)}
    assert by_name["bv"] is None
    assert "visits, expected at most 3" in by_name["traversal"]


@pytest.mark.parametrize(
    ("before", "after", "match"),
    [
        ('path = "trees"', "", "sweep.toml family 1 path: got nothing, expected the name of a folder"),
        ('path = "trees"', "path = 3", "sweep.toml family 1 path: got 3"),
        ('path = "trees"', 'path = "absent"', "absent: got No such file"),
        ('path = "trees"', 'path = "sweep.toml"', "sweep.toml: got Not a directory"),
        ('path = "trees"', 'path = "empty"', "empty: got no problem file"),
        ('path = "trees"', 'path = "broken"', "got Expecting value, expected JSON"),
        ('path = "trees"', 'path = "trees"\nseeds = 1', "sweep.toml family 1: got the unknown key 'seeds'"),
        ("paths = [2, 3]", "", "sweep.toml family 1 paths: got nothing"),
        ("vocab = 7", "vocab = 0", "sweep.toml vocab: got 0"),
        ("vocab = 7", "max_terms = 0", "sweep.toml max_terms: got 0"),
    ],
)
def test_bad_configurations(config: str, tmp_path: Path, before: str, after: str, match: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.json").write_text("nonsense")
    assert before in CONFIG
    Path(config).write_text(CONFIG.replace(before, after))
    out = tmp_path / "out.jsonl"
    result = cli(config, "-o", str(out))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert match in result.stderr
    assert not out.exists()
