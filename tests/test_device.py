"""Verification on a device: the same distributions and draws, and what a decoding round costs there.

No device is needed: `simulated_device` counts synchronisations and operations. A decoding round synchronises twice:
the numbers that the host decides on, and the stop node with the next token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from decode_cases import processed_text, tables  # noqa: E402
from simulated_device import NAME, OnDevice, simulated_device  # noqa: E402
from test_rows import drafted_tree  # noqa: E402

from lpverify import InputError  # noqa: E402
from lpverify.core.draft_tree import DraftTree  # noqa: E402
from lpverify.core.problem import load_problem  # noqa: E402
from lpverify.decode import engine  # noqa: E402
from lpverify.decode.engine import Request, Settings, generate  # noqa: E402
from lpverify.decode.metrics import Stopwatch  # noqa: E402
from lpverify.decode.models import Pair  # noqa: E402
from lpverify.decode.table import TableModel  # noqa: E402
from lpverify.verifiers import expected_accepted, names, sample, verifier  # noqa: E402

NAMES = names(any_vocabulary=True)
OPERATIONS = 200
"""Most operations of a decoding round that are not views."""


def moved(tree: DraftTree, device: Any) -> DraftTree:
    return replace(tree, target=device.put(torch.tensor(tree.target)), draft=device.put(torch.tensor(tree.draft)))


@pytest.mark.parametrize("shape", [(6, 3, 2), (200, 4, 8), (1500, 4, 5)])
@pytest.mark.parametrize("name", NAMES)
def test_distribution_draw_synchronisations_and_operations(name: str, shape: tuple[int, int, int]) -> None:
    tree = drafted_tree(*shape, seed=3)
    expected = verifier(name)(tree)
    with simulated_device() as device:
        there = moved(tree, device)
        device.clear()
        distribution = verifier(name)(there)
        assert isinstance(distribution.stop, OnDevice)
        result = sample(distribution, np.random.default_rng(2))
        assert len(device.transfers) == 2, device.transfers
        assert len(device.operations) <= OPERATIONS, (len(device.operations), device.operations)
        expected_accepted(distribution)
        assert len(device.transfers) == 2, device.transfers
        np.testing.assert_allclose(distribution.stop.cpu(), expected.stop, atol=1e-12)
        assert result == sample(expected, np.random.default_rng(2))
        for node in np.flatnonzero(expected.stop > 1e-3).tolist():
            row = expected.next_token(node)
            np.testing.assert_allclose(distribution.next_token(node).cpu(), row, rtol=1e-9, atol=1e-12)
            on_device = torch.tensor(node, device=NAME)
            np.testing.assert_allclose(distribution.rows(on_device).cpu(), row, rtol=1e-9, atol=1e-12)


def test_too_many_synchronisations_or_operations_would_be_seen() -> None:
    with simulated_device() as device:
        there = moved(drafted_tree(6, 3, 2, seed=3), device)
        device.clear()
        distribution = verifier("bv")(there)
        float(distribution.stop[0])
        sample(distribution, np.random.default_rng(2))
        assert len(device.transfers) == 3
        for _ in range(OPERATIONS):
            _ = distribution.stop + 1
        assert len(device.operations) > OPERATIONS


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_are_not_numbers_are_refused(name: str) -> None:
    tree = drafted_tree(6, 3, 2, seed=0)
    with simulated_device() as device:
        there = moved(tree, device)
        for node in (0, tree.size - 1):
            broken = tree.target.copy()
            broken[node] = np.nan
            with pytest.raises(InputError, match="target rows: got NaN"):
                verifier(name)(replace(there, target=device.put(torch.tensor(broken))))
            with pytest.raises(InputError, match="target rows: got NaN"):
                verifier(name)(replace(tree, target=broken))


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
def test_two_synchronisations_in_the_verify_stage_of_a_round(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert sum(verify) == 2 * rounds, verify
    assert sum(Counting.by_stage["draft"]) == rounds  # the drafted tokens


@pytest.mark.parametrize("name", ["bv", "pbv"])
def test_processed_rows_on_a_device(name: str) -> None:
    """Logits processors there give the text that they give on the CPU."""
    pytest.importorskip("transformers")
    from transformers import NoRepeatNGramLogitsProcessor, TemperatureLogitsWarper

    from lpverify.integrations.transformers_text import RowProcess

    settings, request = Settings(3, 3, max_new_tokens=9, seed=1), Request((0, 1), "x")
    processors = [NoRepeatNGramLogitsProcessor(3), TemperatureLogitsWarper(0.7)]
    levels = load_problem("skewed-3").pair.floats
    texts = []
    for device in ("cpu", NAME):
        with simulated_device():
            models = [TableModel.from_levels(side, device=device) for side in (levels.target, levels.draft)]
            padding = torch.zeros((1, 2), dtype=torch.int64, device=device)
            process = RowProcess(processors, padding, 2, (2,), 3)
            texts.append(processed_text(Pair(*models), verifier(name), request, settings, process)[0])
    assert texts[0] == texts[1]


def test_logits_that_are_no_numbers_are_noticed() -> None:
    levels = load_problem("skewed-3").pair.floats
    with simulated_device():
        target, draft = (TableModel.from_levels(side, device=NAME) for side in (levels.target, levels.draft))
        target = replace(target, log_rows=target.log_rows * torch.nan)
        for name in ("bv", "pbv"):
            with pytest.raises(InputError, match="target rows: got NaN"):
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
