"""Hypothesis strategies for files and command lines, valid and broken, and what every run of a command must keep.

The options come from the program itself, so a new option is tried as soon as it exists. A run is in this process, in a
folder of its own whose files are compared before and after.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from hypothesis import strategies as st
from typer.testing import CliRunner

from lpverify.cli import app

COMMANDS: Any = typer.main.get_command(app)
OUTPUTS = ("json", "plot", "report", "output", "records", "save_costs", "out")

# files

ODD_NUMBERS = [0, 1, -1, 0.5, 1e-320, 1e308, "1/3", "2/3", "1/0", "0.5", "x", "", None, True, [], {}, 10**400, "1e999"]
row = st.one_of(
    st.sampled_from([[0.5, 0.5], ["1/3", "2/3"], [1, 0], [0.25, 0.75], ["0.1", "0.9"], [1e-300, 1.0]]),
    st.lists(st.sampled_from(ODD_NUMBERS), max_size=3),
    st.just(float("nan")),
)
good_table = st.one_of(
    st.builds(lambda r: {"kind": "iid", "probs": r}, st.sampled_from([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]])),
    st.just({"kind": "markov", "initial": [0.5, 0.5], "transition": [[0.1, 0.9], [0.7, 0.3]]}),
    st.just({"kind": "tree", "levels": [[[0.5, 0.5]], [[0.1, 0.9], [1.0, 0.0]]]}),
)
table = st.one_of(
    good_table,
    st.builds(lambda r: {"kind": "iid", "probs": r}, row),
    st.builds(lambda a, b, c: {"kind": "markov", "initial": a, "transition": [b, c]}, row, row, row),
    st.builds(lambda a, b, c: {"kind": "tree", "levels": [[a], [b, c]]}, row, row, row),
    st.sampled_from([None, [], {}, "iid", {"kind": "nosuch"}, {"kind": ["iid"]}, {"probs": [1]}, {"kind": "tree"}]),
)
rational_table = st.just({"kind": "iid", "probs": ["1/4", "3/4"]})


@st.composite
def problems(draw: Any) -> bytes:
    """A problem file: mostly of the right form, sometimes damaged as a text."""
    tables = draw(st.sampled_from([good_table, good_table, rational_table, table]))
    document: dict[str, Any] = {"format": "lpverify/problem@1", "vocab": 2, "depth": 2}
    document |= {"target": draw(tables), "draft": draw(tables)}
    odd = [0, 1, 3, -1, 2.0, "2", None, [], ["A", "B"], ["A", "A"], [1, 2], 10**9, True, ["\u2028", "\x1b[31m"]]
    if draw(st.booleans()):
        key = draw(st.sampled_from(["format", "vocab", "depth", "name", "description", "target", "bonus", "extra"]))
        document[key] = draw(st.sampled_from(odd))
    if draw(st.integers(0, 9)) == 0:
        del document[draw(st.sampled_from(sorted(document)))]
    text = json.dumps(document)
    return damaged(draw, text)


def damaged(draw: Any, text: str) -> bytes:
    """The text, one time in three as something that is not quite a text file."""
    kind = draw(st.sampled_from(["whole"] * 8 + ["cut", "bom", "utf-16", "bytes", "twice", "deep", "empty", "crlf"]))
    position = draw(st.integers(0, len(text)))
    return {
        "whole": text.encode(),
        "cut": text[:position].encode(),
        "bom": b"\xef\xbb\xbf" + text.encode(),
        "utf-16": text.encode("utf-16"),
        "bytes": text[:position].encode() + b"\xff\x00" + text[position:].encode(),
        "twice": (text + text).encode(),
        "deep": b"[" * 5000 + b"]" * 5000,
        "empty": b"",
        "crlf": text.replace("}", "}\r\n").encode(),
    }[kind]


@st.composite
def sweeps(draw: Any) -> bytes:
    lines = {
        "vocab": draw(st.sampled_from(["2", "[2, 3]", "0", "'x'", "10000000", "2.5", "[]"])),
        "depth": draw(st.sampled_from(["1", "[1, 2]", "-1", "1000000", "true"])),
        "paths": draw(st.sampled_from(["[1, 2]", "1", "0", "[]", "100000000", "'1..2'"])),
        "seeds": draw(st.sampled_from(["1", "2", "0", "-1", "1e9"])),
        "algorithms": draw(st.sampled_from(["['bv']", "['bv', 'gbv']", "['nosuch']", "[]", "'bv'"])),
        "max_drafts": draw(st.sampled_from(["10", "0", "'x'"])),
    }
    kept = draw(st.lists(st.sampled_from(sorted(lines)), unique=True, min_size=4))
    name = draw(st.sampled_from(["softmax", "dirichlet", "nosuch", "folder", "rational"]))
    extra = draw(st.sampled_from(["", "temperature = 1.0", "alpha = -1", "path = '.'", "extra = [[]]", "]["]))
    text = "\n".join([f"{key} = {lines[key]}" for key in kept] + ["[[family]]", f"name = '{name}'", extra, ""])
    return damaged(draw, text)


@st.composite
def prompt_lines(draw: Any) -> bytes:
    texts = st.sampled_from(["A", "A B", "", "\u2028A", "Z", "\ud800", "A" * 300])
    entries = st.one_of(
        st.builds(lambda t: {"prompt": t}, texts), st.sampled_from([{}, [], "A", {"prompt": None}, {"text": 3}])
    )
    return damaged(draw, "\n".join(map(json.dumps, draw(st.lists(entries, max_size=3)))))


PROGRAMS = [
    "def f(candidates, predicts, accept_index, accept_token_num):\n    accept_index[:, 0] = 0\n",
    "def f(draft_token_ids, num_draft_tokens):\n    return [[0] * (max(num_draft_tokens) + 1)] * 2\n",
    "def f(paths, target, draft, rng):\n    return (), rng.categorical(target(()))\n",
    "def f(paths, target, draft, rng):\n    print('noise')\n    return paths[0], 0\n",
    "import sys\ndef f(*a):\n    sys.exit(0)\n",
    "raise SystemExit(0)\n",
    "def f(:\n",
    "f = 3\n",
    "import nothing_of_that_name\n",
    "def f(paths, target, draft, rng):\n    return (), int(rng.uniform() * 2)\n",
    "",
]
FOREIGN = b"somebody's notes\nwithout a final newline"

files = st.fixed_dictionaries(
    {
        "p.json": problems(),
        "q.json": problems(),
        "sweep.toml": sweeps(),
        "prompts.jsonl": prompt_lines(),
        "prompts.txt": st.sampled_from([b"A B", b"", b"\xff\xfe", "\ufeffA".encode()]),
        "mine.py": st.sampled_from([program.encode() for program in PROGRAMS]),
        "foreign": st.sampled_from(
            [FOREIGN, FOREIGN + b"\n", b"", b"{}\n", b'{"schema": "lpverify/decode-record@1"}\n']
        ),
        "costs.json": st.sampled_from([b"{}", b"[]", b'{"schema": "lpverify/costs@1"}', b"nan"]),
    }
)

# command lines

NAMES = ["p.json", "./p.json", "q.json", "link.json", "coin-2", "one-position", "skewed-3", "nosuch", "folder", "", "-"]
PLACES = ["out1", "new.json", "p.json", "./p.json", "link.json", "foreign", "folder", "no/out.json", "", "/dev/null"]
COUNTS = ["1", "2", "1", "2", "0", "-1", "1.5", "x", "", "10000000000", "1" * 5000]
SEVERAL = [*COUNTS, "1,2", "1..2", "2..1", "1,,2", ",", "1..99999999"]
NUMBERS = ["0.5", "1", "0", "-1", "nan", "inf", "-inf", "1e-320", "1e400", "x", "", "0x1"]
VERIFIERS = ["bv", "bv,gbv", "pbv", "token,nss", "ot", "policy", "nosuch", "", ",", "mine.py:f"]
MODELS = ["coin-2", "coin-2", "p.json", "markov-3", "./nosuch", "folder", ""]
VALUES: dict[str, list[str]] = {
    "problem": NAMES,
    "paths": SEVERAL,
    "algorithms": VERIFIERS,
    "algorithm": VERIFIERS,
    "compare": VERIFIERS,
    "json": ["-", "-", "out.json", *PLACES],
    "plot": ["out.png", "out.svg", "out.xyz", "-", "p.json", "no/out.png"],
    "output": ["out.jsonl", "-", *PLACES],
    "records": ["out.jsonl", "-", *PLACES],
    "save_costs": ["out.json", "-", *PLACES],
    "out": ["outdir", "folder", "p.json"],
    "method": ["auto", "quantile", "dense", "transport", "antichain", "one-step", "closed-form", "nosuch", ""],
    "tolerance": ["1e-6", *NUMBERS],
    "temperature": NUMBERS,
    "top_p": NUMBERS,
    "alpha": NUMBERS,
    "draft_noise": [*NUMBERS, "1e308"],
    "time_limit": NUMBERS,
    "prefix": ["", "A", "A B", "0", "Z", "\x1b[31m", "A " * 3000],
    "family": ["dirichlet", "softmax", "markov", "rational", "nosuch", ""],
    "config": ["sweep.toml", "sweep.toml", "p.json", "nosuch.toml", "folder", "out.jsonl"],
    "dask": ["nosuch:1"],
    "verifier": ["bv", "gbv", "mine.py:f", "mine.py:f", "mine.py:g", "mine:f", "nosuch.py:f", "nosuch", "", "p.json:f"],
    "cases": [
        "one step K=1",
        "coin K=1",
        "p.json:1",
        "coin-2:2",
        "coin-2:0",
        "tree-v3-l4:8",
        "nosuch",
        "",
        ",",
        "coin-2:x",
    ],
    "draws": ["50", "1", "0", "x"],
    "adapter": ["sglang-tree", "vllm-chain", "flashinfer-chain", "nosuch", ""],
    "arrays": ["numpy", "numpy", "torch", "nosuch", ""],
    "report": ["out.html", "-", *PLACES],
    "target": MODELS,
    "draft": MODELS,
    "prompts": ["A", "A B", "prompts.jsonl", "prompts.txt", "Z Z", "", "nosuch.txt", "folder", "\udcff"],
    "device": ["cpu", "auto", "nosuch", "cuda:99"],
    "device_map": ["auto", "nosuch"],
    "dtype": ["auto", "float32", "nosuch"],
    "documents": ["p.json", "q.json", "nosuch.json", "costs.json"],
    "costs": ["costs.json", "p.json", "nosuch.json"],
    "only": ["nosuch", "", "balance,nosuch"],
    "max_new_tokens": ["1", "3", "0", "-1", "x"],
    "nodes": COUNTS,
    "context": ["1", "0", "x"],
}
ALWAYS: dict[str, dict[str, list[str]]] = {  # what keeps a run short, or from leaving the folder
    "decode": {
        "target": MODELS,
        "draft": MODELS,
        "prompts": VALUES["prompts"],
        "max_new_tokens": VALUES["max_new_tokens"],
    },
    "bound": {"target": MODELS, "draft": MODELS, "contexts": ["1", "2", "0", "x"], "stride": ["1", "2", "x"]},
    "extract": {
        "target": MODELS,
        "draft": MODELS,
        "output": ["outdir", "folder", "p.json", ""],
        "contexts": ["1", "x"],
    },
    "advise": {"target": MODELS, "draft": MODELS},
    "figures": {"out": VALUES["out"]},
    "solve": {"paths": SEVERAL, "max_drafts": ["10", "50", "0"]},
    "audit": {"cases": VALUES["cases"], "draws": VALUES["draws"]},
    "sweep": {"output": VALUES["output"]},
    "random": {"vocab": SEVERAL, "depth": COUNTS, "seed": COUNTS, "output": VALUES["output"]},
}
NEVER = {"jobs", "dask", "only"}  # processes of their own: tried elsewhere
SHORT = {  # these measure models for seconds if nothing stops them
    "advise": ["--costs", "costs.json", "p.json"],
    "figures": ["--only", "nosuch"],
}


@st.composite
def command_lines(draw: Any) -> list[str]:
    """A command with its arguments, most options left out, most values of the right kind."""
    name = draw(st.sampled_from(sorted(COMMANDS.commands)))
    line = [name, *SHORT.get(name, [])]
    for parameter in COMMANDS.commands[name].params:
        values = ALWAYS.get(name, {}).get(parameter.name)
        is_option = parameter.param_type_name == "option"
        if parameter.name in NEVER or (is_option and values is None and draw(st.integers(0, 5))):
            continue
        if draw(st.integers(0, 25)) == 0:  # left out, or there twice
            line += draw(st.sampled_from([[], [parameter.opts[0]], ["--nosuch"], ["extra"], ["--help"]]))
            continue
        option = [draw(st.sampled_from(parameter.opts))] if is_option else []
        if getattr(parameter, "is_flag", False):
            line += option
        else:
            line += [*option, draw(st.sampled_from(values or VALUES.get(parameter.name, COUNTS)))]
    return line


# what must hold


@dataclass
class Run:
    """One command in a folder, and what came of it."""

    arguments: list[str]
    exit_code: int
    stdout: str
    stderr: str
    before: dict[str, bytes]
    after: dict[str, bytes]
    outputs: set[str] = field(default_factory=set)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its mode and content; what a link leads to for links."""
    every = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            every[name] = b"link to " + os.readlink(path).encode()
        elif path.is_dir():
            every[name] = b"folder"
        elif stat.S_ISREG(path.stat().st_mode):
            every[name] = path.read_bytes()
    return every


def prepare(folder: Path, content: dict[str, bytes]) -> None:
    for name, data in content.items():
        (folder / name).write_bytes(data)
    (folder / "folder").mkdir()
    (folder / "folder" / "other.json").write_bytes(FOREIGN)
    (folder / "link.json").symlink_to("p.json")


def run_in(folder: Path, arguments: list[str]) -> Run:
    """Run a command with the folder as its working folder."""
    before, home = contents(folder), Path.cwd()
    os.chdir(folder)
    try:
        result = CliRunner().invoke(app, arguments)
    finally:
        os.chdir(home)
    return Run(arguments, result.exit_code, result.stdout, result.stderr, before, contents(folder), named(arguments))


def named(arguments: list[str]) -> set[str]:
    """The outputs that a command line names, as paths in the folder."""
    spelled = {o for c in COMMANDS.commands.values() for p in c.params if p.name in OUTPUTS for o in p.opts}
    return {os.path.normpath(v) for o, v in zip(arguments, arguments[1:], strict=False) if o in spelled and v}


def check(run: Run) -> None:
    """Raise AssertionError for what no command may do."""
    assert run.exit_code in (0, 1, 2, 130), (run.arguments, run.exit_code, run.stderr)
    assert "Traceback" not in run.stderr, (run.arguments, run.stderr)
    ours = [line for line in run.stderr.splitlines() if line.startswith("lpverify: error: ")]
    assert len(ours) == (run.exit_code in (2, 130)), (run.arguments, run.exit_code, run.stderr)
    if run.exit_code == 2:
        assert run.stderr.splitlines() == ours, (run.arguments, run.stderr)
        assert len(ours[0]) < 4_000, run.arguments
    assert run.exit_code != 1 or run.arguments[0] == "audit", (run.arguments, run.stdout)
    for name, data in run.before.items():
        assert run.after.get(name) == data, (run.arguments, f"{name} was changed")
    for name in run.after.keys() - run.before.keys():
        allowed = any(name == output or name.startswith(output + os.sep) for output in run.outputs)
        assert allowed, (run.arguments, f"{name} was left behind")
    for name, data in run.after.items():
        assert (
            run.before.get(name) == data or run.exit_code != 2 or run.arguments[0] in ("audit", "sweep", "extract")
        ), (
            run.arguments,
            f"{name} was written although the command was refused",
        )
    if "--json" in run.arguments[:-1] and run.arguments[run.arguments.index("--json") + 1] == "-":
        if run.arguments.count("--json") == 1 and run.exit_code in (0, 1) and "--help" not in run.arguments:
            json.loads(run.stdout)
