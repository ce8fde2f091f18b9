"""Every command and every line of Python in README.md and docs/ runs, and the tables are what the project prints."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = {
    path.name: path.read_text()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
}
MODELS = ("decode", "extract", "bound")
"""Commands that need torch."""


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def commands(text: str) -> list[list[str]]:
    lines = [line for block in blocks(text, "sh") for line in block.splitlines()]
    return [command for line in lines if (command := shlex.split(line, comments=True))]


def run(command: list[str], folder: Path) -> str:
    """Standard output of a command that succeeds without a word on standard error; it may take as long as it takes."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_MODULES_CACHE": str(folder / "modules")}
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 0, (command, ended.stderr)
    assert ended.stderr == "", command
    return ended.stdout


def test_pages() -> None:
    assert {"README.md", "theory.md", "command-line.md", "decoding.md", "results.md"} <= set(PAGES)
    assert len(PAGES["README.md"].split()) <= 1200


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    named = {command[1] for text in PAGES.values() for command in commands(text) if command[0] == "make"}
    assert "demo" in named
    named |= {target for text in PAGES.values() for target in re.findall(r"`make ([a-z-]+)`", text)}
    assert named <= targets


@pytest.mark.heavy
@pytest.mark.parametrize("page", [name for name, text in PAGES.items() if commands(text)])
def test_commands_run_in_order(page: str, tmp_path: Path) -> None:
    """In one folder, because later commands read files that earlier ones wrote."""
    for block in blocks(PAGES[page], "jsonl"):
        (tmp_path / "prompts.jsonl").write_text(block)
    program = [command for command in commands(PAGES[page]) if command[0] == "lpverify"]
    assert program
    for command in program:
        if command[1] in MODELS and find_spec("torch") is None:
            continue
        run([sys.executable, "-m", *command], tmp_path)
    if "gap.png" in PAGES[page] and page != "results.md":
        assert (tmp_path / "gap.png").stat().st_size > 10_000


@pytest.mark.parametrize("page", [name for name, text in PAGES.items() if blocks(text, "python")])
def test_python_runs(page: str, tmp_path: Path) -> None:
    for block in blocks(PAGES[page], "python"):
        if "open_pair" in block or "transformers" in block:
            pytest.importorskip("transformers")
        assert "True" in run([sys.executable, "-c", block], tmp_path)


def test_problem_files_load(tmp_path: Path) -> None:
    from lpverify import load_problem

    files = [block for text in PAGES.values() for block in blocks(text, "json")]
    assert files
    for block in files:
        (tmp_path / "mine.json").write_text(block)
        assert load_problem(str(tmp_path / "mine.json"), num_paths=2).pair.rational


@pytest.mark.parametrize("page", PAGES)
def test_files_exist(page: str) -> None:
    folder = ROOT if page in ("README.md", "CONTRIBUTING.md") else ROOT / "docs"
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGES[page]):
        assert (folder / link).is_file(), link
    for script in re.findall(r"(?:python |`)(experiments/\S+\.py)", PAGES[page]):
        assert (ROOT / script).is_file(), script
    for name in re.findall(r"`((?:paper_figs|lpverify|docs)/[a-z_/]+\.[a-z]+)`", PAGES[page]):
        if name.endswith("one_token.py"):
            continue  # the example
        assert (ROOT / name).is_file(), name


def test_anchors_exist() -> None:
    def anchors(text: str) -> set[str]:
        headings = re.findall(r"^#+ (.*)$", text, flags=re.M)
        return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}

    links = [link for text in PAGES.values() for link in re.findall(r"\]\((?:\.\./)?([A-Za-z-]+\.md)#([^)]+)\)", text)]
    assert len(links) > 5
    for page, anchor in links:
        assert anchor in anchors(PAGES[page]), (page, anchor)


def between(marker: str) -> str:
    [table] = [
        table
        for text in PAGES.values()
        for table in re.findall(rf"<!-- {marker} -->\n(.*?)<!-- /{marker} -->", text, flags=re.S)
    ]
    return str(table)


def test_tables_are_the_stored_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "experiments")
    import readme

    for name, block in readme.BLOCKS.items():
        assert between(name).strip() == block().strip(), f"python experiments/readme.py --write ({name})"


def test_demo_table_has_the_values_that_the_demo_prints() -> None:
    """Names and values; rounding residues differ from run to run."""
    from lpverify import compare, load_problem

    printed = between("demo")
    names = ["bv", "gbv", "tgbv", "pbv", "ebv"]
    for row in compare(load_problem("tree-v3-l4", num_paths=4), algorithms=names, max_drafts=1).itertuples():
        line = next(line for line in printed.splitlines() if line.strip().startswith(str(row.name)))
        assert float(line.split()[len(str(row.name).split())]) == pytest.approx(row.block_efficiency, abs=2e-6)
