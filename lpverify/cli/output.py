"""Where results go: paths are checked before the work starts, and files are written whole at the end."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from fractions import Fraction
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from lpverify import errors
from lpverify.cli.options import option
from lpverify.files import write_whole

STDOUT = "-"
PICTURES = ("png", "svg", "pdf")


@dataclass(frozen=True)
class Output:
    """Results as a table, and as JSON: instead of the table on standard output, or beside it in a file."""

    json: Annotated[str | None, option("FILE|-", "Write JSON to a file, or to standard output (-).")] = None

    def check(self) -> None:
        """Raise InputError now for what could not be written at the end."""
        check_writable("--json", self.json)

    def write(self, document: dict[str, Any], show: Callable[[], None]) -> None:
        """Write ``document`` as JSON if asked for; call ``show`` unless standard output is JSON."""
        if self.json is not None:
            write_json(self.json, document)
        if self.json != STDOUT:
            show()


@dataclass(frozen=True)
class OutputAndPlot(Output):
    """`Output` and a picture, which is drawn before the results are written."""

    plot: Annotated[str | None, option("FILE", "Draw the results to a .png, .svg or .pdf file.")] = None

    def check(self) -> None:
        super().check()
        if self.plot is None:
            return
        if self.plot == STDOUT or self._kind not in PICTURES:
            raise errors.fail("--plot", got=self.plot, expected="a file name that ends in .png, .svg or .pdf")
        check_writable("--plot", self.plot)
        if self.json not in (None, STDOUT) and os.path.realpath(str(self.json)) == os.path.realpath(self.plot):
            raise errors.fail("--plot", got=self.plot, expected="another file than --json")
        errors.need("--plot", "matplotlib", extra="plot")

    @property
    def _kind(self) -> str:
        return str(self.plot).rpartition(".")[2].lower()

    def draw(self, figure: Callable[[], Any]) -> None:
        """Write the picture if asked for."""
        if self.plot is not None:
            from lpverify.report.plots import render

            write_whole(self.plot, render(figure(), self._kind))


def check_writable(option: str, path: str | None, *, stdout: bool = True) -> None:
    """Raise InputError now if ``path`` could not be written later. None passes, and so does ``-`` if ``stdout``."""
    if path is None or (path == STDOUT and stdout):
        return
    if path in (STDOUT, ""):
        raise errors.fail(option, got=path or "''", expected="a file name")
    got, expected = "", "a path that can be written"
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            got, expected = f"the directory {path}", "a file name"
        elif not target.parent.is_dir():
            got, expected = path, f"a file in a directory that exists ({target.parent} does not)"
        elif target.exists() and not os.access(target, os.W_OK):
            got = f"{path}, which is write-protected"
        elif target.is_file() or not target.exists():
            tempfile.NamedTemporaryFile(prefix=".lpverify-", suffix=target.name[-100:], dir=target.parent).close()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        got = f"{path} ({getattr(error, 'strerror', None) or error})"
    if got:
        raise errors.fail(option, got=got, expected=expected)


def write_json(path: str, data: dict[str, Any]) -> None:
    """Write ``data`` as JSON to a file, or to standard output for ``-``; dataclasses are objects, Fractions floats."""
    text = dumps(data, indent=1, ensure_ascii=False, allow_nan=False, default=_plain) + "\n"
    if path == STDOUT:
        sys.stdout.write(text)
    else:
        write_whole(path, text.encode())


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return float(value) if isinstance(value, Fraction) else value.tolist()  # of numpy


def with_error(value: float | None, error: float | None, scale: float = 1, digits: int = 3) -> str:
    """A measured value and its standard error in a table; "-" if there is no value."""
    if value is None:
        return "-"
    text = f"{scale * value:.{digits}f}"
    return text if error is None else f"{text} +- {scale * error:.{digits}f}"


def plural(count: int, noun: str) -> str:
    """For example "1 path", "2 paths"."""
    return f"{count} {noun}" + ("s" if count > 1 else "")
