"""Single path: closed form = LP = block verification; exact; its certificate proves both bounds."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from lp_cases import REFERENCE, iid_pair, random_pair, rational_pair, reference_pair

from lpverify.errors import SizeError
from lpverify.lp import certify, single_path


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("vocab", "depth"), [(2, 4), (3, 3), (5, 2), (7, 1)])
def test_closed_form_is_the_lp(vocab, depth, seed):
    pair = random_pair(vocab, depth, seed)
    closed, program = single_path.solve(pair), single_path.solve_as_lp(pair)
    assert closed.gap <= 1e-12
    assert program.value == pytest.approx(closed.value, abs=1e-8)
    assert program.upper_bound == pytest.approx(closed.value, abs=1e-7)


@pytest.mark.parametrize("seed", range(8))
def test_rational_bounds_are_equal(seed):
    """Strong duality in Fractions, with ties and zeros in the rows."""
    pair = rational_pair(3, 3, seed)
    solution = single_path.solve(pair)
    assert solution.exact_bounds == (solution.exact, solution.exact)
    result = certify.check(pair, solution.certificate, exact=True)
    assert result.valid
    assert result.lower_bound == result.upper_bound == solution.exact
    assert certify.check(pair, solution.certificate).valid
    assert float(single_path.solve(pair.floats).value) == pytest.approx(float(solution.exact), abs=1e-13)


def test_is_block_verification():
    """BV's own recursion w(cx) = min(1, w p / q), f = Q w, on a pair without zeros."""
    pair = random_pair(4, 3, 0, alpha=5.0)
    weights, value = np.ones(1), 1.0
    for depth in range(3):
        weights = np.minimum(1, weights[:, None] * pair.target[depth] / pair.draft[depth]).reshape(-1)
        value += weights @ pair.draft_paths[depth + 1]
    assert single_path.solve(pair).value == pytest.approx(value, abs=1e-14)


def test_known_fractions():
    fifth = [Fraction(n, 10) for n in (2, 5, 3)], [Fraction(n, 10) for n in (6, 3, 1)]
    assert single_path.solve(iid_pair(*fifth, 1)).exact == Fraction(8, 5)
    coin = [Fraction(1, 4), Fraction(3, 4)], [Fraction(3, 5), Fraction(2, 5)]
    assert single_path.solve(iid_pair(*coin, 2)).exact == Fraction(216, 100)
    assert single_path.solve(iid_pair(*coin, 3)).exact == Fraction("2.569375")
    assert single_path.solve(iid_pair(coin[0], coin[0], 5)).exact == 6
    assert single_path.solve(iid_pair([Fraction(1), Fraction(0)], [Fraction(0), Fraction(1)], 3)).exact == 1


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.stem)
def test_reference(path):
    pair, expected = reference_pair(path)
    assert single_path.solve(pair).value == pytest.approx(expected["single_path_optimum"], abs=1e-7)


def test_program_refuses_a_large_tree():
    with pytest.raises(SizeError, match="111110 nodes, expected at most 20000; use the closed form"):
        single_path.solve_as_lp(random_pair(10, 5, 0))
