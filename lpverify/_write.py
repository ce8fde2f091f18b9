"""Writing files: complete or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from lpverify import _check


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
        raise _check.fail(os.fspath(path), got=reason, expected="a path that can be written") from error


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
