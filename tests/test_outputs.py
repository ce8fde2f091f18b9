"""No command destroys a file: outputs replace nothing but what the same command wrote, and no file has two roles."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lpverify.cli import app
from lpverify.core.problem import load_problem, save_problem

HAS_TORCH = find_spec("torch") is not None
MODELS = "--target m.json --draft m.json --prompts p.jsonl"
SHORT = "--context 4 --repeats 1 --tokens 8"
COMMANDS = {
    "solve": "solve m.json -k 1 --json J --plot P.png",
    "explain": "explain m.json --json J",
    "audit": "audit own.py:f --cases m.json:1 --json J",
    "random": "random --vocab 2 --depth 1 --seed 0 --output J",
    "sweep": "sweep sweep.toml --output R",
}
if HAS_TORCH:
    COMMANDS |= {
        "decode": f"decode {MODELS} -k 1 -l 2 --max-new-tokens 4 --records R --json J",
        "bound": f"bound {MODELS} -k 1 -l 2 --contexts 1 --algorithms bv --records R --json J",
        "advise": "advise bound.json --costs costs.json --json J --plot P.svg",
        "costs": f"advise {MODELS} -k 1 -l 2 --algorithms bv {SHORT} --save-costs J --plot P.pdf",
    }
OUTPUTS = [
    (name, option)
    for name, command in COMMANDS.items()
    for option in ("--json", "--plot", "--records", "--output", "--save-costs")
    if f"{option} " in command
]
INPUTS = [
    (name, option, file)
    for name, option in OUTPUTS
    for file in ("m.json", "own.py", "sweep.toml", "trees/a.json", "p.jsonl", "bound.json", "costs.json")
    if file in COMMANDS[name] + " trees/a.json" * (name == "sweep")
]
OWN = """
def f(paths, target, draft, rng):
    return (), rng.categorical(target(()))
"""
SWEEP = """
paths = 1
algorithms = ["bv"]
[[family]]
name = "folder"
path = "trees"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_problem(load_problem("markov-3"), "m.json")
    Path("trees").mkdir()
    save_problem(load_problem("coin-2"), "trees/a.json")
    Path("p.jsonl").write_text('{"text": "A"}\n')
    Path("own.py").write_text(OWN)
    Path("sweep.toml").write_text(SWEEP)
    cell = {"paths": 1, "depth": 2, "nodes": 2.0, "algorithms": {"bv": {"block_efficiency": 2.0}}}
    Path("bound.json").write_text(json.dumps({"schema": "lpverify/bound@1", "settings": {}, "cells": [cell]}))
    costs = {"draft_step": 0.01, "target_pass": 0.1, "verify": {"bv": 0.01}, "round": 0.01}
    Path("costs.json").write_text(json.dumps({"schema": "lpverify/costs@1", **costs}))
    return tmp_path


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(name: str, **outputs: str) -> tuple[int, str]:
        words = COMMANDS[name].split()
        for option, path in outputs.items():
            words[words.index("--" + option.replace("_", "-")) + 1] = path
        with pytest.raises(SystemExit) as exit_:
            app(words)
        return int(exit_.value.code or 0), capsys.readouterr().err

    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def suffix(name: str, option: str) -> str:
    """What a file of this option must end in."""
    return COMMANDS[name].split(f"{option} ")[1].split()[0][1:]


def refused(run: Any, folder: Path, name: str, option: str, path: str, match: str) -> None:
    before = contents(folder)
    code, err = run(name, **{option[2:].replace("-", "_"): path})
    assert (code, err.count("\n")) == (2, 1), err
    assert match in err
    assert contents(folder) == before


FOREIGN = {
    "text": b"notes\n",
    "no newline": b"notes",
    "one byte": b"{",
    "a blank line": b"\n",
    "JSON": b'{"schema": "mine"}\n',
    "a document of another command": b'{\n "schema": "lpverify/theorem@1",\n "x": 1\n}\n',
    "rows of another command": b'{"schema": "lpverify/theorem-record@1", "settings": {}}\n',
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "a large file": b"a,b\n" * 100_000,
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize(("name", "option"), OUTPUTS)
def test_a_file_that_is_not_ours(run: Any, folder: Path, name: str, option: str, kind: str) -> None:
    """Directly, by a symbolic and by a hard link."""
    end = suffix(name, option)
    file, link, hard = Path(f"mine{end}"), Path(f"link{end}"), Path(f"hard{end}")
    file.write_bytes(FOREIGN[kind])
    link.symlink_to(file)
    os.link(file, hard)
    for path in (file, link, hard) if kind == "text" else (file,):
        rows = option == "--records" or name == "sweep"
        match = f"{path} line 1: got" if rows and kind == "one byte" else f"{option}: got {path}, which "
        refused(run, folder, name, option, str(path), match)
    assert link.is_symlink()


@pytest.mark.parametrize(("name", "option", "file"), INPUTS)
@pytest.mark.parametrize("by", ["name", "dot", "symbolic", "hard"])
def test_an_input_is_not_an_output(run: Any, folder: Path, name: str, option: str, file: str, by: str) -> None:
    end = suffix(name, option)
    path = {"name": file, "dot": f"./x/../{file}", "symbolic": f"link{end}", "hard": f"hard{end}"}[by]
    Path("x").mkdir()
    if by == "symbolic":
        Path(path).symlink_to(file)
    elif by == "hard":
        os.link(file, path)
    if not path.endswith(end):  # refused for its suffix, but by a link
        return
    refused(run, folder, name, option, path, f"{option}: got {path}, ")


@pytest.mark.parametrize("name", [name for name, option in OUTPUTS if option == "--records"])
def test_two_outputs_are_two_files(run: Any, folder: Path, name: str) -> None:
    Path("empty").touch()
    os.link("empty", "other")
    for records, document in (("same", "same"), ("same", "./same"), ("empty", "other")):
        before = contents(folder)
        code, err = run(name, records=records, json=document)
        assert code == 2
        assert f"--records: got {records}, the same file as --json, expected another file" in err
        assert contents(folder) == before


@pytest.mark.parametrize(("name", "option"), OUTPUTS)
def test_folders_and_what_is_missing(run: Any, folder: Path, name: str, option: str) -> None:
    end = suffix(name, option)
    Path(f"folder{end}").mkdir()
    refused(run, folder, name, option, f"folder{end}", f"{option}: got the directory folder")
    refused(run, folder, name, option, f"none/x{end}", f"{option}: got none/x")
    refused(run, folder, name, option, f"p.jsonl/x{end}", f"{option}: got p.jsonl/x")


@pytest.mark.parametrize(("name", "option"), [(n, o) for n, o in OUTPUTS if o in ("--records",) or n == "sweep"])
def test_rows_need_a_file(run: Any, folder: Path, name: str, option: str) -> None:
    os.mkfifo("pipe")
    for path in ("pipe", "/dev/null", "/dev/full"):
        match = f"{option}: got {path}, a device or a pipe, expected a file to append to"
        refused(run, folder, name, option, path, match)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_the_command_wrote_is_replaced(run: Any, folder: Path, name: str) -> None:
    """A second run of the same command; rows are continued. An empty file has nothing to lose."""
    for file in ("J", "R", "P.png"):
        Path(file).touch()
    for _ in range(2):
        code, err = run(name)
        assert (code, err) == (0, "")
    for option in (option for other, option in OUTPUTS if other == name):
        path = Path(COMMANDS[name].split(f"{option} ")[1].split()[0])
        assert path.stat().st_size > 0
        if option != "--plot":
            content = path.read_bytes()
            path.write_bytes(b"my notes\n" + content)
            refused(run, folder, name, option, str(path), f"{option}: got {path}, which ")
            path.write_bytes(content)


def test_a_problem_is_replaced_by_the_same_one_only(run: Any, folder: Path) -> None:
    assert run("random")[0] == 0
    first = Path("J").read_bytes()
    Path("J").write_bytes(first.replace(b"seed 0", b"seed 9"))  # somebody's own
    refused(run, folder, "random", "--output", "J", "--output: got J, which has other content, expected a new file")
    shutil.copy("m.json", "problem.json")
    refused(run, folder, "random", "--output", "problem.json", "expected a new file, or one that has the same problem")


def test_rows_do_not_become_problems(run: Any, folder: Path) -> None:
    match = "trees/rows.json: got a file in a folder of problems, expected a name that ends in .jsonl"
    refused(run, folder, "sweep", "--output", "trees/rows.json", match)
    assert run("sweep", output="trees/rows.jsonl") == (0, "")


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
def test_a_folder_is_not_replaced_by_what_is_computed_from_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extract = f"extract {MODELS} -l 2 --contexts 1 -o out"
    for more, code in (("", 0), (" --seed 1 --recompute", 2)):
        if more:
            [problem] = [path for path in Path("out").iterdir() if path.name != "settings.json"]
            extract = extract.replace("m.json", str(problem)) + more
        before = contents(folder)
        with pytest.raises(SystemExit) as exit_:
            app(extract.split())
        assert int(exit_.value.code or 0) == code
    assert f"--output, {problem.name}: got {problem}, the same file as --target" in capsys.readouterr().err
    assert contents(folder) == before


def test_standard_output_is_a_file_too(folder: Path) -> None:
    """The table would go to the same file as the document."""
    with open("out.json", "w") as file:
        words = [sys.executable, "-m", "lpverify", *"explain m.json --json out.json".split()]
        ended = subprocess.run(words, stdout=file, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 2
    assert "--json: got out.json, the same file as standard output, expected another file" in ended.stderr
    assert Path("out.json").read_bytes() == b""
