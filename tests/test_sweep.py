"""Sweeps: rows against direct computation, resuming, failures, executors, bad configurations."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lpverify.cli import app
from lpverify.core import families as make
from lpverify.core.problem import VerifyProblem
from lpverify.errors import InputError
from lpverify.exact import compare
from lpverify.files import JsonLines
from lpverify.sweep import config as sweep
from lpverify.sweep import run as sweep_run
from lpverify.sweep.config import NAMES, Task, load_tasks, run_task, tasks
from lpverify.sweep.run import run_sweep

CONFIG = """
vocab = 2
depth = 2
paths = [1, 2]
seeds = [0, 3]
algorithms = ["bv", "gbv", "optimum"]
[[family]]
name = "dirichlet"
alpha = [0.5, 1]
[[family]]
name = "ties"
seeds = 1
"""
ROWS = (2 * 2 * 2 + 2 * 1) * 3


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "sweep.toml"
    path.write_text(CONFIG)
    return str(path)


def rows(path: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def content(path: Path | str) -> list[dict[str, Any]]:
    """What has to be the same in every run, in an order of its own."""
    kept = [{key: row[key] for key in row if key not in ("seconds", "provenance")} for row in rows(path)]
    return sorted(kept, key=lambda row: str(row["key"]))


def cli(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["sweep", *arguments])


def test_rows_are_those_of_a_comparison(config: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    result = cli(config, "-o", str(out))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{out}: {ROWS} rows computed, 0 found\n"
    found = rows(out)
    assert len({row["key"] for row in found}) == len(found) == ROWS
    for row in found:
        pair = make.family(row["family"], row["vocab"], row["depth"], row["seed"], **row["parameters"])
        frame = compare.compare(VerifyProblem(pair, row["paths"]), algorithms=["bv", "gbv"])
        expected = frame.set_index("name").loc[row["name"]]
        assert row["block_efficiency"] == expected["block_efficiency"]
        assert row["gap"] == pytest.approx(expected["gap"], abs=1e-15)
        assert row["lower_bound"] <= row["upper_bound"] <= row["lower_bound"] + 1e-9
        assert row["error"] is None
    versions = found[0]["provenance"]
    assert {"python", "lpverify", "numpy", "highspy", "git"} <= versions.keys()
    if versions["git"] is not None:
        assert len(versions["git"]["commit"]) == 40
        assert all(name.endswith((".py", ".toml", ".txt")) for name in versions["git"].get("changed", []))


def wait_for_rows(program: subprocess.Popen[Any], path: Path, count: int) -> None:
    limit = time.monotonic() + 120
    try:
        while not path.exists() or path.read_bytes().count(b"\n") < count:
            assert program.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.005)
    except BaseException:
        program.kill()
        program.wait()
        raise


def test_a_killed_sweep_goes_on_to_the_same_rows(config: str, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    many = tmp_path / "many.toml"
    many.write_text(CONFIG.replace("seeds = [0, 3]", "seeds = 12"))
    program = subprocess.Popen([sys.executable, "-m", "lpverify", "sweep", str(many), "-o", str(broken)])
    wait_for_rows(program, broken, 4)
    program.kill()
    program.wait()
    run_sweep(load_tasks(str(many)), str(whole))
    before = rows(broken)
    assert 4 <= len(before) < len(rows(whole))
    with broken.open("ab") as stream:  # what a kill within a write leaves
        stream.write(json.dumps(before[0])[:50].encode())
    outcome = run_sweep(load_tasks(str(many)), str(broken))
    assert outcome.existing == len(before)
    assert content(broken) == content(whole)
    assert rows(broken)[: len(before)] == before
    again = broken.read_bytes()
    assert run_sweep(load_tasks(str(many)), str(broken)).computed == 0
    assert broken.read_bytes() == again


def test_a_terminated_sweep_ends_as_an_interrupted_one(config: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    Path(config).write_text(CONFIG.replace("seeds = [0, 3]", "seeds = 500"))
    command = [sys.executable, "-m", "lpverify", "sweep", config, "-o", str(out)]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_rows(program, out, 2)
    program.terminate()
    printed, complained = program.communicate(timeout=60)
    assert (program.returncode, printed, complained) == (130, "", "lpverify: error: interrupted\n")
    assert len(rows(out)) >= 2


@pytest.mark.parametrize("cut", [1, 20, 500, 10_000])
def test_any_torn_end_is_repaired(config: str, tmp_path: Path, cut: int) -> None:
    out = tmp_path / "out.jsonl"
    run_sweep(load_tasks(config), str(out))
    whole = content(out)
    out.write_bytes(out.read_bytes()[:-cut])
    run_sweep(load_tasks(config), str(out))
    assert content(out) == whole


def test_only_the_missing_algorithms_are_computed(config: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run_sweep(load_tasks(config), str(out))
    Path(config).write_text(CONFIG.replace('"gbv", ', '"gbv", "pbv", ').replace("seeds = [0, 3]", "seeds = [0]"))
    outcome = run_sweep(load_tasks(config), str(out))
    assert (outcome.computed, outcome.existing, outcome.others) == (4 + 2, 3 * (4 + 2), 12)
    assert {row["name"] for row in rows(out)[ROWS:]} == {"pbv"}


def test_keys_depend_on_everything_that_is_asked_for() -> None:
    base: dict[str, Any] = {"family": "dirichlet", "parameters": {"alpha": 1.0}, "vocab": 2, "depth": 2, "num_paths": 2}
    base |= {"seed": 0, "names": ("bv",)}
    others: list[dict[str, Any]] = [
        {"family": "markov"}, {"parameters": {}}, {"vocab": 3}, {"depth": 3}, {"num_paths": 3}, {"seed": 1},
        {"names": ("gbv",)}, {"tolerance": 1e-6}, {"time_limit": 1.0}, {"max_drafts": 1},
    ]  # fmt: skip
    keys = [next(iter(Task(**base | other).keys.values())) for other in [{}, *others]]
    assert len(set(keys)) == len(keys)


def test_keys_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted sweep resumes with a later commit of the same version."""
    monkeypatch.setattr(sweep, "software", lambda *packages: {"lpverify": "1"})
    config: dict[str, Any] = {"vocab": 2, "depth": 2, "paths": [1, 2], "seeds": [0, 3], "algorithms": ["bv", "optimum"]}
    dirichlet = {"name": "dirichlet", "alpha": [0.5, 1]}
    softmax = {"name": "softmax", "temperature": 0.3, "max_terms": 10, "time_limit": 60}
    keys = [list(task.keys.values()) for task in tasks(config | {"family": [dirichlet, softmax]})]
    assert keys[0] == ["7fd14bd51c368cce", "27f353bf212e4290"]
    assert keys[6] == ["0153d70cc943c6e2", "67fed2dc4dadffbc"]
    assert keys[9] == ["8daae3d37e96c847", "23d292db6518f7ee"]


def test_a_byte_order_mark_is_dropped(config: str) -> None:
    plain = load_tasks(config)
    Path(config).write_bytes(b"\xef\xbb\xbf" + CONFIG.encode())
    assert load_tasks(config) == plain


def test_another_version_computes_its_own_rows(config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of both share the file; a worker of another version than the sweep's computes none."""
    out = tmp_path / "out.jsonl"
    assert cli(config, "-o", str(out)).exit_code == 0
    before = out.read_bytes()
    task = load_tasks(config)[0]
    versions = sweep.software(*sweep.PACKAGES)
    for package in versions:
        monkeypatch.setattr(sweep, "software", lambda *packages, own=package: versions | {own: "another"})
        assert not set(task.keys.values()) & set(load_tasks(config)[0].keys.values())
        assert all("worker: got {" in row["error"] for row in run_task(task))
    result = cli(config, "-o", str(out))
    assert result.stdout == f"{out}: {ROWS} rows computed, 0 found, {ROWS} of other sweeps or versions\n"
    assert out.read_bytes().startswith(before)
    monkeypatch.undo()
    assert cli(config, "-o", str(out)).stdout.startswith(f"{out}: 0 rows computed, {ROWS} found, {ROWS} of other")


def test_failures_are_rows_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = {"depth": 2, "paths": 2, "seeds": 1, "algorithms": ["bv", "gbv"], "vocab": [9000, 2]}
    todo = tasks(text | {"family": [{"name": "markov"}]})
    out = str(tmp_path / "out.jsonl")
    outcome = run_sweep(todo, out)
    assert (outcome.computed, outcome.failures) == (4, 2)
    bad, good = rows(out)[:2], rows(out)[2:]
    assert all("expected at most" in row["error"] and row["block_efficiency"] is None for row in bad)
    assert all(row["error"] is None and row["block_efficiency"] > 1 for row in good)
    assert run_sweep(todo, out).computed == 0
    assert run_sweep(todo, out, retry=True).computed == 2
    assert len(rows(out)) == 4

    def broken(problem: VerifyProblem, name: str, *others: Any) -> compare.AlgorithmResult:
        if name == "bv":
            raise AssertionError("two\nlines")
        return measure(problem, name, *others)

    measure = compare.measure
    monkeypatch.setattr(compare, "measure", broken)
    first, second = run_task(todo[1])
    assert first["error"] == "AssertionError: two lines"
    assert second["error"] is None
    assert sweep.failed(todo[1], RuntimeError("worker died"))[0]["error"] == "RuntimeError: worker died"


def test_local_processes_give_the_same_rows(config: str, tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    one, two = str(tmp_path / "one.jsonl"), str(tmp_path / "two.jsonl")
    run_sweep(load_tasks(config), one)
    command = [sys.executable, "-m", "lpverify", "sweep", config, "-o", two, "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert content(two) == content(one)


@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_gives_the_same_rows(config: str, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    one, two = str(tmp_path / "one.jsonl"), str(tmp_path / "two.jsonl")
    run_sweep(load_tasks(config), one)
    here = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(**here) as cluster:
        result = cli(config, "-o", two, "--dask", cluster.scheduler_address)
    assert result.exit_code == 0, result.stderr
    assert content(two) == content(one)


@pytest.mark.filterwarnings("ignore")
def test_no_cluster_there(config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(sweep_run, "CONNECT_SECONDS", 0.5)
    for address in ("tcp://127.0.0.1:9", "nonsense://x"):
        result = cli(config, "-o", str(tmp_path / "out.jsonl"), "--dask", address)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
        assert "--dask" in result.stderr


def test_progress_counts_rows(config: str, tmp_path: Path) -> None:
    seen: list[Any] = []
    out = str(tmp_path / "out.jsonl")
    run_sweep(load_tasks(config)[:3], out)
    run_sweep(load_tasks(config), out, begin=lambda *totals: seen.append(totals), advance=seen.append)
    assert seen[0] == (9, ROWS)
    assert sum(seen[1:]) == ROWS - 9


def change(old: str, new: str) -> Callable[[str], str]:
    assert old in CONFIG
    return lambda text: text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (change("vocab = 2", "vocab = "), "sweep.toml: got no TOML"),
        (change("vocab = 2", "vocab = 0"), "sweep.toml vocab: got 0, expected an integer >= 1"),
        (change("vocab = 2", "vocab = true"), "sweep.toml vocab: got True"),
        (change("vocab = 2", "vocab = []"), "sweep.toml vocab: got an empty list"),
        (change("vocab = 2", "vocab = [[2]]"), "sweep.toml vocab: got [2], expected an integer >= 1"),
        (change("vocab = 2", "vocab = [2, true]"), "sweep.toml vocab: got True, expected an integer >= 1"),
        (change("vocab = 2", "vocab = 0x1" + "0" * 5000), "sweep.toml vocab: got an integer of 20001 bits"),
        (change("vocab = 2", "vocab = 2.0"), "sweep.toml vocab: got 2.0"),
        (change("vocab = 2", "vocab = " + "[" * 5000 + "]" * 5000), "sweep.toml: got no TOML"),
        (change("vocab = 2", "vocab = 2\ntime_limit = inf"), "sweep.toml time_limit: got inf, expected a positive"),
        (
            change("seeds = [0, 3]", "seeds = 1000000000000"),
            "sweep.toml family 1: got 4000000000000 problems, expected at most",
        ),
        (change("seeds = [0, 3]", "seeds = [0, -1]"), "sweep.toml seeds: got"),
        (change('"dirichlet"', '["dirichlet"]'), "sweep.toml family 1 name: got ['dirichlet'], expected one of"),
        (change("vocab = 2", ""), "sweep.toml family 1 vocab: got nothing"),
        (change("paths = [1, 2]", "paths = [1, 2000]"), "sweep.toml paths: got 2000, expected an integer in 1..1024"),
        (change("seeds = 1", "seeds = -1"), "sweep.toml family 2 seeds: got -1"),
        (change('"gbv"', '"gvb"'), "sweep.toml algorithms: got 'gvb', expected a list of one or more of"),
        (change('["bv", "gbv", "optimum"]', '"bv"'), "sweep.toml algorithms: got 'bv', expected a list"),
        (change("depth = 2", "deep = 2"), "sweep.toml: got the unknown key 'deep', expected one of"),
        (change("alpha = [0.5, 1]", "alhpa = 1"), "sweep.toml family 1: got the unknown key 'alhpa'"),
        (change("alpha = [0.5, 1]", 'alpha = ["1"]'), "sweep.toml family 1 alpha: got '1', expected a number"),
        (change("alpha = [0.5, 1]", "alpha = -1"), "sweep.toml family 1: alpha: got -1, expected a finite number > 0"),
        (change("alpha = [0.5, 1]", "alpha = []"), "sweep.toml family 1 alpha: got an empty list"),
        (change('"dirichlet"', '"dirichlt"'), "sweep.toml family 1 name: got 'dirichlt', expected one of dirichlet"),
        (change('name = "ties"', ""), "sweep.toml family 2 name: got nothing"),
        (change('name = "ties"', 'name = "ties"\ntolerance = 0'), "sweep.toml family 2 tolerance: got 0"),
        (lambda text: text.split("[[", maxsplit=1)[0], "sweep.toml family: got nothing"),
        (lambda text: text.split("[[", maxsplit=1)[0] + "family = 3", "sweep.toml family: got 3"),
    ],
)
def test_bad_configurations(config: str, tmp_path: Path, edit: Callable[[str], str], match: str) -> None:
    Path(config).write_text(edit(CONFIG))
    out = tmp_path / "out.jsonl"
    result = cli(config, "-o", str(out))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"lpverify: error: {tmp_path}")
    assert result.stderr.count("\n") == 1
    assert match in result.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("-o", "-"), "--output"),
        (("-o", "no/such/place"), "--output"),
        (("-o", "x.jsonl", "--jobs", "0"), "--jobs"),
        (("-o", "x.jsonl", "--jobs", "2", "--dask", "tcp://x"), "--jobs"),
    ],
)
def test_bad_options(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], match: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = cli(config, *arguments)
    assert result.exit_code == 2
    assert match in result.stderr
    assert result.stderr.count("\n") == 1
    assert cli("absent.toml", "-o", "x.jsonl").stderr.startswith("lpverify: error: absent.toml: got No such file")


def test_other_content_is_refused_and_kept(config: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run_sweep(load_tasks(config)[:1], str(out))
    for line in ("not JSON\n", '{"schema": "other"}\n', "[1]\n"):
        before = out.read_text() + line
        out.write_text(before)
        with pytest.raises(InputError, match=r"out\.jsonl line 4: got .* expected a row of lpverify/sweep@1"):
            run_sweep(load_tasks(config), str(out))
        assert out.read_text() == before
        out.write_text(before[: -len(line)])


def test_a_second_sweep_is_kept_out(config: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out.jsonl")
    with JsonLines(out, sweep.SCHEMA), pytest.raises(InputError, match="another run is writing"):
        run_sweep(load_tasks(config), out)
    assert run_sweep(load_tasks(config), out).computed == ROWS


def test_the_default_is_everything() -> None:
    [task] = tasks({"vocab": 2, "depth": 1, "paths": 2, "seeds": 1, "family": [{"name": "equal"}]})
    found = run_task(task)
    assert [row["name"] for row in found] == list(NAMES)
    assert all(row["error"] is None for row in found)


def test_a_sweep_in_which_every_row_fails_says_so(config: str, tmp_path: Path) -> None:
    """The rows are stored, and the exit code is that of input that cannot be computed; one good row is enough for 0."""
    Path(config).write_text(CONFIG.replace("vocab = 2", "vocab = 9000"))
    out = tmp_path / "out.jsonl"
    for computed in (ROWS, 0):
        result = cli(config, "-o", str(out))
        assert result.exit_code == 2
        assert result.stdout.startswith(f"{out}: {computed} rows computed, {ROWS - computed} found, {ROWS} of them")
        assert result.stderr.startswith(f"lpverify: error: {out}: got {ROWS} rows that all failed, the first with: ")
        assert result.stderr.count("\n") == 1
    assert len(rows(out)) == ROWS
    Path(config).write_text(CONFIG.replace("vocab = 2", "vocab = [9000, 2]"))
    assert cli(config, "-o", str(out)).exit_code == 0


def test_inputs_are_never_the_output(config: str, tmp_path: Path) -> None:
    link = tmp_path / "link.jsonl"
    link.symlink_to(config)
    for output in (config, str(link)):
        result = cli(config, "-o", output)
        assert (result.exit_code, result.stdout) == (2, "")
        assert (
            result.stderr
            == f"lpverify: error: --output: got {output}, the same file as CONFIG, expected another file\n"
        )
    assert Path(config).read_text() == CONFIG
