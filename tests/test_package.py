"""The package as a user gets it: cheap import, public list, extras, pinned versions, built-in examples."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from fractions import Fraction
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import lpverify
from lpverify.core.problem import example_names, examples, load_problem
from lpverify.core.problem_file import parse_problem

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REFERENCE = sorted((ROOT / "tests" / "data" / "reference").glob("*.json"))


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_cheap() -> None:
    heavy = ["torch", "matplotlib", "cvxpy", "highspy", "scipy", "pandas", "typer", "rich", "numpy"]
    loaded = run(f"import sys, lpverify; print(*[name for name in {heavy} if name in sys.modules])")
    assert loaded.split() == []


def test_theory_half_works_without_torch_matplotlib_and_cvxpy() -> None:
    code = """
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "matplotlib", "cvxpy", "transformers"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Absent())
try:
    import torch
except ImportError:
    print("blocked")
import lpverify
for module in pkgutil.walk_packages(lpverify.__path__, "lpverify."):
    optional = ("decode", "studies", "integrations.transformers", "integrations.hub", "verifiers.device")
    optional += ("report.plots", "lp.cvx", "__main__")
    if not module.name.startswith(tuple("lpverify." + name for name in optional)):
        importlib.import_module(module.name)
        print(module.name)
"""
    lines = run(code).split()
    assert lines[0] == "blocked"
    assert "lpverify.core.model_pair" in lines


def test_public_names_resolve_and_are_the_real_ones() -> None:
    for name in set(lpverify.__all__) - {"__version__"}:
        home, attribute = lpverify._HOMES[name]
        value = getattr(lpverify, name)
        module = import_module(home)
        assert value is (sys.modules.get(f"{home}.{attribute}") or getattr(module, attribute))
    assert re.fullmatch(r"\d+\.\d+.*", lpverify.__version__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = lpverify.nonsense


def test_the_public_list_is_explicit_and_complete() -> None:
    assert sorted(lpverify.__all__) == lpverify.__all__
    assert {
        *(
            "AuditReport",
            "Certificate",
            "DraftTree",
            "Evaluation",
            "InputError",
            "LpSolution",
            "ModelPair",
            "RankTable",
        ),
        *("SizeError", "StopDistribution", "Verifier", "VerifyProblem", "adapt", "as_problem", "assert_lossless"),
        *("audit", "balance", "sample"),
        *("block_efficiency", "certify", "compare", "cvx", "evaluate", "examples", "load_problem", "make", "open_pair"),
        *("plots", "save_problem", "solve", "tables", "verifier", "__version__"),
    } == set(lpverify.__all__)


@pytest.mark.parametrize("module", ["", "make", "certify", "cvx", "plots", "tables"])
def test_completion_shows_public_names_only(module: str) -> None:
    """What a fresh interpreter completes after ``lpverify.`` and ``lpverify.make.``: defined here, and documented."""
    names = run(f"import lpverify; print(*dir(lpverify{'.' if module else ''}{module}))").split()
    value = getattr(lpverify, module) if module else lpverify
    assert names == sorted(value.__all__)
    for name in names:
        item = getattr(value, name)
        assert not name.startswith("_") or name == "__version__"
        assert module == "" or getattr(item, "__module__", value.__name__) == value.__name__, name
        assert isinstance(item, str | tuple | dict | int | float) or item.__doc__, name


@pytest.mark.parametrize(
    "value",
    [
        "lpverify.solve('tree-v4-l3', 3)",
        "lpverify.solve('coin-3', 3, exact=True)",
        "lpverify.solve('coin-2', 2).certificate",
        "lpverify.evaluate('tree-v3-l4', 'bv')",
        "lpverify.load_problem('tree-v3-l4')",
        "lpverify.load_problem('tree-v3-l4').pair",
        "lpverify.examples()",
        "lpverify.audit('bv', cases=['coin-2:2'])",
        "lpverify.balance('one-position')",
        "lpverify.DraftTree.from_pair(lpverify.load_problem('tree-v3-l4').pair, [[0, 1, 2, 0], [2, 2, 2, 2]] * 99)",
        "lpverify.verifier('bv')(lpverify.DraftTree.from_pair(lpverify.load_problem('coin-2').pair, [[0, 1]]))",
        "lpverify.verifier('ebv')",
    ],
)
def test_representations_are_short(value: str) -> None:
    text = repr(eval(value))
    assert "\n" not in text
    assert len(text) < 600


def _distributions(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=]", requirement)[0] for requirement in requirements}


def test_extras() -> None:
    extras = {name: _distributions(needs) for name, needs in PYPROJECT["project"]["optional-dependencies"].items()}
    assert extras == {
        "plot": {"matplotlib"},
        "decode": {"torch", "transformers", "accelerate", "safetensors", "datasets", "numba"},
        "parallel": {"joblib", "dask"},
        "notebooks": {"jupyter", "jupytext"},
        "smollm": {"gguf"},
        "dev": {"pytest", "hypothesis", "pytest-benchmark", "pytest-xdist", "filelock", "ruff", "mypy"},
        "all": {"lpverify"},
    }
    everything = PYPROJECT["project"]["optional-dependencies"]["all"][0]
    assert set(everything[len("lpverify[") : -1].split(",")) == set(extras) - {"all"}


def test_constraints_pin_every_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pins["torch"] == "2.13.0"
    wanted = _distributions(PYPROJECT["project"]["dependencies"])
    for needs in PYPROJECT["project"]["optional-dependencies"].values():
        wanted |= _distributions(needs)
    assert wanted - {"lpverify"} <= set(pins)


def test_console_script_exists() -> None:
    module, function = PYPROJECT["project"]["scripts"]["lpverify"].split(":")
    assert callable(getattr(import_module(module), function))


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.stem)
def test_reference_problems_are_examples(path: Path) -> None:
    """Same numbers; as fractions, because the reference's are short decimals."""
    expected = parse_problem(json.loads(path.read_text())["problem"], path.stem)
    example = load_problem(path.stem)
    assert example.pair.rational
    for table, reference in [(example.pair.target, expected.pair.target), (example.pair.draft, expected.pair.draft)]:
        for level, reference_level in zip(table, reference, strict=True):
            assert (level.astype(float) == reference_level).all()


def test_reference_has_all_problems() -> None:
    assert len(REFERENCE) == 14
    assert {path.stem for path in REFERENCE} < set(example_names())


@pytest.mark.parametrize("name", example_names())
def test_example_is_complete(name: str) -> None:
    example = examples()[name]
    assert example.name == name
    assert example.description
    assert example.pair.rational
    for level in (*example.pair.target, *example.pair.draft, example.pair.bonus[None]):
        assert (level.sum(axis=-1) == 1).all()


def test_seed_example() -> None:
    pair = examples()["one-position"].pair
    assert pair.tokens == ("A", "B", "C")
    assert pair.target[0][0].tolist() == [Fraction(2, 10), Fraction(5, 10), Fraction(3, 10)]
    assert pair.draft[0][0].tolist() == [Fraction(6, 10), Fraction(3, 10), Fraction(1, 10)]


def test_examples_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        examples()["new"] = examples()["coin-2"]  # type: ignore[index]
    with pytest.raises(ValueError, match="read-only"):
        examples()["coin-2"].pair.target[0][0] = np.array([Fraction(1), Fraction(0)])
