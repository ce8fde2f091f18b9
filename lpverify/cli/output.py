"""Where results go: paths are checked before the work starts, and files are written whole at the end."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from fractions import Fraction
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from lpverify import errors
from lpverify.cli.options import option
from lpverify.files import distinct, write_whole

STDOUT = "-"
PICTURES = ("png", "svg", "pdf")
ENDS = 8192  # bytes from the beginning and the end of a file, by which it is recognised


@dataclass(frozen=True)
class Output:
    """Results as a table, and as JSON: instead of the table on standard output, or beside it in a file."""

    json: Annotated[str | None, option("FILE|-", "Write JSON to a file, or to standard output (-).")] = None

    def check(self, schema: str, inputs: Mapping[str, str | None], **others: str | None) -> None:
        """Raise InputError now for what could not be written at the end, or would destroy a file.

        An existing file is only replaced by a document of its own ``schema``. No output is one of the ``inputs``, which
        map options and arguments to files, or another output; ``others`` are those besides JSON and picture.
        """
        check_output("--json", self.json, is_document(schema))
        distinct({"--json": self.json, **{"--" + name: path for name, path in others.items()}}, inputs)

    def write(self, document: dict[str, Any], show: Callable[[], None]) -> None:
        """Write ``document`` as JSON if asked for; call ``show`` unless standard output is JSON."""
        if self.json is not None:
            write_json(self.json, document)
        if self.json != STDOUT:
            show()


@dataclass(frozen=True)
class OutputAndPlot(Output):
    """`Output` and a picture, which is drawn when the results are written."""

    plot: Annotated[str | None, option("FILE", "Draw the results to a .png, .svg or .pdf file.")] = None

    def check(self, schema: str, inputs: Mapping[str, str | None], **others: str | None) -> None:
        super().check(schema, inputs, **others, plot=self.plot)
        if self.plot is None:
            return
        if self.plot == STDOUT or self._kind not in PICTURES:
            raise errors.fail("--plot", got=self.plot, expected="a file name that ends in .png, .svg or .pdf")
        errors.need("--plot", "matplotlib", extra="plot")
        from lpverify.report.plots import SIGNATURE

        check_output("--plot", self.plot, lambda content: SIGNATURE.encode() in content)

    @property
    def _kind(self) -> str:
        return str(self.plot).rpartition(".")[2].lower()

    def write_and_draw(self, document: dict[str, Any], show: Callable[[], None], figure: Callable[[], Any]) -> None:
        """`write`, then the picture if asked for."""
        self.write(document, show)
        if self.plot is not None:
            from lpverify.report.plots import render

            write_whole(self.plot, render(figure(), self._kind))


def is_document(schema: str) -> Callable[[bytes], bool]:
    """A test of the beginning of a file: did `write_json` write a document there whose schema begins like this?"""
    return lambda content: content.startswith(f'{{\n "schema": "{schema}'.encode())


def check_rows(option: str, path: str | None, schema: str) -> None:
    """`check_output` for a file that rows are appended to; `lpverify.files.JsonLines` checks the rest of it."""
    if path not in (None, STDOUT) and os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise errors.fail(option, got=f"{path}, a device or a pipe", expected="a file to append to")
    opening = dumps({"schema": schema})[:-1].encode()
    check_output(option, path, lambda content: content[: len(opening)] == opening[: len(content)], stdout=False)


def check_output(option: str, path: str | None, ours: Callable[[bytes], bool], *, stdout: bool = True) -> None:
    """Raise InputError now if ``path`` could not be written later, or is a file that lpverify did not write.

    ``ours`` recognises the first and last bytes of a file that has any. None passes, and so does ``-`` if ``stdout``.
    """
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
        elif target.is_file() and (content := _ends(target)) and not ours(content):
            got = f"{path}, which is a file of another kind"
            expected = "a new file, or one that the same command wrote"
        elif target.is_file() or not target.exists():
            tempfile.NamedTemporaryFile(prefix=".lpverify-", suffix=target.name[-100:], dir=target.parent).close()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        got = f"{path} ({getattr(error, 'strerror', None) or error})"
    if got:
        raise errors.fail(option, got=got, expected=expected)


def _ends(path: Path) -> bytes:
    with open(path, "rb") as stream:
        first = stream.read(ENDS)
        stream.seek(max(stream.tell(), path.stat().st_size - ENDS))
        return first + stream.read(ENDS)


def write_json(path: str, data: dict[str, Any]) -> None:
    """Write ``data`` as JSON to a file, or to standard output for ``-``; dataclasses are objects, Fractions floats."""
    ascii = path == STDOUT and (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") != "utf8"
    text = dumps(data, indent=1, ensure_ascii=ascii, allow_nan=False, default=_plain) + "\n"
    if path == STDOUT:
        sys.stdout.write(text)
    else:
        write_whole(path, text.encode(errors="backslashreplace"))  # half a surrogate pair as JSON escapes it


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
