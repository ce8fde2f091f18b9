"""What the whole suite shares.

Tests that need a GPU skip themselves, and the torch half is left out where torch is not installed. Numerical libraries
use one thread: tests run in several processes.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from filelock import FileLock

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # read when the libraries are loaded
    os.environ.setdefault(variable, "1")

HAS_TORCH = find_spec("torch") is not None


class _LeaveOutTorchHalf:
    """A plugin, because a hook in this file would not be asked about files outside tests/."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        torch_half = ("lpverify/decode", "lpverify/studies", "lpverify/verifiers/device.py")
        torch_half += ("lpverify/integrations/transformers*.py", "lpverify/integrations/hub")
        return True if any(collection_path.match(part) for part in torch_half) else None


def pytest_configure(config: pytest.Config) -> None:
    if not HAS_TORCH:
        config.pluginmanager.register(_LeaveOutTorchHalf())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    if HAS_TORCH:
        import torch

        if torch.cuda.is_available():
            return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all figures at their smallest size; without torch, those that need no model.

    One folder for all processes of a run: the first one that needs it fills it, the others wait.
    """
    from experiments.figures.figure_data import Work
    from experiments.figures.figures import FIGURES, available, make
    from experiments.figures.real_jobs import Real

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "figures"
    with FileLock(f"{folder}.lock"):
        if not folder.with_suffix(".complete").exists():
            folder.mkdir()
            names = [name for name in available(folder) if HAS_TORCH or not FIGURES[name].models]
            stages: list[str] = []
            made = list(make(names, folder, work=Work("tiny", stage=stages.append, real=Real(folder))))
            assert [name for name, _ in made] == names
            assert len(stages) > 10
            folder.with_suffix(".complete").touch()
    return folder
