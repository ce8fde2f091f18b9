"""Somebody else's verifier as a program that can be run: its inputs, its rounds, and what is checked of its answers."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from operator import index as as_integer
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.auditing.choices import Choices
from lpverify.core import prefix_tree as tree
from lpverify.core.model_pair import ModelPair
from lpverify.core.results import Finding
from lpverify.numerics import Array

Tokens = tuple[int, ...]
Program = Callable[..., Any]


class Fault(Exception):
    """A finding inside one run."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class RowTable:
    """Rows as a program asks for them, the same arrays every time, and whether they are still what they were."""

    def __init__(self, pair: ModelPair) -> None:
        self.pair = pair
        self._rows: dict[str, dict[Tokens, Array]] = {"target": {}, "draft": {}}

    def target(self, prefix: Sequence[int]) -> Array:
        """The target's law after ``prefix`` of at most L tokens."""
        return self._row("target", prefix)

    def draft(self, prefix: Sequence[int]) -> Array:
        """The draft's law after ``prefix`` of at most L-1 tokens."""
        return self._row("draft", prefix)

    def changed(self) -> Finding | None:
        """A row that the program wrote to."""
        for side, rows in self._rows.items():
            for prefix, row in rows.items():
                if not np.array_equal(row, self._original(side, prefix)):
                    shown = " ".join(self.pair.tokens[token] for token in prefix)
                    return Finding("changed its input", f'it changed the row {side}("{shown}")', prefix)
        return None

    def _row(self, side: str, prefix: Sequence[int]) -> Array:
        key = tuple(prefix)
        row = self._rows[side].get(key)
        if row is None:
            key = tuple(as_integer(token) for token in prefix)
            row = self._rows[side].setdefault(key, self._original(side, key).copy())
        return row

    def _original(self, side: str, prefix: Tokens) -> Array:
        pair = self.pair
        levels = (*pair.target, pair.bonus_rows) if side == "target" else pair.draft
        if len(prefix) >= len(levels):
            raise errors.fail(side, got=f"a prefix of {len(prefix)} tokens", expected=f"at most {len(levels) - 1}")
        for token in prefix:
            errors.integer(f"token of a prefix given to {side}", token, min=0, max=pair.vocab_size - 1)
        row: Array = levels[len(prefix)][tree.index_of(prefix, pair.vocab_size)]
        return row


class Rounds:
    """One run: draft and verify, ``rounds`` times, with the choices offered; what each round emitted.

    Raises Fault when the program raises or does not return a drafted prefix and a token.
    """

    def __init__(self, function: Program, table: RowTable, paths: int, rounds: int) -> None:
        self.function, self.table, self.paths, self.rounds = function, table, paths, rounds

    def __call__(self, choices: Choices) -> tuple[Tokens, ...]:
        emitted: list[Tokens] = []
        function = self._guarded(self.function) if isinstance(self.function, type) else self.function
        for _ in range(self.rounds):
            paths = self._drafted(function, choices)
            answer = self._guarded(function, paths, self.table.target, self.table.draft, choices)
            emitted.append(self._emission(answer, paths))
        return tuple(emitted)

    def _drafted(self, function: Program, choices: Choices) -> tuple[Tokens, ...]:
        length, draft = self.table.pair.depth, self.table.draft
        own = getattr(function, "draft_paths", None)
        if own is not None:
            drafted = self._guarded(own, draft, self.paths, length, choices)
            paths = self._integers("draft_paths", drafted)
            if len(paths) != self.paths or any(len(path) != length for path in paths):
                raise self._returned("draft_paths", drafted, f"{self.paths} paths of {length} tokens")
            return paths
        sampled: list[Tokens] = []
        for _ in range(self.paths):
            path: Tokens = ()
            for _ in range(length):
                path += (choices.categorical(draft(path)),)
            sampled.append(path)
        return tuple(sampled)

    def _integers(self, what: str, drafted: Any) -> tuple[Tokens, ...]:
        size = self.table.pair.vocab_size
        try:
            paths = tuple(tuple(as_integer(token) for token in path) for path in drafted)
        except TypeError:
            raise self._returned(what, drafted, "tuples of tokens") from None
        if any(not 0 <= token < size for path in paths for token in path):
            raise self._returned(what, drafted, f"tokens in 0..{size - 1}")
        return paths

    def _emission(self, answer: Any, paths: tuple[Tokens, ...]) -> Tokens:
        try:
            accepted, token = answer
            emission = (*(as_integer(x) for x in accepted), as_integer(token))
        except (TypeError, ValueError):
            raise self._returned("", answer, "(accepted tokens, next token)") from None
        if not 0 <= emission[-1] < self.table.pair.vocab_size:
            expected = f"a next token in 0..{self.table.pair.vocab_size - 1}"
            raise self._returned("", answer, expected)
        if not any(path[: len(emission) - 1] == emission[:-1] for path in paths):
            raise self._returned("", answer, f"a prefix of a drafted path out of {list(paths)} as accepted tokens")
        return emission

    @staticmethod
    def _returned(what: str, answer: Any, expected: str) -> Fault:
        who = f"{what} returned" if what else "returned"
        return Fault(Finding("returned", errors.one_line(f"{who} {answer!r}, expected {expected}")))

    @staticmethod
    def _guarded(function: Program, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[1:]
            where = f" at line {frames[0].lineno} of {frames[0].filename.rpartition('/')[2]}" if frames else ""
            message = errors.one_line(f"raised {type(error).__name__}: {error}{where}")
            raise Fault(Finding("raised", message)) from error
