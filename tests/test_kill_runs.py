"""A few kills of whole commands; ``python tests/kill_runs.py`` does many."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--kills", "24"], ["--kills", "8", "--whole", "--commands", "decode,sweep"]])
def test_killed_runs_resume(options: list[str]) -> None:
    program = [sys.executable, str(Path(__file__).with_name("kill_runs.py")), *options]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("all equal") == ended.stdout.count("\n")
