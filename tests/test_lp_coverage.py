"""Coverage functions and exact separation against brute force over all antichains."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpverify.lp import coverage


def antichains(vocab: int, depth: int, level: int = 0, index: int = 0) -> Iterator[frozenset[tuple[int, int]]]:
    """All antichains in the subtree of a node, that node included as one of them; written from the definition."""
    yield frozenset({(level, index)})
    yield from unions(vocab, depth, level, index)


def unions(vocab: int, depth: int, level: int, index: int) -> Iterator[frozenset[tuple[int, int]]]:
    found = [frozenset()]
    if level < depth:
        for token in range(vocab):
            below = list(antichains(vocab, depth, level + 1, index * vocab + token))
            found = [a | b for a in found for b in below]
    yield from found


@pytest.mark.parametrize(("vocab", "depth", "count"), [(2, 1, 4), (2, 2, 25), (2, 3, 676), (3, 2, 729)])
def test_number_of_antichains(vocab, depth, count):
    assert len(set(unions(vocab, depth, 0, 0))) == count


def check_separation(q, f, vocab, depth, paths):
    mask, violation = coverage.separate(q, f, paths)
    best = max(
        sum((f[i][n] for i, n in a), start=Fraction(0))
        - coverage.phi(sum((q[i][n] for i, n in a), start=Fraction(0)), paths)
        for a in unions(vocab, depth, 0, 0)
    )
    assert violation == best
    nodes = [(i, n) for i, level in enumerate(mask) for n in np.flatnonzero(level)]
    assert not any(n // vocab ** (i - j) == m for i, n in nodes for j, m in nodes if j < i)
    assert violation == sum((f[i][n] for i, n in nodes), start=Fraction(0)) - coverage.phi(
        sum((q[i][n] for i, n in nodes), start=Fraction(0)), paths
    )
    return nodes


def levels_of(leaf_weights, vocab, depth, values):
    """Exact Q levels from leaf weights and f levels from a flat list."""
    leaves = np.array([Fraction(w, sum(leaf_weights)) for w in leaf_weights], dtype=object)
    q = [leaves]
    for _ in range(depth):
        q.append(q[-1].reshape(-1, vocab).sum(axis=1))
    q = tuple(q[::-1])
    f, at = [np.array([Fraction(1)], dtype=object)], 0
    for i in range(1, depth + 1):
        f.append(np.array([Fraction(v, 7) for v in values[at : at + vocab**i]], dtype=object))
        at += vocab**i
    return q, tuple(f)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_separation_is_exact(data):
    """Ties, zero masses and zero or negative f are frequent here: weights and f are small integers."""
    vocab, depth = data.draw(st.sampled_from([(2, 1), (2, 2), (2, 2), (2, 3), (3, 2)]))
    weights = data.draw(st.lists(st.integers(0, 4), min_size=vocab**depth, max_size=vocab**depth).filter(any))
    count = sum(vocab**i for i in range(1, depth + 1))
    values = data.draw(st.lists(st.integers(-1, 5), min_size=count, max_size=count))
    q, f = levels_of(weights, vocab, depth, values)
    check_separation(q, f, vocab, depth, data.draw(st.integers(1, 4)))


def test_separation_picks_a_mixed_antichain():
    q, f = levels_of([1, 1, 1, 1], 2, 2, [5, 3, 4, 0, 3, 0])
    nodes = check_separation(q, f, 2, 2, 1)
    assert nodes == [(1, 0), (2, 2)] or nodes == [(2, 0), (2, 2)]


def test_floats_agree_with_fractions():
    rng = np.random.default_rng(3)
    for _ in range(20):
        weights = rng.integers(0, 5, 27) + (np.arange(27) == 0)
        values = rng.integers(0, 6, 39)
        q, f = levels_of([int(w) for w in weights], 3, 3, [int(v) for v in values])
        exact = coverage.separate(q, f, 3)
        floats = coverage.separate(*(tuple(level.astype(float) for level in function) for function in (q, f)), 3)  # type: ignore[call-arg]
        assert floats[1] == pytest.approx(float(exact[1]), abs=1e-13)


def test_nothing_violated_gives_the_empty_antichain():
    q, f = levels_of([1, 1, 1, 1], 2, 2, [1, 1, 0, 0, 0, 0])
    mask, violation = coverage.separate(q, f, 2)
    assert violation == 0
    assert not any(level.any() for level in mask)


@pytest.mark.parametrize("paths", [1, 2, 5, 64])
def test_phi_is_accurate_for_every_mass(paths):
    for mass in (1e-300, 1e-18, 1e-9, 0.1, 0.9, 1 - 1e-12, 1.0):
        exact = coverage.phi(Fraction(mass), paths)
        assert coverage.phi(mass, paths) == pytest.approx(float(exact), rel=1e-13)
        assert coverage.phi_slope(mass, paths) == pytest.approx(
            float(coverage.phi_slope(Fraction(mass), paths)), rel=1e-10
        )


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 64))
def test_chord_has_relative_accuracy(start, part, paths):
    width = (1 - start) * part * 2.0**-60
    exact = coverage.phi(Fraction(start) + Fraction(width), paths) - coverage.phi(Fraction(start), paths)
    assert coverage.phi_chord(start, width, paths) == pytest.approx(float(exact), rel=1e-12, abs=1e-290)
    assert coverage.phi_chord(Fraction(start), Fraction(width), paths) == exact


def test_mean_slope_of_no_width_is_the_slope():
    assert coverage.phi_mean_slope(0.3, 0.0, 4) == pytest.approx(coverage.phi_slope(0.3, 4))
