"""``experiments/gpu_check.py``: every step of it on the CPU at toy sizes; on a GPU the engine against the CPU."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[1] / "experiments" / "gpu_check.py"


def script() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.heavy
@pytest.mark.skipif(not SCRIPT.exists(), reason="an installation without experiments/")
def test_all_steps_at_toy_sizes(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    assert script().main(["--smoke", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "gpu_check.json").read_text())
    assert all(row["greedy_equal"] for row in results["engine"])
    assert all(row["cpu_block_efficiency"] == row["device_block_efficiency"] for row in results["engine"])
    assert {row["algorithm"] for row in results["verification"]} >= {"bv", "traversal", "gbv", "tgbv", "pbv"}
    assert all(row["draft"] > 0 and row["target"] > 0 and row["verify"] > 0 for row in results["stages"])
    assert (tmp_path / "gpu_check.md").read_text().count("| pbv |") == 4


@pytest.mark.gpu
def test_engine_on_the_device_against_the_cpu() -> None:
    assert all(row["greedy_equal"] for row in script().check_engine(torch.device("cuda"), smoke=True))
