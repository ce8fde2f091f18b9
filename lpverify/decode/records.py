"""Finished prompts in a file, one line for each prompt and algorithm, so that an interrupted run resumes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lpverify.decode.metrics import Generation
from lpverify.files import JsonLines, StrPath

SCHEMA = "lpverify/decode-record@1"


class Records(JsonLines):
    """The finished prompts of one run, by algorithm and request.

    A context manager as `JsonLines`. Every line has the fields of `Generation`, and what `add` was told besides.

    Args:
        path: The file. None keeps the records in memory only.
        settings: Everything that the outcome of a run depends on besides algorithm and prompt.
        inputs: Files that the command reads, which must not be ``path``.

    Raises:
        InputError: As `JsonLines`.
    """

    def __init__(self, path: StrPath | None, settings: Mapping[str, Any], *, inputs: Iterable[StrPath] = ()) -> None:
        super().__init__(path, SCHEMA, settings, inputs=inputs)
        self._finished = {(run.algorithm, run.request): run for run in self.read(Generation.from_json)}

    def get(self, algorithm: str, request: str) -> Generation | None:
        """The finished run of this algorithm on this prompt."""
        return self._finished.get((algorithm, request))

    def add(self, generation: Generation, **more: Any) -> None:
        """Store a finished prompt; ``more`` becomes part of its line."""
        self._finished[generation.algorithm, generation.request] = generation
        self.append({**more, **generation.to_json()})
