"""The engine's bookkeeping: ends of texts, counting, independence of requests; metrics, records, prompts."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from decode_cases import processed_text, table_pair, tables  # noqa: E402

from lpverify import InputError  # noqa: E402
from lpverify.core.draft_tree import DraftTree  # noqa: E402
from lpverify.decode import baselines, engine  # noqa: E402
from lpverify.decode.drafter import draft_paths  # noqa: E402
from lpverify.decode.engine import Request, Settings, cut, generate  # noqa: E402
from lpverify.decode.load import LoadedPair, load_model  # noqa: E402
from lpverify.decode.metrics import Generation, RoundRecord, ratio, summarize  # noqa: E402
from lpverify.decode.prompts import keyed, load_prompts  # noqa: E402
from lpverify.decode.rng import Keys  # noqa: E402
from lpverify.decode.run import ALGORITHMS, Progress, Records, compare  # noqa: E402
from lpverify.decode.sampling import Sampling  # noqa: E402
from lpverify.decode.table import TableModel, TableTokenizer  # noqa: E402
from lpverify.verifiers import expected_accepted, verifier  # noqa: E402

CYCLE = table_pair([[[0, 1, 0, 0]], np.roll(np.eye(4), 1, axis=1)], [[[0, 1, 0, 0]], np.roll(np.eye(4), 1, axis=1)])
"""Always 1 2 3 0 1 2 3 0 ..., drafted without a miss."""
REQUEST = Request((0,), "x")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", ["token", "bv", "specinfer", "traversal", "pbv"])
def test_the_text_ends_with_its_end_inside_a_block(name: str) -> None:  # fault S9
    """All 4 drafts 1 2 3 0 are accepted and 2 ends the text: two tokens, two drafts, one call."""
    settings = Settings(num_paths=2, depth=4, max_new_tokens=100, eos=frozenset({2}))
    result = generate(CYCLE, verifier(name), REQUEST, settings)
    assert result.tokens == (1, 2)
    [record] = result.rounds
    assert (record.accepted, record.committed) == (2, 2)
    assert record.expected_committed == pytest.approx(2)


def test_an_end_in_the_prompt_ends_nothing() -> None:  # fault S9
    settings = Settings(depth=2, max_new_tokens=3, eos=frozenset({0}))
    assert generate(CYCLE, verifier("bv"), Request((0, 0), "x"), settings).tokens == (1, 2, 3)
    assert generate(CYCLE, verifier("bv"), Request((0, 0, 3, 0), "x"), settings).tokens == (1, 2, 3)


def test_the_limit_cuts_inside_a_block() -> None:
    result = generate(CYCLE, verifier("bv"), REQUEST, Settings(depth=3, max_new_tokens=6))
    assert result.tokens == (1, 2, 3, 0, 1, 2)
    assert [(r.accepted, r.committed) for r in result.rounds] == [(3, 4), (2, 2)]
    assert [r.expected_committed for r in result.rounds] == pytest.approx([4, 2])


def test_a_later_end_does_not_show_in_what_comes_before() -> None:
    pair = tables("skewed-3")
    whole = generate(pair, verifier("pbv"), REQUEST, Settings(2, 2, max_new_tokens=40)).tokens
    ended = generate(pair, verifier("pbv"), REQUEST, Settings(2, 2, max_new_tokens=40, eos=frozenset({2}))).tokens
    shorter = generate(pair, verifier("pbv"), REQUEST, Settings(2, 2, max_new_tokens=17)).tokens
    assert ended == whole[: whole.index(2) + 1]
    assert shorter == whole[:17]


def test_a_request_does_not_depend_on_others() -> None:  # fault S14
    pair, settings = tables("markov-3"), Settings(2, 2, max_new_tokens=15, seed=5)
    prompts = keyed(["0", "1 2", "0"])
    opened = LoadedPair(pair, TableTokenizer(("0", "1", "2")), ("t", "d"), "auto")

    def run(chosen: list[Any], names: list[str]) -> dict[tuple[str, str], Any]:
        records = Records(None, {})
        compare(opened, names, opened.requests(chosen), settings, records)
        return {(n, p.key): (g := records.get(n, p.key)) and (g.tokens, g.rounds) for n in names for p in chosen}

    everything = run(prompts, ["bv", "pbv", "autoregressive"])
    assert run(prompts[::-1], ["pbv", "bv", "autoregressive"]) == everything
    assert run(prompts[1:2], ["pbv"]) == {("pbv", prompts[1].key): everything["pbv", prompts[1].key]}
    assert everything["bv", prompts[0].key] != everything["bv", prompts[2].key]  # the same text, another stream
    other = generate(pair, verifier("bv"), Request((0, 0), prompts[0].key), replace(settings, seed=6))
    assert other.tokens != everything["bv", prompts[0].key][0]


def test_verifiers_leave_the_rows_alone() -> None:  # fault S14
    pair = tables("skewed-3")
    drafted = draft_paths(pair, pair.draft.start([]), 0, Keys(0, "x").drafting(0, 3, 2), Sampling())
    rows = torch.full((len(drafted.tree.parent), 3), 1 / 3, dtype=torch.float64)
    view = DraftTree.of(drafted.tree, rows.clone(), drafted.rows.clone())
    for name in (*ALGORITHMS, *ALGORITHMS):
        if name not in ("autoregressive", "assisted"):
            float(expected_accepted(verifier(name)(view)))
            assert torch.equal(view.target, rows)
            assert torch.equal(view.draft, drafted.rows)


def test_drafts_come_from_the_rows_that_are_declared() -> None:  # faults S1, S2, S13
    """With top-2 the declared rows are those of the filter, and nothing outside them is drafted."""
    pair = table_pair([[[0.4, 0.6, 0.0]]], [[[0.5, 0.3, 0.2]]])
    seen = set()
    for round_ in range(50):
        state = pair.draft.start([])
        drafted = draft_paths(pair, state, 0, Keys(0, "x").drafting(round_, 3, 2), Sampling(top_k=2))
        np.testing.assert_allclose(drafted.rows, [[0.625, 0.375, 0]] * len(drafted.rows), rtol=1e-12)
        seen |= set(drafted.tree.paths.ravel().tolist())
    assert seen == {0, 1}
    result = generate(pair, verifier("token"), REQUEST, Settings(1, 1, Sampling(top_k=2), 400))
    uncut = [record.expected_committed for record in result.rounds[:-1]]
    # given the draft the token rule accepts 0 with probability .4/.625 and 1 surely
    assert {round(value, 9) for value in uncut} == {1.64, 2.0}
    assert 0.625 * 0.64 + 0.375 == 31 / 40


def test_greedy_drafts_declare_one_hot_rows() -> None:  # fault S2
    pair = table_pair([[[0.2, 0.4, 0.4]]], [[[0.6, 0.3, 0.1]]])
    drafted = draft_paths(pair, pair.draft.start([]), 0, Keys(0, "x").drafting(0, 2, 2), Sampling(0))
    assert drafted.rows.tolist() == [[1, 0, 0], [1, 0, 0]]
    assert drafted.tree.paths.tolist() == [[0, 0], [0, 0]]


def test_paths_of_one_prefix_draw_from_one_row() -> None:  # fault S13
    """A model whose rows differ between the branches of a batch, as kernels may."""
    pair = tables("coin-2")

    class Wobbly:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def append(self, tokens: Any) -> Any:
            logits = self.inner.append(tokens)
            return logits + torch.arange(len(tokens))[:, None] * torch.tensor([0.0, 1.0])

    drafted = draft_paths(pair, Wobbly(pair.draft.start([])), 0, Keys(1, "x").drafting(0, 4, 3), Sampling())
    tree = drafted.tree
    for node in range(len(drafted.rows)):
        path = int((tree.node_of[:, tree.depth[node]] == node).argmax())
        logits = torch.log(torch.tensor([0.6, 0.4])) + (path if node else 0) * torch.tensor([0.0, 1.0])
        np.testing.assert_allclose(drafted.rows[node], torch.softmax(logits, -1), rtol=1e-6)


@pytest.mark.parametrize("name", ["bv", "specinfer", "pbv"])
def test_a_process_gets_every_row_with_its_own_prefix(name: str) -> None:
    """Rows of target and draft, in every round; and no prefix that a text of 7 tokens cannot have."""
    pair, prompt, seen = tables("markov-3"), (0, 2, 1), {"target": 0, "draft": 0}
    settings = Settings(3, 3, max_new_tokens=7, seed=4)

    def table_row(model: Any, tokens: list[int]) -> Any:
        return model.log_rows[model.start(tokens).history[-1]][0]

    def process(tokens: Any, logits: Any) -> Any:
        assert tokens.shape[1] < len(prompt) + 7
        assert tuple(tokens[0, : len(prompt)].tolist()) == prompt
        for prefix, row in zip(tokens.tolist(), logits, strict=True):
            [role] = [role for role, model in vars(pair).items() if torch.equal(table_row(model, prefix), row)]
            seen[role] += 1
        return logits

    text, logits = processed_text(pair, verifier(name), Request(prompt, "x"), settings, process)
    assert len(text) == len(logits) == 7
    assert min(seen.values()) >= 5
    for i, row in enumerate(logits):
        assert torch.equal(row, table_row(pair.target, [*prompt, *text[:i]]))
    banned, _ = processed_text(
        pair,
        verifier(name),
        Request(prompt, "x"),
        settings,
        lambda tokens, logits: logits.index_fill(1, tokens[0, :1], -torch.inf),
    )
    assert set(banned) == {1, 2}  # token 0, the first of the prompt, is banned


def test_a_tree_without_drafted_tokens() -> None:
    """Both states stay in step, as after any other round."""
    pair = tables("coin-2")
    active = engine.ActiveRequest(pair, Request((0, 1), "x"), Sampling(), seed=0)
    tree = active.draft_tree(2, 0, 0)
    assert (tree.size, tuple(tree.paths.shape), tuple(tree.draft.shape)) == (1, (2, 0), (0, 2))
    assert active.commit(tree, 0, 1) == [1]
    assert active.target.length == active.draft.length == 2
    assert active.draft_tree(2, 3, 1).paths.shape == (2, 3)


def test_placeholders_are_no_tokens() -> None:  # fault S4
    with pytest.raises(InputError, match="token -1"):
        DraftTree.build([[1, -1, -1]], [[0.5, 0.5]] * 4, [[0.5, 0.5]] * 3)
    with pytest.raises(InputError, match="depth"):
        Settings(depth=0)


@pytest.mark.parametrize("name", ["bv", "traversal", "pbv"])
def test_expected_committed_is_expected_accepted_plus_1_away_from_the_end(name: str) -> None:
    pair = tables("skewed-3")
    drafted = draft_paths(pair, pair.draft.start([]), 0, Keys(0, "x").drafting(0, 3, 2), Sampling())
    rows = torch.softmax(torch.arange(3.0 * len(drafted.tree.parent), dtype=torch.float64).reshape(-1, 3).sin(), -1)
    law = verifier(name)(DraftTree.of(drafted.tree, rows, drafted.rows))
    np.testing.assert_allclose(engine.expected_committed(law, 9, frozenset()), expected_accepted(law) + 1, rtol=1e-12)
    np.testing.assert_allclose(engine.expected_committed(law, 1, frozenset()), 1, rtol=1e-12)
    eos, brute = frozenset({1}), 0.0
    for node, stop in enumerate(law.stop.tolist()):
        path = int((drafted.tree.node_of == node).any(axis=1).argmax())
        tokens = drafted.tree.paths[path, : drafted.tree.depth[node]].tolist()
        brute += stop * len(cut([*tokens, 2], 2, eos))
    np.testing.assert_allclose(engine.expected_committed(law, 2, eos), brute, rtol=1e-12)


def test_the_target_alone_has_the_law_of_the_target() -> None:
    pair = table_pair([[[0.2, 0.5, 0.3]]], [[[1 / 3] * 3]])
    result = baselines.autoregressive(pair, REQUEST, Settings(max_new_tokens=4000))
    counts = np.bincount(result.tokens) / 4000
    assert np.abs(counts - [0.2, 0.5, 0.3]).max() < 5 * sqrt(0.25 / 4000)
    assert summarize([result]).block_efficiency == 1
    assert summarize([result]).acceptance_rate is None  # fault S9: nothing drafted


def generation(*rounds: tuple[int, int], drafted: int = 4, expected: float | None = None) -> Generation:
    records = tuple(RoundRecord(drafted, drafted, a, c, expected) for a, c in rounds)
    seconds = {"draft": 1.0, "target": 2.0, "verify": 0.5, "cache": 0.5, "prefill": 9.0}
    return Generation("bv", "x", (0,) * sum(c for _, c in rounds), records, seconds, 100)


def test_metrics_of_the_published_example() -> None:  # fault S9: masks 1101, 0111, 1111 accept 2, 0, 4
    stats = summarize([generation((2, 3), (0, 1), (4, 5))])
    assert (stats.committed_tokens, stats.rounds, stats.block_efficiency) == (9, 3, 3.0)
    assert stats.acceptance_rate == 6 / 12
    assert stats.accepted_histogram == [1, 0, 1, 0, 1]
    assert stats.acceptance_by_depth == pytest.approx([2 / 3, 2 / 3, 1 / 3, 1 / 3])
    assert stats.tokens_per_second == 9 / 4
    assert stats.block_efficiency_se is None
    assert stats.rao_blackwell is None


def test_standard_errors_are_those_of_a_ratio_of_totals() -> None:
    """With equal numbers of rounds it is the usual standard error of the mean; otherwise compared with resampling."""
    values = [1.0, 4.0, 2.5, 3.5]
    assert ratio(values, [2, 2, 2, 2])[1] == pytest.approx(np.std(np.array(values) / 2, ddof=1) / 2)
    rng = np.random.default_rng(0)
    calls = rng.integers(5, 40, 200)
    tokens = calls * rng.normal(3, 0.5, 200)
    samples = rng.integers(0, 200, (2000, 200))
    spread = np.std(tokens[samples].sum(axis=1) / calls[samples].sum(axis=1))
    assert ratio(tokens.tolist(), calls.tolist())[1] == pytest.approx(spread, rel=0.1)


def test_records_survive_a_crash_and_a_rerun_goes_on(tmp_path: Path) -> None:
    pair, settings = tables("markov-3"), Settings(2, 2, max_new_tokens=15)
    opened = LoadedPair(pair, TableTokenizer(("0", "1", "2")), ("t", "d"), "auto")
    arguments = (opened, ["bv", "pbv"], opened.requests(keyed(["0", "1 2", "2"])), settings)
    path, description = tmp_path / "records.jsonl", {"seed": 0}
    with Records(tmp_path / "whole", description) as records:
        whole = compare(*arguments, records)

    class Crash(Exception):
        pass

    finished = []

    def crash(now: Progress) -> None:
        if now.result is not None:
            finished.append(now)
        elif len(finished) == 3:
            raise Crash

    with pytest.raises(Crash), Records(path, description) as records:
        compare(*arguments, records, crash)
    assert len(path.read_text().splitlines()) == 3
    with open(path, "a") as stream:
        stream.write('{"schema": "lpverify/decode-rec')  # what a crash leaves
    ran: list[tuple[str, int]] = []

    def watch(now: Progress) -> None:
        if now.result is None:
            ran.append((now.algorithm, now.finished))

    with Records(path, description) as records:
        again = compare(*arguments, records, watch)
    assert {done for _, done in ran} == {3, 4, 5}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 6
    assert {"prompt", "text", "versions", "settings", "tokens", "rounds", "seconds", "peak_memory"} <= lines[0].keys()
    for first, second in zip(whole, again, strict=True):
        for name in ("block_efficiency", "rao_blackwell", "rao_blackwell_se", "committed_tokens", "accepted_histogram"):
            assert getattr(first, name) == getattr(second, name)
    with pytest.raises(InputError, match=r"line 1: got seed = 0, expected 1, or another file or folder"):
        Records(path, {"seed": 1})
    path.write_text("{}\n")
    with pytest.raises(InputError, match="line 1: got '{}', expected a row of lpverify/decode-record@1"):
        Records(path, {})


def test_prompts_from_text_and_files(tmp_path: Path) -> None:
    lines = tmp_path / "some.jsonl"
    lines.write_text('{"question": "a"}\n\n{"prompt": "b", "x": 1}\n{"problem": "c"}\n{"text": "a"}\n')
    assert [prompt.text for prompt in load_prompts(str(lines))] == ["a", "b", "c", "a"]
    assert len({prompt.key for prompt in load_prompts(str(lines))}) == 4
    assert load_prompts(str(lines), 2) == load_prompts(str(lines))[:2]
    for source in ("once upon", "word " * 100, "a\0b"):  # the second is too long for a file name
        assert [prompt.text for prompt in load_prompts(source)] == [source]
    lines.write_text('{"text": "two\u2028lines"}\n', encoding="utf-8")  # no end of a line of JSON
    assert [prompt.text for prompt in load_prompts(str(lines))] == ["two\u2028lines"]
    text = tmp_path / "one.txt"
    text.write_text("whole\nfile")
    assert [prompt.text for prompt in load_prompts(str(text))] == ["whole\nfile"]
    for content, message in (("{", "line 1: got Expecting"), ('{"q": 1}', "line 1: got fields q"), ("[]", "no text")):
        lines.write_text(content)
        with pytest.raises(InputError, match=message):
            load_prompts(str(lines))
    with pytest.raises(InputError, match="No such file"):
        load_prompts(str(tmp_path / "none.jsonl"))
    lines.write_text("")
    with pytest.raises(InputError, match="no prompt"):
        load_prompts(str(lines))


def test_a_text_is_never_a_name_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fault T12
    missing = (
        "prompts.txt",
        "data/prompts",
        "./x",
        "~/prompts.md",
        "gsm8",
        "human_eval",
        "math500.json",
        str(tmp_path),
    )
    for source in missing:
        with pytest.raises(InputError, match="prompts|directory"):
            load_prompts(source)
    for source in ("", " \n"):
        with pytest.raises(InputError, match="no prompt"):
            load_prompts(source)
    for source in ("Hello", "Why?", "3/4", "def f(x):", "See data/prompts.", "x = a.b", "x" * 300, "a.b " * 100):
        assert [prompt.text for prompt in load_prompts(source)] == [source]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\ufefftwo\nlines".encode())))
    assert [prompt.text for prompt in load_prompts("-")] == ["two\nlines"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(InputError, match="no prompt"):
        load_prompts("-")


def test_names_of_algorithms() -> None:
    assert {"ebv", "bv", "autoregressive", "assisted"} <= set(ALGORITHMS)
    assert "policy" not in ALGORITHMS  # the solution of one table's LP


def test_tables_are_models_by_the_name_of_a_problem(tmp_path: Path) -> None:
    model, tokenizer = load_model("markov-3", "draft", device="cpu")
    assert isinstance(model, TableModel)
    tokens = tokenizer.encode("B C")
    assert (tokens, tokenizer.decode(tokens[1:])) == ([0, 1, 2], "B C")
    with pytest.raises(InputError, match="token '7'"):
        tokenizer.encode("7")
    for arguments, message in (
        (("nothing.json",), "no such file"),
        (("./nothing",), "no such folder"),
        (("markov-3", "bystander"), "role"),
    ):
        with pytest.raises(InputError, match=message):
            load_model(*arguments)
    with pytest.raises(InputError, match="--device: got abacus"):
        load_model("markov-3", device="abacus")
