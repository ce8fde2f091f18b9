"""The notebooks run, use the public interface only, are stored without outputs and say the same as their scripts."""

from __future__ import annotations

import ast
import json
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
    """Cell by cell in a shell of its own, without a limit on time and without a kernel whose messages may be lost."""
    for package in ("IPython", "ipywidgets", "matplotlib"):
        pytest.importorskip(package)
    ended = run_cells(path, tmp_path)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-3000:]
    assert "all cells ran" in ended.stdout


def test_an_error_in_a_cell_or_in_a_widget_fails(tmp_path: Path) -> None:
    pytest.importorskip("ipywidgets")
    for name, source in {
        "cell": "1 / 0",
        "widget": "from ipywidgets import interact\ninteract(lambda x: 1 / 0, x=3)",
    }.items():
        path = tmp_path / f"{name}.ipynb"
        path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": source}]}))
        ended = run_cells(path, tmp_path)
        assert ended.returncode != 0
        assert "ZeroDivisionError" in ended.stdout + ended.stderr


SHELL = """
import json, sys
import matplotlib
matplotlib.use("Agg")
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
failures = []
show = shell.showtraceback
shell.showtraceback = lambda *args, **kwargs: (failures.append(sys.exc_info()), show(*args, **kwargs))
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        shell.run_cell("".join(cell["source"])).raise_error()
        if failures:
            sys.exit("an error was shown in a cell")
print("all cells ran")
"""


def run_cells(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The code cells of a notebook, one after the other; a traceback that a widget only shows counts as an error."""
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parent), "IPYTHONDIR": str(folder)}
    command = [sys.executable, "-c", SHELL, str(path)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
