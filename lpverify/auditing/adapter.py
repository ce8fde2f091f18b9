"""Adapter for third-party verifiers: their inputs, their decoding rounds, and the checks of what they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from inspect import iscoroutine
from itertools import islice
from operator import index as as_integer
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.auditing.choices import Choices
from lpverify.auditing.guard import Fault, guarded
from lpverify.core import prefix_tree as tree
from lpverify.core.model_pair import ModelPair
from lpverify.core.results import Finding
from lpverify.numerics import Array

Tokens = tuple[int, ...]
Program = Callable[..., Any]
Rows = Callable[[Sequence[int]], Array]

MAX_BATCH = 256
"""Largest number of requests that a program of batches gets at once."""


class RowTable:
    """The probability rows that a program asks for. Every request for a row returns the same array.

    `changed` tells whether the program wrote to one of them.
    """

    def __init__(self, pair: ModelPair) -> None:
        self.pair = pair
        self._rows: dict[str, dict[Tokens, Array]] = {"target": {}, "draft": {}}

    def target(self, prefix: Sequence[int]) -> Array:
        """The target's distribution after ``prefix`` of at most L tokens."""
        return self._row("target", prefix)

    def draft(self, prefix: Sequence[int]) -> Array:
        """The draft's distribution after ``prefix`` of at most L-1 tokens."""
        return self._row("draft", prefix)

    def changed(self) -> Finding | None:
        """The finding that the program wrote to a row."""
        for side, rows in self._rows.items():
            for prefix, row in rows.items():
                if not np.array_equal(row, self._original(side, prefix)):
                    shown = errors.label(" ".join(self.pair.tokens[token] for token in prefix))
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


class BatchProgram(ABC):
    """A third-party verifier that takes several requests at once, as serving engines do (`lpverify.integrations`).

    ``max_paths`` is the largest number of paths of one request, None if there is no limit. In a case of two rounds,
    both are requests of one batch.
    """

    __name__: str
    max_paths: int | None

    @abstractmethod
    def verify(self, drafts: Sequence[tuple[Tokens, ...]], target: Rows, draft: Rows, rng: Choices) -> list[Any]:
        """(accepted tokens, next token) for each request, given its drafted paths."""


class Adapter:
    """A third-party verifier as a function of the random choices: ``rounds`` times, draft paths and verify them.

    A class is instantiated once per call; anything else keeps its state from call to call. ``uniforms`` tells whether
    the program has asked for one while its choices were enumerated.
    """

    def __init__(self, function: Program | BatchProgram, table: RowTable, num_paths: int, rounds: int) -> None:
        self.function, self.table, self.num_paths, self.rounds = function, table, num_paths, rounds
        self.uniforms = False

    @property
    def round(self) -> str:
        """What the rounds of a case are."""
        return "request of a batch" if isinstance(self.function, BatchProgram) else "round"

    def __call__(self, choices: Choices) -> tuple[Tokens, ...]:
        """The tokens that each round emitted: the accepted prefix and the next token.

        Raises Fault when the program raises, or does not return a drafted prefix and a token.
        """
        try:
            return self._batch(choices, 1)[0]
        finally:
            self.uniforms |= getattr(choices, "uniforms", 0) > 0

    def several(self, choices: Choices, count: int) -> Iterator[tuple[Tokens, ...]]:
        """``count`` independent runs, many in one batch where the program takes batches."""
        size = MAX_BATCH // self.rounds if isinstance(self.function, BatchProgram) else 1
        for start in range(0, count, size):
            yield from self._batch(choices, min(size, count - start))

    def _batch(self, choices: Choices, runs: int) -> list[tuple[Tokens, ...]]:
        target, draft, count = self.table.target, self.table.draft, runs * self.rounds
        emitted: list[Tokens] = []
        with guarded():
            function = self.function() if isinstance(self.function, type) else self.function
            if isinstance(function, BatchProgram):
                drafts = [self._draft(function, choices) for _ in range(count)]
                answers = function.verify(drafts, target, draft, choices)
                emitted = [self._checked(answer, paths) for answer, paths in zip(answers, drafts, strict=True)]
            else:
                for _ in range(count):
                    paths = self._draft(function, choices)
                    emitted.append(self._checked(function(paths, target, draft, choices), paths))
        return [tuple(emitted[i : i + self.rounds]) for i in range(0, count, self.rounds)]

    def _draft(self, function: Any, choices: Choices) -> tuple[Tokens, ...]:
        """K paths of L tokens, drawn path by path from the draft rows or by the program's own ``draft_paths``."""
        length, size, draft = self.table.pair.depth, self.table.pair.vocab_size, self.table.draft
        own = getattr(function, "draft_paths", None)
        if own is None:
            sampled: list[Tokens] = []
            for _ in range(self.num_paths):
                path: Tokens = ()
                for _ in range(length):
                    path += (choices.categorical(draft(path)),)
                sampled.append(path)
            return tuple(sampled)
        drafted = own(draft, self.num_paths, length, choices)
        try:  # iterators may have no end
            several = islice(drafted, self.num_paths + 1)
            paths = tuple(tuple(as_integer(token) for token in islice(path, length + 1)) for path in several)
        except TypeError:
            raise returned("draft_paths returned", drafted, "tuples of tokens") from None
        if any(not 0 <= token < size for path in paths for token in path):
            raise returned("draft_paths returned", drafted, f"tokens in 0..{size - 1}")
        if len(paths) != self.num_paths or any(len(path) != length for path in paths):
            raise returned("draft_paths returned", drafted, f"{self.num_paths} paths of {length} tokens")
        return paths

    def _checked(self, answer: Any, paths: tuple[Tokens, ...]) -> Tokens:
        """The accepted tokens and the next token of a valid answer."""
        size = self.table.pair.vocab_size
        try:
            accepted, token = answer
            emission = (*(as_integer(x) for x in islice(accepted, self.table.pair.depth + 1)), as_integer(token))
        except (TypeError, ValueError):
            raise returned("returned", answer, "(accepted tokens, next token)") from None
        if not 0 <= emission[-1] < size:
            raise returned("returned", answer, f"a next token in 0..{size - 1}")
        if not any(path[: len(emission) - 1] == emission[:-1] for path in paths):
            expected = f"a prefix of a drafted path out of {list(paths)} as accepted tokens"
            raise returned("returned", answer, expected)
        return emission


def returned(what: str, answer: Any, expected: str) -> Fault:
    """The finding that ``answer`` is not what was ``expected``."""
    if iscoroutine(answer):
        answer.close()  # else Python warns that it was never awaited
    return Fault(Finding("returned", errors.one_line(f"{what} {errors.shown(answer)}, expected {expected}")))
