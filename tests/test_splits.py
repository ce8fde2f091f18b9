"""Rank measures and their splits: geometry without cancellation, identities, the three rules, blocks."""

from __future__ import annotations

from fractions import Fraction as F
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpverify.drafting.iid_paths import mean_density
from lpverify.numerics import as_float, as_fractions, zeros
from lpverify.verifiers.pbv import minorant_groups, proportional_split
from lpverify.verifiers.rank_measure import RankMeasure, compact, ratio_order, stacked, whole
from lpverify.verifiers.smallest_rank import smallest_rank
from lpverify.verifiers.splits import cut, lay_out, ordered_split, segment_sums
from lpverify.verifiers.tgbv import tempered_split, tempering
from lpverify.verifiers.token_buckets import children_of, in_blocks

RULES = {"gbv": ordered_split, "tgbv": tempered_split, "pbv": proportional_split}


def fractions(*rows: Any) -> Any:
    return np.array([[F(str(x)) for x in row] for row in rows], dtype=object)


def distributions(size: int) -> st.SearchStrategy[Any]:
    """One row of Fractions; zeros, ties and one-hot rows are frequent."""
    weights = st.lists(st.integers(0, 6), min_size=size, max_size=size).filter(any)
    return weights.map(lambda w: np.array([[F(x, sum(w)) for x in w]], dtype=object))


@st.composite
def nodes(draw: Any) -> tuple[RankMeasure, Any, Any, Any, int]:
    """A node whose measure has several pieces (a child of a split), its rows, its weight, and K."""
    size = draw(st.integers(1, 4))
    target, draft, next_target, next_draft = (draw(distributions(size)) for _ in range(4))
    paths = draw(st.integers(1, 5))
    weight = np.array([draw(st.fractions(0, 1, max_denominator=7))], dtype=object)
    token = draw(st.sampled_from(np.flatnonzero(draft[0] > 0).tolist()))
    rule = RULES[draw(st.sampled_from(sorted(RULES)))]
    parent = rule(whole(1, target), target, draft, weight, paths)
    return parent.children([0], [token]), next_target, next_draft, weight, paths


def all_children(split: Any, size: int) -> RankMeasure:
    return split.children([0] * size, list(range(size)))


def cells(measure: RankMeasure, row: int) -> dict[tuple[Any, Any], Any]:
    """Mass between two lengths (end, begin) for the pieces that have any, lengths absolute."""
    pieces: dict[tuple[Any, Any], Any] = {}
    for above, width, mass in zip(measure.above[row], measure.width[row], measure.mass[row], strict=True):
        if mass > 0:
            ends = above * measure.scale[row], (above + width) * measure.scale[row]
            pieces[ends] = pieces.get(ends, F(0)) + mass
    return pieces


def mass_between(measure: RankMeasure, row: int, low: Any, high: Any) -> Any:
    """Mass of a measure on [low, high], uniform in its pieces."""
    total = F(0)
    for (end, begin), mass in cells(measure, row).items():
        shared = min(begin, high) - max(end, low)
        total += mass * max(shared, F(0)) / (begin - end)
    return total


def integral(measure: RankMeasure, row: int, paths: int) -> Any:
    """Integral of phi' = K (1-u)^(K-1), by its antiderivative."""
    return sum(m * (b**paths - a**paths) / (b - a) for (a, b), m in cells(measure, row).items())


# the arithmetic of pieces


@given(st.fractions(0, 1), st.fractions(0, 1), st.integers(1, 64))
@settings(max_examples=60, deadline=None)
def test_mean_density_is_the_chord_of_the_power(low: F, width: F, paths: int) -> None:
    value = mean_density(np.array([low], dtype=object), np.array([low + width], dtype=object), paths)[0]
    assert value * width == (low + width) ** paths - low**paths
    floats = mean_density(np.array([float(low)]), np.array([float(low + width)]), paths)[0]
    assert floats == pytest.approx(float(value), rel=1e-13, abs=0)


def test_differences_of_powers_do_not_cancel() -> None:
    """S7: (A + z)^4 - A^4 from the other end, and 1 - (1 - q)^4."""
    better = F("0.9999")
    exact = (better + F("1e-8")) ** 4 - better**4
    assert 1e-8 * mean_density(np.array(0.9999), np.array(0.99990001), 4) == pytest.approx(
        float(exact), rel=1e-13, abs=0
    )
    assert float(exact) == pytest.approx(3.99880018e-8, rel=1e-9, abs=0)
    assert 1e-9 * mean_density(np.array(1 - 1e-9), np.array(1.0), 4) == pytest.approx(3.999999994e-9, rel=1e-14, abs=0)


def test_skewed_law_of_one_position_at_eight_paths() -> None:
    """S7b: L = 1, K = 8, p = (.5, .5), q = (.25, .75)."""
    rows = np.array([[0.5, 0.5]]), np.array([[0.25, 0.75]])
    law = ordered_split(whole(1, rows[0]), *rows, np.ones(1), 8).q_star[0]
    assert law == pytest.approx([1 - 0.75**8, 0.75**8], rel=1e-14)
    assert law == pytest.approx([0.899887, 0.100113], abs=1e-6)


def test_order_by_ratio() -> None:
    target = fractions(["0.1", "0.3", "0.2", "0.4", 0], ["0.2", "0.2", "0.2", "0.2", "0.2"])
    draft = fractions(["0.2", "0.6", 0, "0.1", "0.1"], ["0.1", "0.3", "0.1", "0.3", "0.2"])
    assert ratio_order(target, draft).tolist() == [[3, 0, 1, 4, 2], [0, 2, 4, 1, 3]]
    assert ratio_order(as_float(target), as_float(draft)).tolist() == [[3, 0, 1, 4, 2], [0, 2, 4, 1, 3]]
    huge = ratio_order(np.array([[0.5, 0.25, 0.25]]), np.array([[1e-320, 5e-324, 1.0]]))
    assert huge.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("denominator", range(2, 40))
def test_decimal_ties_tie_in_floats(denominator: int) -> None:
    """p = n q / d has equal ratios on paper, whatever the rounding of the table is."""
    draft = np.array([[F(i + 1, 1000) for i in range(denominator)]], dtype=object)
    target = draft * F(7, denominator)
    order = ratio_order(as_float(target), as_float(draft))
    assert order.tolist() == [list(range(denominator))]


# the common refinement


def overlaps(child: Any, piece: Any) -> Any:
    """Common mass (V, m) of the intervals of two partitions of [0, 1], from the atoms of `cut`."""
    measure = RankMeasure(piece * 0, piece, piece, piece[:, 0] * 0 + 1)
    atoms = cut(measure, child)
    order = np.flatnonzero(atoms.mass[0] > 0)
    parts = zeros((child.shape[1], piece.shape[1]), child)
    ends = np.cumsum(as_fractions(piece[0]))
    reached = F(0)
    for atom in order:  # in rank order an atom is in the piece that contains its middle
        mass = as_fractions(atoms.mass[0])[atom]
        parts[atoms.owner[0, atom], np.searchsorted(ends, reached + mass / 2)] += atoms.mass[0, atom]
        reached += mass
    return parts


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_atoms_are_the_overlaps_of_the_intervals(data: Any) -> None:
    child, piece = (data.draw(st.integers(1, 5).flatmap(distributions)) for _ in range(2))
    parts = overlaps(child, piece)
    ends, edges = (np.concatenate([[F(0)], np.cumsum(x[0])]) for x in (child, piece))
    for j in range(child.shape[1]):
        for i in range(piece.shape[1]):
            shared = min(ends[j + 1], edges[i + 1]) - max(ends[j], edges[i])
            assert parts[j, i] == max(shared, F(0))
    floats = cut(RankMeasure(*(as_float(x) for x in (piece * 0, piece, piece, piece[:, 0] * 0 + 1))), as_float(child))
    sums = [floats.mass[0, floats.owner[0] == j].sum() for j in range(child.shape[1])]
    assert sums == pytest.approx(as_float(child)[0], rel=1e-14)
    assert np.sort(floats.mass[0])[::-1][: parts.size] == pytest.approx(
        np.sort(as_float(parts).reshape(-1))[::-1][: floats.mass.size], abs=1e-15
    )


@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.parametrize("tiny", [1e-200, 1e-20])
def test_tiny_intervals_keep_their_mass_wherever_they_lie(place: int, tiny: float) -> None:
    child = np.insert(np.array([0.25, 0.5, 0.25]), place, tiny)[None, :]
    piece = np.array([[tiny / 4, 0.3, 0.2, tiny / 8, 0.5, tiny / 2]])
    atoms = cut(RankMeasure(piece * 0, piece, piece, np.ones(1)), child)
    assert segment_sums(atoms.mass, atoms.first)[0] == pytest.approx(child[0], rel=1e-15, abs=0)
    for small in piece[0, [0, 3, 5]]:  # tiny pieces keep theirs too: in one atom, or shared by a tiny child
        assert min(abs(atoms.mass[0] / small - 1)) < 1e-12
    if place == 0:
        assert atoms.mass[0, :2] == pytest.approx([tiny / 4, 0.75 * tiny], rel=1e-14, abs=0)
    if place == 3:
        used = atoms.mass[0][atoms.mass[0] > 0]
        assert used[-2:] == pytest.approx([0.5 * tiny, 0.5 * tiny], rel=1e-14, abs=0)


def test_an_interval_that_ends_at_a_piece_keeps_its_mass() -> None:
    child, piece = np.array([[0.3 - 1e-10, 1e-10, 0.7]]), np.array([[0.3, 0.7]])
    atoms = cut(RankMeasure(piece * 0, piece, piece, np.ones(1)), child)
    assert segment_sums(atoms.mass, atoms.first)[0] == pytest.approx(child[0], rel=1e-15, abs=0)


def test_an_interval_between_two_doubles_is_not_lost() -> None:
    """Its ends and the end of a piece between them are the same double."""
    child, piece = np.array([[0.3, 1e-30, 0.7]]), np.array([[0.3, 1e-31, 0.7]])
    atoms = cut(RankMeasure(piece * 0, piece, piece, np.ones(1)), child)
    assert segment_sums(atoms.mass, atoms.first)[0].tolist() == child[0].tolist()


@given(nodes())
@settings(max_examples=60, deadline=None)
def test_atoms_are_the_cells_in_rank_order(case: Any) -> None:
    measure, target, draft, _, paths = case
    layout = lay_out(measure, target, draft, paths)
    atoms = layout.atoms
    above, width, mass = (values[0] for values in (atoms.above, atoms.width, atoms.mass))
    used = mass > 0
    assert mass.sum() == 1
    assert [mass[atoms.owner[0] == j].sum() for j in range(draft.shape[1])] == layout.draft[0].tolist()
    begins, ends = (above + width)[used], above[used]
    assert (begins[1:] <= ends[:-1]).all()


# what every split does


@pytest.mark.parametrize("name", RULES)
@given(case=nodes())
@settings(max_examples=40, deadline=None)
def test_children_share_out_the_measure_of_the_node(name: str, case: Any) -> None:
    """sum_x q(x) mu_cx = mu_c on every interval, q* is the share of the integral of phi', sum_x q* = 1."""
    measure, target, draft, weight, paths = case
    split = RULES[name](measure, target, draft, weight, paths)
    size = draft.shape[1]
    children = all_children(split, size)
    assert (children.mass.sum(axis=1) == 1).all()
    assert split.q_star.sum() == 1
    if paths == 1:
        assert (split.q_star == draft).all()
    points = sorted({x for row in range(size) for ends in cells(children, row) for x in ends})
    for low, high in zip(points[:-1], points[1:], strict=True):
        shared = sum(draft[0, x] * mass_between(children, x, low, high) for x in range(size))
        assert shared == mass_between(measure, 0, low, high)
    everything = integral(measure, 0, paths)
    for x in range(size):
        if draft[0, x] > 0:
            assert draft[0, x] * integral(children, x, paths) == split.q_star[0, x] * everything


@pytest.mark.parametrize("name", RULES)
@given(case=nodes())
@settings(max_examples=40, deadline=None)
def test_floats_are_the_fractions(name: str, case: Any) -> None:
    measure, target, draft, weight, paths = case
    exact = RULES[name](measure, target, draft, weight, paths)
    floats = RULES[name](
        RankMeasure(*(as_float(x) for x in (measure.above, measure.width, measure.mass, measure.scale))),
        as_float(target),
        as_float(draft),
        as_float(weight),
        paths,
    )
    assert floats.q_star == pytest.approx(as_float(exact.q_star), rel=1e-11, abs=1e-300)


def test_number_of_pieces() -> None:
    rng = np.random.default_rng(0)
    measure = whole(1, np.ones(1))
    for depth in range(1, 5):
        rows = rng.dirichlet(np.ones(5), 1), rng.dirichlet(np.ones(5), 1)
        sizes = {name: compact(rule(measure, *rows, np.ones(1), 3).children([0], [2])) for name, rule in RULES.items()}
        pieces = measure.mass.shape[1]
        assert sizes["gbv"].mass.shape[1] <= pieces
        assert sizes["tgbv"].mass.shape[1] <= pieces + 2
        assert sizes["pbv"].mass.shape[1] <= pieces + 4
        assert pieces <= 1 + 2 * (depth - 1)
        measure = sizes["tgbv"]


def test_compact_and_stacked_keep_the_measures() -> None:
    padded = RankMeasure(np.array([[0.5, 0, 0.25]]), np.array([[0.5, 0, 0.25]]), np.array([[0.5, 0, 0.5]]), np.ones(1))
    slim = compact(padded)
    assert slim.mass.tolist() == [[0.5, 0.5]]
    assert slim.above.tolist() == [[0.5, 0.25]]
    both = stacked([slim, whole(2, np.ones(1))])
    assert both.mass.tolist() == [[0.5, 0.5], [1, 0], [1, 0]]
    assert smallest_rank(both, [1, 1, 1]).sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("name", RULES)
def test_children_below_the_resolution_of_doubles(name: str) -> None:
    """Masses of 1e-200 at each of four levels: positions coincide, rows stay finite and sum to 1."""
    rows = np.array([[0.25, 0.75]]), np.array([[1 - 1e-200, 1e-200]])
    measure, weight = whole(1, np.ones(1)), np.ones(1)
    for _ in range(4):
        split = RULES[name](measure, *rows, weight, 8)
        assert split.q_star.sum() == pytest.approx(1, abs=1e-15)
        measure = split.children([0], [1])
        assert np.isfinite(measure.above).all()
        assert measure.mass.sum() == pytest.approx(1, abs=1e-15)


# the tempered rule


@given(nodes())
@settings(max_examples=60, deadline=None)
def test_tempering_is_the_smallest_maximiser(case: Any) -> None:
    measure, target, draft, weight, paths = case
    layout = lay_out(measure, target, draft, paths)
    kept, rest = tempering(layout.ordered, layout.draft, layout.target, weight[:, None])

    def value(kept: F) -> F:
        return sum(np.minimum(weight[0] * layout.target, kept * layout.ordered + (1 - kept) * layout.draft)[0])

    chosen = kept[0, 0]
    assert chosen + rest[0, 0] == 1
    grid = [F(i, 24) for i in range(25)]
    assert value(chosen) == max(map(value, [*grid, chosen]))
    assert all(value(other) < value(chosen) for other in [*grid, chosen - F(1, 10**9)] if 0 <= other < chosen)


def test_tempering_is_decided_by_a_child_of_tiny_mass() -> None:
    """All but one child are saturated; that the last gains 1e-40 is lost in the value, not in the slope."""
    tiny = F(1, 10**40)
    draft, target = np.array([[1 - tiny, tiny]], dtype=object), np.array([[F(1, 2), F(1, 2)]], dtype=object)
    for convert in (lambda x: x, as_float):
        rows = convert(target), convert(draft)
        q_star = tempered_split(whole(1, rows[0]), *rows, convert(np.array([F(1)], dtype=object)), 4).q_star
        assert float(q_star[0, 1]) == pytest.approx(4e-40, rel=1e-12, abs=0)


def test_equal_rows_are_not_skewed() -> None:
    row = np.array([[0.5, 0.3, 0.2]])
    for name in ("tgbv", "pbv"):
        assert RULES[name](whole(1, row), row, row, np.ones(1), 4).q_star == pytest.approx(row, abs=1e-15)


# the proportional rule


@given(nodes())
@settings(max_examples=60, deadline=None)
def test_groups_are_the_convex_minorant(case: Any) -> None:
    measure, target, draft, _, paths = case
    layout = lay_out(measure, target, draft, paths)
    drafted = np.where(layout.draft > 0, layout.target, F(0))
    group, slope = (values[0] for values in minorant_groups(layout.ordered, drafted))
    run = np.concatenate([[F(0)], np.cumsum(drafted[0])])
    rise = np.concatenate([[F(0)], np.cumsum(layout.ordered[0])])
    for first in sorted(set(group.tolist())):
        members = np.flatnonzero(group == first)
        assert members.tolist() == list(range(members[0], members[-1] + 1))
        assert members[0] == first
        if slope[first] == float("inf"):
            assert run[members[-1] + 1] == run[first]
            continue
        for k in members:  # the minorant lies below the points, through the ends of the group
            assert rise[k + 1] >= rise[first] + slope[first] * (run[k + 1] - run[first])
        last = members[-1] + 1
        assert rise[last] == rise[first] + slope[first] * (run[last] - run[first])
    slopes = [slope[first] for first in sorted(set(group.tolist()))]
    assert all(low < high for low, high in zip(slopes[:-1], slopes[1:], strict=True))


def test_collinear_points_are_one_group_in_floats_too() -> None:
    shares, target = np.array([[0.1, 0.2, 0.7]]), np.array([[0.3, 0.6, 0.1]])
    assert (shares[0, :2].sum() / target[0, :2].sum()) != shares[0, 0] / target[0, 0]
    assert minorant_groups(shares, target)[0].tolist() == [[0, 0, 2]]


def test_children_without_target_mass_keep_their_intervals() -> None:
    target, draft = fractions(["0.4", "0.6", 0, 0]), fractions(["0.3", "0.2", "0.4", "0.1"])
    arguments = whole(1, target), target, draft, np.array([F(1)], dtype=object), 3
    proportional, ordered = proportional_split(*arguments).q_star, ordered_split(*arguments).q_star
    assert (proportional[0, 2:] == ordered[0, 2:]).all()


def test_target_mass_that_is_never_drafted_is_left_out() -> None:
    target, draft = fractions(["0.5", "0.3", "0.2"]), fractions(["0.6", "0.4", 0])
    split = proportional_split(whole(1, target), target, draft, np.array([F(1)], dtype=object), 2)
    assert split.q_star.tolist() == [[F(5, 8), F(3, 8), 0]]


@pytest.mark.parametrize("name", ["tgbv", "pbv"])
def test_a_child_of_tiny_mass_gets_its_proportion(name: str) -> None:
    """q* = p, with p = 1e-131 and q = 1e-100 on the second token: the difference of the first is lost in 1 - 1."""
    target, draft = (np.array([[1 - F(1, 10**n), F(1, 10**n)]], dtype=object) for n in (131, 100))
    for convert in (lambda x: x, as_float):
        rows = convert(target), convert(draft)
        q_star = RULES[name](whole(1, rows[0]), *rows, convert(np.array([F(1)], dtype=object)), 8).q_star
        assert float(q_star[0, 1]) == pytest.approx(1e-131, rel=1e-12, abs=0)


def test_one_step_optimum_with_enough_paths() -> None:
    """one-position at K = 4: the law is proportional to the target, every token is accepted."""
    target, draft = fractions(["0.2", "0.5", "0.3"]), fractions(["0.6", "0.3", "0.1"])
    split = proportional_split(whole(1, target), target, draft, np.array([F(1)], dtype=object), 4)
    assert np.minimum(target, split.q_star).sum() == pytest.approx(1, abs=1e-12)


def test_proportional_law_is_optimal_at_one_step() -> None:
    """Accepted mass 1 + min over sets H of phi(q(H)) - p(H), for two and three tokens."""
    rng = np.random.default_rng(3)
    exact = 0
    for _ in range(200):
        target, draft = (rng.dirichlet(np.ones(3), 1) for _ in range(2))
        paths = int(rng.integers(1, 5))
        q_star = proportional_split(whole(1, target), target, draft, np.ones(1), paths).q_star
        sets = [[x for x in range(3) if mask >> x & 1] for mask in range(8)]
        best = min(1 - target[0, s].sum() + 1 - (1 - draft[0, s].sum()) ** paths for s in sets)
        reached = np.minimum(target, q_star).sum()
        assert reached <= best + 1e-12
        exact += bool(reached > best - 1e-9)
    assert exact >= 190


# selection


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_selection_with_all_paths_alike_is_by_multiplicity(data: Any) -> None:
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    chance = smallest_rank(whole(len(counts), np.array([F(1)], dtype=object)), counts)
    assert chance.tolist() == [F(n, sum(counts)) for n in counts]


def test_selection_between_a_half_and_everything() -> None:
    """Ranks uniform on [0, 1/2] and on [0, 1]: the first is often smaller."""
    one, half = F(1), F(1, 2)
    pieces = [np.array([[half], [F(0)]]), np.array([[half], [one]]), np.array([[one], [one]]), np.array([one, one])]
    measure = RankMeasure(*(x.astype(object) for x in pieces))
    assert smallest_rank(measure, [1, 1]).tolist() == [F(3, 4), F(1, 4)]
    assert smallest_rank(measure, [2, 1]).tolist() == [F(5, 6), F(1, 6)]
    assert smallest_rank(measure, [1, 2]).tolist() == [F(7, 12), F(5, 12)]


# buckets


def buckets(target: Any, draft: Any, limit: int) -> Any:
    children = children_of(target, draft, limit)
    return np.array([children.of(row, np.arange(target.shape[1])) for row in range(len(target))])


@pytest.mark.parametrize("name", RULES)
def test_buckets_are_neutral_inside_and_lossless(name: str) -> None:
    rng = np.random.default_rng(1)
    target, draft = (rng.dirichlet(np.full(300, 0.1), 4) for _ in range(2))
    draft[:, :5], draft[0, 7] = draft[:, :5] + 0.02, 0.0
    draft /= draft.sum(axis=1, keepdims=True)
    split = in_blocks(RULES[name], 16)(whole(4, target), target, draft, np.ones(4), 3)
    block = buckets(target, draft, 16)
    assert split.q_star.sum(axis=1) == pytest.approx(1, abs=1e-14)
    assert (split.q_star[draft == 0] == 0).all()
    assert set(block[draft == 0].tolist()) == {16}
    assert not set(block[draft > 0].tolist()) & {16}
    for row in range(4):
        for b in set(block[row].tolist()):
            inside = (block[row] == b) & (draft[row] > 0)
            skew = split.q_star[row, inside] / draft[row, inside]
            assert skew == pytest.approx(np.full(len(skew), skew[:1].sum()), rel=1e-12)
    children = split.children([0, 0], np.flatnonzero(block[0] == block[0, 0])[[0, -1]].tolist())
    assert children.mass[0].tolist() == children.mass[1].tolist()


def test_small_vocabularies_and_none_are_not_merged() -> None:
    rng = np.random.default_rng(2)
    rows = rng.dirichlet(np.ones(20), 2), rng.dirichlet(np.ones(20), 2)
    plain = proportional_split(whole(2, rows[0]), *rows, np.ones(2), 3).q_star
    for most in (20, None):
        assert (in_blocks(proportional_split, most)(whole(2, rows[0]), *rows, np.ones(2), 3).q_star == plain).all()
    merged = in_blocks(proportional_split, 19)(whole(2, rows[0]), *rows, np.ones(2), 3).q_star
    assert (merged != plain).any()
    loss = np.minimum(rows[0], plain).sum(axis=1) - np.minimum(rows[0], merged).sum(axis=1)
    assert (loss < 0.05).all()


def test_buckets_in_fractions_are_those_of_floats() -> None:
    rng = np.random.default_rng(4)
    target, draft = (rng.multinomial(500, rng.dirichlet(np.full(40, 0.3)), 2).astype(object) for _ in range(2))
    target, draft = target * F(1, 500), draft * F(1, 500)
    assert buckets(target, draft, 8).tolist() == buckets(as_float(target), as_float(draft), 8).tolist()
    split = in_blocks(tempered_split, 8)(whole(2, target), target, draft, np.array([F(1)] * 2), 2)
    assert split.q_star.sum(axis=1).tolist() == [1, 1]
