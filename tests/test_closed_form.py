"""Closed forms and the multi-path verifiers: identities in Fractions, traps, floats, reference values last."""

from __future__ import annotations

import json
from fractions import Fraction as F
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lp_cases import REFERENCE, iid_pair, random_pair, rational_pair

from lpverify.core import families as make
from lpverify.core.draft_tree import DraftTree
from lpverify.core.model_pair import ModelPair
from lpverify.core.problem import VerifyProblem
from lpverify.errors import InputError
from lpverify.exact.closed_form import block_efficiency, closed_form
from lpverify.exact.evaluate import evaluate
from lpverify.numerics import as_float
from lpverify.verifiers import names, verifier

ALGORITHMS = names(closed_form=True)
RANKED = tuple(name for name in ALGORITHMS if verifier(name).split is not None)


def tables(vocab: int, depth: int) -> st.SearchStrategy[list[Any]]:
    """One table of Fractions; zeros, ties and one-hot rows are frequent."""
    weights = st.lists(st.integers(0, 5), min_size=vocab, max_size=vocab).filter(any)
    row = weights.map(lambda w: [F(x, sum(w)) for x in w])
    levels = [st.lists(row, min_size=vocab**i, max_size=vocab**i) for i in range(depth)]
    return st.tuples(*levels).map(lambda rows: [np.array(level, dtype=object) for level in rows])


SIZES = st.sampled_from([(1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 1), (5, 1)])
PAIRS = SIZES.flatmap(lambda s: st.tuples(tables(*s), tables(*s))).map(lambda t: ModelPair.from_levels(*t))


def coin(target: list[Any], draft: list[Any], depth: int) -> ModelPair:
    return iid_pair([F(str(x)) for x in target], [F(str(x)) for x in draft], depth)


def antichains(vocab: int, depth: int) -> list[list[tuple[int, int]]]:
    """Every set of (level, index), none below another, by recursion: stop here, nowhere, or in the subtrees."""

    def below(level: int, index: int) -> list[list[tuple[int, int]]]:
        found: list[list[tuple[int, int]]] = [[(level, index)]]
        if level == depth:
            return [[], *found]
        for parts in product(*(below(level + 1, index * vocab + x) for x in range(vocab))):
            found.append([node for part in parts for node in part])
        return found

    return below(0, 0)


# identities


@pytest.mark.parametrize("name", RANKED)
@given(pair=PAIRS, paths=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_selection_distribution_and_prefix_acceptance(name: str, pair: ModelPair, paths: int) -> None:
    """Q* is a distribution of paths within the draft's support; f(cx) <= p f(c), f <= Q*; K = 1 is BV; floats agree."""
    exact = closed_form(pair, name, paths)
    assert exact.selected[0].tolist() == [1]
    for i, target in enumerate(pair.target):
        assert (exact.selected[i + 1].reshape(target.shape).sum(axis=1) == exact.selected[i]).all()
        assert (exact.prefix_acceptance[i + 1] <= (exact.prefix_acceptance[i][:, None] * target).reshape(-1)).all()
        assert (exact.prefix_acceptance[i + 1] <= exact.selected[i + 1]).all()
        assert (exact.selected[i + 1] <= 1 - (1 - pair.draft_paths[i + 1]) ** paths).all()
    if paths == 1:
        assert all((a == b).all() for a, b in zip(exact.selected, pair.draft_paths, strict=True))
        assert exact.block_efficiency == closed_form(pair, "bv").block_efficiency
    floats = closed_form(pair.floats, name, paths)
    for levels in zip(
        exact.selected + exact.prefix_acceptance, floats.selected + floats.prefix_acceptance, strict=True
    ):
        assert levels[1] == pytest.approx(as_float(levels[0]), rel=1e-10, abs=1e-300)


@pytest.mark.parametrize("name", RANKED)
@pytest.mark.parametrize(("vocab", "depth"), [(2, 2), (3, 1), (2, 3)])
@pytest.mark.parametrize("paths", [2, 3])
def test_selection_distribution_is_in_the_coverage_polytope(name: str, vocab: int, depth: int, paths: int) -> None:
    pair = make.rational(vocab, depth, seed=vocab + depth, denominator=6)
    selected, draft = closed_form(pair, name, paths).selected, pair.draft_paths
    for chain in antichains(vocab, depth):
        chosen, mass = (sum((levels[i][n] for i, n in chain), start=F(0)) for levels in (selected, draft))
        assert chosen <= 1 - (1 - mass) ** paths


@given(PAIRS)
@settings(max_examples=25, deadline=None)
def test_token_rule_is_not_better_than_block_verification(pair: ModelPair) -> None:
    token, block = closed_form(pair, "token"), closed_form(pair, "bv")
    assert all((a <= b).all() for a, b in zip(token.prefix_acceptance, block.prefix_acceptance, strict=True))
    if pair.depth == 1:
        assert token.block_efficiency == block.block_efficiency


@pytest.mark.parametrize("name", ["bv", "tgbv", "pbv"])
@pytest.mark.parametrize("paths", [1, 2, 3, 4])
def test_equal_laws_accept_everything(name: str, paths: int) -> None:
    rows = make.rational(3, 2, seed=4, denominator=7).draft
    assert block_efficiency(ModelPair.from_levels(rows, rows), name, paths) == 3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_token(name: str) -> None:
    assert block_efficiency(coin([1], [1], 3), name, 3) == 4


@pytest.mark.parametrize("name", RANKED)
def test_relabelling_tokens_changes_nothing(name: str) -> None:
    """Without ties of p/q (between Dirichlet rows there are none)."""
    pair = random_pair(4, 2, seed=7)
    order = np.array([2, 0, 3, 1])
    mixed = [[level[0][:, order], level[1][order][:, order]] for level in (pair.target, pair.draft)]
    assert block_efficiency(ModelPair.from_levels(*mixed), name, 3) == pytest.approx(
        block_efficiency(pair, name, 3), abs=1e-13
    )


# what looks like a theorem and is not (theory 2.7), and faults


def test_greedy_selection_is_neither_monotone_nor_better() -> None:
    fair, skewed = coin(["0.5", "0.5"], ["0.5", "0.5"], 2), coin(["0.25", "0.75"], ["0.6", "0.4"], 2)
    assert [block_efficiency(fair, "gbv", k) for k in (1, 2, 3)] == [3, F(39, 16), F(141, 64)]
    assert [block_efficiency(fair, name, 2) for name in ("bv", "tgbv", "pbv")] == [3, 3, 3]
    values = [block_efficiency(skewed, "gbv", k) for k in (1, 2, 3, 4)]
    assert values == [F("2.16"), F("2.5944"), F("2.769452"), F("2.6832248")]


def test_selection_distribution_at_eight_paths() -> None:
    """S7b: no power overflows, no fallback to q."""
    pair = iid_pair([0.5, 0.5], [0.25, 0.75], 1)
    assert closed_form(pair, "gbv", 8).selected[1] == pytest.approx([0.899887, 0.100113], abs=1e-6)
    assert block_efficiency(pair, "gbv", 8) - 1 == pytest.approx(0.600113, abs=1e-6)


@pytest.mark.parametrize("name", RANKED)
@pytest.mark.parametrize(
    ("target", "draft", "expected"),
    [
        ([1, 0, 0], ["0.5", "0.3", "0.2"], None),
        (["0.5", "0.5", 0], [0, 0, 1], 1),
        ([1, 0, 0], [1, 0, 0], 3),
        ([0, 1, 0], [1, 0, 0], 1),
        (["0.5", "0.3", "0.2"], ["0.6", "0.4", 0], None),
        (["0.2", "0.2", "0.6"], ["0.3", "0.3", "0.4"], None),
    ],
)
def test_degenerate_rows(name: str, target: list[Any], draft: list[Any], expected: int | None) -> None:
    pair = coin(target, draft, 2)
    for paths in (1, 2, 5, 64):
        exact, floats = (block_efficiency(p, name, paths) for p in (pair, pair.floats))
        assert floats == pytest.approx(float(exact), abs=1e-12)
        assert expected is None or exact == expected


def test_a_middle_child_that_the_ordered_split_leaves_as_it_is() -> None:
    """Its q* does not depend on lambda: rounding must not decide."""
    pair = coin([F(1, 2), F(1, 3), F(1, 6)], [F(3, 7), F(3, 7), F(1, 7)], 3)
    exact, floats = (block_efficiency(p, "tgbv", 2) for p in (pair, pair.floats))
    assert floats == pytest.approx(float(exact), abs=1e-13)


# floats at the ends of their range


@pytest.mark.parametrize("name", RANKED)
@pytest.mark.parametrize("paths", [1, 2, 4])
@pytest.mark.parametrize("place", [0, 1])
def test_path_probabilities_of_1e_300(name: str, paths: int, place: int) -> None:
    """Draft rows with an entry 1e-150 at two levels, wanted by the target (place 0) or not (place 1)."""
    tiny = F(1, 10**150)
    draft = [[tiny, F(1, 3), F(2, 3) - tiny], [F(1, 4), tiny, F(3, 4) - tiny]]
    target = [[F(1, 2), F(1, 4), F(1, 4)], [F(1, 8), F(1, 8), F(3, 4)]][place]
    rows = [[row] * 3**i for i, row in enumerate([draft[place], draft[place]])]
    pair = ModelPair.from_levels(*([np.array(x, dtype=object) for x in t] for t in ([[target], [target] * 3], rows)))
    exact, floats = closed_form(pair, name, paths), closed_form(pair.floats, name, paths)
    for levels in zip(
        exact.selected + exact.prefix_acceptance, floats.selected + floats.prefix_acceptance, strict=True
    ):
        assert levels[1] == pytest.approx(as_float(levels[0]), rel=1e-10, abs=1e-307)
    assert 0 < min(exact.selected[2]) <= F(4, 10**300)


def test_a_tiny_child_at_either_end_of_many_paths() -> None:
    """K = 64, GBV: masses of 1e-200 before and after everything else."""
    tiny = F(1, 10**200)
    draft = np.array([[tiny, 1 - 3 * tiny, 2 * tiny]], dtype=object)
    target = np.array([[F(1, 2), F(1, 2), F(0)]], dtype=object)
    pair = ModelPair.from_levels([target], [draft])
    exact, floats = (closed_form(p, "gbv", 64).selected[1] for p in (pair, pair.floats))
    assert floats[:2] == pytest.approx(as_float(exact[:2]), rel=1e-12, abs=0)
    assert floats[2] == 0 == float(exact[2])  # (2e-200)^64


@pytest.mark.parametrize("name", RANKED)
@pytest.mark.parametrize("kind", make.ADVERSARIAL_KINDS)
def test_no_warning_and_no_nan(name: str, kind: str) -> None:
    pair = make.adversarial(kind, 4, 3)
    for paths in (1, 3, 64):
        result = closed_form(pair, name, paths)
        assert all(np.isfinite(level).all() for level in result.selected + result.prefix_acceptance)
        assert [level.sum() for level in result.selected] == pytest.approx([1] * 4, abs=1e-12)


def test_large_trees_are_split_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = random_pair(4, 4, seed=1)
    whole = [block_efficiency(pair, name, 3) for name in RANKED]
    monkeypatch.setattr("lpverify.exact.closed_form.CHUNK", 300)
    assert [block_efficiency(pair, name, 3) for name in RANKED] == pytest.approx(whole, abs=1e-14)


def test_bad_arguments() -> None:
    pair = coin([1], [1], 1)
    with pytest.raises(InputError, match="algorithm: got 'nss'"):
        block_efficiency(pair, "nss")
    with pytest.raises(InputError, match=r"paths \(K\): got 0"):
        closed_form(pair, "gbv", 0)


# the verifiers


@pytest.mark.parametrize("name", RANKED)
@pytest.mark.parametrize(("vocab", "depth", "paths"), [(2, 2, 1), (2, 2, 3), (3, 2, 2), (2, 3, 2), (3, 1, 3)])
def test_enumeration_gives_the_closed_form_and_the_target_law(name: str, vocab: int, depth: int, paths: int) -> None:
    pair = make.rational(vocab, depth, seed=vocab * depth, denominator=5)
    result = evaluate(VerifyProblem(pair, paths), name, method="enumeration")
    assert result.law_error == 0
    assert result.block_efficiency == block_efficiency(pair, name, paths)
    floats = evaluate(VerifyProblem(pair.floats, paths), name, method="enumeration")
    assert floats.law_error < 1e-14
    assert floats.block_efficiency == pytest.approx(float(result.block_efficiency), abs=1e-13)


@pytest.mark.parametrize("name", ["tgbv", "pbv"])
def test_blocks_are_lossless(name: str) -> None:
    """Tokens merged into three blocks, in Fractions: the law is still exact, the value not larger by chance only."""
    pair = rational_pair(5, 1, seed=2, denominator=20)
    result = evaluate(VerifyProblem(pair, 2), verifier(name, blocks=4), method="enumeration")
    assert result.law_error == 0
    assert result.block_efficiency == closed_form(pair, verifier(name, blocks=4), 2).block_efficiency


@pytest.mark.parametrize("name", RANKED)
def test_repeated_paths_share_their_selection(name: str) -> None:
    pair = make.rational(3, 2, seed=1, denominator=5)
    path = [int(np.argmax(pair.draft[0][0] > 0))]
    path.append(int(np.argmax(pair.draft[1][path[0]] > 0)))
    law = verifier(name)(DraftTree.from_pair(pair, [path] * 3))
    assert law.stop.sum() == 1


# stored values


def reference(path: Path, exact: bool) -> tuple[ModelPair, dict[str, Any]]:
    data = json.loads(path.read_text())
    depth = data["problem"]["depth"]

    def table(spec: dict[str, Any]) -> list[Any]:
        if spec["kind"] == "iid":
            levels = [[spec["probs"]] * len(spec["probs"]) ** i for i in range(depth)]
        else:
            levels = spec["levels"]
        number = (lambda x: F(str(x))) if exact else float
        return [np.array([[number(x) for x in row] for row in level]) for level in levels]

    pair = ModelPair.from_levels(table(data["problem"]["target"]), table(data["problem"]["draft"]))
    return pair, data["block_efficiency"]


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.stem)
def test_reference_values(path: Path) -> None:
    pair, expected = reference(path, exact=False)
    assert block_efficiency(pair, "token") == pytest.approx(expected["token"], abs=1e-12)
    assert block_efficiency(pair, "bv") == pytest.approx(expected["bv"], abs=1e-12)
    for paths, values in expected["paths"].items():
        for name in ("gbv", "tgbv", "pbv"):
            assert block_efficiency(pair, name, int(paths)) == pytest.approx(values[name], abs=1e-9)


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.stem)
def test_reference_values_in_fractions(path: Path) -> None:
    pair, expected = reference(path, exact=True)
    for name in ("token", "bv", *RANKED):
        for paths in (1,) if name in ("token", "bv") else (int(k) for k in expected["paths"]):
            if pair.nodes > 50 and paths > 2:
                continue  # seconds
            exact = block_efficiency(pair, name, paths)
            assert isinstance(exact, F)
            assert block_efficiency(pair.floats, name, paths) == pytest.approx(float(exact), abs=1e-12)
