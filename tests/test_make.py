"""Random families: the stated law, seeds, and levels that do not depend on the depth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lpverify.core import families as make
from lpverify.core.model_pair import ModelPair
from lpverify.errors import InputError, SizeError

FAMILIES: dict[str, Callable[..., ModelPair]] = {
    "dirichlet": make.dirichlet,
    "markov": make.markov,
    "softmax": make.softmax,
    "rational": make.rational,
} | {kind: lambda *args, kind=kind: make.adversarial(kind, *args) for kind in make.ADVERSARIAL_KINDS}

FALSE_ALARM = 1e-6  # of every sampled check; the seeds are fixed, so a pass stays a pass


def rows(pair: ModelPair) -> tuple[Any, Any]:
    return np.concatenate(pair.target), np.concatenate(pair.draft)


def same(first: ModelPair, second: ModelPair) -> bool:
    return all(
        (a == b).all() for a, b in zip((*first.target, *first.draft), (*second.target, *second.draft), strict=True)
    )


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
class TestEveryFamily:
    def test_levels_do_not_depend_on_the_depth(self, family: Callable[..., ModelPair]) -> None:
        short, long = family(3, 2, 11), family(3, 4, 11)
        assert same(short, ModelPair.from_levels(long.target[:2], long.draft[:2]))

    def test_seed_decides_and_nothing_else(self, family: Callable[..., ModelPair]) -> None:
        before = np.random.get_state()[1].tolist()  # noqa: NPY002
        first = family(4, 2, 5)
        assert same(first, family(4, 2, 5))
        assert not same(first, family(4, 2, 6))
        assert np.random.get_state()[1].tolist() == before  # noqa: NPY002

    def test_generator_as_seed(self, family: Callable[..., ModelPair]) -> None:
        rng = np.random.default_rng(3)
        first, second = family(4, 2, rng), family(4, 2, rng)
        assert not same(first, second)
        assert same(first, family(4, 2, np.random.default_rng(3)))

    def test_levels_are_different_streams(self, family: Callable[..., ModelPair]) -> None:
        target, draft = rows(family(4, 4, 0))
        assert len({tuple(row) for row in np.hstack([target, draft]).tolist()}) > 4

    @pytest.mark.parametrize(
        ("vocab", "depth", "seed", "match"),
        [
            (0, 1, 0, "vocab: got 0"),
            (3, 0, 0, "depth: got 0, expected an integer >= 1"),
            (3, 1, -1, "seed: got -1, expected an integer >= 0"),
            (3, 1, 1.5, r"seed: got 1\.5"),
            (3.0, 1, 0, r"vocab: got 3\.0"),
        ],
    )
    def test_bad_arguments(
        self, family: Callable[..., ModelPair], vocab: Any, depth: Any, seed: Any, match: str
    ) -> None:
        with pytest.raises(InputError, match=match):
            family(vocab, depth, seed)

    def test_too_large(self, family: Callable[..., ModelPair]) -> None:
        with pytest.raises(
            SizeError, match="problem: got a table of at least 111111110 entries, expected at most 50000000"
        ):
            family(10, 9, 0)


# ---- Dirichlet and Markov ----


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_dirichlet_marginals(alpha: float) -> None:
    """One entry of a Dirichlet(alpha, ..., alpha) row is Beta(alpha, (V-1) alpha)."""
    target, draft = rows(make.dirichlet(3, 7, seed=1, alpha=alpha))
    for table in (target, draft):
        assert stats.kstest(table[:, 0], stats.beta(alpha, 2 * alpha).cdf).pvalue > FALSE_ALARM
        assert stats.kstest(table[:, 0], stats.beta(2 * alpha, 4 * alpha).cdf).pvalue < FALSE_ALARM
    assert abs(stats.spearmanr(target[:, 0], draft[:, 0]).statistic) < 5 / np.sqrt(len(target))


def test_markov_rows_depend_on_the_last_token_only() -> None:
    pair = make.markov(3, 4, seed=2)
    for level in (*pair.target[1:], pair.bonus_rows):
        assert (level.reshape(-1, 3, 3) == pair.target[1]).all()
    for level in pair.draft[1:]:
        assert (level.reshape(-1, 3, 3) == pair.draft[1]).all()


def test_markov_transition_law() -> None:
    pair = make.markov(400, 2, seed=2, alpha=0.5)
    for level in (pair.target[1], pair.draft[1]):
        assert stats.kstest(level[:, 0], stats.beta(0.5, 399 * 0.5).cdf).pvalue > FALSE_ALARM


# ---- softmax ----


def centred(table: Any) -> Any:
    """Logits up to the constant of each row."""
    logs = np.log(table)
    return logs - logs.mean(axis=1, keepdims=True)


def test_softmax_temperature_divides_the_logits() -> None:
    cold, warm = make.softmax(5, 3, seed=4, temperature=0.5), make.softmax(5, 3, seed=4, temperature=2.0)
    for a, b in zip(rows(cold), rows(warm), strict=True):
        np.testing.assert_allclose(0.5 * centred(a), 2.0 * centred(b), rtol=0, atol=1e-12)


def test_softmax_draft_noise_is_added_to_the_logits() -> None:
    target, quiet = rows(make.softmax(5, 3, seed=4, temperature=0.5, draft_noise=0.3))
    same_target, loud = rows(make.softmax(5, 3, seed=4, temperature=0.5, draft_noise=1.2))
    assert (target == same_target).all()
    np.testing.assert_allclose(
        4 * (centred(quiet) - centred(target)), centred(loud) - centred(target), rtol=0, atol=1e-12
    )


def test_softmax_logits_are_standard_normal() -> None:
    target, draft = rows(make.softmax(3, 7, seed=4, temperature=0.5, draft_noise=2.0))
    logits, noise = 0.5 * centred(target), 0.5 * (centred(draft) - centred(target)) / 2.0
    for values in (logits, noise):  # z_0 - z_1 is N(0, 2)
        assert stats.kstest(values[:, 0] - values[:, 1], stats.norm(0, np.sqrt(2)).cdf).pvalue > FALSE_ALARM


def test_softmax_near_zero_temperature_is_greedy() -> None:
    for temperature in (1e-6, 1e-300, 5e-324):
        target, _ = rows(make.softmax(5, 2, seed=4, temperature=temperature))
        warm, _ = rows(make.softmax(5, 2, seed=4))
        assert (target == np.eye(5)[warm.argmax(axis=1)]).all()


# ---- rational ----


def test_rational_rows_are_uniform_over_all_compositions() -> None:
    target, draft = rows(make.rational(3, 7, seed=5, denominator=3))
    every = [c for c in product(range(4), repeat=3) if sum(c) == 3]
    for table in (target, draft):
        counts = Counter(tuple(int(3 * x) for x in row) for row in table)
        assert set(counts) == set(every)
        assert stats.chisquare([counts[c] for c in every]).pvalue > FALSE_ALARM


def test_rational_is_exact() -> None:
    pair = make.rational(3, 3, seed=5, denominator=10**15)
    assert pair.rational
    assert all(10**15 % x.denominator == 0 and type(x) is Fraction for x in np.concatenate(pair.draft).ravel())
    assert make.rational(1, 2, seed=0).target[1].tolist() == [[1]]


# ---- adversarial ----


@pytest.mark.parametrize("vocab", [2, 3, 5])
def test_adversarial_definitions(vocab: int) -> None:
    def family(kind: str) -> tuple[Any, Any]:
        return rows(make.adversarial(kind, vocab, 3, seed=7))

    one_hot = [[0.0] * (vocab - 1) + [1.0]]
    target, draft = family("one-hot-target")
    assert (np.sort(target) == one_hot).all()
    assert (draft > 0).all()
    target, draft = family("one-hot-draft")
    assert (np.sort(draft) == one_hot).all()
    assert (target > 0).all()
    target, draft = family("disjoint")
    assert ((target > 0) != (draft > 0)).all()
    assert ((target > 0).sum(axis=1) == vocab // 2).all()
    target, draft = family("zero-draft-mass")
    assert ((draft == 0).sum(axis=1) == 1).all()
    assert (target > 0).all()
    target, draft = family("equal")
    assert (target == draft).all()
    target, draft = family("ties")
    assert set(np.unique(target / draft)) == {0.5, 1.5}
    assert all(sum(Fraction(x) for x in row) == 1 for table in (target, draft) for row in table)
    for table in family("subnormal"):
        ordered = np.sort(table)
        assert (ordered[:, -1] == 1).all()
        assert ((ordered[:, :-1] > 0) & (ordered[:, :-1] <= 1e-300)).all()


def test_adversarial_positions_are_uniform() -> None:
    for kind, special in [
        ("one-hot-target", lambda target, draft: target == 1),
        ("one-hot-draft", lambda target, draft: draft == 1),
        ("zero-draft-mass", lambda target, draft: draft == 0),
        ("subnormal", lambda target, draft: draft == 1),
        ("ties", lambda target, draft: draft == 0.5),
        ("disjoint", lambda target, draft: target > 0),
    ]:
        counts = special(*rows(make.adversarial(kind, 3, 7))).sum(axis=0)
        assert stats.chisquare(counts).pvalue > FALSE_ALARM, kind


def test_adversarial_arguments() -> None:
    with pytest.raises(InputError, match="kind: got 'nasty', expected one of one-hot-target"):
        make.adversarial("nasty", 3, 1)
    with pytest.raises(InputError, match="vocab: got 1, expected an integer >= 2"):
        make.adversarial("disjoint", 1, 1)
    with pytest.raises(InputError, match=r"vocab: got 65, expected an integer in 2\.\.64"):
        make.adversarial("ties", 65, 1)
    assert make.adversarial("equal", 1, 2).vocab_size == 1


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_parameters_out_of_range(value: float) -> None:
    with pytest.raises(InputError, match="alpha: got .*, expected a finite number > 0"):
        make.dirichlet(3, 1, 0, alpha=value)
    with pytest.raises(InputError, match="alpha: got"):
        make.markov(3, 1, 0, alpha=value)
    with pytest.raises(InputError, match="temperature: got"):
        make.softmax(3, 1, 0, temperature=value)
    if value != 0:
        with pytest.raises(InputError, match="draft_noise: got .*, expected a finite number >= 0"):
            make.softmax(3, 1, 0, draft_noise=value)
    with pytest.raises(InputError, match="denominator: got"):
        make.rational(3, 1, 0, denominator=value)


@pytest.mark.parametrize("alpha", [1e-300, 1e-9, 1e9, 1e300])
def test_extreme_concentrations_give_valid_rows(alpha: float) -> None:
    target, draft = rows(make.dirichlet(4, 3, 0, alpha=alpha))
    np.testing.assert_allclose(target.sum(axis=1), 1, rtol=0, atol=1e-12)
    np.testing.assert_allclose(draft.sum(axis=1), 1, rtol=0, atol=1e-12)


# ---- stored values: the same tables on every machine ----


def test_stored_values() -> None:
    np.testing.assert_allclose(make.dirichlet(3, 1, 1, 0.5).draft[0][0], STORED["dirichlet"], rtol=1e-12)
    np.testing.assert_allclose(make.markov(3, 2, 1).target[1][2], STORED["markov"], rtol=1e-12)
    np.testing.assert_allclose(make.softmax(3, 2, 1).draft[1][2], STORED["softmax"], rtol=1e-12)
    np.testing.assert_allclose(make.adversarial("subnormal", 3, 1).draft[0][0], STORED["subnormal"], rtol=1e-7)
    assert [str(x) for x in make.rational(3, 2, 1).draft[1][2]] == STORED["rational"]


STORED: dict[str, list[Any]] = {
    "dirichlet": [0.10544320968262716, 0.7824585113651702, 0.11209827895220265],
    "markov": [0.11830295594968773, 0.7238840543018382, 0.157812989748474],
    "softmax": [0.027240286339920948, 0.01269597250254194, 0.9600637411575371],
    "subnormal": [1.0, 1.868717540879e-310, 1.2448693e-315],
    "rational": ["1/3", "1/12", "7/12"],
}
