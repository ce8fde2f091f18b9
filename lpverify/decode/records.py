"""Finished prompts in a file of JSON lines, one a prompt and algorithm: they survive a crash, and a rerun goes on.

A line is written only when its prompt is finished, and flushed to the disk. What a crash left of a last line is cut
off; a file that was written with other settings is refused, not mixed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lpverify import _check
from lpverify.decode.metrics import Generation

SCHEMA = "lpverify/decode-record@1"


class Records:
    """The records of one run. ``path`` None keeps them in memory only. Raises InputError, naming file and line."""

    def __init__(self, path: str | os.PathLike[str] | None, settings: dict[str, Any]) -> None:
        self._path = None if path is None else Path(path)
        self._settings = settings
        self._done: dict[tuple[str, str], Generation] = {}
        if self._path is not None and self._path.exists():
            self._read(self._path)

    def get(self, algorithm: str, request: str) -> Generation | None:
        """The finished run of this algorithm on this prompt."""
        return self._done.get((algorithm, request))

    def add(self, generation: Generation, **more: Any) -> None:
        """Keep a finished prompt; ``more`` goes into its line."""
        self._done[generation.algorithm, generation.request] = generation
        if self._path is None:
            return
        line = {"schema": SCHEMA, "settings": self._settings, **more, **generation.to_json()}
        try:
            with open(self._path, "a", encoding="utf-8") as stream:
                stream.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise _check.fail(f"records {self._path}", got=error.strerror, expected="a file to append to") from error

    def _read(self, path: Path) -> None:
        try:
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if whole != content:
                with open(path, "r+b") as stream:
                    stream.truncate(len(whole))
        except OSError as error:
            raise _check.fail(f"records {path}", got=error.strerror, expected="a file to append to") from error
        for number, line in enumerate(whole.splitlines(), start=1):
            where = f"records {path} line {number}"
            try:
                data = json.loads(line)
                settings, generation = data["settings"], Generation.from_json(data)
            except (ValueError, KeyError, TypeError) as error:
                raise _check.fail(where, got=f"{type(error).__name__}: {error}", expected=f"a {SCHEMA}") from error
            for name in sorted(self._settings.keys() | settings.keys()):
                if self._settings.get(name) != settings.get(name):
                    got, expected = f"{name} = {settings.get(name)!r}", f"{self._settings.get(name)!r}, or a new file"
                    raise _check.fail(where, got=got, expected=expected)
            self._done[generation.algorithm, generation.request] = generation
