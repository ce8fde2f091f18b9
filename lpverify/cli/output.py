"""Where results go: a path is checked before the work starts, JSON goes to a file or to standard output."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from lpverify import errors
from lpverify.files import write_whole

STDOUT = "-"
PICTURES = ("png", "svg", "pdf")


def check_writable(option: str, path: str | None, *, stdout: bool = True) -> None:
    """Raise InputError now if ``path`` could not be written later. None passes, and so does ``-`` if ``stdout``."""
    if path is None or (path == STDOUT and stdout):
        return
    if path == STDOUT:
        raise errors.fail(option, got=path, expected="a file name")
    try:
        _try(Path(os.path.realpath(path)), option, path)
    except errors.InputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise errors.fail(option, got=f"{path} ({reason})", expected="a path that can be written") from error


def _try(target: Path, option: str, path: str) -> None:
    if not path or target.is_dir():
        raise errors.fail(option, got=repr(path) if not path else f"the directory {path}", expected="a file name")
    if not target.parent.is_dir():
        raise errors.fail(option, got=path, expected=f"a file in a directory that exists ({target.parent} does not)")
    if target.exists() and not os.access(target, os.W_OK):
        raise errors.fail(option, got=f"{path}, which is write-protected", expected="a path that can be written")
    if target.is_file() or not target.exists():
        handle, name = tempfile.mkstemp(prefix=".lpverify-", suffix=target.name[-100:], dir=target.parent)
        os.close(handle)
        os.unlink(name)


def check_plot(plot: str | None, json: str | None) -> str | None:
    """The format that the file name of a picture asks for; refuses now what could not be drawn later."""
    if plot is None:
        return None
    kind = plot.rpartition(".")[2].lower()
    if plot == STDOUT or kind not in PICTURES:
        raise errors.fail("--plot", got=plot, expected="a file name that ends in .png, .svg or .pdf")
    check_writable("--plot", plot)
    if json is not None and json != STDOUT and os.path.realpath(json) == os.path.realpath(plot):
        raise errors.fail("--plot", got=plot, expected="another file than --json")
    errors.need("--plot", "matplotlib", extra="plot")
    return kind


def write_json(path: str, data: dict[str, Any]) -> None:
    """``data`` as JSON to a file, or to standard output for ``-``."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if path == STDOUT:
        sys.stdout.write(text)
    else:
        write_whole(path, text.encode())
