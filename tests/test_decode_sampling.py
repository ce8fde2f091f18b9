"""Sampling and keys: the law is what it says, whatever is next to it."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from lpverify import InputError  # noqa: E402
from lpverify.decode.rng import Keys, Role  # noqa: E402
from lpverify.decode.sampling import Sampling, probabilities  # noqa: E402

ROWS = st.lists(st.floats(-30, 30), min_size=1, max_size=9).map(lambda row: torch.tensor([row], dtype=torch.float64))


@given(ROWS, st.floats(0.05, 5), st.integers(1, 9), st.floats(0.01, 1))
@settings(max_examples=60, deadline=None)
def test_filters_keep_the_most_probable_tokens_and_their_proportions(row, temperature, top_k, top_p) -> None:
    whole = probabilities(row, Sampling(temperature))[0]
    kept = probabilities(row, Sampling(temperature, top_k, top_p))[0]
    np.testing.assert_allclose(kept.sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(whole, torch.softmax(row[0] / temperature, -1), rtol=1e-10)
    chosen = kept > 0
    np.testing.assert_allclose(kept[chosen], whole[chosen] / whole[chosen].sum(), rtol=1e-9)
    if (~chosen & (whole > 0)).any():
        assert whole[chosen].min() >= whole[~chosen].max() - 1e-15


def test_top_k_and_top_p_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    np.testing.assert_allclose(probabilities(logits, Sampling(top_k=2))[0], [0.625, 0.375, 0], rtol=1e-6)  # fault S1
    for top_p, kept in ((0.4, 1), (0.5 - 1e-6, 1), (0.6, 2), (0.81, 3), (1.0, 3)):
        assert int((probabilities(logits, Sampling(top_p=top_p)) > 0).sum()) == kept
    for row, top_p, kept in (  # fault T11: the mass is met exactly, in any type of logits that represents it
        ([1 / 12] * 12, 0.5, 6), ([0.6, 0.2, 0.2], 0.6, 1), ([0.5, 0.3, 0.1, 0.1], 0.8, 2), ([0.1] * 10, 0.9, 9),
        ([0.25] * 4, 0.25, 1), ([0.7, 0.1, 0.1, 0.1], 0.9, 3), ([1 / 3] * 3, 2 / 3, 2), ([0.2] * 5, 0.2 + 2e-6, 2),
        ([0.999999, 5e-7, 5e-7], 0.9999995, 2),
    ):  # fmt: skip
        for dtype in (torch.float32, torch.float64):
            logits = torch.log(torch.tensor([row], dtype=torch.float64)).to(dtype)
            assert int((probabilities(logits, Sampling(top_p=top_p)) > 0).sum()) == kept
    ties = torch.zeros((1, 4))
    assert probabilities(ties, Sampling(top_p=0.5))[0].tolist() == [0.5, 0.5, 0, 0]
    assert probabilities(ties, Sampling(top_k=1))[0].tolist() == [0.25] * 4  # tied with the largest: all kept


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_temperature_0_and_nearly_0(dtype) -> None:  # fault S12
    logits = torch.tensor([[3.0, 3.0, 1.0], [1.0, 2.0, 1.5]], dtype=dtype)
    assert probabilities(logits, Sampling(0)).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert probabilities(logits, Sampling(1e-6)).tolist() == [[0.5, 0.5, 0], [0, 1, 0]]
    assert probabilities(logits, Sampling(5e-324)).tolist() == [[0.5, 0.5, 0], [0, 1, 0]]
    assert probabilities(logits, Sampling()).dtype == torch.float64


def test_rows_do_not_depend_on_their_neighbours() -> None:  # faults S12, S14
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((5, 50), generator=generator)
    other = logits.clone()
    other[2] = torch.nan
    for sampling in (Sampling(), Sampling(0.7, 9, 0.8), Sampling(0)):
        rows = probabilities(logits, sampling)
        assert torch.equal(probabilities(logits[1:2], sampling)[0], rows[1])
        assert torch.equal(probabilities(other, sampling)[[0, 1, 3, 4]], rows[[0, 1, 3, 4]])
        assert bool(torch.isnan(probabilities(other, sampling)[2]).all())
    assert torch.equal(logits, torch.randn((5, 50), generator=generator.manual_seed(0)))  # inputs are left alone


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0), Sampling(0.5, 2, 0.5)])
def test_rows_that_are_not_numbers_stay_so(bad: float, sampling: Sampling) -> None:  # fault S6
    for row in ([1.0, bad, 2.0], [-torch.inf] * 3):
        assert bool(torch.isnan(probabilities(torch.tensor([row]), sampling)).all())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1,), "temperature: got -1"),
        ((float("nan"),), "temperature"),
        ((1, 0), "top-k: got 0"),
        ((1, None, 0), "top-p: got 0"),
        ((1, None, 1.5), "top-p"),
        (("1", None, None), "temperature: got '1'"),
        ((True, None, None), "temperature: got True"),
    ],
)
def test_impossible_settings_are_refused(arguments, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sampling(*arguments)


def test_every_address_has_its_own_uniform() -> None:  # faults S3, S14
    addresses = [
        (seed, request, round_, role, path, depth)
        for seed in (0, 1)
        for request in ("a", "b")
        for round_ in range(4)
        for role in Role
        for path in range(4)
        for depth in range(4)
    ]
    values = {a: Keys(a[0], a[1]).uniform(*a[2:]) for a in addresses}
    assert len(set(values.values())) == len(addresses)
    assert values == {a: Keys(a[0], a[1]).uniform(*a[2:]) for a in reversed(addresses)}
    assert all(0 <= value < 1 for value in values.values())


def test_uniforms_are_uniform_and_uncorrelated() -> None:
    """Kolmogorov distance and correlation of neighbouring addresses below their 1e-9 quantiles for n = 20,000."""
    keys = Keys(3, "x")
    u = np.array([[keys.uniform(r, Role.DRAFT, k, 0) for k in range(2)] for r in range(20_000)])
    for column in u.T:
        steps = np.arange(1, len(column) + 1) / len(column)
        assert np.abs(np.sort(column) - steps).max() < 3.3 / np.sqrt(len(column))
    assert abs(np.corrcoef(u.T)[0, 1]) < 6.1 / np.sqrt(len(u))
    assert abs(np.corrcoef(u[1:, 0], u[:-1, 0])[0, 1]) < 6.1 / np.sqrt(len(u))
