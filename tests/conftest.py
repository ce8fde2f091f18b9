"""What the whole suite shares: gpu tests skip themselves, the torch half is left out where torch is not installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

HAS_TORCH = find_spec("torch") is not None


class _LeaveOutTorchHalf:
    """A plugin, because a hook in this file would not be asked about files outside tests/."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if collection_path.match("lpverify/decode") else None


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
    """A folder with all figures at their smallest size; without torch, those that need no model."""
    from experiments.figures.figure_data import Work
    from experiments.figures.figures import FIGURES, available, make
    from experiments.figures.real_jobs import Real

    folder = tmp_path_factory.mktemp("figures")
    names = [name for name in available(folder) if HAS_TORCH or not FIGURES[name].models]
    stages: list[str] = []
    done = list(make(names, folder, work=Work("tiny", stage=stages.append, real=Real(folder))))
    assert [name for name, _ in done] == names
    assert len(stages) > 10
    return folder
