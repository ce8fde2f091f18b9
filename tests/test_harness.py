"""Generated files and command lines: no defect, no changed file, one line for what is wrong.

``make test`` tries some, ``make test-slow`` ten thousand. What they found is in the tests of the command concerned.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from command_lines import check, command_lines, files, prepare, run_in
from hypothesis import HealthCheck, given, settings

from lpverify.cli import output

pytest.importorskip("transformers")  # decode, bound and extract are among the commands

SLOW: Any = list(HealthCheck)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def tried(content: dict[str, bytes], arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), content)
        check(run_in(Path(folder), arguments))


@settings(max_examples=120, deadline=None, derandomize=True, database=None, suppress_health_check=SLOW)
@given(content=files, arguments=command_lines())
def test_generated_command_lines(content: dict[str, bytes], arguments: list[str]) -> None:
    tried(content, arguments)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, database=None, suppress_health_check=SLOW)
@given(content=files, arguments=command_lines())
def test_ten_thousand_command_lines(content: dict[str, bytes], arguments: list[str]) -> None:
    tried(content, arguments)


SOLVE = ["solve", "coin-2", "-k", "1", "--json", "out.json"]


def broken_defect(write: Any) -> Any:
    def broken(path: str, data: Any) -> None:
        raise RuntimeError("a defect")

    return broken


def broken_input(write: Any) -> Any:
    def broken(path: str, data: Any) -> None:
        write(path, data)
        Path("p.json").write_bytes(b"changed")

    return broken


def broken_temporary(write: Any) -> Any:
    def broken(path: str, data: Any) -> None:
        write(path, data)
        Path(".lpverify-left").write_bytes(b"")

    return broken


def broken_twice(write: Any) -> Any:
    def broken(path: str, data: Any) -> None:
        print("{}")
        write(path, data)

    return broken


@pytest.mark.parametrize(
    ("broken", "message", "place"),
    [
        (broken_defect, "70", "out.json"),
        (broken_input, "p.json was changed", "out.json"),
        (broken_temporary, ".lpverify-left was left behind", "out.json"),
        (broken_twice, "Extra data", "-"),
    ],
)
def test_harness_sees_a_broken_program(
    broken: Any, message: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path, {"p.json": b"{}"})
    monkeypatch.setattr(output, "write_json", broken(output.write_json))
    with pytest.raises((AssertionError, ValueError), match=message):
        check(run_in(tmp_path, [*SOLVE[:-1], place]))
