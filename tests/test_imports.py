"""Imports point one way. The scanner is itself tested on planted violations first."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lpverify"

LEVELS = [
    ("errors", "files", "numerics"),
    ("core",),
    ("drafting",),
    ("verifiers",),
    ("lp",),
    ("exact",),
    ("auditing",),
    ("sweep",),
    ("decode",),
    ("studies",),
    ("integrations",),
    ("testing", "pytest_plugin"),
    ("report",),
    ("cli",),
    ("__main__", "__init__"),
]
RANK = {name: rank for rank, names in enumerate(LEVELS) for name in names}
FORBIDDEN = {"decode": ("lp", "exact")}  # decoding runs verifiers, it does not solve for them

ONLY_IN = {
    "torch": ("decode/", "studies/", "integrations/", "verifiers/device.py"),
    "transformers": ("decode/", "studies/", "integrations/"),
    "accelerate": ("decode/", "studies/"),
    "safetensors": ("decode/", "studies/"),
    "datasets": ("decode/", "studies/"),
    "matplotlib": ("report/plots",),
    "cvxpy": ("lp/cvx.py",),
}


def imported(path: Path, module: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import, wherever it stands: in functions, conditions, import_module calls."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def violations(package: Path) -> list[str]:
    """Every import that points the wrong way, as ``file:line: reason``."""
    found = []
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        parts = [package.name, *relative.with_suffix("").parts]
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        own = parts[1]
        if own not in RANK:
            found.append(f"{relative}: {own} is in no level")
            continue
        for line, name in imported(path, module):
            top, *rest = name.split(".")
            if top in ONLY_IN and not relative.as_posix().startswith(ONLY_IN[top]):
                found.append(f"{relative}:{line}: {top} is imported outside {ONLY_IN[top][0]}")
            if top != package.name:
                continue
            other = rest[0] if rest else "__init__"
            if other not in RANK or other == "__init__":
                found.append(f"{relative}:{line}: imports the public face ({name})")
            elif RANK[other] > RANK[own]:
                found.append(f"{relative}:{line}: {own} imports the higher {other}")
            elif other in FORBIDDEN.get(own, ()):
                found.append(f"{relative}:{line}: {own} imports {other}")
    return found


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("core/model_pair.py", "import lpverify.lp.solve", "core imports the higher lp"),
        ("core/model_pair.py", "from lpverify import lp", "core imports the higher lp"),
        ("core/model_pair.py", "def f():\n    from lpverify.lp.solve import solve", "core imports the higher lp"),
        ("core/model_pair.py", "if True:\n    from ..exact import audit", "core imports the higher exact"),
        ("errors.py", "from lpverify.core import prefix_tree", "errors imports the higher core"),
        (
            "verifiers/bv.py",
            "import importlib\nimportlib.import_module('lpverify.cli')",
            "verifiers imports the higher cli",
        ),
        ("verifiers/bv.py", "from lpverify import VerifyProblem", "imports the public face"),
        ("verifiers/bv.py", "import lpverify", "imports the public face"),
        ("verifiers/bv.py", "def f():\n    import torch.nn", "torch is imported outside decode/"),
        ("auditing/audit.py", "from transformers import AutoModel", "transformers is imported outside decode/"),
        ("report/tables.py", "import matplotlib.pyplot as plt", "matplotlib is imported outside report/plots"),
        ("lp/solve.py", "try:\n    import cvxpy\nexcept ImportError:\n    pass", "cvxpy is imported outside lp/cvx.py"),
        ("decode/engine.py", "from lpverify.lp import solve", "decode imports lp"),
        ("decode/engine.py", "from lpverify.exact import evaluate", "decode imports exact"),
        ("new/thing.py", "", "new is in no level"),
    ],
)
def test_scanner_catches_a_planted_violation(tmp_path: Path, file: str, source: str, expected: str) -> None:
    path = tmp_path / "lpverify" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    [found] = violations(tmp_path / "lpverify")
    assert found.startswith(file)
    assert expected in found


def test_scanner_accepts_what_is_allowed(tmp_path: Path) -> None:
    for file, source in {
        "lp/cvx.py": "import cvxpy\nfrom lpverify import core, errors\nfrom . import coverage",
        "report/plots.py": "def f():\n    import matplotlib.pyplot",
        "decode/engine.py": "import torch\nfrom lpverify.verifiers import base",
        "cli/solve.py": "from lpverify.lp.solve import solve",
        "__init__.py": "from lpverify.cli import main",
    }.items():
        path = tmp_path / "lpverify" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    assert violations(tmp_path / "lpverify") == []


def test_imports_point_one_way() -> None:
    assert len(list(PACKAGE.rglob("*.py"))) > 10
    assert violations(PACKAGE) == []
