"""Solver-free bounds: any table and any multipliers bound the optimum; corrupted certificates are rejected."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lp_cases import random_pair, rational_pair

from lpverify.core.results import Certificate, RankTable
from lpverify.errors import InputError
from lpverify.lp import certify, coverage, one_step, reference, single_path
from lpverify.numerics import as_float, total

VOCAB, DEPTH, PATHS = 3, 2, 3


def random_table(pair, seed, bins=5):
    """Nonnegative entries with wrong marginals."""
    rng = np.random.default_rng(seed)
    leaves = pair.draft_paths[-1].size
    present = rng.random((leaves, bins)) < 0.5
    leaf, column = np.nonzero(present)
    return RankTable(np.linspace(0, 1, bins + 1), leaf, column, rng.random(len(leaf)))


def certificate_for(pair, seed=0):
    """A legal certificate, not an optimal one."""
    ranks = certify.repair(pair, random_table(pair, seed))
    rng = np.random.default_rng(seed)
    multipliers = tuple(rng.random(level.size) for level in pair.draft_paths)
    return certify.certificate_of(pair, ranks, multipliers, PATHS)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), paths=st.integers(1, 5))
def test_any_table_and_any_multipliers_bound_the_optimum(seed, paths):
    pair = random_pair(2, 3, seed % 7)
    value = reference.solve_antichains(pair, paths).value
    ranks = certify.repair(pair, random_table(pair, seed))
    rng = np.random.default_rng(seed)
    multipliers = tuple(rng.exponential(size=level.size) for level in pair.draft_paths)
    certificate = certify.certificate_of(pair, ranks, multipliers, paths)
    lower, upper = total(certificate.prefix_acceptance), certify.upper_bound(pair, multipliers, paths)
    assert lower <= value + 1e-8
    assert upper >= value - 1e-8
    result = certify.check(pair, certificate)
    assert result.valid, result.violations
    assert result.lower_bound == pytest.approx(lower)
    assert result.upper_bound == pytest.approx(upper)


@pytest.mark.parametrize("seed", range(6))
def test_exact_repair_and_bounds(seed):
    """Fractions: the marginals hold exactly, nothing is covered beyond phi, float and exact bounds agree."""
    pair = rational_pair(VOCAB, DEPTH, seed)
    ranks = certify.repair(pair, random_table(pair, seed))
    rows, columns = np.zeros(9, dtype=object), np.zeros(5, dtype=object)
    np.add.at(rows, ranks.leaf, ranks.mass)
    np.add.at(columns, ranks.bin, ranks.mass)
    assert (rows == pair.draft_paths[-1]).all()
    assert (columns == np.diff(ranks.edges)).all()
    assert ranks.edges[0] == 0
    assert ranks.edges[-1] == 1
    selected = certify.selection_distribution(pair, ranks, PATHS)
    assert selected[0][0] == 1
    assert coverage.separate(pair.draft_paths, selected, PATHS)[1] == 0
    lower = float(total(coverage.prefix_acceptance(pair.target, selected)))
    assert certify.Bounds(pair.floats, PATHS).see_ranks(random_table(pair, seed)) == pytest.approx(lower, abs=1e-12)
    certificate = certificate_for(pair.floats, seed)
    result = certify.check(pair, certificate, exact=True)
    assert result.valid
    assert isinstance(result.lower_bound, Fraction)
    assert isinstance(result.upper_bound, Fraction)
    approximate = certify.check(pair.floats, certificate)
    assert float(result.lower_bound) == pytest.approx(approximate.lower_bound, abs=1e-9)
    assert float(result.upper_bound) == pytest.approx(approximate.upper_bound, abs=1e-9)


def test_repair_keeps_a_legal_table():
    pair = rational_pair(VOCAB, DEPTH, 0)
    ranks = certify.repair(pair, random_table(pair, 0))
    assert certify.repair(pair, ranks) is ranks
    floats = certify.repair(pair.floats, random_table(pair, 0))
    again = certify.repair(pair.floats, floats)
    np.testing.assert_allclose(again.mass, floats.mass, rtol=1e-14)
    np.testing.assert_allclose(again.edges, floats.edges, atol=1e-14)


def test_repair_of_tiny_negative_and_missing_entries():
    pair = random_pair(VOCAB, DEPTH, 1)
    ranks = certify.repair(
        pair,
        RankTable(np.array([0.0, 0.3, 1.0]), np.array([0, 0, 1]), np.array([0, 1, 0]), np.array([-1.0, 1e-12, 2.0])),
    )
    assert (ranks.mass >= 0).all()
    np.testing.assert_allclose(np.bincount(ranks.leaf, ranks.mass, 9), pair.draft_paths[-1], rtol=1e-14)
    np.testing.assert_allclose(np.bincount(ranks.bin, ranks.mass, 2), np.diff(ranks.edges), atol=1e-15)


def test_one_step_multipliers_prove_the_value():
    pair = rational_pair(6, 1, 3)
    _, best = one_step.best_set(pair.target[0][0], pair.draft[0][0], 2)
    outside = np.full(6, Fraction(1), dtype=object)
    outside[best] = Fraction(0)
    multipliers = (np.array([Fraction(0)], dtype=object), outside)
    assert certify.upper_bound(pair, multipliers, 2) == one_step.solve(pair, 2).exact


def test_ranking_by_price_attains_the_polymatroid_maximum():
    """Leaves laid out by H descending: sum_c y(c) Q*(c) is the Abel sum in `upper_bound` (Edmonds' greedy)."""
    pair = random_pair(VOCAB, DEPTH, 2)
    rng = np.random.default_rng(0)
    prices = rng.random(9)
    order = np.argsort(-prices)
    mass = pair.draft_paths[-1]
    edges = np.concatenate([[0.0], np.cumsum(mass[order])])
    edges[-1] = 1.0
    ranks = RankTable(edges, order, np.arange(9), mass[order])
    selected = certify.selection_distribution(pair, ranks, PATHS)[-1]
    chords = coverage.phi(edges[1:], PATHS) - coverage.phi(edges[:-1], PATHS)
    assert prices @ selected == pytest.approx(prices[order] @ chords)
    free = tuple(np.zeros(level.size) for level in pair.draft_paths)
    assert certify.check(pair, certify.certificate_of(pair, ranks, free, PATHS)).valid


def changed(levels, depth, index, factor=1.0, shift=0.0):
    level = levels[depth].copy()
    level[index] = level[index] * factor + shift
    return (*levels[:depth], level, *levels[depth + 1 :])


def corrupted(pair, certificate: Certificate):
    """Name of the expected violation, corrupted certificate."""
    ranks, largest = certificate.ranks, int(np.argmax(certificate.ranks.mass))
    more = ranks.mass.copy()
    more[largest] *= 1.001
    moved = ranks.bin.copy()
    moved[largest] = (moved[largest] + 1) % (len(ranks.edges) - 1)
    negative = ranks.mass.copy()
    negative[largest] *= -1
    swapped = ranks.edges.copy()
    swapped[[1, 2]] = swapped[[2, 1]]
    leaf = int(np.argmax(certificate.prefix_acceptance[-1]))
    node = int(np.argmax(certificate.prefix_acceptance[1]))
    yield "row of the ranks", replace(certificate, ranks=replace(ranks, mass=more))
    yield "column of the ranks", replace(certificate, ranks=replace(ranks, bin=moved))
    yield "negative", replace(certificate, ranks=replace(ranks, mass=negative))
    yield "edge falls", replace(certificate, ranks=replace(ranks, edges=swapped))
    yield "miss 0 or 1", replace(certificate, ranks=replace(ranks, edges=ranks.edges * 0.999))
    yield "not the ranks'", replace(certificate, selected=changed(certificate.selected, 2, leaf, 1.001))
    yield "exceeds", replace(certificate, prefix_acceptance=changed(certificate.prefix_acceptance, 1, node, 1.001))
    yield "exceeds", replace(certificate, prefix_acceptance=changed(certificate.prefix_acceptance, 2, leaf, 1.001))
    yield (
        "probability is negative",
        replace(certificate, prefix_acceptance=changed(certificate.prefix_acceptance, 2, leaf, -1)),
    )
    yield "f of the root", replace(certificate, prefix_acceptance=changed(certificate.prefix_acceptance, 0, 0, 1.001))
    yield "multiplier is negative", replace(certificate, multipliers=changed(certificate.multipliers, 2, 0, 0, -1e-3))
    yield "row of the ranks", replace(certificate, ranks=replace(ranks, mass=ranks.mass * np.nan))
    yield "NaN", replace(certificate, multipliers=changed(certificate.multipliers, 1, 0, np.nan))
    yield "more paths", replace(certificate, num_paths=PATHS + 1)


@pytest.mark.parametrize("case", range(14))
def test_corrupted_certificates_are_rejected(case):
    pair = random_pair(VOCAB, DEPTH, 4)
    certificate = certificate_for(pair)
    assert certify.check(pair, certificate).valid
    expected, bad = list(corrupted(pair, certificate))[case]
    result = certify.check(pair, bad)
    assert not result.valid
    if expected not in ("more paths", "NaN"):
        assert any(expected in violation for violation in result.violations), result.violations


def test_exact_check_rejects_negative_entries():
    pair = rational_pair(VOCAB, DEPTH, 0)
    certificate = single_path.solve(pair).certificate
    mass = certificate.ranks.mass.copy()
    mass[int(np.argmax(as_float(mass)))] *= -1
    assert not certify.check(pair, replace(certificate, ranks=replace(certificate.ranks, mass=mass)), exact=True).valid
    negative = changed(certificate.multipliers, 1, 0, Fraction(0), Fraction(-1))
    assert not certify.check(pair, replace(certificate, multipliers=negative), exact=True).valid


def test_border():
    pair = random_pair(VOCAB, DEPTH, 0)
    certificate = certificate_for(pair)
    with pytest.raises(InputError, match="exact check: got a problem in floating point, expected rational"):
        certify.check(pair, certificate, exact=True)
    with pytest.raises(InputError, match="certificate's prefix_acceptance"):
        certify.check(pair, replace(certificate, prefix_acceptance=certificate.prefix_acceptance[:-1]))
    with pytest.raises(InputError, match="rank table's leaf: got an index out of range, expected 0..8"):
        certify.check(pair, replace(certificate, ranks=replace(certificate.ranks, leaf=certificate.ranks.leaf + 9)))


def test_underflowing_masses():
    """Leaf masses near 1e-300: repair, bounds and check stay finite and legal."""
    row = [1e-100, 1 - 1e-100]
    tables = [np.array([row] * 2**i) for i in range(3)]
    pair = type(random_pair(2, 1, 0)).from_levels([t[:, ::-1] for t in tables], tables)
    certificate = certificate_for(pair)
    result = certify.check(pair, certificate)
    assert result.valid, result.violations
    assert np.isfinite(result.upper_bound)
    assert total(certificate.prefix_acceptance) >= 1
