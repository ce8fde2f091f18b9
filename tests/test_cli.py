"""The command line: every command, every bad input, pipes."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lpverify.cli import BROKEN_PIPE, INTERNAL, INTERRUPTED, app
from lpverify.core.problem import example_names, load_problem

LAW = {"kind": "iid", "probs": [0.5, 0.5]}
PROBLEM: dict[str, Any] = {"format": "lpverify/problem@1", "vocab": 2, "depth": 2, "target": LAW, "draft": LAW}
ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "lpverify"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def ok(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def refused(*arguments: str, match: str) -> None:
    """Exit code 2, one line on standard error that says ``match``, nothing on standard output."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("lpverify: error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert match in result.stderr


def written(path: Path, **changes: Any) -> str:
    path.write_text(json.dumps(PROBLEM | changes))
    return str(path)


def solve_json(*arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ok("solve", *arguments, "--json", "-"))
    return document


# examples, explain, random


def test_examples_lists_every_example() -> None:
    table = ok("examples")
    document = json.loads(ok("examples", "--json"))
    assert [row["name"] for row in document["examples"]] == list(example_names())
    for row in document["examples"]:
        pair = load_problem(row["name"]).pair
        assert row["name"] in table
        assert (row["vocab_size"], row["depth"], row["nodes"]) == (pair.vocab_size, pair.depth, pair.nodes)


def test_explain_shows_the_naive_correction() -> None:
    document = json.loads(ok("explain", "one-position", "--json", "-"))
    assert document["emitted"] == document["target"] == [0.2, 0.5, 0.3]
    assert document["naive"] == [0.28, 0.5, 0.22]
    assert document["exact"]["naive"] == ["7/25", "1/2", "11/50"]
    assert document["exact"]["residual"] == ["0", "1/5", "1/5"]
    assert document["exact"]["law_error"] == "0"
    assert document["exact"]["naive_law_error"] == "2/25"
    table = ok("explain", "one-position")
    assert "7/25" in table
    assert "11/50" in table


def test_explain_where_nothing_is_rejected(tmp_path: Path) -> None:
    file = written(tmp_path / "p.json")
    document = json.loads(ok("explain", file, "--prefix", "1", "--json", "-"))
    assert document["residual_law"] is None
    assert document["prefix"] == ["1"]
    assert "exact" not in document
    assert "never" in ok("explain", file)


def test_explain_follows_the_prefix(tmp_path: Path) -> None:
    chain = {"kind": "markov", "initial": ["1/2", "1/2"], "transition": [["1", "0"], ["1/3", "2/3"]]}
    file = written(tmp_path / "p.json", vocab=["x", "y"], target=chain, draft=chain)
    assert json.loads(ok("explain", file, "--prefix", "y", "--json", "-"))["exact"]["target"] == ["1/3", "2/3"]


def test_explain_refuses_a_bad_prefix() -> None:
    refused("explain", "one-position", "--prefix", "Z", match="'Z'")
    refused("explain", "one-position", "--prefix", "A", match="at most 0 (the depth is 1)")


def test_random_is_reproducible_and_solvable(tmp_path: Path) -> None:
    first, second, other = (str(tmp_path / name) for name in ("a.json", "b.json", "c.json"))
    for seed, file in (("7", first), ("7", second), ("8", other)):
        ok("random", "--vocab", "3", "--depth", "2", "--seed", seed, "--alpha", "0.5", "-o", file)
    assert Path(first).read_bytes() == Path(second).read_bytes() != Path(other).read_bytes()
    assert load_problem(first).pair.nodes == 12


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("markov", ["--alpha", "2"]),
        ("softmax", ["--temperature", "0.7", "--draft-noise", "0.3"]),
        ("rational", ["--denominator", "6"]),
        ("ties", []),
    ],
)
def test_random_families(tmp_path: Path, family: str, options: list[str]) -> None:
    file = str(tmp_path / "p.json")
    ok("random", "--vocab", "3", "--depth", "2", "--seed", "0", "--family", family, *options, "-o", file)
    assert load_problem(file).pair.rational == (family == "rational")


def test_random_refuses_bad_options(tmp_path: Path) -> None:
    good = ["random", "--vocab", "3", "--depth", "2", "--seed", "0", "-o", str(tmp_path / "p.json")]
    refused(*good, "--vocab", "0", match="--vocab")
    refused(*good, "--seed", "-1", match="--seed")
    refused(*good, "--alpha", "0", match="alpha")
    refused(*good, "--family", "cauchy", match="'cauchy'")
    refused(*good, "--denominator", "5", match="--denominator")
    refused(*good, "--vocab", "500", "--depth", "9", match="50000000")
    refused(*good, "-o", str(tmp_path / "no" / "p.json"), match="directory")
    assert list(tmp_path.iterdir()) == []


# bad input


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--nonsense"], "--nonsense"),
        (["nonsense"], "nonsense"),
        (["solve"], "PROBLEM"),
        (["solve", "coin-2"], "--paths"),
        (["solve", "coin-2", "--paths"], "--paths"),
        (["solve", "coin-2", "--paths", "two"], "'two'"),
        (["solve", "coin-2", "--paths", "1.5"], "'1.5'"),
        (["solve", "coin-2", "--paths", "0"], "--paths: got 0"),
        (["solve", "coin-2", "--paths", "-3"], "--paths: got -3"),
        (["solve", "coin-2", "--paths", "3..1"], "--paths: got '3..1', expected integers in 1..1024"),
        (["solve", "coin-2", "--paths", "1..x"], "--paths: got '1..x'"),
        (["solve", "coin-2", "--paths", "0..2"], "--paths: got 0, expected an integer in 1..1024"),
        (
            ["solve", "coin-2", "--paths", "1..100000000000"],
            "--paths: got 100000000000 numbers, expected at most 10000",
        ),
        (["solve", "coin-2", "--paths", "2,"], "--paths: got '2,'"),
        (["solve", "coin-2", "--paths", "1000000000"], "1..1024"),
        (["solve", "coin-2", "--paths", "2", "--algorithms", "bv,magic"], "'magic'"),
        (["solve", "coin-2", "--paths", "2", "--algorithms", ""], "--algorithms"),
        (["solve", "coin-2", "--paths", "2", "--tolerance", "0"], "--tolerance"),
        (["solve", "coin-2", "--paths", "2", "--tolerance", "nan"], "--tolerance"),
        (["solve", "coin-2", "--paths", "2", "--time-limit", "-1"], "--time-limit"),
        (["solve", "coin-2", "--paths", "2", "--method", "guess"], "'guess'"),
        (["solve", "coin-2", "--paths", "2", "--max-drafts", "0"], "--max-drafts"),
        (["solve", "coin-2", "--paths", "2", "--plot", "gap.gif"], "gap.gif"),
        (["solve", "coin-2", "--paths", "2", "--plot", "-"], "--plot"),
        (["solve", "coin-22", "--paths", "2"], "did you mean coin-2"),
        (["solve", "/no/such/file.json", "--paths", "2"], "/no/such/file.json"),
        (["solve", "/", "--paths", "2"], "directory"),
        (["explain"], "PROBLEM"),
    ],
)
def test_bad_arguments(arguments: list[str], match: str) -> None:
    refused(*arguments, match=match)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"format": "lpverify/problem@9"}, "lpverify/problem@9"),
        ({"target": {"kind": "iid", "probs": [0.5, 0.4]}}, "a sum of 0.9"),
        ({"target": {"kind": "iid", "probs": [1.5, -0.5]}}, "negative"),
        ({"target": {"kind": "iid", "probs": [float("nan"), 0.5]}}, "got nan"),
        ({"target": {"kind": "iid", "probs": [float("inf"), 0.5]}}, "too large, inf"),
        ({"target": {"kind": "iid", "probs": [0.2, 0.3, 0.5]}}, "2 probabilities"),
        ({"draft": {"kind": "markov", "initial": [0.5, 0.5], "transition": [[0.5, 0.5]]}}, "2 rows"),
        ({"draft": {"kind": "tree", "levels": [[[0.5, 0.5]]]}}, "2 levels"),
        ({"depth": 0}, "depth"),
        ({"vocab": 3}, "3 probabilities"),
    ],
)
def test_bad_problem_files(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    file = written(tmp_path / "p.json", **changes)
    output = tmp_path / "out.json"
    refused("solve", file, "--paths", "2", "--json", str(output), match=match)
    refused("explain", file, match="p.json")
    assert not output.exists()


def test_not_json(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text("{")
    refused("solve", str(file), "--paths", "2", match="line 1 column 2")
    file.write_bytes(b"\xff\xfe")
    refused("solve", str(file), "--paths", "2", match="UTF-8")


def test_normalize_accepts_and_rescales(tmp_path: Path) -> None:
    file = written(tmp_path / "p.json", target={"kind": "iid", "probs": [1, 3]}, draft={"kind": "iid", "probs": [1, 1]})
    document = json.loads(ok("explain", file, "--normalize", "--json", "-"))
    assert document["exact"]["target"] == ["1/4", "3/4"]


def test_outputs_are_checked_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("the work began")

    monkeypatch.setattr("lpverify.exact.compare.comparison", never)
    for option, file in (
        ("--json", tmp_path),
        ("--json", tmp_path / "no" / "out.json"),
        ("--plot", tmp_path / "no" / "out.png"),
        ("--json", Path("/proc/out.json")),
    ):
        refused("solve", "coin-2", "--paths", "2", option, str(file), match=option)
    both = str(tmp_path / "both.png")
    refused("solve", "coin-2", "--paths", "2", "--json", both, "--plot", both, match="--plot")
    assert list(tmp_path.iterdir()) == []


def test_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused("solve", "coin-2", "--paths", "2", "--plot", "gap.png", match="lpverify[plot]")


def test_exact_names_the_float_entry(tmp_path: Path) -> None:
    half = {"kind": "iid", "probs": ["1/2", 0.5]}
    file = written(tmp_path / "p.json", target={"kind": "iid", "probs": [1, 0]}, draft=half)
    refused("solve", file, "--paths", "2", "--exact", match="draft.probs entry 1: got 0.5")


def test_internal_faults_are_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("lpverify.core.problem.load_problem", broken)
    result = run("explain", "coin-2")
    assert result.exit_code == INTERNAL
    assert result.stderr == "lpverify: error: internal error, please report it: RuntimeError: two lines\n"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), INTERRUPTED, "lpverify: error: interrupted\n"),
        (MemoryError(), 2, "out of memory"),
        (PermissionError(13, "Permission denied", "p.json"), 2, "p.json: Permission denied"),
        (BrokenPipeError(), BROKEN_PIPE, ""),
    ],
)
def test_other_ends(monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str) -> None:
    def broken(*arguments: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr("lpverify.core.problem.load_problem", broken)
    monkeypatch.setattr("lpverify.cli._silence", lambda stream: None)
    result = run("explain", "coin-2")
    assert result.exit_code == code
    assert line in result.stderr


# as a program


def program(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False, **options)


CONSOLES: dict[str, dict[str, str]] = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "the C locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "a plotting backend that is not there": {"MPLBACKEND": "nosuch"},
}


@pytest.mark.parametrize("console", CONSOLES)
def test_any_console(console: str, tmp_path: Path) -> None:
    """Red before: exit code 70, and no results."""
    name = "\u65e5\u672c \u2603"
    file = written(tmp_path / "p.json", vocab=[name, "B"], name=name)
    plot, environment = tmp_path / "p.png", os.environ | CONSOLES[console]
    shown = program("solve", file, "-k", "2", "--plot", str(plot), env=environment)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert plot.stat().st_size > 1000
    for command in (["explain", file], ["solve", file, "-k", "2", "--json", "-"]):
        done = program(*command, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["problem"]["name"] == name
    missing = program("solve", str(tmp_path / name), "-k", "2", env=environment)
    assert (missing.returncode, missing.stdout, missing.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-", ">/dev/full"])
def test_standard_streams_may_be_closed(closed: str, tmp_path: Path) -> None:
    """Results in files are there, and no file of ours becomes standard output. Red before: exit code 70."""
    file, outputs = tmp_path / "mine.py", [tmp_path / "audit.json", tmp_path / "solve.json"]
    file.write_text(
        "def f(paths, target, draft, rng):\n    print('noise')\n    return (), rng.categorical(target(()))\n"
    )
    for command in (["solve", "coin-2", "-k", "2"], ["audit", f"{file}:f", "--cases", "one step K=1"]):
        out = tmp_path / f"{command[0]}.json"
        line = shlex.join([*COMMAND, *command, "--json", str(out)])
        done = subprocess.run(f"{line} {closed}", shell=True, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == (2 if closed == ">/dev/full" else 0), done.stderr
        assert done.stderr.replace("noise\n", "").count("\n") == (closed == ">/dev/full")
        assert json.loads(out.read_text())["schema"] == f"lpverify/{command[0]}@1"
    assert set(tmp_path.iterdir()) == {file, *outputs}


def test_results_are_written_before_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("no picture")

    monkeypatch.setattr("lpverify.report.plots.render", broken)
    out = tmp_path / "out.json"
    result = run("solve", "coin-2", "-k", "2", "--json", str(out), "--plot", str(tmp_path / "p.png"))
    assert result.exit_code == INTERNAL
    assert json.loads(out.read_text())["schema"] == "lpverify/solve@1"


STRANGE = {
    "escape": "\x1b[31mred\x07\x9b2J",
    "right to left": "\u202eabc",
    "long": "x" * 100_000,
    "mathematics": r"a $\nosuch$ b",
    "markup": "[bold]x[/bold] [red",
    "lines": "a\nb\tc\u2028d",
}


@pytest.mark.parametrize("kind", STRANGE)
def test_names_of_a_file_are_shown_not_interpreted(kind: str, tmp_path: Path) -> None:
    """No control character reaches the terminal, long names are cut, and JSON has them whole."""
    name = STRANGE[kind]
    file = written(tmp_path / "p.json", name=name, vocab=[name, "B"])
    wrong = tmp_path / "mine.py"
    wrong.write_text("def f(paths, target, draft, rng):\n    return (), 0\n")
    for command in (
        ["solve", file, "-k", "2", "--plot", str(tmp_path / "p.png")],
        ["explain", file],
        ["audit", "bv", "--cases", f"{file}:1"],
        ["audit", f"{wrong}:f", "--cases", f"{file}:1"],
    ):
        result = run(*command)
        assert result.exit_code == (command[1] == f"{wrong}:f"), result.output
        assert all(character.isprintable() or character == "\n" for character in result.output)
        assert len(result.output) < 10_000
    assert solve_json(file, "-k", "2")["problem"]["name"] == name


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['lpverify', '--help']\n"
        "from lpverify.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, [m for m in ('numpy', 'scipy', 'pandas', 'matplotlib', 'torch',"
        " 'cvxpy', 'highspy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("Usage: lpverify ")
    assert done.stdout.endswith("0 []\n")


def test_help_lists_every_verifier_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Help texts come from the registry, so a verifier that is added there is shown."""
    from lpverify import verifiers

    for command in ("solve", "audit", "sweep", "decode", "bound", "advise"):
        text = " ".join(ok(command, "--help").split())
        assert all(f" {name} {verifiers.verifier(name).help}" in text for name in verifiers.names())
    build = verifiers.VERIFIERS["bv"]
    monkeypatch.setattr(verifiers, "VERIFIERS", {**verifiers.VERIFIERS, "new": lambda: replace(build(), help="a coin")})
    assert " new a coin" in " ".join(ok("solve", "--help").split())


def test_figures_without_a_checkout(tmp_path: Path) -> None:
    """An installed package has no experiments/figures beside it."""
    shutil.copytree(ROOT / "lpverify", tmp_path / "lpverify", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    installed = program("figures", "--list", cwd=tmp_path, env=environment)
    assert (installed.returncode, installed.stdout) == (2, "")
    assert installed.stderr.startswith("lpverify: error: figures: got no folder experiments/figures in ")
    assert "expected a checkout of the repository" in installed.stderr
    assert installed.stderr.count("\n") == 1


def test_figures_of_a_checkout_are_listed() -> None:
    assert "where_gbv_loses" in ok("figures", "--list")
    refused("figures", "--only", "nothing", match="--only: got 'nothing', expected one of ")
    refused("figures", "--draw", "--quick", match="--draw: got --quick as well")


def test_program_errors_and_version() -> None:
    assert program("--version").stdout.startswith("lpverify ")
    bad = program("explain", "no-such-example")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("lpverify: error: no-such-example: got no such file")
    assert bad.stderr.count("\n") == 1


def test_a_closed_pipe_is_quiet() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run([*COMMAND, "examples"], stdout=closed, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (BROKEN_PIPE, b"")


# solve


OPTIMUM_KEYS = {"block_efficiency", "lower_bound", "upper_bound", "status", "method", "seconds"}
NAMES = ["token", "bv", "nss", "specinfer", "spectr", "ot", "traversal", "gbv", "tgbv", "pbv", "ebv", "policy"]


def test_solve_json_is_the_contract() -> None:
    document = solve_json("one-position", "--paths", "2")
    assert document["schema"] == "lpverify/solve@1"
    assert document["problem"] == {
        "name": "one-position",
        "vocab_size": 3,
        "depth": 1,
        "paths": 2,
        "nodes": 3,
        "rational": True,
    }
    assert set(document["optimum"]) == {"single_path", "multi_path"}
    for optimum in document["optimum"].values():
        assert set(optimum) == OPTIMUM_KEYS
        assert optimum["lower_bound"] <= optimum["block_efficiency"] <= optimum["upper_bound"]
        assert optimum["status"] == "optimal"
    assert document["optimum"]["single_path"]["block_efficiency"] == pytest.approx(1.6, abs=1e-12)
    best = document["optimum"]["multi_path"]["block_efficiency"]
    assert best == pytest.approx(1.84, abs=1e-9)
    assert [row["name"] for row in document["algorithms"]] == NAMES
    for row in document["algorithms"]:
        assert set(row) == {"name", "block_efficiency", "gap", "relative_gap", "law_error", "method"}
        assert row["gap"] == pytest.approx(best - row["block_efficiency"], abs=1e-12)
        assert row["relative_gap"] == pytest.approx(row["gap"] / best, abs=1e-12)
        assert 0 <= row["law_error"] <= 1e-12


def test_solve_exact() -> None:
    document = solve_json("one-position", "--paths", "2", "--exact")
    multi = document["optimum"]["multi_path"]
    assert multi["block_efficiency_exact"] == multi["lower_bound_exact"] == multi["upper_bound_exact"] == "46/25"
    assert document["optimum"]["single_path"]["block_efficiency_exact"] == "8/5"
    exact = {row["name"]: row["block_efficiency_exact"] for row in document["algorithms"]}
    assert exact.pop("spectr") is None  # rho is a root of a polynomial
    assert (exact["token"], exact["bv"], exact["gbv"], exact["pbv"]) == ("8/5", "8/5", "46/25", "46/25")
    for row in document["algorithms"]:
        assert row["law_error"] == 0
        if row["name"] in exact:
            assert float(Fraction(exact[row["name"]])) == row["block_efficiency"]


def test_solve_table_and_selection() -> None:
    output = ok("solve", "coin-2", "--paths", "2", "--algorithms", "gbv,bv")
    for word in ("single-path", "multi-path", "gbv", "bv", "2.594400", "law error", "K = 2"):
        assert word in output
    assert "specinfer" not in output
    assert max(len(line) for line in output.splitlines()) <= 80
    exact = ok("solve", "coin-2", "--paths", "2", "--algorithms", "gbv,spectr", "--exact")
    assert "3243/1250" in exact
    assert "irrational" in exact


def test_solve_takes_several_numbers_of_paths(tmp_path: Path) -> None:
    """Every K has the rows of a run of its own; the document stays the one of the first K, with one more key."""
    pytest.importorskip("matplotlib")
    picture = tmp_path / "out.svg"
    options = ("--algorithms", "bv,gbv", "--plot", str(picture))
    several = solve_json("coin-2", "--paths", "2..3,1", *options)
    assert b"draft paths K" in picture.read_bytes()
    entries = several.pop("by_paths")
    assert [entry.pop("paths") for entry in entries] == [2, 3, 1]
    for number, entry in zip((2, 3, 1), entries, strict=True):
        alone = solve_json("coin-2", "--paths", str(number), *options)
        assert "by_paths" not in alone
        assert set(several) == set(alone)
        for document in (alone, entry, several):
            for optimum in document["optimum"].values():
                optimum.pop("seconds", None)
        assert entry == {key: alone[key] for key in ("optimum", "algorithms", "references")}
        if number == 2:
            assert several == alone
    lines = [line.split() for line in ok("solve", "coin-2", "--paths", "1,3", "--algorithms", "gbv").splitlines()]
    assert [line[:3] for line in lines if "gbv" in line] == [["1", "gbv", "2.160000"], ["3", "gbv", "2.769452"]]
    exact = ok("solve", "coin-2", "--paths", "1..2", "--algorithms", "gbv,spectr", "--exact")
    assert [word in exact for word in ("exact (K = 1)", "54/25", "exact (K = 2)", "3243/1250")] == [True] * 4


def test_solve_writes_files_whole(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    data, picture = tmp_path / "out.json", tmp_path / "out.svg"
    data.touch()
    output = ok("solve", "coin-2", "--paths", "3", "--json", str(data), "--plot", str(picture))
    assert "coin-2" in output
    assert json.loads(data.read_text())["problem"]["paths"] == 3
    assert b"optimum" in picture.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "out.svg"]


def test_too_large_is_said_in_the_row_or_refused_by_name(tmp_path: Path) -> None:
    file = str(tmp_path / "p.json")
    ok("random", "--vocab", "20", "--depth", "1", "--seed", "0", "-o", file)
    document = solve_json(file, "--paths", "6", "--tolerance", "1e-6")
    rows = {row["name"]: row for row in document["algorithms"]}
    assert list(rows) == NAMES
    assert rows["ot"]["block_efficiency"] is rows["ot"]["gap"] is rows["ot"]["relative_gap"] is None
    assert "expected at most" in rows["ot"]["refused"]
    assert rows["gbv"]["block_efficiency"] is not None
    assert rows["gbv"]["law_error"] is None
    output = tmp_path / "out.json"
    refused("solve", file, "--paths", "6", "--algorithms", "bv,ot", "--json", str(output), match="algorithm ot")
    assert not output.exists()


def test_json_on_standard_output_is_only_json() -> None:
    done = program("solve", "coin-2", "--paths", "2", "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["schema"] == "lpverify/solve@1"


def test_progress_shows_after_a_while_and_only_on_a_terminal() -> None:
    import io
    import time

    from rich.console import Console

    from lpverify.cli.progress import waiting

    def shown(*, terminal: bool, delay: float) -> str:
        stream = io.StringIO()
        with waiting("solving p", Console(file=stream, force_terminal=terminal, width=80), delay) as say:
            say("multi-path [optimum]")
            time.sleep(0.3)
        return stream.getvalue()

    assert "solving p: multi-path [optimum]" in shown(terminal=True, delay=0.05)
    assert shown(terminal=True, delay=60) == ""
    assert shown(terminal=False, delay=0.05) == ""
