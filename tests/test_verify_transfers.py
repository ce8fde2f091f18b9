"""Verification on a device: the same laws and draws, and how often a round waits for the device.

No device is needed: `simulated_device` counts. The only transfer of a round brings the stop node and the next token to
the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from decode_cases import tables  # noqa: E402
from simulated_device import NAME, OnDevice, simulated_device  # noqa: E402
from test_verify_cost import drafted_view  # noqa: E402

from lpverify import InputError  # noqa: E402
from lpverify.core.draft_tree import DraftTree  # noqa: E402
from lpverify.core.problem import load_problem  # noqa: E402
from lpverify.decode import engine  # noqa: E402
from lpverify.decode.engine import Request, Settings, generate  # noqa: E402
from lpverify.decode.metrics import Stopwatch  # noqa: E402
from lpverify.decode.models import Pair  # noqa: E402
from lpverify.decode.table import TableModel  # noqa: E402
from lpverify.verifiers import VERIFIERS, expected_accepted, sample, verifier  # noqa: E402
from lpverify.verifiers.sample import drawn  # noqa: E402

NAMES = tuple(name for name in VERIFIERS if name not in ("policy", "ot"))
"""``ot`` solves a flow on the host for every node: small supports only."""


def moved(view: DraftTree, device: Any) -> DraftTree:
    return replace(view, target=device.put(torch.tensor(view.target)), draft=device.put(torch.tensor(view.draft)))


@pytest.mark.parametrize("shape", [(6, 3, 2), (1500, 4, 5)])
@pytest.mark.parametrize("name", NAMES)
def test_law_draw_and_transfers(name: str, shape: tuple[int, int, int]) -> None:
    view = drafted_view(*shape, seed=3)
    law = verifier(name)(view)
    with simulated_device() as device:
        there = moved(view, device)
        device.transfers.clear()
        law_there = verifier(name)(there)
        assert isinstance(law_there.stop, OnDevice)
        result = sample(law_there, np.random.default_rng(2))
        assert len(device.transfers) == 1, device.transfers
        expected_accepted(law_there)
        assert len(device.transfers) == 1, device.transfers
        np.testing.assert_allclose(law_there.stop.cpu(), law.stop, atol=1e-12)
        assert result == sample(law, np.random.default_rng(2))
        for node in np.flatnonzero(law.stop > 1e-3).tolist():
            np.testing.assert_allclose(law_there.next_token(node).cpu(), law.next_token(node), rtol=1e-9, atol=1e-12)
            on_device = torch.tensor(node, device=NAME)
            np.testing.assert_allclose(law_there.rows(on_device).cpu(), law.next_token(node), rtol=1e-9, atol=1e-12)


def test_what_is_not_a_law_is_not_drawn() -> None:
    view = drafted_view(6, 3, 2, seed=0)
    with simulated_device() as device:
        there = moved(view, device)
        for name in NAMES:
            broken = verifier(name)(replace(there, target=there.target * torch.nan))
            assert drawn(broken, np.random.default_rng(0)).tolist()[0] == -1
            with pytest.raises(InputError, match="law of stops: got no positive weight, or NaN"):
                sample(broken, np.random.default_rng(0))


class Counting(Stopwatch):
    """Transfers by stage; ``device`` is set by the test."""

    device: Any
    by_stage: dict[str, list[int]]

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        before = len(self.device.transfers)
        with super().__call__(stage):
            yield
        self.by_stage.setdefault(stage, []).append(len(self.device.transfers) - before)


@pytest.mark.parametrize("name", ["token", "bv", "specinfer", "traversal", "gbv", "pbv", "ebv"])
def test_one_transfer_in_the_verify_stage_of_a_round(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, request = Settings(3, 3, max_new_tokens=12, seed=1), Request((0,), "x")
    expected = generate(tables("skewed-3"), verifier(name), request, settings)
    levels = load_problem("skewed-3").pair.floats
    with simulated_device() as device:
        models = [TableModel.from_levels(side, device=NAME) for side in (levels.target, levels.draft)]
        Counting.device, Counting.by_stage = device, {}
        monkeypatch.setattr(engine, "Stopwatch", Counting)
        result = generate(Pair(*models), verifier(name), request, settings)
    assert result.tokens == expected.tokens
    assert [r.expected_committed for r in result.rounds] == pytest.approx(
        [r.expected_committed for r in expected.rounds]
    )
    rounds = len(result.rounds)
    verify = Counting.by_stage["verify"]
    assert sum(verify) == rounds, verify
    assert sum(Counting.by_stage["draft"]) == rounds  # the drafted tokens


def test_logits_that_are_no_numbers_are_noticed_in_the_same_transfer() -> None:
    levels = load_problem("skewed-3").pair.floats
    with simulated_device():
        target, draft = (TableModel.from_levels(side, device=NAME) for side in (levels.target, levels.draft))
        target = replace(target, log_rows=target.log_rows * torch.nan)
        for name in ("bv", "pbv"):
            with pytest.raises(InputError, match="target table: got logits that are NaN"):
                generate(Pair(target, draft), verifier(name), Request((0,), "x"), Settings(2, 2, max_new_tokens=4))


def test_the_simulation_counts_and_refuses() -> None:
    with simulated_device() as device:
        x = device.put(torch.tensor([1.0, 2.0, 3.0]))
        assert (x + 1).device.type == NAME
        assert device.transfers == []
        for wait in (
            lambda: x.cpu(),
            lambda: x[0].item(),
            lambda: bool((x > 0).all()),
            lambda: x[x > 1],
            lambda: torch.nonzero(x),
            lambda: x[torch.tensor(1, device=NAME)],
            lambda: x.tolist(),
        ):
            device.transfers.clear()
            wait()
            assert len(device.transfers) == 1
        with pytest.raises(AssertionError, match="two devices"):
            x + torch.ones(3)
