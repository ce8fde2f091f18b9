"""Kill runs at random moments and resume them: the rows must be those of an undisturbed run.

    python tests/kill_runs.py --kills 200

Each run is a forked process that calls the command line; it gets SIGKILL, SIGINT or SIGTERM after a random part of the
time that an undisturbed run takes, is started again until it ends by itself, and its rows are compared one by one with
the undisturbed ones, without what is measured with a clock. After an interruption the exit code is 130, no temporary
file is left, and the file is not locked. Exits with 1 at the first difference.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

MEASURED = ("seconds", "peak_memory", "versions", "provenance")
PROMPTS = ("import os", "def main():", "class A:", "for i in range(3):", "return x", "if a:")
SWEEP = """
vocab = 2
depth = [1, 2]
paths = [1, 2]
seeds = 8
algorithms = ["bv", "gbv", "pbv", "optimum"]
[[family]]
name = "softmax"
temperature = [0.5, 1.0]
"""
CONTEXTS = "--contexts 2 --stride 4 --depth 2"
COMMANDS = {
    "decode": "decode --prompts p.jsonl --compare bv,pbv -k 2 -l 2 --max-new-tokens 8 --records rows --json out.json",
    "bound": f"bound --prompts p.jsonl {CONTEXTS} --paths 1,2 --algorithms bv,gbv,pbv --records rows --json out.json",
    "sweep": "sweep sweep.toml -o rows",
    "extract": f"extract --prompts p.jsonl {CONTEXTS} --top-k 2 -o folder",
}
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM)


def run(command: str) -> int:
    """The exit code of a command in this process."""
    try:
        from lpverify.cli import app

        app(command.split())
    except KeyboardInterrupt:  # before or after the command line catches it
        return 130
    except SystemExit as ended:
        return int(ended.code or 0)
    return 99


def start(command: str, folder: Path, whole: bool) -> int:
    """The process id of a run in ``folder``; ``whole``: of a new interpreter."""
    process = os.fork()
    if process == 0:
        code = 130  # where the signal comes at once
        try:
            os.chdir(folder)
            for descriptor in (1, 2):
                os.dup2(os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
            if whole:
                os.execv(sys.executable, [sys.executable, "-m", "lpverify", *command.split()])
            code = run(command)
        finally:
            os._exit(code)
    return process


def wait(process: int) -> int:
    """The exit code, or minus the signal that ended the process."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def fresh(folder: Path) -> Path:
    folder.mkdir()
    lines = [json.dumps({"text": text}) for text in PROMPTS]
    (folder / "p.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "sweep.toml").write_text(SWEEP)
    return folder


def rows(folder: Path) -> list[Any]:
    """What a run stored, without what is measured with a clock."""
    texts = (folder / "rows").read_text().splitlines() if (folder / "rows").exists() else []
    stored: list[Any] = [{k: v for k, v in json.loads(text).items() if k not in MEASURED} for text in texts]
    return stored + [(path.name, json.loads(path.read_text())) for path in sorted(folder.glob("folder/*-*.json"))]


def check_interrupted(folder: Path, sent: int, code: int, whole: bool) -> None:
    """Raise AssertionError for what an interruption must not leave."""
    if sent == signal.SIGKILL:
        assert code in (-sent, 0), f"exit code {code}"
        return
    output = (folder / "output.txt").read_text()
    assert code in (130, 0, -sent if whole else 0), f"exit code {code}: {output}"  # as Python begins or ends
    assert "Traceback" not in output, output
    left = [path for path in folder.rglob("*") if path.name.startswith(".lpverify-")]
    assert not left, f"temporary files {left}"
    for name in ("rows", "folder/settings.json"):
        if (folder / name).exists():
            with open(folder / name) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if it is locked


def killed(name: str, kills: int, base: Path, generator: random.Random, whole: bool) -> Counter[str]:
    """Kill a command's runs ``kills`` times; how often each signal ended a run, and how many runs were resumed."""
    command, counts, number = COMMANDS[name], Counter[str](), 0
    reference = fresh(base / f"{name}-reference")
    os.chdir(fresh(base / f"{name}-first"))
    with open("output.txt", "w") as output, redirect_stdout(output):
        assert run(command) == 0  # in this process: what it imports and compiles is there in all that it forks
    began = time.perf_counter()
    assert wait(start(command, reference, whole)) == 0, (reference / "output.txt").read_text()
    seconds, expected = time.perf_counter() - began, rows(reference)
    longest = seconds
    assert expected == rows(Path()), "an undisturbed run has other rows than the first"
    assert len(expected) >= len(PROMPTS)
    while counts.total() < kills:
        number += 1
        folder = fresh(base / f"{name}-{number}")
        code = -1
        while code != 0:
            process = start(command, folder, whole)
            sent = generator.choice(SIGNALS) if counts.total() < kills else 0
            if sent:
                time.sleep(generator.uniform(0, seconds))
                os.kill(process, sent)  # harmless where it has just ended: it is waited for below
            code = wait(process)
            if code == 0 and sent:  # it ended before: it had fewer rows to compute, or the machine was slow at first
                seconds *= 0.9
            elif sent:
                seconds = min(1.1 * seconds, longest)
            if not sent:
                assert code == 0, (folder / "output.txt").read_text()
            elif code:
                check_interrupted(folder, sent, code, whole)
                counts[signal.Signals(sent).name] += 1
        assert rows(folder) == expected, f"{folder}: other rows than those of {reference}"
        if (folder / "out.json").exists():
            json.loads((folder / "out.json").read_text())
    return counts + Counter({"runs": number})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="of all commands together")
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--whole", action="store_true", help="a new interpreter each time, which is slow")
    parser.add_argument("--keep", type=Path, help="folder for the files; default: a temporary one")
    options = parser.parse_args()
    names = options.commands.split(",")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also in what is forked, before the command line does
    with tempfile.TemporaryDirectory() as scratch:
        for i, name in enumerate(names):
            kills = options.kills * (i + 1) // len(names) - options.kills * i // len(names)
            began = time.perf_counter()
            try:
                generator = random.Random(f"{options.seed} {name}")
                counts = killed(name, kills, options.keep or Path(scratch), generator, options.whole)
            except AssertionError as error:
                sys.exit(f"{name}: {error}")
            signals = ", ".join(f"{count} {sent}" for sent, count in sorted(counts.items()) if sent != "runs")
            seconds = time.perf_counter() - began
            print(f"{name}: {signals}; {counts['runs']} runs, all equal; {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
