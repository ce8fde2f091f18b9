"""Verifiers as laws: identities of single trees, degenerate rows, arithmetic, the sampler."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lp_cases import iid_pair, random_pair, rational_pair

from lpverify.core import families as make
from lpverify.core.draft_tree import DraftTree
from lpverify.core.model_pair import ModelPair
from lpverify.errors import InputError, SizeError
from lpverify.numerics import as_float, as_fractions
from lpverify.verifiers import VERIFIERS, expected_accepted, optimal_transport, sample, spectr, verifier
from lpverify.verifiers.sample import pick

NAMES = tuple(name for name in VERIFIERS if name != "policy")
WALKERS = tuple(name for name in NAMES if verifier(name).node_rule)
EXACT = make.rational(3, 2, seed=1, denominator=5), make.rational(2, 3, seed=5, denominator=4)


def fractions(row: list[Any]) -> Any:
    return np.array([Fraction(str(x)) for x in row], dtype=object)


def rational_rows(size: int, allow_zero: bool = True) -> st.SearchStrategy[Any]:
    """Rows of Fractions with small numerators: zeros, ties and one-hot rows are frequent."""
    weights = st.lists(st.integers(0 if allow_zero else 1, 4), min_size=size, max_size=size).filter(any)
    return weights.map(lambda w: np.array([Fraction(x, sum(w)) for x in w], dtype=object))


ROW_PAIRS = st.integers(2, 6).flatmap(lambda size: st.tuples(rational_rows(size), rational_rows(size)))


def average_choice(name: str, target: Any, draft: Any, count: int) -> tuple[Any, Any]:
    """(law of the chosen token, probability that it was drafted), averaged over ``count`` draws at one node."""
    build = verifier(name).node_rule
    assert build is not None
    rule = build(target, draft, count)
    drafted = list(product(np.flatnonzero(draft > 0).tolist(), repeat=count))
    laws = rule.conditional(drafted)
    mass = np.array([np.prod(draft[list(row)]) for row in drafted])
    hits = sum(m * sum(law[x] for x in set(row)) for m, law, row in zip(mass, laws, drafted, strict=True))
    return (mass[:, None] * laws).sum(axis=0), hits


def subset_optimum(target: Any, draft: Any, count: int) -> Any:
    """1 + min over sets H of tokens of p(H) - q(H)^k."""
    sets = [list(s) for n in range(len(target) + 1) for s in combinations(range(len(target)), n)]
    return 1 + min(sum(target[s], start=Fraction(0)) - sum(draft[s], start=Fraction(0)) ** count for s in sets)


# one node of a walker


@settings(max_examples=60, deadline=None)
@given(ROW_PAIRS, st.integers(1, 3), st.sampled_from(WALKERS))
def test_choice_at_a_node_has_the_target_law(rows: tuple[Any, Any], count: int, name: str) -> None:
    target, draft = rows
    law, hit = average_choice(name, target, draft, count)
    assert (law == target).all()
    assert hit <= subset_optimum(target, draft, count)


@settings(max_examples=60, deadline=None)
@given(ROW_PAIRS, st.integers(1, 3))
def test_transport_attains_the_subset_formula(rows: tuple[Any, Any], count: int) -> None:
    assert average_choice("ot", *rows, count)[1] == subset_optimum(*rows, count)


@settings(max_examples=60, deadline=None)
@given(ROW_PAIRS, st.integers(1, 3), st.sampled_from(WALKERS), st.randoms(use_true_random=False))
def test_relabelling_tokens_relabels_the_choice(rows: tuple[Any, Any], count: int, name: str, random: Any) -> None:
    """Acceptance is invariant under a relabelling of the tokens, ties and zeros included (SpecTr: but for its rho)."""
    target, draft = rows
    order = list(range(len(target)))
    random.shuffle(order)
    change = average_choice(name, target[order], draft[order], count)[1] - average_choice(name, target, draft, count)[1]
    assert abs(change) < 1e-12 if name == "spectr" else change == 0


@settings(max_examples=40, deadline=None)
@given(ROW_PAIRS, st.integers(1, 4))
def test_best_rho(rows: tuple[Any, Any], count: int) -> None:
    """gamma(rho) <= rho holds exactly for the rational rho; a smaller valid rho would gain less than 1e-12."""
    target, draft = rows

    def rejected(rho: Any) -> Any:
        return 1 - np.minimum(draft, target / rho).sum()

    def gamma(rho: Any) -> Any:
        return sum((rejected(rho) ** i for i in range(count)), start=Fraction(0))

    rho = spectr.best_rho(target, draft, count)
    assert isinstance(rho, Fraction)
    assert 1 <= rho <= count
    assert gamma(rho) <= rho
    smaller = rho - Fraction(1, 10**9)
    gain = rejected(rho) ** count - rejected(smaller) ** count
    assert smaller < 1 or gamma(smaller) > smaller or gain < Fraction(1, 10**12)
    if rho > 1 + Fraction(1, 1000):
        assert abs(float(rho) - spectr.best_rho(as_float(target), as_float(draft), count)) < 1e-12


TABLE = [  # p, q, K, optimal, SpecInfer, SpecTr, rho, NSS (exact values of one step)
    ((".2", ".4", ".4"), (".6", ".3", ".1"), 1, ".6", ".6", 0.6, 1.0, ".28"),
    ((".2", ".4", ".4"), (".6", ".3", ".1"), 2, ".79", ".74", 0.75, 1.5, ".448"),
    ((".2", ".4", ".4"), (".6", ".3", ".1"), 3, ".871", ".766", 0.79395, 1.9395, ".5584"),
    ((".3", ".7"), (".5", ".5"), 2, "1", ".9", 0.931174, 1.262348, ".75"),
    ((".25", ".75"), (".6", ".4"), 2, ".89", ".79", 0.8198, 1.4245, ".69"),
    ((".25", ".75"), (".6", ".4"), 3, "1", ".874", 0.909818, 1.649544, ".822"),
]


@pytest.mark.parametrize(("target", "draft", "count", "best", "rrs", "kseq", "rho", "nss"), TABLE)
def test_one_step_table(
    target: Any, draft: Any, count: int, best: str, rrs: str, kseq: float, rho: float, nss: str
) -> None:
    p, q = fractions(target), fractions(draft)
    for name, value in (("ot", best), ("specinfer", rrs), ("nss", nss)):
        assert average_choice(name, p, q, count)[1] == Fraction(value)
    assert float(average_choice("spectr", p, q, count)[1]) == pytest.approx(kseq, abs=6e-6)
    assert float(spectr.best_rho(p, q, count)) == pytest.approx(rho, abs=6e-5)


def test_transport_refuses_large_supports() -> None:
    row = np.full(100, 0.01)
    with pytest.raises(SizeError, match="ot with 3 paths at one node and 100 draftable tokens: got 166750 sets"):
        optimal_transport.node_rule(row, row, 3)
    assert len(optimal_transport.node_rule(row, row, 1).shares) == 100


# one tree


def trees(pair: ModelPair, paths: int, count: int, seed: int = 0) -> list[DraftTree]:
    """Views of ``count`` random drafts."""
    rng = np.random.default_rng(seed)
    mass = as_float(pair.draft_paths[-1])
    leaves = np.array(list(np.ndindex(*(pair.vocab_size,) * pair.depth)))
    return [DraftTree.from_pair(pair, leaves[rng.choice(len(mass), paths, p=mass)]) for _ in range(count)]


@pytest.mark.parametrize("pair", EXACT)
@pytest.mark.parametrize("name", NAMES)
def test_laws_are_laws(pair: ModelPair, name: str) -> None:
    for view in trees(pair, 3, 8):
        law = verifier(name)(view)
        assert law.stop.sum() == 1
        assert (law.stop >= 0).all()
        assert 0 <= expected_accepted(law) <= pair.depth
        for node in range(len(view.parent)):
            if law.stop[node] > 0:
                row = law.next_token(node)
                assert row.sum() == 1
                assert (row >= 0).all()
                assert (row[view.target[node] == 0] == 0).all()
            else:
                with pytest.raises(InputError, match=f"next token at node {node}: got a stop of probability 0"):
                    law.next_token(node)


def same_law(name: str, other: str, view: DraftTree) -> bool:
    first, second = verifier(name)(view), verifier(other)(view)
    stops = np.flatnonzero(first.stop > 0)
    return (first.stop == second.stop).all() and all(
        (first.next_token(node) == second.next_token(node)).all() for node in stops
    )


@pytest.mark.parametrize("pair", EXACT)
def test_one_path_reductions(pair: ModelPair) -> None:
    """K = 1: SpecInfer, SpecTr and OT are the token rule, Traversal is BV."""
    for view in trees(pair, 1, 8):
        for name in ("specinfer", "spectr", "ot"):
            assert same_law(name, "token", view)
        assert same_law("traversal", "bv", view)


@pytest.mark.parametrize("name", ["token", "bv"])
def test_single_path_rules_look_at_the_first_path_only(name: str) -> None:
    pair = rational_pair(3, 2, seed=4)
    for view in trees(pair, 3, 6):
        alone = verifier(name)(DraftTree.from_pair(pair, view.paths[:1]))
        law = verifier(name)(view)
        assert (law.stop[view.node_of[0]] == alone.stop).all()
        assert law.stop.sum() == 1


@pytest.mark.parametrize("name", NAMES)
def test_order_of_the_paths_matters_only_where_declared(name: str) -> None:
    pair = rational_pair(3, 2, seed=8)
    changed = False
    for view in trees(pair, 3, 12):
        law, turned = verifier(name)(view), verifier(name)(DraftTree.from_pair(pair, view.paths[::-1]))
        nodes = {turned.tree.node_of[k, i]: view.node_of[2 - k, i] for k in range(3) for i in range(3)}
        changed |= any(turned.stop[a] != law.stop[b] for a, b in nodes.items())
        if not changed:
            stops = [(a, b) for a, b in nodes.items() if turned.stop[a] > 0]
            changed |= any((turned.next_token(a) != law.next_token(b)).any() for a, b in stops)
    declared = verifier(name)
    assert changed == (declared.path_order or declared.first_path_only)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_stay_bit_identical_and_calls_do_not_interact(name: str) -> None:
    pair = random_pair(3, 2, seed=2)
    views = [
        DraftTree.build(view.paths, np.array(view.target), np.array(view.draft)) for view in trees(pair, 3, 4, seed=1)
    ]
    before = [(view.target.tobytes(), view.draft.tobytes(), view.paths.tobytes()) for view in views]

    def results(order: list[DraftTree]) -> dict[int, Any]:
        found = {}
        for view in order:
            law = verifier(name)(view)
            nodes = np.flatnonzero(law.stop > 0).tolist()
            for other in NAMES:
                verifier(other)(view)
            rows = {node: law.next_token(node).tobytes() for node in nodes[::-1]}
            found[id(view)] = (law.stop.tobytes(), rows)
        return found

    assert results(views) == results(views[::-1])
    assert before == [(view.target.tobytes(), view.draft.tobytes(), view.paths.tobytes()) for view in views]


# arithmetic


def as_tensor(rows: Any) -> Any:
    torch = pytest.importorskip("torch")
    return torch.tensor(as_float(rows))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("convert", [as_fractions, as_tensor])
def test_arithmetics_agree(name: str, convert: Callable[[Any], Any]) -> None:
    """float64, Fraction and torch rows give the same law."""
    for view in trees(random_pair(4, 2, seed=6), 3, 5, seed=3):
        law = verifier(name)(view)
        other_view = DraftTree.build(view.paths, convert(view.target), convert(view.draft))
        other = verifier(name)(other_view)
        assert isinstance(other.stop, np.ndarray)  # tensors in host memory are shared with numpy
        np.testing.assert_allclose(as_float(other.stop), law.stop, atol=1e-12)
        assert float(expected_accepted(other)) == pytest.approx(float(expected_accepted(law)), abs=1e-12)
        for node in np.flatnonzero(law.stop > 1e-9).tolist():
            np.testing.assert_allclose(as_float(other.next_token(node)), law.next_token(node), atol=1e-6)
        if convert is as_tensor:
            assert sample(other, np.random.default_rng(5)) == sample(law, np.random.default_rng(5))


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_cuda_agrees(name: str) -> None:
    torch = pytest.importorskip("torch")
    for view in trees(random_pair(4, 2, seed=6), 3, 5, seed=3):
        law = verifier(name)(view)
        rows = (torch.tensor(part, device="cuda") for part in (view.target, view.draft))
        other = verifier(name)(DraftTree.build(view.paths, *rows))
        np.testing.assert_allclose(other.stop.cpu().numpy(), law.stop, atol=1e-12)


# faults of real implementations


def single(target: list[float], draft: list[float], path: list[int], rows: int | None = None) -> DraftTree:
    """One path with the same rows at every node."""
    return DraftTree.build([path], [target] * (len(path) + 1), [draft] * len(path))


@pytest.mark.parametrize("name", NAMES)
def test_impossible_token_is_never_accepted(name: str) -> None:
    """S4: p = (.7, .3, 0), draft 2. Reject; even u = 0 emits token 0 or 1."""
    law = verifier(name)(single([0.7, 0.3, 0.0], [0.2, 0.3, 0.5], [2]))
    assert law.stop.tolist() == [1, 0]
    node, token = sample(law, Constant(0.0))
    assert (node, token) == (0, 0)
    assert law.next_token(0)[2] == 0


def test_bv_never_stops_where_its_test_is_zero() -> None:
    """S4: p = (1/4, 3/4), q = (3/5, 2/5), L = 2, x_1 = 0: R_1 = max(5/12 p - q, 0) is zero, so h_1 = 0."""
    law = verifier("bv")(single([0.25, 0.75], [0.6, 0.4], [0, 0]))
    assert law.stop[1] == 0
    assert sample(law, Constant(0.0))[0] == 0


def test_equal_rows_accept_everything() -> None:
    """S6a: h = 0/0 is 1; the token of probability 0 is never emitted."""
    row = [0.5, 0.3, 0.2, 0.0]
    for name in NAMES:
        if name != "nss" and name != "gbv":
            law = verifier(name)(single(row, row, [0, 1, 2]))
            rounding = 1e-15 if name == "ebv" else 0  # its coupling is found by iteration
            assert law.stop.tolist() == pytest.approx([0, 0, 0, 1], abs=rounding, rel=rounding)
            assert law.next_token(3)[3] == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gap", [6e-8, 2**-53, -(2**-54)])
def test_rows_that_differ_by_rounding(name: str, gap: float) -> None:
    """S6b: no NaN, never the token of target probability 0, acceptance within the rounding."""
    target, draft = [0.5, 0.5, 0.0], [0.5 + gap, 0.5 - gap, 0.0]
    for path in product((0, 1), repeat=2):
        law = verifier(name)(single(target, draft, list(path)))
        assert law.stop.sum() == pytest.approx(1, abs=1e-15)
        if name != "nss":
            assert expected_accepted(law) == pytest.approx(2, abs=10 * abs(gap) + 1e-15)
        for node in np.flatnonzero(law.stop > 0).tolist():
            assert np.isfinite(law.next_token(node)).all()
            assert law.next_token(node)[2] == 0


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_rows_that_differ_by_their_last_bit(name: str) -> None:
    """S6b in float32: no NaN, never token 2."""
    torch = pytest.importorskip("torch")
    rows = [torch.tensor([row] * 3, dtype=torch.float32) for row in ([0.5, 0.5, 0], [0.5 + 6e-8, 0.5 - 6e-8, 0])]
    law = verifier(name)(DraftTree.build([[0, 1]], *rows))
    assert law.stop.dtype == np.float64
    assert float(law.stop.sum()) == pytest.approx(1, abs=1e-6)
    for node in range(3):
        if law.stop[node] > 0:
            assert np.isfinite(law.next_token(node)).all()
            assert law.next_token(node)[2] == 0


@pytest.mark.parametrize("name", NAMES)
def test_draft_mass_below_the_last_bit(name: str) -> None:
    """A token with p = 0 drafted although q = (1, 1e-320) sums to 1 in floats: it is rejected, token 0 is emitted."""
    law = verifier(name)(single([1.0, 0.0], [1.0, 1e-320], [0, 1]))
    assert law.stop.tolist() == [0, 1, 0]
    assert law.next_token(1).tolist() == [1, 0]


def test_certain_acceptance_leaves_the_replacement_unreachable() -> None:
    """S6c: K = 2, p = (.3, .7), q = (.5, .5): optimal transport accepts with probability exactly 1."""
    for paths in product((0, 1), repeat=2):
        rows = [fractions([".3", ".7"])] * (1 + len(set(paths))), [fractions([".5", ".5"])]
        law = verifier("ot")(DraftTree.build([[x] for x in paths], *rows))
        assert law.stop[0] == 0
        with pytest.raises(InputError, match="got a stop of probability 0"):
            law.next_token(0)


def test_repeated_drafts_are_offered_again() -> None:
    """S8: SpecInfer on two drafts of token 0, p = (.2, .4, .4), q = (.6, .3, .1): the second is rejected for sure."""
    rows = [fractions([".2", ".4", ".4"])] * 2, [fractions([".6", ".3", ".1"])]
    twice, once = (verifier("specinfer")(DraftTree.build([[0]] * k, *rows)) for k in (2, 1))
    assert twice.stop.tolist() == once.stop.tolist() == [Fraction(2, 3), Fraction(1, 3)]
    assert once.next_token(0).tolist() == [0, Fraction(1, 4), Fraction(3, 4)]
    assert twice.next_token(0).tolist() == [0, 0, 1]


@pytest.mark.parametrize("name", NAMES)
def test_draft_vocabulary_padded_with_zeros(name: str) -> None:
    """S10: ids that the draft does not know have draft probability 0; law p, acceptance 3/5 for one path."""
    p, q = fractions([".1", ".2", ".3", ".1", ".1", ".2"]), fractions([".4", ".3", ".2", ".1", "0", "0"])
    emitted, accepted = one_step(name, p, q)
    assert (emitted == p).all()
    if name != "nss":
        assert accepted == Fraction(3, 5)
    p, q = fractions([".6", ".4", "0"]), fractions([".5", ".3", ".2"])
    emitted, accepted = one_step(name, p, q)
    assert (emitted == p).all()
    assert verifier(name)(DraftTree.build([[2]], [p, p], [q])).stop[0] == 1


def one_step(name: str, target: Any, draft: Any) -> tuple[Any, Any]:
    """(law of the first token, acceptance) with one path of one token, by enumeration of the draft."""
    emitted, accepted = np.array([Fraction(0)] * len(target), dtype=object), Fraction(0)
    for x in np.flatnonzero(draft > 0).tolist():
        law = verifier(name)(DraftTree.build([[x]], [target, target], [draft]))
        accepted += draft[x] * law.stop[1]
        emitted[x] += draft[x] * law.stop[1]
        if law.stop[0] > 0:
            emitted += draft[x] * law.stop[0] * law.next_token(0)
    return emitted, accepted


# the sampler


class Constant:
    """A generator that always returns the same uniform."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any))
def test_pick_has_the_law_of_the_weights(weights: list[int]) -> None:
    """On a grid of uniforms that divides the total every index is picked as often as its weight says."""
    total = sum(weights)
    for array in (np.array(weights) / total, np.array([Fraction(w, total) for w in weights], dtype=object)):
        picked = [pick(array, (i + 0.5) / total) for i in range(total)]
        assert np.bincount(picked, minlength=len(weights)).tolist() == weights
        for edge in (0.0, 1 - 2**-53):
            assert weights[pick(array, edge)] > 0


def test_pick_resolves_tails_of_single_precision_rows() -> None:
    """The uniform 1 - 2**-31 falls into a tail of mass 2**-30, though float32 would round it to 1."""
    torch = pytest.importorskip("torch")
    weights = torch.tensor([1 - 2**-24, 2**-26, 2**-30, 0.0], dtype=torch.float32)
    assert [pick(weights, 1 - 2.0**-power) for power in (20, 25, 29, 31, 40)] == [0, 0, 1, 2, 2]


def test_pick_refuses_what_is_no_law() -> None:
    with pytest.raises(InputError, match="weights: got a sum of 0.0"):
        pick(np.zeros(3), 0.5)
    assert pick(np.array([5e-324, 0.0]), 0.99) == 0  # 0.99 of the smallest double is rounded up to it
    with pytest.raises(InputError, match="uniform: got 1.0"):
        pick(np.ones(3), 1.0)


def test_draws_have_the_stop_law() -> None:
    """20,000 draws; each frequency is within 5 standard deviations (false alarm below 1e-5)."""
    view = trees(iid_pair([0.2, 0.4, 0.4], [0.1, 0.1, 0.8], 2), 2, 1)[0]
    law = verifier("traversal")(view)
    rng, count = np.random.default_rng(11), 20_000
    frequency = np.zeros((len(view.parent), 3))
    for _ in range(count):
        frequency[sample(law, rng)] += 1 / count
    for node in range(len(view.parent)):
        expected = law.stop[node] * law.next_token(node) if law.stop[node] > 0 else np.zeros(3)
        assert (abs(frequency[node] - expected) <= 5 * np.sqrt(expected * (1 - expected) / count)).all()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="algorithm: got 'bvv', expected one of token, bv"):
        verifier("bvv")
