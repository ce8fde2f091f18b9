"""Files: written completely or not at all, and what a stored number was computed with."""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lpverify import errors


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write ``content`` under a temporary name in the same directory, then rename it to ``path``.

    A link is followed; a device or a pipe is written to directly, there is nothing to replace. Raises InputError when
    the path cannot be written; an existing file is then untouched.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.is_file() or not target.exists():
            _replace(target, content)
        else:
            target.write_bytes(content)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise errors.fail(os.fspath(path), got=reason, expected="a path that can be written") from error


def _replace(target: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=".lpverify-", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.chmod(name, target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


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
