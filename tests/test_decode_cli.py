"""``lpverify decode``: the JSON contract, one-line errors, resuming; baselines of the transformers library."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from test_decode_models import model  # noqa: E402

from lpverify import InputError  # noqa: E402
from lpverify.cli import app  # noqa: E402
from lpverify.decode.baselines import assisted  # noqa: E402
from lpverify.decode.engine import Request, Settings  # noqa: E402
from lpverify.decode.models import Pair  # noqa: E402
from lpverify.decode.sampling import Sampling  # noqa: E402

TABLES = ["decode", "--target", "markov-3", "--draft", "markov-3", "--max-new-tokens", "12", "--depth", "2", "-k", "2"]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        app(list(arguments))
    captured = capsys.readouterr()
    return int(exit_.value.code or 0), captured.out, captured.err


def test_json_contract(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"text": "A"}\n{"text": "B C"}\n')
    names = ["bv", "gbv", "tgbv", "pbv", "autoregressive"]
    arguments = [*TABLES, "--prompts", str(prompts), "--algorithm", "bv", "--compare", ",".join(names[1:])]
    code, out, err = call(capsys, *arguments, "--json", "-")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["schema"] == "lpverify/decode@1"
    assert {"target", "draft", "paths", "depth", "temperature", "seed", "versions"} <= document["settings"].keys()
    assert [entry["algorithm"] for entry in document["runs"]] == names
    for entry in document["runs"]:
        assert set(entry["stage_seconds"]) == {"draft", "target", "verify", "cache"}
        for key in (
            "block_efficiency",
            "block_efficiency_se",
            "rao_blackwell",
            "rao_blackwell_se",
            "tokens_per_second",
        ):
            assert isinstance(entry[key], float), key
        assert entry["committed_tokens"] == 24
        assert entry["block_efficiency"] == 24 / entry["rounds"]


def test_table_and_text_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, *TABLES, "--prompts", "A B", "--compare", "bv,autoregressive")
    assert (code, err) == (0, "")
    assert out.startswith("prompt:  A B\nbv:  ")
    assert "autoregressive" in out
    assert "1.000" in out


def test_rerun_goes_on_and_refuses_other_settings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    records = tmp_path / "r.jsonl"
    first = call(capsys, *TABLES, "--prompts", "A", "--records", str(records), "--json", "-")
    written = records.read_bytes()
    second = call(capsys, *TABLES, "--prompts", "A", "--records", str(records), "--json", "-")
    assert first == second
    assert records.read_bytes() == written
    code, out, err = call(capsys, *TABLES, "--prompts", "A", "--records", str(records), "--seed", "1")
    assert (code, out) == (2, "")
    offer = "another file or folder, or --recompute to replace what was computed"
    assert err == f"lpverify: error: {records} line 1: got seed = 0, expected 1, or {offer}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithm", "nonsense"], "--algorithm: got 'nonsense', expected one of token, bv"),
        (["--algorithm", "policy"], "--algorithm: got 'policy'"),
        (["--compare", "bv,x"], "--compare: got 'x'"),
        (["--paths", "0"], "paths (K): got 0"),
        (["--temperature", "-1"], "temperature: got -1.0"),
        (["--temperature", "hot"], "hot"),
        (["--top-p", "2"], "top-p: got 2.0"),
        (["--prompts", "D"], "prompt: got token 'D'"),
        (["--prompts", "none.jsonl"], "none.jsonl: got No such file"),
        (["--target", "./none"], "model ./none: got no such folder"),
        (["--draft", "skewed-3"], "token '0' with id 0 in the draft, None in the target"),
        (["--device", "abacus"], "--device: got abacus"),
        (["--json", "/none/x.json"], "--json: got /none/x.json"),
        (["--records", "-"], "--records: got -"),
        (["--algorithm", "assisted"], "assisted: got a table as a model"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    prompts = [] if "--prompts" in arguments else ["--prompts", "A"]
    code, out, err = call(capsys, *TABLES, *prompts, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


def test_without_torch_the_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    code, _, err = call(capsys, *TABLES, "--prompts", "A")
    assert code == 2
    assert err == "lpverify: error: decode: torch is not installed; install with pip install 'lpverify[decode]'\n"


def test_assisted_generation_in_the_same_harness() -> None:
    target, draft = model("llama"), model("llama", seed=1)
    greedy = Settings(depth=3, sampling=Sampling(0), max_new_tokens=17)
    expected = target.module.generate(torch.tensor([[1, 2, 3]]), do_sample=False, max_new_tokens=17)[0, 3:].tolist()
    kept = draft.module.generation_config
    torch.manual_seed(0)
    state = torch.get_rng_state()
    result = assisted(Pair(target, draft), Request((1, 2, 3), "x"), greedy)
    assert list(result.tokens) == expected
    assert torch.equal(torch.get_rng_state(), state)  # fault S14
    assert draft.module.generation_config is kept
    assert sum(record.committed for record in result.rounds) == 17
    itself = assisted(Pair(target, model("llama")), Request((1, 2, 3), "x"), greedy)
    assert (list(itself.tokens), itself.rounds[0].committed) == (expected, 4)
    sampled: list[Any] = [
        assisted(Pair(target, draft), Request((1, 2, 3), key), Settings(depth=3, max_new_tokens=17)) for key in "xxy"
    ]
    assert sampled[0].tokens == sampled[1].tokens != sampled[2].tokens
    with pytest.raises(InputError, match="one model as target and draft"):
        assisted(Pair(target, target), Request((1,), "x"), greedy)
