"""Where results go: a path is checked before the work starts, JSON goes to a file or to standard output."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from lpverify import _check
from lpverify._write import write_whole

STDOUT = "-"


def check_writable(option: str, path: str | None) -> None:
    """Raise InputError now if ``path`` could not be written later. None and ``-`` pass."""
    if path is None or path == STDOUT:
        return
    try:
        _try(Path(os.path.realpath(path)), option, path)
    except _check.InputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise _check.fail(option, got=f"{path} ({reason})", expected="a path that can be written") from error


def _try(target: Path, option: str, path: str) -> None:
    if not path or target.is_dir():
        raise _check.fail(option, got=repr(path) if not path else f"the directory {path}", expected="a file name")
    if not target.parent.is_dir():
        raise _check.fail(option, got=path, expected=f"a file in a directory that exists ({target.parent} does not)")
    if target.exists() and not os.access(target, os.W_OK):
        raise _check.fail(option, got=f"{path}, which is write-protected", expected="a path that can be written")
    if target.is_file() or not target.exists():
        handle, name = tempfile.mkstemp(prefix=".lpverify-", suffix=target.name[-100:], dir=target.parent)
        os.close(handle)
        os.unlink(name)


def write_json(path: str, data: dict[str, Any]) -> None:
    """``data`` as JSON to a file, or to standard output for ``-``."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if path == STDOUT:
        sys.stdout.write(text)
    else:
        write_whole(path, text.encode())
