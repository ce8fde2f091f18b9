"""Every command and every line of Python in the README runs, and its tables are what the project prints."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, flags=re.M | re.S)


COMMANDS = [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines() if line.strip()]
PROGRAM = [command for command in COMMANDS if command[0] == "lpverify"]


def test_commands_are_found() -> None:
    assert ["make", "demo"] in COMMANDS
    assert ["make", "test"] in COMMANDS
    assert len(PROGRAM) >= 8
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    assert {command[1] for command in COMMANDS if command[0] == "make"} <= targets


def test_commands_run_in_order(tmp_path: Path) -> None:
    """In one folder, because later commands read files that earlier ones wrote."""
    for command in PROGRAM:
        if command[1] in ("decode", "extract", "bound") and find_spec("torch") is None:
            continue
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, (command, done.stderr)
        assert done.stderr == "", command
    assert (tmp_path / "gap.png").stat().st_size > 10_000


def test_python_runs(tmp_path: Path) -> None:
    for block in blocks("python"):
        done = subprocess.run(
            [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "True" in done.stdout


def test_problem_file_loads(tmp_path: Path) -> None:
    from lpverify import load_problem

    for block in blocks("json"):
        (tmp_path / "mine.json").write_text(block)
        assert load_problem(str(tmp_path / "mine.json"), num_paths=2).pair.rational


def test_files_exist() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / link).is_file(), link
    for script in re.findall(r"python (experiments/\S+\.py)", TEXT):
        assert (ROOT / script).is_file(), script


def between(marker: str) -> str:
    found = re.search(rf"<!-- {marker} -->\n(.*?)<!-- /{marker} -->", TEXT, flags=re.S)
    assert found is not None
    return found.group(1)


def test_tables_are_the_stored_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "experiments")
    import readme

    for name, block in readme.BLOCKS.items():
        assert between(name).strip() == block().strip(), f"python experiments/readme.py --write ({name})"


def test_demo_table_has_the_values_that_the_demo_prints() -> None:
    """Names and values; seconds and rounding residues differ from run to run."""
    from lpverify import compare, load_problem

    printed = between("demo")
    frame = compare(
        load_problem("tree-v3-l4", num_paths=4), algorithms=["bv", "gbv", "tgbv", "pbv", "ebv", "traversal"]
    )
    for row in frame.itertuples():
        line = next(line for line in printed.splitlines() if line.strip().startswith(str(row.name)))
        assert float(line.split()[len(str(row.name).split())]) == pytest.approx(row.block_efficiency, abs=2e-6)
