"""Estimators of ``lpverify bound``: unbiased by enumeration, within 4 standard errors by sampling, mutants caught.

A normal mean leaves 4 standard errors with probability 6.4e-5: on fresh seeds the 180 comparisons of the quick tests
would fail a correct program with probability 0.012, the 1,485 of the slow ones with 0.1. Seeds are fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from bound_cases import (  # noqa: E402
    CLOSED,
    UPPER,
    assert_means,
    assert_text_is_unbiased,
    exact,
    shortened,
    text_values,
    verifiers,
)
from decode_cases import memoized, rooted_pair, table_pair  # noqa: E402
from lp_cases import REFERENCE, iid_pair, random_pair, reference_pair  # noqa: E402

from lpverify import InputError  # noqa: E402
from lpverify.core import families as make  # noqa: E402
from lpverify.core.draft_tree import DraftTree  # noqa: E402
from lpverify.core.model_pair import ModelPair  # noqa: E402
from lpverify.decode.baselines import autoregressive  # noqa: E402
from lpverify.decode.engine import Request, Settings  # noqa: E402
from lpverify.decode.load import load_model  # noqa: E402
from lpverify.decode.models import Pair  # noqa: E402
from lpverify.decode.sampling import Sampling, probabilities  # noqa: E402
from lpverify.decode.table import TableModel  # noqa: E402
from lpverify.drafting import iid_paths as drafts  # noqa: E402
from lpverify.drafting.iid_paths import mean_density  # noqa: E402
from lpverify.studies import bound, teacher_forced  # noqa: E402
from lpverify.studies.bound import BoundSettings, measure, on_tree, summarize  # noqa: E402
from lpverify.studies.text import Text, contexts  # noqa: E402
from lpverify.verifiers import VERIFIERS, Verifier  # noqa: E402

NAMES = tuple(name for name in VERIFIERS if name != "policy")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


# --- trees cut down


@given(st.integers(0, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
def test_restricted_is_the_tree_of_the_cut_paths(seed: int, most: int, longest: int, paths: int, depth: int) -> None:
    paths, depth = min(paths, most), min(depth, longest)
    pair = random_pair(3, longest, seed, alpha=2.0)
    drawn = np.random.default_rng(seed).integers(0, 3, (most, longest))
    view = DraftTree.from_pair(pair, drawn).restricted(paths, depth)
    expected = DraftTree.from_pair(shortened(pair, depth), drawn[:paths, :depth])
    for name in ("paths", "parent", "token", "depth", "node_of", "multiplicity", "target"):
        assert (getattr(view, name) == getattr(expected, name)).all(), name
    assert (view.draft[: len(view.inner_nodes)] == expected.draft[: len(view.inner_nodes)]).all()


def test_a_tree_cannot_grow() -> None:
    view = DraftTree.from_pair(iid_pair([0.5, 0.5], [0.5, 0.5], 2), [[0, 1]])
    with pytest.raises(InputError, match=r"paths \(K\): got 2, expected an integer in 1..1"):
        view.restricted(2, 1)
    with pytest.raises(InputError, match=r"depth \(L\): got 0, expected an integer in 1..2"):
        view.restricted(1, 0)


# --- unbiased by enumeration

SPARSE = ModelPair.from_levels(
    [[[0.5, 0.5, 0.0]], [[0.2, 0.0, 0.8], [1.0, 0.0, 0.0], [0.3, 0.3, 0.4]]],
    [[[0.0, 0.3, 0.7]], [[0.6, 0.4, 0.0], [0.1, 0.2, 0.7], [0.0, 0.0, 1.0]]],
)
"""Tokens that only the target, or only the draft, gives any mass."""


def few_texts(pair: ModelPair, begin: int) -> ModelPair:
    """The target keeps its 12 likeliest tokens at every node from level ``begin`` on."""
    levels = list(pair.target[:begin])
    for rows in pair.target[begin:]:
        kept = np.where(rows >= np.sort(rows, axis=1)[:, -12:-11], rows, 0.0)
        levels.append(kept / kept.sum(axis=1, keepdims=True))
    return ModelPair.from_levels(levels, pair.draft)


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.stem)
def test_text_estimate_is_unbiased_on_reference_trees(path: Any) -> None:
    assert_text_is_unbiased(reference_pair(path)[0], (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("pair", "paths", "names"),
    [
        (SPARSE, (1, 2, 5), CLOSED),
        (make.softmax(3, 4, seed=1, temperature=0.4, draft_noise=0.5), (1, 3), CLOSED),
        pytest.param(  # buckets of tokens on two levels
            few_texts(make.softmax(70, 2, seed=2, temperature=0.7, draft_noise=0.5), 1),
            (2,),
            CLOSED,
            marks=pytest.mark.heavy,
        ),
        (
            few_texts(make.softmax(1100, 1, seed=3, temperature=0.2, draft_noise=0.5), 0),
            (4,),
            CLOSED,
        ),
    ],
    ids=["sparse", "peaked", "buckets", "many tokens"],
)
def test_text_estimate_is_unbiased(pair: ModelPair, paths: tuple[int, ...], names: tuple[str, ...]) -> None:
    assert_text_is_unbiased(pair, paths, names)


def test_closed_forms_never_exceed_the_bound_on_any_text() -> None:
    pair = make.softmax(4, 3, seed=5, temperature=0.5, draft_noise=1.0)
    values = text_values(pair, list(range(64)), (1, 2, 4))
    for (name, paths, depth), column in values.items():
        assert (column <= values[UPPER, paths, depth] + 1e-12).all(), (name, paths, depth)


def tree_sums(pair: ModelPair, paths: int, names: tuple[str, ...]) -> dict[tuple[str, int, int], float]:
    """(name, k, l) -> sum over all ordered drafts of their probability times the estimate."""
    settings = BoundSettings(tuple(range(1, paths + 1)), tuple(range(1, pair.depth + 1)))
    sums: dict[tuple[str, int, int], float] = {}
    for draft in drafts.IidPaths(paths).enumerate(pair):
        cells = on_tree(DraftTree.from_pair(pair, draft.paths), verifiers(names), settings)
        for shape, cell in zip(settings.shapes, cells, strict=True):
            for name, value in {**cell[1], "nodes": cell[0]}.items():
                sums[name, *shape] = sums.get((name, *shape), 0.0) + draft.probability * value
    return sums


@pytest.mark.parametrize(("pair", "paths"), [(random_pair(2, 2, 4, alpha=2.0), 3), (SPARSE, 2)], ids=["coin", "sparse"])
def test_tree_estimate_is_unbiased_in_every_cell(pair: ModelPair, paths: int) -> None:
    for (name, k, depth), found in tree_sums(pair, paths, ("token", "nss", "specinfer", "traversal", "pbv")).items():
        if name == "nodes":
            expected = sum(float((1 - (1 - level) ** k).sum()) for level in pair.draft_paths[1 : depth + 1])
        else:
            expected = exact(pair, name, k, depth)
        assert abs(found - expected) <= 1e-12, f"{name} K = {k} L = {depth}: {found}, not {expected}"


# --- mutants of what was just shown


def test_relaxation_for_another_number_of_paths_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = random_pair(2, 3, 0)
    assert_text_is_unbiased(pair, (2,))

    def one_path_more(low: Any, high: Any, paths: int) -> Any:
        return mean_density(low, high, paths + 1)

    monkeypatch.setattr(teacher_forced, "mean_density", one_path_more)
    with pytest.raises(AssertionError, match="upper bound K = 2"):
        assert_text_is_unbiased(pair, (2,))


def test_forgotten_weights_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Any, steps: Any, log_cap: Any) -> Any:
        """f(cx) = f(c) min(p, M(cx) / M(c)), as if the weight w = f / M were 1 at every node."""
        ratio = np.diff(log_cap, axis=1, prepend=0.0) - np.log(self._p[steps])
        return self._after_start(np.cumsum(np.minimum(ratio, 0.0), axis=1))

    monkeypatch.setattr(teacher_forced.TextRows, "_running_minimum", forgetful)
    with pytest.raises(AssertionError, match="K = 2 L = 2"):
        assert_text_is_unbiased(random_pair(2, 2, 0), (2,), ["bv"])


COIN = random_pair(2, 2, 4, alpha=2.0)


def sorted_paths(self: DraftTree, paths: int, depth: int) -> DraftTree:
    """The paths that come first in the dictionary instead of the first ones."""
    return DraftTree.from_pair(shortened(COIN, depth), sorted(self.paths[:, :depth].tolist())[:paths])


@pytest.mark.parametrize("mutant", [sorted_paths, lambda view, paths, depth: view], ids=["chosen paths", "uncut"])
def test_trees_that_are_not_of_the_first_paths_are_caught(
    monkeypatch: pytest.MonkeyPatch, mutant: Callable[..., DraftTree]
) -> None:
    monkeypatch.setattr(DraftTree, "restricted", mutant)
    assert abs(tree_sums(COIN, 2, ("bv",))["bv", 1, 1] - exact(COIN, "bv", 1, 1)) > 1e-3


# --- by sampling

LARGE = make.softmax(21, 3, seed=7, temperature=0.4, draft_noise=0.7)
"""9,723 nodes."""


def leaves_of(pair: ModelPair, masses: Any, count: int, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return rng.choice(len(masses), size=count, p=masses / masses.sum()).tolist()


@pytest.mark.heavy
def test_text_estimate_on_a_large_tree() -> None:
    leaves = leaves_of(LARGE, LARGE.target_paths[-1], 1500, seed=0)
    values = text_values(LARGE, leaves, (1, 3))
    assert len(values) == 42
    assert_means(values, lambda *key: exact(LARGE, *key))


def test_texts_of_the_draft_are_caught() -> None:
    leaves = leaves_of(LARGE, LARGE.draft_paths[-1], 1500, seed=0)
    values = text_values(LARGE, leaves, (3,), ["pbv"])
    with pytest.raises(AssertionError, match="off by"):
        assert_means(values, lambda *key: exact(LARGE, *key))


def test_tree_estimate_on_a_large_tree() -> None:
    names = ("bv", "specinfer", "gbv", "pbv")
    settings = BoundSettings((2,), (3,))
    rng = np.random.default_rng(1)
    values: dict[tuple[str, int, int], list[float]] = {}
    for _ in range(100):
        leaves = rng.choice(21**3, size=2, p=LARGE.draft_paths[-1] / LARGE.draft_paths[-1].sum())
        paths = np.stack([leaves // 441, leaves // 21 % 21, leaves % 21], axis=1)
        cells = on_tree(DraftTree.from_pair(LARGE, paths), verifiers(names), settings)
        for shape, cell in zip(settings.shapes, cells, strict=True):
            for name, value in cell[1].items():
                values.setdefault((name, *shape), []).append(value)
    assert_means(values, lambda *key: exact(LARGE, *key))


def surplus(models: Pair, names: tuple[str, ...], settings: BoundSettings, requests: int = 1) -> dict[Any, list[float]]:
    """(name, K, L, estimator) -> estimate minus exact value in every context of `measure` on tables.

    With ``stride`` >= L the texts of contexts do not overlap: martingale differences, so of mean 0 and uncorrelated.
    """
    target, draft = models.target, models.draft
    assert isinstance(target, TableModel)
    assert isinstance(draft, TableModel)
    assert settings.stride >= max(settings.depths)

    @cache
    def value(states: tuple[int, int], name: str, paths: int, depth: int) -> float:
        return exact(rooted_pair(target, draft, states, depth), name, paths, depth)

    found: dict[Any, list[float]] = {}
    checked = {name: memoized(algorithm) for name, algorithm in verifiers(names).items()}
    for i in range(requests):
        result = measure(models, checked, Request((0,), f"request {i}"), settings)
        for cell in result.cells:
            shape = (cell.paths, cell.depth)
            for c, position in enumerate(result.positions):
                begun = (0, *result.tokens[:position])
                states = (int(target.start(begun).history[-1]), int(draft.start(begun).history[-1]))
                columns: dict[tuple[str, str], list[float]] = {(UPPER, "text"): cell.upper_bound}
                columns |= {(name, "tree"): column for name, column in cell.block_efficiency.items()}
                columns |= {(name, "text"): column for name, column in cell.on_path.items()}
                for (name, estimator), column in columns.items():
                    off = column[c] - value(states, name, *shape)
                    found.setdefault((name, *shape, estimator), []).append(off)
    return found


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.stem)
def test_measured_on_reference_trees(path: Any) -> None:
    pair, _ = reference_pair(path)
    settings = BoundSettings((1, 2), (pair.depth,), contexts=30, stride=pair.depth)
    found = surplus(table_pair(pair.target, pair.draft), ("specinfer", "traversal", "pbv"), settings)
    assert_means(found, lambda *key: 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.stem)
def test_measured_on_reference_trees_at_length(path: Any) -> None:
    pair, _ = reference_pair(path)
    depths = tuple(range(1, pair.depth + 1))
    names = tuple(name for name in NAMES if name != "ot")
    settings = BoundSettings((1, 2, 3), depths, contexts=120, stride=pair.depth, seed=1)
    assert_means(surplus(table_pair(pair.target, pair.draft), names, settings), lambda *key: 0.0)


# --- texts


def written(pair: Pair, prompt: tuple[int, ...]) -> Text:
    return Text(pair, Request(prompt, "a"), Sampling(), 0)


@cache
def tiny() -> tuple[Pair, tuple[int, ...]]:
    target, tokenizer = load_model("tiny", "target")
    draft, _ = load_model("tiny", "draft")
    return Pair(target, draft), tuple(tokenizer.encode("def main():\n"))


def test_text_is_that_of_the_target_alone_and_trees_leave_no_trace() -> None:
    pair, prompt = tiny()
    request = Request(prompt, "a")
    with torch.inference_mode():
        text = written(pair, prompt)
        for length in (0, 5, 10):
            text.grow(length)
            view = text.tree(num_paths=3, depth=4)
        text.grow(14)
        target, draft = text.rows()
    settings = Settings(depth=1, max_new_tokens=14)
    assert tuple(text.tokens) == autoregressive(pair, request, settings).tokens
    whole = torch.tensor([[*prompt, *text.tokens]])
    for model, rows in ((pair.target, target), (pair.draft, draft)):
        with torch.inference_mode():
            logits = model.module(input_ids=whole).logits[0, len(prompt) - 1 : -1]  # type: ignore[attr-defined]
        assert torch.allclose(rows, probabilities(logits, Sampling()), atol=1e-5)
    with torch.inference_mode():
        again = written(pair, prompt)
        again.grow(10)
        other = again.tree(num_paths=3, depth=4)
    assert (view.paths == other.paths).all()
    assert torch.allclose(view.target, other.target, atol=1e-6)  # type: ignore[arg-type]


def test_contexts_stop_at_an_end_of_text_and_what_follows_a_context_does_not() -> None:
    models = table_pair([[[0.7, 0.3]]], [[[0.6, 0.4]]])
    stopped = 0
    for i in range(10):
        request = Request((0,), f"request {i}")
        settings = BoundSettings((2,), (3,), contexts=6, stride=2, eos=frozenset({1}))
        result = measure(models, verifiers(["bv"]), request, settings)
        expected = contexts(models, request, 6, 2, Sampling(), eos={1})
        assert [context.tokens[1:] for context in expected] == [
            tuple(result.tokens[:position]) for position in result.positions
        ]
        assert 1 not in result.tokens[: result.positions[-1]]
        assert len(result.tokens) >= result.positions[-1] + 3
        stopped += 1 in result.tokens[: result.positions[-1] + 2]
    assert stopped >= 5


def test_a_sure_target_and_a_perfect_draft() -> None:
    """Temperature 0, and p = q: every estimate is exact on every text and tree."""
    uneven = [[[0.6, 0.4]], [[0.3, 0.7], [0.8, 0.2]]]
    names = ("bv", "gbv", "tgbv", "pbv", "traversal")
    settings = BoundSettings((1, 3), (2,), contexts=3, sampling=Sampling(temperature=0))
    cells = [*measure(table_pair(uneven, uneven), verifiers(names), Request((0,), "a"), settings).cells]
    settings = BoundSettings((1, 3), (2,), contexts=3)
    cells += measure(
        table_pair(uneven, uneven), verifiers(["bv", "pbv", "traversal"]), Request((0,), "a"), settings
    ).cells
    for cell in cells:
        for column in (cell.upper_bound, *cell.block_efficiency.values(), *cell.on_path.values()):
            assert column == pytest.approx([3.0] * 3, abs=1e-12)


def test_summary_is_of_totals_with_errors_over_prompts() -> None:
    def prompt(key: str, bounds: list[float], drafted: list[float]) -> bound.PromptBound:
        cell = bound.CellValues(2, 4, [3] * len(bounds), bounds, {"bv": drafted}, {"bv": bounds})
        return bound.PromptBound(key, [], list(range(len(bounds))), [cell], {})

    [cell] = summarize([prompt("a", [2.0, 4.0], [1.0, 2.0]), prompt("b", [3.0], [3.0])])
    assert (cell["paths"], cell["depth"], cell["nodes"], cell["upper_bound"]) == (2, 4, 3.0, 3.0)
    assert cell["upper_bound_se"] == 0.0
    entry = cell["algorithms"]["bv"]
    assert (entry["block_efficiency"], entry["share"], entry["on_path_share"]) == (2.0, 6 / 9, 1.0)
    assert entry["se"] == pytest.approx((2 * (1 + 1)) ** 0.5 / 3)
    [alone] = summarize([prompt("a", [2.0], [1.0])])
    entry = alone["algorithms"]["bv"]
    assert (entry["block_efficiency"], entry["se"], entry["share"], entry["on_path_share"]) == (1.0, None, None, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_paths": ()}, r"paths \(K\): got none"),
        ({"depths": (4, 0)}, r"depth \(L\): got 0"),
        ({"contexts": 0}, "contexts: got 0"),
        ({"stride": 0}, "stride: got 0"),
    ],
)
def test_impossible_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        BoundSettings(**options)


def test_context_that_does_not_fit_is_refused() -> None:
    pair, prompt = tiny()
    settings = BoundSettings((1,), (8,), contexts=100, stride=100)
    with pytest.raises(InputError, match="target tiny target: got"):
        measure(pair, verifiers(["bv"]), Request(prompt, "a"), settings)


def test_what_has_a_closed_form() -> None:
    assert [name for name in NAMES if verifiers([name])[name].closed_form is not None] == list(CLOSED)
    assert Verifier("mine", lambda view: verifiers(["bv"])["bv"](view)).closed_form is None


@pytest.mark.parametrize("size", [30, 70, 1100])
def test_tensors_give_what_arrays_give(size: int) -> None:
    """Full rows, blocks of tokens, ranks by integer keys."""
    rng = np.random.default_rng(size)
    target, draft = (rng.dirichlet(np.full(size, 0.3), 12) for _ in range(2))
    tokens = [int(rng.choice(size, p=row)) for row in target]
    starts = np.array([0, 3, 8])
    arrays = teacher_forced.TextRows(tokens, target, draft)
    tensors = teacher_forced.TextRows(tokens, torch.tensor(target), torch.tensor(draft))  # type: ignore[arg-type]
    for name, algorithm in verifiers(CLOSED).items():
        one, other = (rows.acceptance(algorithm, starts, 4, 3) for rows in (arrays, tensors))
        assert np.allclose(one, other, rtol=0, atol=1e-13), name
    assert (arrays.relaxation(starts, 4, 3) == tensors.relaxation(starts, 4, 3)).all()
