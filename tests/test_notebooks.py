"""The notebooks run, use the public interface only, are stored without outputs and say the same as their scripts."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lpverify

FOLDER = Path(__file__).parents[1] / "notebooks"
SCRIPTS = sorted(FOLDER.glob("*.py"))
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
ALLOWED = {"lpverify", "numpy", "pandas", "matplotlib", "ipywidgets"}
HEAVY = {"05_real_models", "06_how_far_from_optimal"}
"""Notebooks that run models."""


def test_each_script_has_its_notebook() -> None:
    assert len(SCRIPTS) >= 6
    assert [path.stem for path in SCRIPTS] == [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_only_the_public_interface(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= ALLOWED
            assert not any(alias.name.startswith("lpverify.") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module in ALLOWED - {"lpverify"}
        elif isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_")
            if isinstance(node.value, ast.Name) and node.value.id == "lv":
                assert node.attr in lpverify.__all__


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_without_outputs_and_paired(path: Path) -> None:
    jupytext = pytest.importorskip("jupytext")
    notebook: Any = jupytext.read(path)
    script: Any = jupytext.read(path.with_suffix(".py"))
    cells = [(cell.cell_type, cell.source) for cell in notebook.cells]
    assert cells == [(cell.cell_type, cell.source) for cell in script.cells]
    assert len(cells) > 5
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert notebook.metadata["jupytext"]["formats"] == "ipynb,py:percent"


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.heavy] * (path.stem in HEAVY)) for path in NOTEBOOKS],
)
def test_runs(path: Path, tmp_path: Path) -> None:
    """Without a limit on time: how long a cell takes says something about the machine only."""
    for package in ("nbmake", "ipykernel", "ipywidgets", "matplotlib"):
        pytest.importorskip(package)
    settings = tmp_path / "pytest.ini"
    settings.write_text("[pytest]\n")
    options = ["-q", "-c", str(settings), "-p", "no:xdist", "--nbmake", "--nbmake-timeout=7200"]
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parent)}
    command = [sys.executable, "-m", "pytest", *options, str(path)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert "1 passed" in ended.stdout
