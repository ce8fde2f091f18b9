"""What a stored number was computed with."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


@cache
def provenance(*packages: str) -> dict[str, Any]:
    """Versions of Python, lpverify and ``packages`` (None: not installed); ``git``: see `checkout`.

    Found once a process; do not change the returned mapping.

    >>> sorted(provenance("numpy"))
    ['git', 'lpverify', 'machine', 'numpy', 'python']
    """
    found: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("lpverify", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    found["git"] = checkout(ROOT)
    return found


def checkout(folder: Path) -> dict[str, Any] | None:
    """``{"commit": ..., "dirty": ...}`` where ``folder`` is a git checkout (dirty: tracked files differ), else None."""
    if not (folder / ".git").exists():
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    status = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None or status is None else {"commit": commit, "dirty": bool(status)}


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
