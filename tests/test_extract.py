"""Extraction: real trees as small problems that are exact for every verifier, resumable, guarded."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from decode_cases import rooted_pair, table_pair, text_distribution  # noqa: E402
from typer.testing import CliRunner, Result  # noqa: E402

from lpverify.cli import app  # noqa: E402
from lpverify.core import families as make  # noqa: E402
from lpverify.core.model_pair import ModelPair  # noqa: E402
from lpverify.core.problem import (  # noqa: E402
    FOLDER_SETTINGS,
    VerifyProblem,
    load_problem,
)
from lpverify.decode.engine import ActiveRequest, Request  # noqa: E402
from lpverify.decode.models import Pair  # noqa: E402
from lpverify.decode.prompts import keyed  # noqa: E402
from lpverify.decode.sampling import Sampling, probabilities  # noqa: E402
from lpverify.decode.table import TableModel  # noqa: E402
from lpverify.errors import InputError, SizeError  # noqa: E402
from lpverify.exact.evaluate import evaluate  # noqa: E402
from lpverify.files import JsonLines  # noqa: E402
from lpverify.lp.coverage import node_relaxation  # noqa: E402
from lpverify.lp.solve import solve  # noqa: E402
from lpverify.studies import extract as extraction  # noqa: E402
from lpverify.studies import extract_folder as folders  # noqa: E402
from lpverify.studies.extract import Settings, extract  # noqa: E402
from lpverify.studies.session import OpenPair, open_pair  # noqa: E402
from lpverify.studies.text import Context, contexts  # noqa: E402
from lpverify.verifiers import VERIFIERS, verifier  # noqa: E402
from lpverify.verifiers.base import expected_accepted  # noqa: E402

ALGORITHMS = tuple(name for name in VERIFIERS if name != "policy")
"""Those without an LP solution in them; `policy` attains the optimum, which is compared itself."""
ITERATIVE = {"ebv": 1e-5}
"""Splits that Newton's method finds: what it stops at moves with rows that do not matter."""


@cache
def tiny() -> OpenPair:
    return open_pair("tiny", "tiny")


def random_tables(seed: int, size: int, depth: int) -> Pair:
    pair = make.softmax(size, depth, seed, temperature=0.7, draft_noise=1.0)
    return table_pair(pair.target, pair.draft)


# ---- what is extracted


@pytest.mark.parametrize(("size", "context"), [(3, (0,)), (3, (0, 1)), (4, (0, 2, 3, 1))])
def test_full_support_gives_the_table_itself(size: int, context: tuple[int, ...]) -> None:
    models = random_tables(1, size, 4)
    depth = 2
    expected = rooted_pair(models.target, models.draft, states(models, context), depth)
    sampling = Sampling(top_k=size)
    made = extract(models, Context(len(context) - 1, context), Settings(depth, sampling))
    assert made.tokens == tuple(range(size))
    for name in ("target", "draft"):
        for found, level in zip(getattr(made.pair, name), getattr(expected, name), strict=True):
            assert found.shape == level.shape
            assert np.abs(found - level).max() < 1e-15


def states(models: Pair, context: tuple[int, ...]) -> tuple[int, int]:
    return int(models.target.start(context).history[-1]), int(models.draft.start(context).history[-1])  # type: ignore[attr-defined]


def full_problem(models: Pair, context: tuple[int, ...], depth: int, sampling: Sampling) -> ModelPair:
    """The truncated laws over the whole vocabulary: nothing merged, every subtree with its own rows."""
    pair = rooted_pair(models.target, models.draft, states(models, context), depth)
    truncated = []
    for levels in (pair.target, pair.draft):
        logits = [torch.log(torch.tensor(np.array(level))) for level in levels]
        truncated.append([probabilities(rows, sampling).numpy() for rows in logits])
    return ModelPair.from_levels(*truncated)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "optimum", "node relaxation"])
@settings(max_examples=4, deadline=None, derandomize=True)
@given(seed=st.integers(0, 999), size=st.integers(5, 6), top_k=st.integers(2, 3), paths=st.integers(2, 3))
def test_every_value_is_that_of_the_whole_vocabulary(
    algorithm: str, seed: int, size: int, top_k: int, paths: int
) -> None:
    models, sampling = random_tables(seed, size, 2), Sampling(top_k=top_k)
    whole = full_problem(models, (0,), 2, sampling)
    small = extract(models, Context(0, (0,)), Settings(2, sampling)).pair
    assert small.vocab_size <= top_k + 1
    if algorithm == "optimum":
        first, second = (solve(VerifyProblem(pair, paths), tolerance=1e-10) for pair in (whole, small))
        assert max(first.lower_bound, second.lower_bound) <= min(first.upper_bound, second.upper_bound) + 1e-12
        assert max(first.gap, second.gap) < 1e-8
    elif algorithm == "node relaxation":
        assert node_relaxation(small, paths)[0] == pytest.approx(node_relaxation(whole, paths)[0], abs=1e-13)
    else:
        found, expected = (evaluate(VerifyProblem(pair, paths), algorithm) for pair in (small, whole))
        assert found.block_efficiency == pytest.approx(expected.block_efficiency, abs=ITERATIVE.get(algorithm, 1e-12))
        assert found.law_error is None or found.law_error < 1e-12


def test_draft_only_tokens_must_stay_apart() -> None:
    """The negative control of the mapping: two of them in one slot change Traversal and OT, and nothing else."""
    target, draft = np.array([0.5, 0.2, 0.3, 0, 0]), np.array([0.2, 0.3, 0, 0.3, 0.2])
    whole = ModelPair.from_levels([[target], [target] * 5], [[draft], [draft] * 5])
    merged_target, merged_draft = [0.5, 0.2, 0.3, 0.0], [0.2, 0.3, 0, 0.5]
    merged = ModelPair.from_levels([[merged_target], [merged_target] * 4], [[merged_draft], [merged_draft] * 4])
    moved = {
        name: evaluate(VerifyProblem(merged, 2), name).block_efficiency
        - evaluate(VerifyProblem(whole, 2), name).block_efficiency
        for name in ALGORITHMS
    }
    assert moved.pop("traversal") < -0.001
    moved.pop("ot")
    assert all(abs(float(difference)) < ITERATIVE.get(name, 1e-12) for name, difference in moved.items())


@pytest.mark.parametrize("top_k", [2, 4])
def test_rows_are_those_of_plain_passes_over_the_prefixes(top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "CHUNK", 5 * tiny().models.vocab_size)  # several passes a level
    opened, sampling, depth = tiny(), Sampling(1.2, top_k, 0.98), 3
    prompt = tuple(opened.tokenizer.encode("def add(a, b):"))
    pair = extract(opened.models, Context(0, prompt), Settings(depth, sampling)).pair

    def plain(model: Any, tokens: tuple[int, ...]) -> Any:
        with torch.inference_mode():
            return probabilities(model.module(torch.tensor([tokens])).logits[0, -1:], sampling)[0].numpy()

    checked = 0

    def compare(prefix: tuple[int, ...], at: tuple[int, ...]) -> None:
        nonlocal checked
        target, draft = plain(opened.models.target, prompt + prefix), plain(opened.models.draft, prompt + prefix)
        tokens = np.flatnonzero(draft > 0).tolist()
        place = int(np.ravel_multi_index(at, (pair.vocab_size,) * len(at))) if at else 0
        rows = pair.target[len(at)][place], pair.draft[len(at)][place]
        only = target[draft == 0].sum()
        for row, law, rest in zip(rows, (target, draft), (only, 0.0), strict=True):
            expected = np.append(law[tokens], rest)
            assert np.abs(row[: len(expected)] - expected[: len(row)]).max() < 1e-5
            assert abs(row.sum() - 1) < 1e-15
            assert (row[len(expected) :] == 0).all()
        checked += 1
        if len(prefix) + 1 < depth:
            for slot, token in enumerate(tokens):
                if target[token] > 0:
                    compare((*prefix, token), (*at, slot))

    compare((), ())
    assert checked > top_k


def test_drafted_trees_of_the_engine_average_to_the_exact_value() -> None:
    """100 trees at full vocabulary, within 4 standard errors (false alarm about 6e-5 each, seed fixed)."""
    opened, sampling, paths, depth = tiny(), Sampling(1.0, 3), 2, 2
    tokens = tuple(opened.tokenizer.encode("for i in range("))
    problem = VerifyProblem(extract(opened.models, Context(0, tokens), Settings(depth, sampling)).pair, paths)
    names = ("bv", "specinfer", "traversal", "ot", "gbv", "pbv")
    values: dict[str, list[float]] = {name: [] for name in names}
    known: dict[bytes, list[float]] = {}  # trees repeat
    with torch.inference_mode():
        active = ActiveRequest(opened.models, Request(tokens, "trees"), sampling, seed=5)
        for round_ in range(100):
            view = active.draft_tree(paths, depth, round_)
            active.forget(len(tokens) - 1)
            key = view.paths.tobytes()
            if key not in known:
                known[key] = [1 + float(expected_accepted(verifier(name)(view))) for name in names]
            for name, value in zip(names, known[key], strict=True):
                values[name].append(value)
    for name in names:
        exact = evaluate(problem, name).block_efficiency
        error = np.std(values[name]) / np.sqrt(len(values[name]))
        assert 0 < error < 0.1, name
        assert abs(np.mean(values[name]) - exact) <= 4 * error, name


def test_contexts_have_the_law_of_the_target() -> None:
    """2,000 texts of two tokens: total variation within its mean bound plus a term of false-alarm probability 1e-6."""
    models = random_tables(3, 3, 2)
    count = 2_000
    seen = [contexts(models, Request((0,), str(i)), 2, 2, Sampling())[1].tokens[1:] for i in range(count)]
    law = text_distribution(models.target, 2)  # type: ignore[arg-type]
    shares = np.array([seen.count(text) for text in product(range(3), repeat=2)]) / count
    bound = np.sqrt(law * (1 - law) / count).sum() / 2 + np.sqrt(np.log(1e6) / (2 * count))
    assert np.abs(shares - law).sum() / 2 <= bound


def test_contexts_begin_alike_and_end_with_the_text() -> None:
    models = random_tables(4, 3, 2)
    request = Request((0, 1), "a")
    many = contexts(models, request, 5, 3, Sampling(), seed=7)
    assert [context.position for context in many] == [0, 3, 6, 9, 12]
    assert many[:2] == contexts(models, request, 2, 3, Sampling(), seed=7)
    assert all(b.tokens[: len(a.tokens)] == a.tokens for a, b in zip(many, many[1:], strict=False))
    text = many[-1].tokens[2:]
    for end in set(text):
        ended = contexts(models, request, 13, 1, Sampling(), seed=7, eos={end})
        assert [context.position for context in ended] == list(range(text.index(end) + 1))


# ---- refusals


def test_ties_may_make_a_tree_too_large() -> None:
    uniform = np.full((1, 6), 1 / 6)
    models = table_pair([uniform], [uniform])
    sampling = Sampling(top_k=2)
    assert extract(models, Context(0, (0,)), Settings(2, sampling)).pair.vocab_size == 6
    with pytest.raises(SizeError, match="position 0: got 6 slots and depth 2, 42 nodes, expected at most 41 nodes"):
        extract(models, Context(0, (0,)), Settings(2, sampling, max_nodes=41))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"depth": 0}, r"depth \(L\): got 0"),
        ({"contexts": 0}, "contexts: got 0"),
        ({"stride": 0}, "stride: got 0"),
        ({"seed": -1}, "seed: got -1"),
        ({"max_nodes": 0}, "nodes: got 0"),
        ({"sampling": Sampling()}, "top-k: got none, expected an integer in 2..8"),
        ({"sampling": Sampling(top_k=9)}, "top-k: got 9, expected an integer in 2..8"),
        (
            {"sampling": Sampling(top_k=8)},
            "top-k 8: got 9 slots and depth 5, 66429 nodes, expected at most 20000 nodes",
        ),
    ],
)
def test_impossible_settings(change: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        Settings(**{"depth": 5, "sampling": Sampling(top_k=2), **change})


def test_logits_that_are_no_numbers() -> None:
    laws, step = torch.full((2, 2), torch.nan, dtype=torch.float64), torch.zeros((2, 2), dtype=torch.long)
    models = Pair(*(TableModel(name, laws, step) for name in ("a", "b")))
    with pytest.raises(InputError, match="model a: got logits that are NaN"):
        extract(models, Context(0, (0,)), Settings(1, Sampling(top_k=2)))


# ---- folders


def cli(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["extract", *arguments])


TABLES = ("--target", "markov-3", "--draft", "markov-3", "--top-k", "2", "--depth", "2", "--stride", "2")


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "p.jsonl"
    path.write_text('{"text": "A"}\n{"text": "B C"}\n')
    return str(path)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_of_problems(prompts: str, tmp_path: Path) -> None:
    folder = tmp_path / "trees"
    result = cli(*TABLES, "--prompts", prompts, "--contexts", "3", "-o", str(folder))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{folder}: 6 problems written, 0 found\n"
    keys = [prompt.key for prompt in keyed(["A", "B C"])]
    names = {f"{key}-{position}.json" for key, position in product(keys, (0, 2, 4))}
    assert set(contents(folder)) == names | {FOLDER_SETTINGS}
    recorded = json.loads((folder / FOLDER_SETTINGS).read_text())
    assert recorded["schema"] == "lpverify/extract@1"
    assert recorded["models"] == ["markov-3", "markov-3"]
    content, made_with = recorded["settings"].pop("content"), recorded["settings"].pop("computed_with")
    assert (content.keys(), "torch" in made_with) == ({"target", "draft", "tokenizer"}, True)
    assert recorded["settings"] == {
        "chat": False, "depth": 2, "temperature": 1.0, "top_k": 2,
        "top_p": None, "stride": 2, "seed": 0, "dtype": "auto", "device": "cpu",
    }  # fmt: skip
    assert "torch" in recorded["versions"]
    for name in names:
        problem = load_problem(folder / name)
        assert problem.name == name[:-5]
        assert problem.pair.depth == 2
        assert f"prompt {name[: name.rindex('-')]}" in problem.description
        assert json.loads((folder / name).read_text())["target"]["kind"] == "tree"


def test_problems_from_python_are_those_of_the_folder(tmp_path: Path) -> None:
    opened = open_pair("markov-3", "markov-3")
    found = opened.extract(["A", "B C"], top_k=2, depth=2, contexts=2, stride=3, num_paths=3)
    settings_ = Settings(2, Sampling(top_k=2), 2, 3)
    folders.extract_folder(opened, keyed(["A", "B C"]), settings_, tmp_path / "trees")
    assert len(found) == 4
    for problem in found:
        stored = load_problem(tmp_path / "trees" / f"{problem.name}.json")
        assert (problem.num_paths, problem.description) == (3, stored.description)
        assert all((a == b).all() for a, b in zip(problem.pair.target, stored.pair.target, strict=True))
    for wrong in ("A", []):
        with pytest.raises(InputError, match="prompts: got .*, expected a list of texts"):
            opened.extract(wrong)


def test_a_rerun_computes_what_is_missing_only(prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "trees"
    arguments = (*TABLES, "--prompts", prompts, "-o", str(folder), "--contexts")
    made = extraction.extract
    calls = 0

    def dies(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return made(*args)

    monkeypatch.setattr(folders, "extract", dies)
    assert cli(*arguments, "3").exit_code == 130
    broken = contents(folder)
    assert len(broken) == 1 + 3
    assert cli(*arguments, "3").stdout == f"{folder}: 3 problems written, 3 found\n"
    whole = contents(folder)
    assert broken.items() <= whole.items()
    assert calls == 7
    assert cli(*arguments, "3").stdout == f"{folder}: 0 problems written, 6 found\n"
    assert cli(*arguments, "4", "--limit", "1").stdout == f"{folder}: 1 problems written, 3 found\n"
    assert whole.items() <= contents(folder).items()
    fresh = tmp_path / "fresh"
    cli(*arguments[:-2], str(fresh), "--contexts", "3")
    assert {name: text for name, text in contents(fresh).items() if name != FOLDER_SETTINGS}.items() <= whole.items()


def edit_settings(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        document = json.loads((folder / FOLDER_SETTINGS).read_text())
        (folder / FOLDER_SETTINGS).write_text(json.dumps(document | changes))

    return edit


@pytest.mark.parametrize(
    ("spoil", "arguments", "match"),
    [
        (None, ("--seed", "1"), "settings.json line 1: got seed = 0, expected 1, or another file"),
        (None, ("--top-k", "3"), "settings.json line 1: got top_k = 2, expected 3, or another file"),
        (None, ("--target", "skewed-3", "--draft", "skewed-3"), "settings.json line 1: got content.draft.table = '"),
        (lambda folder: (folder / FOLDER_SETTINGS).unlink(), (), ".json but no settings in settings.json"),
        (lambda folder: (folder / FOLDER_SETTINGS).write_text(""), (), ".json but no settings in settings.json"),
        (lambda folder: (folder / FOLDER_SETTINGS).write_text('{"schema": "lpver'), (), ".json but no settings in"),
        (lambda folder: (folder / FOLDER_SETTINGS).unlink(), ("--recompute",), ".json but no settings in"),
        (lambda folder: (folder / FOLDER_SETTINGS).write_text("{"), (), "settings.json line 1: got"),
        (edit_settings(schema="other"), (), "settings.json line 1: got"),
        (edit_settings(settings=3), (), "settings.json line 1: got"),
    ],
)
def test_other_content_is_not_mixed_in(
    tmp_path: Path, spoil: Callable[[Path], Any] | None, arguments: tuple[str, ...], match: str
) -> None:
    folder = tmp_path / "trees"
    common = (*TABLES, "-o", str(folder), "--contexts", "1", "--prompts")
    assert cli(*common, "A").exit_code == 0
    if spoil:
        spoil(folder)
    before = contents(folder)
    result = cli(*common, "0" if "skewed-3" in arguments else "C", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert match in result.stderr
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("-o", ""), "--output: got nothing"),
        (("-o", "p.jsonl"), "--output: got p.jsonl, expected a folder"),
        (("-o", "no/such/place"), "--output: got no/such/place"),
        (("-o", "x", "--top-k", "1"), "top-k: got 1"),
        (("-o", "x", "--depth", "12"), "3 slots and depth 12, 797160 nodes, expected at most 20000 nodes"),
        (("-o", "x", "--depth", "3", "--nodes", "10"), "39 nodes, expected at most 10 nodes"),
        (("-o", "x", "--contexts", "0"), "contexts: got 0"),
        (("-o", "x", "--limit", "0"), "--limit: got 0"),
        (("-o", "x", "--prompts", "A Z"), "prompt: got token 'Z'"),
        (("-o", "x", "--target", "./none"), "model ./none: got no such folder"),
        (("-o", "x", "--temperature", "-1"), "temperature: got -1.0"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], match: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = os.listdir()
    result = cli(*TABLES, "--prompts", prompts, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert match in result.stderr
    assert os.listdir() == before


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    result = cli(*TABLES, "--prompts", "A", "-o", "x")
    assert result.exit_code == 2
    expected = "extract: torch is not installed; install with pip install 'lpverify[decode]'"
    assert result.stderr == f"lpverify: error: {expected}\n"


def test_a_context_that_outgrows_a_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    settings_ = Settings(4, Sampling(top_k=2), contexts=1_000, stride=1_000)
    with pytest.raises(InputError, match="target tiny target: got .* prompt"):
        folders.extract_folder(tiny(), keyed(["def f():"]), settings_, tmp_path / "trees")
    assert not (tmp_path / "trees").exists()


def test_traversal_of_an_extracted_tree_by_recursion_and_by_enumeration() -> None:
    """Rows with tokens that only one model has, and dead subtrees: two ways to the same value."""
    opened = tiny()
    context = Context(0, tuple(opened.tokenizer.encode("import os\n")))
    pair = extract(opened.models, context, Settings(3, Sampling(top_k=2))).pair
    assert any((level == 0).any() for level in pair.target)
    for paths in (2, 3):
        first, second = (
            evaluate(VerifyProblem(pair, paths), "traversal", method=method) for method in ("recursion", "enumeration")
        )
        assert first.block_efficiency == pytest.approx(second.block_efficiency, abs=1e-13)
        assert first.law_error is not None
        assert first.law_error < 1e-13


def test_a_folder_is_extracted_into_by_one_process_at_a_time(tmp_path: Path) -> None:
    """Its settings file is the lock."""
    arguments = (*TABLES, "--prompts", "A", "--contexts", "1", "-o", str(tmp_path / "trees"))
    assert cli(*arguments).exit_code == 0
    settings_file = tmp_path / "trees" / FOLDER_SETTINGS
    document = json.loads(settings_file.read_text())
    with JsonLines(settings_file, folders.SCHEMA, document["settings"]):
        result = cli(*arguments)
    assert result.exit_code == 2
    assert result.stderr.endswith(
        "settings.json: got a file that another run is writing, expected a file to append to\n"
    )
    assert cli(*arguments).stdout.endswith("0 problems written, 1 found\n")
