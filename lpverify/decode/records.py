"""Finished prompts in a file of JSON lines, one a prompt and algorithm: they survive a crash, and a rerun goes on.

A line is written only when its prompt is finished, and flushed to the disk. What a crash left of a last line is cut
off; a file that was written with other settings is refused, not mixed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from lpverify import errors
from lpverify.decode.metrics import Generation

SCHEMA = "lpverify/decode-record@1"

T = TypeVar("T")


class Lines:
    """A file of JSON lines, each with ``schema`` and the ``settings`` of the run; ``path`` None keeps nothing.

    Raises InputError, naming file and line.
    """

    def __init__(self, path: str | os.PathLike[str] | None, schema: str, settings: dict[str, Any]) -> None:
        self._path = None if path is None else Path(path)
        self._schema, self._settings = schema, settings

    def read(self, parse: Callable[[dict[str, Any]], T]) -> list[T]:
        """What is there, each line given to ``parse``, which raises ValueError, KeyError or TypeError if it cannot."""
        path = self._path
        if path is None or not path.exists():
            return []
        try:
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if whole != content:
                with open(path, "r+b") as stream:
                    stream.truncate(len(whole))
        except OSError as error:
            raise errors.fail(f"records {path}", got=error.strerror, expected="a file to append to") from error
        found = []
        for number, line in enumerate(whole.splitlines(), start=1):
            where = f"records {path} line {number}"
            try:
                data = json.loads(line)
                settings, value = data["settings"], parse(data)
            except (ValueError, KeyError, TypeError) as error:
                got = f"{type(error).__name__}: {error}"
                raise errors.fail(where, got=got, expected=f"a {self._schema}") from error
            for name in sorted(self._settings.keys() | settings.keys()):
                if self._settings.get(name) != settings.get(name):
                    got, expected = f"{name} = {settings.get(name)!r}", f"{self._settings.get(name)!r}, or a new file"
                    raise errors.fail(where, got=got, expected=expected)
            found.append(value)
        return found

    def append(self, data: dict[str, Any]) -> None:
        """Write one line and bring it to the disk."""
        if self._path is None:
            return
        line = {"schema": self._schema, "settings": self._settings, **data}
        try:
            with open(self._path, "a", encoding="utf-8") as stream:
                stream.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise errors.fail(f"records {self._path}", got=error.strerror, expected="a file to append to") from error


class Records:
    """The records of one run. ``path`` None keeps them in memory only. Raises InputError as `Lines`."""

    def __init__(self, path: str | os.PathLike[str] | None, settings: dict[str, Any]) -> None:
        self._lines = Lines(path, SCHEMA, settings)
        found = self._lines.read(Generation.from_json)
        self._done = {(generation.algorithm, generation.request): generation for generation in found}

    def get(self, algorithm: str, request: str) -> Generation | None:
        """The finished run of this algorithm on this prompt."""
        return self._done.get((algorithm, request))

    def add(self, generation: Generation, **more: Any) -> None:
        """Keep a finished prompt; ``more`` goes into its line."""
        self._done[generation.algorithm, generation.request] = generation
        self._lines.append({**more, **generation.to_json()})
