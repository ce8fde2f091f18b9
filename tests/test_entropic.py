"""The entropic split: what it promises of its row, its coupling and its exactness."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import logsumexp, rel_entr

from lpverify import VerifyProblem, make, solve
from lpverify.exact.closed_form import block_efficiency
from lpverify.numerics import as_float
from lpverify.verifiers import ebv as _entropic
from lpverify.verifiers.compiled import couple_groups, in_use, kernels
from lpverify.verifiers.ebv import (
    MISSED_IF_SHARED,
    Groups,
    coupling,
    entropic_split,
    onto_marginals,
    refined,
    spared_row,
)
from lpverify.verifiers.pbv import proportional_split
from lpverify.verifiers.rank_measure import RankMeasure, whole
from lpverify.verifiers.splits import lay_out


def rows(seed: int, vocab: int, alpha: float = 0.7, count: int = 1) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(vocab, alpha), count), rng.dirichlet(np.full(vocab, alpha), count)


def below(seed: int, vocab: int, paths: int) -> RankMeasure:
    """The measures of the root's children, which have many pieces."""
    target, draft = rows(seed, vocab)
    tokens = np.arange(vocab)
    done = entropic_split(whole(1, np.ones(1)), target, draft, np.ones(1), paths)
    return done.children(np.zeros_like(tokens), tokens)


def pieces(measure: RankMeasure, node: int) -> list[tuple[Any, Any, Any]]:
    """(begin, end, mass) of the node's pieces."""
    scale = measure.scale[node]
    parts = zip(measure.above[node] * scale, measure.width[node] * scale, measure.mass[node], strict=True)
    return [(1 - above - width, 1 - above, mass) for above, width, mass in parts if mass > 0]


def mass_up_to(measure: RankMeasure, node: int, rank: Any) -> Any:
    found = 0
    for begin, end, mass in pieces(measure, node):
        share = 1 if end == begin else min(max(rank - begin, 0) / (end - begin), 1)
        found += mass * share
    return found


@pytest.mark.parametrize("exact", [False, True])
def test_children_sum_to_their_parent(exact: bool) -> None:
    pair = make.rational(4, 2, seed=5, denominator=7)
    pair = pair if exact else pair.floats
    one = pair.target[0][0, :1] * 0 + 1
    tokens = np.arange(4)
    first = entropic_split(whole(1, one), pair.target[0], pair.draft[0], one, 3)
    measure = first.children(np.zeros_like(tokens), tokens)
    for node in range(4):
        if pair.draft[0][0, node] == 0:
            continue
        row = (pair.target[1][node : node + 1], pair.draft[1][node : node + 1])
        split = entropic_split(measure[np.array([node])], *row, one, 3)
        children = split.children(np.zeros_like(tokens), tokens)
        for rank in (Fraction(1, 10), Fraction(1, 3), Fraction(1, 2), Fraction(6, 7), Fraction(1)):
            rank = rank if exact else float(rank)
            total = sum(row[1][0, x] * mass_up_to(children, x, rank) for x in tokens if row[1][0, x] > 0)
            whole_ = mass_up_to(measure, node, rank)
            assert total == (whole_ if exact else pytest.approx(whole_, abs=1e-14))


@example(602, 5, 0.3, 5, 0.5)  # atoms share cells: the row is met to 6.5e-8 only
@given(st.integers(0, 10**6), st.integers(2, 7), st.sampled_from([0.3, 1.0, 4.0]), st.integers(2, 6), st.floats(0.1, 1))
def test_row_costs_nothing_and_is_met(seed: int, vocab: int, alpha: float, paths: int, weight: float) -> None:
    """sum_x min(w p, q*) is PBV's, which is the most that coverage allows, and q* is the wanted row.

    Where the atoms of a group outnumber its cells, the row may be missed by a fraction `MISSED_IF_SHARED` of the group.
    """
    measure = refined(below(seed, vocab, paths)[np.array([seed % vocab])])
    target, draft = rows(seed + 1, vocab, alpha)
    layout = lay_out(measure, target, draft, paths)
    wanted, group = spared_row(layout, np.array([weight]))
    assert wanted.sum() == pytest.approx(1, abs=1e-12)
    assert (np.diff(group) >= 0).all()
    assert (np.cumsum(wanted[0]) <= np.cumsum(layout.ordered[0]) + 1e-12).all()  # coverage of the first k children
    groups = Groups.of(layout, group)
    atoms = np.bincount(groups.number[groups.atom_child], minlength=len(groups.problem))
    shared = bool((atoms > np.diff(groups.first_cell))[groups.problem >= 0].any())
    split = entropic_split(measure, target, draft, np.array([weight]), paths)
    missed = abs(split.q_star - layout.by_token(wanted)).sum()
    assert missed <= (MISSED_IF_SHARED if shared else 2e-9)
    best = proportional_split(measure, target, draft, np.array([weight]), paths)
    ours, theirs = (np.minimum(weight * target, each.q_star).sum() for each in (split, best))
    assert ours >= theirs - (missed if shared else 1e-12)


def divergence_and_bound(mu: Any, phi: Any, q: Any, wanted: Any, found: Any) -> tuple[float, float]:
    """Divergence of a table from q mu, and a lower bound on that of all tables with these sums and means.

    The bound is the dual, sum_x (a_x q_x + g_x W_x) - sum_u mu_u log sum_x q_x exp(a_x + g_x phi_u): valid at any a, g.
    """

    def negative_dual(point: Any) -> tuple[float, Any]:
        shift, tilt = np.split(point, 2)
        logs = shift[:, None] + tilt[:, None] * phi
        table = np.log(q)[:, None] + logs - logsumexp(logs, axis=0, b=q[:, None])
        table = np.exp(table) * mu
        slope = np.concatenate([table.sum(axis=1) - q, table @ phi - wanted])
        return mu @ logsumexp(logs, axis=0, b=q[:, None]) - shift @ q - tilt @ wanted, slope

    point = np.zeros(2 * len(q))
    for _ in range(3):
        point = minimize(negative_dual, point, jac=True, method="BFGS", options={"gtol": 1e-12}).x
    return float(rel_entr(found, q[:, None] * mu).sum()), -negative_dual(point)[0]


def test_coupling_is_nearly_the_one_of_largest_entropy() -> None:
    """Sums and means are met; the divergence from q mu is the least to 0.1 % on average, and to 0.02 nats each time."""
    rng = np.random.default_rng(0)
    excess = []
    for _ in range(200):
        vocab, cells = rng.integers(2, 7), rng.integers(3, 13)
        mu, q = rng.dirichlet(np.ones(cells)), rng.dirichlet(np.ones(vocab))
        phi = np.sort(rng.uniform(0, 4, cells))[::-1]
        inside = q[:, None] * mu * np.exp(rng.normal(size=(vocab, 1)) * phi)  # some T whose means can be had
        inside = onto_marginals(inside[None] / inside.sum(), mu[None], q[None])[0]
        wanted = inside @ phi
        found = coupling(mu[None], phi[None], q[None], wanted[None])[0]
        if abs(found @ phi - wanted).sum() > 1e-8 * wanted.sum():
            continue  # all but separated: pooling is for such
        assert found.sum(axis=0) == pytest.approx(mu, abs=1e-8)
        assert found.sum(axis=1) == pytest.approx(q, abs=1e-8)
        divergence, bound = divergence_and_bound(mu, phi, q, wanted, found)
        assert bound - 1e-8 <= divergence <= bound + 0.02
        excess.append(divergence / bound - 1)
    assert len(excess) >= 190
    assert np.mean(excess) <= 1e-3


@pytest.mark.parametrize("paths", [3, 5])
def test_one_step_is_optimal_where_pooling_is_not(paths: int) -> None:
    """L = 1: the linear program's value, in problems where PBV misses it as well."""
    missed = 0
    for seed in range(2200, 2500):
        pair = make.dirichlet(5, 1, seed, alpha=0.6)
        ours, theirs = (float(block_efficiency(pair, name, paths)) for name in ("ebv", "pbv"))
        if ours - theirs > 1e-6:
            missed += 1
            assert ours == pytest.approx(solve(VerifyProblem(pair, paths), tolerance=1e-9).value, abs=2e-8)
        assert ours >= theirs - 1e-9
    assert missed >= 1


def test_row_gives_half_the_excess_back() -> None:
    """By hand: K = 2, p = (.6, .4), q = (.2, .8), w = 1/2. Coverage of child 0 is 1 - .8^2 = .36, of both 1, so
    r = .6 in the group of child 0 alone and r = 1.6 for child 1; both exceed w. Half of .36 - .3 and of .64 - .2 is
    given back: floors .33 and .42, and child 1, the cheaper by p/q, is filled up to .67."""
    half, fifth = Fraction(1, 2), Fraction(1, 5)
    target, draft = np.array([[3 * fifth, 2 * fifth]]), np.array([[fifth, 4 * fifth]])
    row, group = spared_row(lay_out(whole(1, target[0, :1] * 0 + 1), target, draft, 2), np.array([half]))
    assert row.tolist() == [[Fraction(33, 100), Fraction(67, 100)]]
    assert group.tolist() == [[0, 0]]


def test_rows_of_a_batch_do_not_disturb_each_other() -> None:
    target, draft = rows(3, 6, count=9)
    weight = np.linspace(0.2, 1, 9)
    together = entropic_split(whole(9, np.ones(1)), target, draft, weight, 4).q_star
    for i in range(9):
        alone = entropic_split(whole(1, np.ones(1)), target[[i]], draft[[i]], weight[[i]], 4).q_star
        assert together[i] == pytest.approx(alone[0], abs=1e-12)


def test_marginals_are_exact_whatever_was_found() -> None:
    rng = np.random.default_rng(0)
    mu, q = ([Fraction(int(n), 60) for n in parts] for parts in ((10, 20, 30), (6, 24, 12, 18)))
    found = np.vectorize(Fraction, otypes=[object])(rng.uniform(0, 0.3, (1, 4, 3)))
    exact = onto_marginals(found, np.array([mu], dtype=object), np.array([q], dtype=object))[0]
    assert exact.sum(axis=0).tolist() == mu
    assert exact.sum(axis=1).tolist() == q
    assert (as_float(exact) >= 0).all()


def test_a_newton_method_that_stops_at_once_costs_no_exactness(monkeypatch: pytest.MonkeyPatch) -> None:
    """One linearised step, and pooling where it misses the row."""
    pair = make.dirichlet(4, 2, 3, alpha=0.5)
    best = float(block_efficiency(pair, "ebv", 3))
    monkeypatch.setattr(_entropic, "STEPS", 0)
    monkeypatch.setattr(_entropic, "START_STEPS", 0)
    crude = float(block_efficiency(pair, "ebv", 3))
    assert crude == pytest.approx(best, rel=0.01)
    assert crude != best


def test_newton_gives_up_where_the_means_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child 0 wants more than all of the dear cell gives: it gets nearly that cell alone, after a few steps."""
    steps: list[Any] = []
    newton = _entropic.newton_step

    def counted(*table: Any) -> Any:
        steps.append(table)
        return newton(*table)

    monkeypatch.setattr(_entropic, "newton_step", counted)
    half = np.array([[0.5, 0.5]])
    found = coupling(half, np.array([[1.5, 0.5]]), half, np.array([[0.85, 0.15]]))
    assert onto_marginals(found, half, half)[0] == pytest.approx(np.array([[0.5, 0.0], [0.0, 0.5]]), abs=0.01)
    assert len(steps) < _entropic.STEPS


def test_compiled_kernels_do_what_the_arrays_do() -> None:
    """On small random problems with groups of all kinds; outside `kernels` none is used."""
    pytest.importorskip("numba")
    assert in_use(couple_groups) is None
    for seed in range(60):
        vocab, paths = 2 + seed % 9, 2 + seed % 4
        measure = refined(below(seed, vocab, paths)[np.arange(vocab)])
        target, draft = rows(seed + 1, vocab, 0.2 + seed % 3, count=vocab)
        target[0, 0] = draft[-1, 0] = 0
        weight = np.linspace(0.2, 1, vocab)
        plain = entropic_split(measure, target, draft, weight, paths)
        layout = lay_out(measure, target, draft, paths)
        groups = spared_row(layout, weight)
        with kernels(True):
            assert in_use(couple_groups) is not None
            fast = entropic_split(measure, target, draft, weight, paths)
            again = spared_row(layout, weight)
        assert (groups[1] == again[1]).all()
        assert again[0] == pytest.approx(groups[0], abs=1e-13)
        assert fast.q_star == pytest.approx(plain.q_star, abs=1e-9)
        tokens = np.arange(vocab)
        kinds = np.repeat(tokens, vocab), np.tile(tokens, vocab)
        ours, theirs = fast.children(*kinds), plain.children(*kinds)
        assert ours.mass == pytest.approx(theirs.mass, abs=1e-5)


def test_coupling_far_from_every_child_is_made_of_numbers() -> None:
    """Cells of tiny mass and far means, where columns of the table underflow: no warning, no NaN."""
    mu, q = np.array([[1e-6, 1 - 1e-6 - 1e-9, 1e-9]]), np.array([[0.5, 0.5]])
    for depth in np.arange(10, 60, 0.5):
        phi = np.array([[depth * 1e3, 1.0, 0.0]])
        mean = (mu * phi).sum()
        for part in (0.5, 0.9, 0.99):
            assert np.isfinite(coupling(mu, phi, q, mean * np.array([[part, 1 - part]]))).all()
    rng = np.random.default_rng(0)
    for _ in range(300):
        cells, children = rng.integers(3, 12), rng.integers(2, 8)
        mu, q = rng.dirichlet(np.full(cells, 0.05))[None], rng.dirichlet(np.full(children, 0.1))[None]
        phi = np.sort(np.exp(rng.normal(0, 4, cells)))[None, ::-1]
        wanted = rng.dirichlet(np.full(children, 0.1))[None] * (mu * phi).sum()
        table = coupling(mu, phi, q, wanted)
        assert np.isfinite(table).all()
        assert onto_marginals(table, mu, q).sum(axis=1) == pytest.approx(mu, abs=1e-12)
