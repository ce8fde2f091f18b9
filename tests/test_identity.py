"""Stored rows belong to what they were computed from, by content: nothing stale is served, nothing is recomputed twice.

The same name with other content is refused, by a message that says what differs; ``--recompute`` replaces the rows. The
same content under another name is taken for what it is.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from test_decode_cli import call  # noqa: E402

from lpverify import InputError, open_pair  # noqa: E402
from lpverify.core.problem import load_problem, save_problem  # noqa: E402
from lpverify.decode import load  # noqa: E402
from lpverify.decode.load import FOLDER  # noqa: E402

SHAPE = "--depth 2 --prompts PROMPTS"
CONTEXTS = "--contexts 2 --stride 2"
COMMANDS = {
    "decode": f"decode --paths 2 {SHAPE} --max-new-tokens 6 --compare bv,pbv --records r.jsonl",
    "bound": f"bound --paths 2 {SHAPE} {CONTEXTS} --algorithms bv --records r.jsonl",
    "extract": f"extract {SHAPE} {CONTEXTS} --top-k 2 -o folder",
}
MEASURED = ("seconds", "peak_memory")
Call = Callable[..., tuple[int, str, str]]


def stored(folder: Path) -> dict[str, Any]:
    """Everything that a command stored below ``folder``, without what is measured with a clock."""
    rows: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.name == "r.jsonl" or path.parent.name == "folder":
            lines = path.read_text().split("\n") if path.name in ("r.jsonl", "settings.json") else [path.read_text()]
            parsed = [json.loads(line) for line in lines if line]
            rows[path.name] = [{k: v for k, v in row.items() if k not in MEASURED} for row in parsed]
    return rows


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.chdir(tmp_path)

    def run(name: str, *options: str, prompts: str = "A") -> tuple[int, str, str]:
        return call(capsys, *(prompts if part == "PROMPTS" else part for part in COMMANDS[name].split()), *options)

    return run


def refused_then_recomputed(
    run: Call, name: str, options: list[str], change: Callable[[], None], what: str, tmp_path: Path, prompts: str = "A"
) -> None:
    """After ``change`` the rows are refused and untouched, then replaced by those of an undisturbed run."""
    assert run(name, *options, prompts=prompts)[0] == 0
    before = stored(tmp_path)
    assert run(name, *options, prompts=prompts)[0] == 0  # nothing has changed
    assert stored(tmp_path) == before
    change()
    code, out, err = run(name, *options, prompts=prompts)
    assert (code, out) == (2, "")
    assert what in err
    assert "or --recompute to replace what was computed\n" in err
    assert stored(tmp_path) == before
    assert run(name, *options, "--recompute", prompts=prompts)[0] == 0
    after = stored(tmp_path)
    assert after != before
    for path in ("r.jsonl", "folder"):
        shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink(missing_ok=True)
    assert run(name, *options, prompts=prompts)[0] == 0
    assert stored(tmp_path) == after


@pytest.mark.parametrize("name", COMMANDS)
def test_a_table_that_changed(run: Call, name: str, tmp_path: Path) -> None:
    pair = load_problem("markov-3").pair

    def write(entry: float) -> None:
        document = json.loads((Path(load.__file__).parents[1] / "examples/markov-3.json").read_text())
        document["draft"]["initial"] = [entry, 1 - entry, 0]
        Path("m.json").write_text(json.dumps(document))

    save_problem(pair, "m.json")
    options = ["--target", "m.json", "--draft", "m.json"]
    what = "line 1: got content.draft.table = '"
    refused_then_recomputed(run, name, options, lambda: write(0.25), what, tmp_path)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_working_folder_that_changed(run: Call, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same relative path is another table; the same table by another path is the same."""
    for folder, source in (("one", "markov-3"), ("two", "coin-2")):
        Path(folder).mkdir()
        save_problem(load_problem(source), f"{folder}/m.json")
    place = ["-o", str(tmp_path / "folder")] if name == "extract" else ["--records", str(tmp_path / "r.jsonl")]
    options = ["--target", "m.json", "--draft", "m.json", *place]
    monkeypatch.chdir("one")
    label = load_problem("m.json").pair.tokens[0]
    assert run(name, *options, prompts=label)[0] == 0
    before = stored(tmp_path)
    monkeypatch.chdir("../two")
    code, _, err = run(name, *options, prompts="0")
    assert code == 2
    assert "got content.draft.table = '" in err
    assert "(also other: content.target.table, content.tokenizer)" in err
    same = ["--target", "../one/m.json", "--draft", "markov-3", *place]
    code, out, err = run(name, *same, prompts=label)
    assert (code, err) == (0, "")
    assert "0 problems written, 2 found" in out or name != "extract"
    assert stored(tmp_path) == before


def edit_json(**entries: Any) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | entries))

    return edit


def edit_weights(path: Path) -> None:
    """One byte of the last weight, in place: name, size and time of the file stay."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def edit_merges(path: Path) -> None:
    document = json.loads(path.read_text())
    document["model"]["merges"] = document["model"]["merges"][:-1]  # the vocabulary stays
    path.write_text(json.dumps(document))


CHANGES: dict[str, tuple[str, str, Callable[[Path], None], str]] = {
    "weights": ("decode", "target/model.safetensors", edit_weights, "got content.target.weights = '"),
    "draft weights": ("bound", "draft/model.safetensors", edit_weights, "got content.draft.weights = '"),
    "configuration": ("decode", "target/config.json", edit_json(rms_norm_eps=1e-5), "got content.target.config = '"),
    "merges": ("extract", "target/tokenizer.json", edit_merges, "got content.tokenizer = '"),
    "end": ("bound", "target/generation_config.json", edit_json(eos_token_id=[1, 5]), "got content.tokenizer = '"),
}


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    shutil.copytree(FOLDER, tmp_path / "m")
    (tmp_path / "m/target/generation_config.json").write_text('{"eos_token_id": 1}')
    return tmp_path / "m"


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_folder_that_changed(run: Call, folders: Path, change: str, tmp_path: Path) -> None:
    name, file, edit, what = CHANGES[change]
    options = ["--target", "m/target", "--draft", "m/draft"]
    refused_then_recomputed(run, name, options, lambda: edit(folders / file), what, tmp_path, prompts="import os")


def test_a_copy_elsewhere_is_the_same_model(run: Call, folders: Path, tmp_path: Path) -> None:
    """Also beside files that no model is computed from."""
    assert run("decode", "--target", "m/target", "--draft", "m/draft")[0] == 0
    before = (tmp_path / "r.jsonl").read_bytes()
    shutil.copytree(folders, "elsewhere")
    Path("elsewhere/target/README.md").write_text("copied")
    code, _, err = run("decode", "--target", "./elsewhere/target", "--draft", "elsewhere/draft/")
    assert (code, err) == (0, "")
    assert (tmp_path / "r.jsonl").read_bytes() == before


def test_other_number_types_and_attention(run: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = ["--target", "tiny", "--draft", "tiny"]
    assert run("decode", *tiny, prompts="import os")[0] == 0
    code, _, err = run("decode", *tiny, "--dtype", "bfloat16", prompts="import os")
    assert (code, "content.target.weights" in err, "dtype" in err) == (2, True, True)
    monkeypatch.setattr(load.transformer, "from_folder", eager(load.transformer.from_folder))
    code, _, err = run("decode", *tiny, prompts="import os")
    assert (code, "content.draft.attention = 'sdpa'" in err, "expected 'eager'" in err) == (2, True, True)


def eager(from_folder: Callable[..., Any]) -> Callable[..., Any]:
    def loaded(*arguments: Any, **options: Any) -> Any:
        module, tokenizer = from_folder(*arguments, **options)
        module.set_attn_implementation("eager")
        return module, tokenizer

    return loaded


@pytest.mark.parametrize("package", ["lpverify", "code", "numpy", "torch", "transformers", "tokenizers", "device"])
@pytest.mark.parametrize("name", COMMANDS)
def test_other_versions(run: Call, name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--target", "markov-3", "--draft", "markov-3"]
    assert run(name, *options)[0] == 0
    before = stored(tmp_path)
    software = load.software() | {package: "another"}
    monkeypatch.setattr(load, "software", lambda: software)
    code, _, err = run(name, *options)
    assert (code, f"computed_with.{package}" in err, "expected 'another'" in err) == (2, True, True)
    assert stored(tmp_path) == before


@pytest.mark.parametrize("name", COMMANDS)
def test_a_prompts_file_that_changed(run: Call, name: str, tmp_path: Path) -> None:
    """Rows are those of a text: another text in the same file is computed, the old rows stay."""
    options = ["--target", "markov-3", "--draft", "markov-3"]
    Path("p.jsonl").write_text('{"text": "A"}\n')
    assert run(name, *options, prompts="p.jsonl")[0] == 0
    before = stored(tmp_path)
    Path("p.jsonl").write_text('{"text": "B"}\n')
    assert run(name, *options, prompts="p.jsonl")[0] == 0
    after = stored(tmp_path)
    assert after != before
    if name == "extract":
        assert before.items() <= after.items()
    else:
        assert after["r.jsonl"][: len(before["r.jsonl"])] == before["r.jsonl"]


def test_models_that_are_changed_in_python(tmp_path: Path) -> None:
    """A draft that is trained between two calls is another draft."""
    opened = open_pair()
    options: dict[str, Any] = {"max_new_tokens": 4, "num_paths": 1, "depth": 2, "records": tmp_path / "r.jsonl"}
    first = opened.decode(["import os"], **options)
    assert opened.decode(["import os"], **options) == first
    with torch.no_grad():
        opened.models.draft.module.lm_head.weight[0, 0] += 1
    with pytest.raises(InputError, match=r"got content\.draft\.weights = "):
        opened.decode(["import os"], **options)
    opened.decode(["import os"], **options, recompute=True)
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_weights_that_are_not_loaded(tmp_path: Path, where: str) -> None:
    """Weights that accelerate keeps elsewhere until they are needed are hashed as if they were there."""
    accelerate = pytest.importorskip("accelerate")
    contents = []
    for spread in (False, True):
        module, tokenizer = load.load_tiny("draft")
        if spread:
            options = {"execution_device": "cpu", "offload_buffers": True}
            options |= {} if where == "memory" else {"offload_dir": str(tmp_path)}
            (accelerate.cpu_offload if where == "memory" else accelerate.disk_offload)(module, **options)
            assert {weight.device.type for weight in module.parameters()} == {"meta"}
        model, _ = load.transformer.wrap("draft", module, tokenizer)
        contents.append(model.content())
    assert contents[0] == contents[1]


def test_recomputing_leaves_files_that_are_not_ours(run: Call, tmp_path: Path) -> None:
    options = ["--target", "markov-3", "--draft", "markov-3"]
    Path("r.jsonl").write_text("notes\n")
    assert run("decode", *options, "--recompute")[0] == 2
    assert Path("r.jsonl").read_text() == "notes\n"
    Path("r.jsonl").unlink()
    assert run("extract", *options)[0] == 0
    save_problem(load_problem("coin-2"), "folder/mine.json")
    assert run("extract", *options, "--seed", "1", "--recompute")[0] == 0
    assert load_problem("folder/mine.json").name == "coin-2"
    assert run("extract", *options, "--seed", "1")[0] == 0
