"""``lpverify bound``: the JSON contract, records that survive, one-line errors, the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from test_decode_cli import call  # noqa: E402

TABLES = ["bound", "--target", "markov-3", "--draft", "markov-3", "--contexts", "3", "--stride", "2"]
SHAPE = ["--paths", "1,3", "--depth", "2,1"]


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "p.jsonl"
    path.write_text('{"text": "A"}\n{"text": "B C"}\n{"text": "A"}\n')
    return str(path)


def test_json_contract(capsys: pytest.CaptureFixture[str], prompts: str) -> None:
    arguments = [*TABLES, *SHAPE, "--prompts", prompts, "--algorithms", "bv,traversal,pbv"]
    code, out, err = call(capsys, *arguments, "--json", "-")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["schema"] == "lpverify/bound@1"
    assert (document["prompts"], document["contexts"]) == (3, 9)
    expected = {"target", "draft", "prompts", "chat", "temperature", "top_k", "top_p", "depths", "paths", "algorithms"}
    assert expected | {"contexts", "stride", "seed"} <= document["settings"].keys()
    assert {"python", "lpverify", "torch"} <= document["versions"].keys()
    assert [(cell["paths"], cell["depth"]) for cell in document["cells"]] == [(1, 2), (1, 1), (3, 2), (3, 1)]
    for cell in document["cells"]:
        assert isinstance(cell["nodes"], float)
        assert cell["depth"] <= cell["nodes"] <= cell["paths"] * cell["depth"]
        assert isinstance(cell["upper_bound_se"], float)
        assert list(cell["algorithms"]) == ["bv", "traversal", "pbv"]
        for name, entry in cell["algorithms"].items():
            assert entry["share"] == pytest.approx(entry["block_efficiency"] / cell["upper_bound"])
            assert (entry["on_path"] is None) == (entry["on_path_se"] is None) == (name == "traversal")
            assert isinstance(entry["se"], float)
            assert isinstance(entry["share_se"], float)
            if name != "traversal":
                assert entry["on_path"] <= cell["upper_bound"] + 1e-12


def test_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, *TABLES, *SHAPE, "--prompts", "A B", "--algorithms", "bv")
    assert (code, err) == (0, "")
    assert out.count("  upper bound  ") == 4
    assert "3 contexts of 1 prompt;" in out
    assert "no share of the bound is given; use more prompts" in " ".join(out.split())
    shares = {line.split()[-1] for line in out.splitlines() if " bv " in line}
    assert shares == {"-"}  # red before: "190.0" with one prompt


def test_rerun_goes_on_and_refuses_other_settings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, prompts: str
) -> None:
    path = tmp_path / "r.jsonl"
    arguments = [*TABLES, *SHAPE, "--prompts", prompts, "--algorithms", "bv,pbv", "--records", str(path), "--json", "-"]
    first = call(capsys, *arguments)
    written = path.read_bytes()
    lines = written.splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:50])  # killed while it wrote the second prompt
    assert call(capsys, *arguments) == first
    again = [json.loads(line) for line in path.read_text().splitlines()]
    assert [without_seconds(line) for line in again] == [without_seconds(json.loads(line)) for line in lines]
    assert {line["schema"] for line in again} == {"lpverify/bound-record@1"}
    code, out, err = call(capsys, *arguments, "--seed", "1")
    assert (code, out) == (2, "")
    offer = "another file or folder, or --recompute to replace what was computed"
    assert err == f"lpverify: error: {path} line 1: got seed = 0, expected 1, or {offer}\n"


def without_seconds(line: dict[str, Any]) -> dict[str, Any]:
    assert set(line["seconds"]) == {"prefill", "text", "draft", "target", "verify", "on path"}
    return {name: value for name, value in line.items() if name != "seconds"}


def test_a_prompt_is_measured_alike_in_any_company(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    both = tmp_path / "both.jsonl"
    both.write_text('{"text": "A"}\n{"text": "B C"}\n')
    records = [tmp_path / "one", tmp_path / "two"]
    for text, path in zip((str(both), "B C"), records, strict=True):
        call(capsys, *TABLES, *SHAPE, "--prompts", text, "--algorithms", "gbv", "--records", str(path), "--json", "-")
    one, two = ([json.loads(line) for line in path.read_text().splitlines()] for path in records)
    assert without_seconds(one[1]) == without_seconds(two[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--paths", ""], "--paths: got '', expected integers >= 1 separated by commas"),
        (["--paths", "1,x"], "--paths: got '1,x'"),
        (["--depth", "4,0"], "--depth: got 0, expected an integer >= 1"),
        (["--depth", "1.5"], "--depth: got '1.5'"),
        (["--algorithms", "policy"], "--algorithms: got 'policy', expected one of token, bv"),
        (["--algorithms", "autoregressive"], "--algorithms: got 'autoregressive'"),
        (["--algorithms", ","], "--algorithms: got none, expected one or more of token"),
        (["--contexts", "0"], "contexts: got 0"),
        (["--stride", "no"], "got 'no', expected an integer"),
        (["--temperature", "-1"], "temperature: got -1.0"),
        (["--limit", "0"], "--limit: got 0"),
        (["--prompts", "D"], "prompt: got token 'D'"),
        (["--records", "-"], "--records: got -"),
        (["--json", "/none/x.json"], "--json: got /none/x.json"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    prompts = [] if "--prompts" in arguments else ["--prompts", "A"]
    code, out, err = call(capsys, *TABLES, *prompts, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


def test_records_of_another_command_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"settings": {}, "request": "a"}\n')
    code, _, err = call(capsys, *TABLES, "--prompts", "A", "--records", str(path))
    assert code == 2
    assert f"--records: got {path}, which is a file of another kind" in err
    assert path.read_text() == '{"settings": {}, "request": "a"}\n'
