"""The store of JSON lines: recognition, identity, resuming, locking, faults; texts and provenance."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lpverify import files
from lpverify.errors import InputError, SizeError
from lpverify.files import JsonLines, checkout, distinct, parse_json, read_text

SCHEMA = "test/row@1"
IDENTITY = {"seed": 0, "models": {"target": "abc", "sizes": (1, 2)}}
ROWS = [{"key": str(i), "text": "line\u2028end \udcff" * i, "value": [0.1 * i, None]} for i in range(5)]
LOCKED = "a file that another run is writing"


def store(path: Path, rows: list[dict[str, Any]] = ROWS) -> bytes:
    with JsonLines(path, SCHEMA, IDENTITY) as lines:
        lines.append(*rows)
    return path.read_bytes()


def resume(path: Path) -> None:
    """Append what is missing, as a rerun does."""
    with JsonLines(path, SCHEMA, IDENTITY) as lines:
        keys = set(lines.read(lambda row: row["key"]))
        for row in ROWS:
            if row["key"] not in keys:
                lines.append(row)


def test_rows_come_back_and_every_line_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    content = store(path, ROWS[:3])
    with JsonLines(path, SCHEMA, IDENTITY) as lines:
        assert [{key: row[key] for key in ROWS[0]} for row in lines.rows] == ROWS[:3]
        lines.append(*ROWS[3:])
    assert path.read_bytes() == store(tmp_path / "whole.jsonl")
    assert path.read_bytes().startswith(content)
    for line in path.read_text().splitlines():  # also where a text contains a Unicode line separator
        assert json.loads(line)["schema"] == SCHEMA
        assert json.loads(line)["settings"] == {"seed": 0, "models": {"target": "abc", "sizes": [1, 2]}}
    with JsonLines(None, SCHEMA, IDENTITY) as memory:
        memory.append(ROWS[0])
        assert memory.rows == []


def test_killed_at_every_byte(tmp_path: Path) -> None:
    """Whatever part of the last two lines was written, resuming gives the file of an undisturbed run."""
    path = tmp_path / "rows.jsonl"
    whole = store(path)
    second_last = whole[:-1].rfind(b"\n", 0, whole[:-1].rfind(b"\n"))
    for cut in range(second_last, len(whole) + 1):
        path.write_bytes(whole[:cut])
        JsonLines(path, SCHEMA, IDENTITY).close()
        assert path.read_bytes() == whole[:cut]  # opening changes nothing
        resume(path)
        assert path.read_bytes() == whole[:-1] + b"\n" * (cut != len(whole) - 1)  # only its newline was missing
    for cut in (0, 12, 20, 40, len(whole.split(b"\n")[0])):  # in the first line
        path.write_bytes(whole[:cut])
        resume(path)
        assert path.read_bytes() == whole
    path.write_bytes(whole[:-20] + b"\0" * 300)  # the machine went down: the length is on the disk, the data are not
    resume(path)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "content",
    [
        b"{", b"[", b"\n", b"\0\0\0", b'{"a": 1}', b'{"a": 1}\n', b"notes\n", b"notes", b'{"schema": "other"}\n',
        b'{"schema": "test/row@10"', b'{"schema": "test/row@2", "settings"', b"\xff\xfe\x00", b"[" * 100_000,
        b'{"schema": ["test/row@1"]}\n', b'{"schema": "test/row@1", "settings": {"seed": 0',
        b'{\n "schema": "other"\n}\n',
    ],
)  # fmt: skip
def test_a_file_of_another_kind_is_refused_and_untouched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    if content.startswith(b'{"schema": "test/row@1", "settings": {"seed": 0'):
        content = store(path, ROWS[:1]) + b"and a remark"  # a line of ours, then something else
    path.write_bytes(content)
    for _ in range(2):  # the lock is released
        with pytest.raises(InputError, match=r"rows\.jsonl line \d: got .*, expected a row of test/row@1"):
            JsonLines(path, SCHEMA, IDENTITY)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        (IDENTITY | {"seed": 1}, "line 1: got seed = 0, expected 1, or another file or folder, or --recompute to"),
        ({"seed": 0, "models": {"target": "x", "sizes": [1, 2]}}, "got models.target = 'abc', expected 'x'"),
        ({"seed": 0}, "got models.sizes = [1, 2], expected no models.sizes"),
        (IDENTITY | {"torch": "2.13"}, "got no torch, expected '2.13'"),
        (IDENTITY | {"models": {}}, "got no models, expected {}"),
        ({}, "got models.sizes = [1, 2], expected no models.sizes"),
    ],
)
def test_another_identity_is_refused(tmp_path: Path, identity: dict[str, Any], message: str) -> None:
    path = tmp_path / "rows.jsonl"
    for torn in (b"", b'{"schema": "test/row@1", "set'):
        content = store(path) + torn
        path.write_bytes(content)
        with pytest.raises(InputError) as error:
            JsonLines(path, SCHEMA, identity)
        assert message in str(error.value)
        assert path.read_bytes() == content
        path.unlink()


def test_a_row_that_cannot_be_parsed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    store(path)
    for _ in range(2):
        with pytest.raises(InputError, match=r"rows\.jsonl line 1: got KeyError: 'missing', expected a test/row@1"):
            JsonLines(path, SCHEMA, IDENTITY).read(lambda row: row["missing"])


def test_rows_can_be_dropped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    store(path)
    with JsonLines(path, SCHEMA, IDENTITY) as lines:
        lines.keep(lambda row: row["key"] not in "13")
        assert [row["key"] for row in lines.rows] == ["0", "2", "4"]
        with pytest.raises(InputError, match=LOCKED):
            JsonLines(path, SCHEMA, IDENTITY)
        lines.append(ROWS[1])
    with JsonLines(path, SCHEMA, IDENTITY) as lines:
        assert [row["key"] for row in lines.rows] == ["0", "2", "4", "1"]
        lines.keep(lambda row: False)
    assert path.read_bytes() == b""


@pytest.mark.parametrize(("written", "number"), [(0, errno.ENOSPC), (1, errno.ENOSPC), (30, errno.EDQUOT), (30, 0)])
def test_a_full_disk_or_an_interruption_leaves_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int, number: int
) -> None:
    """The disk is full after some bytes (or Ctrl-C comes then): the file is as before, and the run resumes."""
    path = tmp_path / "rows.jsonl"
    before = store(path, ROWS[:2])
    write = os.write
    calls = 0

    def failing(handle: int, content: bytes) -> int:
        nonlocal calls
        calls += 1
        if written and calls == 1:
            return write(handle, content[:written])
        raise OSError(number, os.strerror(number)) if number else KeyboardInterrupt

    with JsonLines(path, SCHEMA, IDENTITY) as lines:
        monkeypatch.setattr(os, "write", failing)
        with pytest.raises(InputError if number else KeyboardInterrupt) as error:
            lines.append(ROWS[2])
        monkeypatch.undo()
        assert path.read_bytes() == before
        if number:
            assert str(error.value) == f"{path}: got {os.strerror(number)}, expected a file to append to"
        lines.append(ROWS[2])  # space was made
    resume(path)
    assert path.read_bytes() == store(tmp_path / "whole.jsonl")


def test_an_interruption_after_the_last_byte_keeps_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"

    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    with JsonLines(path, SCHEMA, IDENTITY) as lines:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                lines.append(ROWS[0])
        lines.append(*ROWS[1:])
    assert path.read_bytes() == store(tmp_path / "whole.jsonl")


def test_when_even_truncating_fails_the_torn_line_is_dropped_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    store(path, ROWS[:2])
    write, truncate, broken = os.write, os.ftruncate, False

    def failing(handle: int, content: bytes) -> int:
        nonlocal broken
        if broken:
            raise OSError(errno.EIO, "Input/output error")
        broken = True
        return write(handle, content[:30])

    def refusing(handle: int, size: int) -> None:
        if broken:
            raise OSError(errno.EIO, "Input/output error")
        truncate(handle, size)

    with monkeypatch.context() as patch, JsonLines(path, SCHEMA, IDENTITY) as lines:
        patch.setattr(os, "write", failing)
        patch.setattr(os, "ftruncate", refusing)
        with pytest.raises(InputError, match="Input/output error"):
            lines.append(ROWS[2])
    assert not path.read_bytes().endswith(b"\n")
    resume(path)
    assert path.read_bytes() == store(tmp_path / "whole.jsonl")


def test_a_file_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in (
        (tmp_path, "Is a directory"),
        (tmp_path / "no" / "such", "No such file or directory"),
        (Path("/dev/full"), "a device or a pipe"),
        (Path("/dev/zero"), "a device or a pipe"),
        (tmp_path / "pipe", "a device or a pipe"),
        ("a\0b", "embedded null byte"),
    ):
        with pytest.raises(InputError, match=f"got {reason}, expected a file to append to"):
            JsonLines(path, SCHEMA)

    def refusing(*arguments: Any) -> int:
        raise PermissionError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(InputError, match=r"rows\.jsonl: got Read-only file system, expected a file to append to"):
        JsonLines(tmp_path / "rows.jsonl", SCHEMA)


def test_a_file_that_is_removed_or_replaced_during_the_run(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for change in (Path.unlink, lambda path: files.write_whole(path, b"something else\n")):
        path.unlink(missing_ok=True)
        store(path)
        with JsonLines(path, SCHEMA, IDENTITY) as lines:
            change(path)
            with pytest.raises(InputError, match="got (No such file|a file that was replaced)"):
                lines.append(ROWS[0])
    assert path.read_bytes() == b"something else\n"


def test_nothing_is_left_of_a_run_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    JsonLines(path, SCHEMA).close()
    assert not path.exists()
    path.touch()
    JsonLines(path, SCHEMA).close()
    assert path.exists()  # it was there before


OTHER = """
import sys, time
from lpverify.files import JsonLines
with JsonLines(sys.argv[1], "test/row@1", {"seed": 0}) as lines:
    lines.append({"key": "a"})
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_two_processes(tmp_path: Path, sent: signal.Signals) -> None:
    """The second is refused at once with one line; however the first ends, the lock is free and its row is there."""
    path = tmp_path / "rows.jsonl"
    program = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert program.stdout is not None
    try:
        assert program.stdout.readline() == b"ready\n"
        link = tmp_path / "link.jsonl"
        link.symlink_to(path)
        for name in (path, link):
            with pytest.raises(InputError, match=f"jsonl: got {LOCKED}, expected a file to append to"):
                JsonLines(name, SCHEMA, {"seed": 0})
    finally:
        program.send_signal(sent)
        program.wait()
        program.stdout.close()
    with JsonLines(path, SCHEMA, {"seed": 0}) as lines:
        assert [row["key"] for row in lines.rows] == ["a"]


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """A writer that is killed while it appends: whole lines, resumed to the file of an undisturbed run."""
    text = OTHER.replace("time.sleep(600)", "[lines.append({'key': str(i), 'x': 'y' * 5000}) for i in range(10**6)]")
    for i in range(5):
        path = tmp_path / f"{i}.jsonl"
        program = subprocess.Popen([sys.executable, "-c", text, str(path)], stdout=subprocess.PIPE)
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        time.sleep(0.01 * i)
        program.kill()
        program.wait()
        program.stdout.close()
        with JsonLines(path, SCHEMA, {"seed": 0}) as lines:
            keys = [row["key"] for row in lines.rows]
            assert keys == ["a", *map(str, range(len(keys) - 1))]
            lines.append({"key": "end"})
        assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == [*keys, "end"]


@pytest.mark.parametrize("link", [os.symlink, os.link, lambda path, other: None])
def test_one_file_for_two_purposes(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    source, other = tmp_path / "source", tmp_path / "other"
    source.write_bytes(b"")
    link(source, other)
    same = other if other.exists() else tmp_path / "." / "source"
    with pytest.raises(InputError, match="--json: got .*, the same file as --prompts, expected another file"):
        distinct({"--records": None, "--json": str(same)}, {"--prompts": source})
    with pytest.raises(InputError, match="--output: got .*, the same file as --records"):  # neither exists
        distinct({"--records": tmp_path / "new", "--output": tmp_path / "x" / ".." / "new"}, {})
    distinct({"--json": "-", "--plot": None, "--output": tmp_path / "new"}, {"--prompts": "-", "TEXT": "a\0b"})
    distinct({"--json": "/dev/null", "--plot": "/dev/null"}, {"a": source, "b": source, "c": tmp_path, "d": "A" * 9999})
    assert source.read_bytes() == b""


def test_the_code_is_part_of_what_rows_depend_on(tmp_path: Path) -> None:
    """A verifier that is edited computes other rows; help texts do not."""
    copy = tmp_path / "lpverify"
    shutil.copytree(Path(files.__file__).parent, copy, ignore=shutil.ignore_patterns("bundled", "__pycache__"))
    before = files.software()["code"]
    hashes = [files.code_hash.__wrapped__(copy)]
    for name in ("cli/decode.py", "report/plots.py", "examples/notes.txt", "verifiers/gbv.py", "numerics.py"):
        with open(copy / name, "a") as file:
            file.write("# edited\n")
        hashes.append(files.code_hash.__wrapped__(copy))
    assert hashes[:4] == [before] * 4
    assert len(set(hashes)) == 3


def test_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for content in (b"\xef\xbb\xbfa = 1", b"a = 1"):
        path.write_bytes(content)
        assert read_text(path, "text") == "a = 1"
    for content, match in ((b"ab\xff", r"a\.txt: byte 2: got invalid start byte, expected UTF"), (None, "a readable")):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(InputError, match=match):
            read_text(path, "a readable file")
    with pytest.raises(SizeError, match=r"/dev/zero: got a file of more than"):
        read_text("/dev/zero", "text")
    for text, message in (
        ("{", "a.json: line 1 column 2: got Expecting property name"),
        ('{"a": 1, "a": 2}', 'a.json: key "a": got two values, expected one'),
        ("9" * 5000, "a.json: got an integer with too many digits"),
        ("[" * 100_000, "a.json: got JSON nested too deep"),
    ):
        with pytest.raises(InputError) as error:
            parse_json(text, "a.json")
        assert str(error.value).startswith(message)


def test_the_commit_is_that_of_the_code(tmp_path: Path) -> None:
    """Data that were just written do not count as changes of the code; changed code is listed."""

    def git(*arguments: str) -> str:
        user = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *user, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert checkout(tmp_path) is None
    git("init", "-q")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("1")
    (tmp_path / "data.json").write_text("1")
    git("add", ".")
    git("commit", "-qm", "x")
    commit = git("rev-parse", "HEAD")
    (tmp_path / "data.json").write_text("2")
    assert checkout(tmp_path) == {"commit": commit}
    (tmp_path / "code" / "a.py").write_text("2")
    git("add", ".")
    assert checkout(tmp_path) == {"commit": commit, "changed": ["code/a.py"]}
