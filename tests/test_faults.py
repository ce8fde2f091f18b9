"""Whole commands that are killed, or find the disk full, at every single file operation: rows survive, runs resume."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lpverify import files
from lpverify.cli import app

MEASURED = ("seconds", "peak_memory", "versions", "provenance")
MODELS = "--target markov-3 --draft markov-3 --prompts p.jsonl"
SWEEP = """
vocab = 2
depth = 1
paths = [1, 2]
seeds = 2
algorithms = ["bv", "optimum"]
[[family]]
name = "markov"
"""
COMMANDS = {"sweep": "sweep sweep.toml -o rows"}
if find_spec("torch") is not None:
    COMMANDS |= {
        "decode": f"decode {MODELS} --compare bv,pbv -k 2 -l 2 --max-new-tokens 4 --records rows --json out.json",
        "bound": f"bound {MODELS} -k 1,2 -l 2 --contexts 2 --stride 2 --algorithms bv --records rows --json out.json",
        "extract": f"extract {MODELS} -l 2 --contexts 2 --stride 2 --top-k 2 -o folder",
    }
OPERATIONS = ("write", "fsync", "ftruncate", "replace", "unlink")
FULL = ("write", "fsync", "replace")  # what a full disk refuses


class Killed(BaseException):
    """The process is gone: no handler of this exception can change a file."""


class Faults:
    """File operations of `lpverify.files`: the one with this number fails, and unless ``once`` those after it."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException, names: tuple[str, ...], *, once: bool
    ) -> None:
        self.calls, self.number, self.error, self.once = 0, number, error, once
        for name in names:
            monkeypatch.setattr(files.os, name, self.failing(name, getattr(os, name)))

    def failing(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self.number and name == "write":
                handle, content = arguments
                operation(handle, content[: len(content) // 2])
            if self.calls == self.number or (self.happened and not self.once):
                raise self.error
            return operation(*arguments, **options)

        return call

    @property
    def happened(self) -> bool:
        return self.calls >= self.number


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(name: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app(COMMANDS[name].split())
    return int(ended.value.code or 0)


def fresh(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    Path("p.jsonl").write_text('{"text": "A"}\n{"text": "B C"}\n')
    Path("sweep.toml").write_text(SWEEP)


def stored() -> list[Any]:
    *lines, _ = Path("rows").read_text().split("\n") if Path("rows").exists() else [""]  # not what is torn
    rows: list[Any] = [{k: v for k, v in json.loads(line).items() if k not in MEASURED} for line in lines]
    return rows + [(path.name, json.loads(path.read_text())) for path in sorted(Path("folder").glob("*-*.json"))]


def temporary() -> list[Path]:
    return [path for path in Path().rglob(".lpverify-*") if path.is_file()]


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_every_operation(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    fresh(folder)
    assert run(name) == 0
    expected = stored()
    for number in range(1, 200):
        fresh(folder)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, number, Killed(), OPERATIONS, once=False)
            if faults_ended(name):
                break
        assert faults.happened
        assert run(name) == 0
        assert stored() == expected
        if Path("out.json").exists():
            json.loads(Path("out.json").read_text())
    assert 5 < number < 199
    assert capsys.readouterr().err == ""


def faults_ended(name: str) -> bool:
    """Does the command end by itself before the fault?"""
    try:
        app(COMMANDS[name].split())
    except SystemExit:
        return True
    except Killed:
        return False
    raise AssertionError("the command returned")


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_at_every_operation(
    folder: Path, name: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, exit code 2, whole rows, no temporary file; with space again the run resumes."""
    fresh(folder)
    assert run(name) == 0
    expected = stored()
    for at in range(1, 200):
        fresh(folder)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, at, OSError(number, os.strerror(number)), FULL, once=False)
            capsys.readouterr()
            code, error = run(name), capsys.readouterr().err
        if not faults.happened:
            break
        assert (code, error.count("\n")) == (2, 1), error
        assert os.strerror(number) in error
        rows = stored()
        assert rows == expected[: len(rows)]
        assert temporary() == []
        assert run(name) == 0
        assert stored() == expected
    assert 4 < at < 199


@pytest.mark.parametrize("name", COMMANDS)
def test_interrupted_at_every_operation(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C just before an operation: exit code 130, whole rows, no temporary file."""
    fresh(folder)
    assert run(name) == 0
    expected = stored()
    for number in range(1, 200):
        fresh(folder)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, number, KeyboardInterrupt(), OPERATIONS, once=True)
            code = run(name)
        if not faults.happened:
            break
        assert code == 130
        assert temporary() == []
        rows = stored()
        assert rows == expected[: len(rows)]
        assert run(name) == 0
        assert stored() == expected
    assert 5 < number < 199
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_two_processes(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The second is refused in one line and changes nothing; then it runs."""
    fresh(folder)
    path = Path("folder/settings.json" if name == "extract" else "rows")
    assert run(name) == 0
    expected, content = stored(), path.read_bytes()
    schema = json.loads(content.splitlines()[0])["schema"]
    capsys.readouterr()
    with files.JsonLines(path, schema):
        assert run(name) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert f"{path}: got a file that another run is writing" in err
    assert path.read_bytes() == content
    assert run(name) == 0
    assert stored() == expected


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "sweep"])
def test_killed_while_rows_are_replaced(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --recompute: at any moment the rows are those of one identity, and the next run completes them."""
    other = f"{COMMANDS[name]} --seed 1"
    fresh(folder)
    expected = []
    for command in (COMMANDS[name], f"{other} --recompute"):
        monkeypatch.setitem(COMMANDS, name, command)
        assert run(name) == 0
        expected.append(stored())
    before, after = expected
    for number in range(1, 200):
        fresh(folder)
        monkeypatch.setitem(COMMANDS, name, other.removesuffix(" --seed 1"))
        assert run(name) == 0
        monkeypatch.setitem(COMMANDS, name, f"{other} --recompute")
        with pytest.MonkeyPatch.context() as patch:
            Faults(patch, number, Killed(), OPERATIONS, once=False)
            if faults_ended(name):
                break
        assert all(row in before for row in stored()) or all(row in after for row in stored())
        assert run(name) == 0
        assert stored() == after
    assert 5 < number < 199


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from lpverify.cli import app
app(sys.argv[2:])
"""


def test_a_real_limit_of_size(folder: Path) -> None:
    """The operating system cuts a write in the middle of a row: the rows before it stay, and the run resumes."""
    fresh(folder)
    assert run("sweep") == 0
    expected, size = stored(), Path("rows").stat().st_size
    Path("rows").unlink()
    words = [sys.executable, "-c", LIMITED, str(size // 2), *COMMANDS["sweep"].split()]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "lpverify: error: rows: got File too large, expected a file to append to\n"
    rows = stored()
    assert 0 < len(rows) < len(expected)
    assert run("sweep") == 0
    assert stored() == expected
