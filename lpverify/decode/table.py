"""A table of conditional distributions as a model: tiny, exact, and fed token by token like any other.

Prefixes are the states of an automaton. Beyond the table's depth L the next token depends on the last L - 1 tokens,
through the rows of the last level; so i.i.d. and Markov tables continue as their names say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from lpverify import errors
from lpverify.core import problem as files
from lpverify.decode.models import known
from lpverify.files import content_hash
from lpverify.numerics import Array, as_float


@dataclass(frozen=True, eq=False)
class TableModel:
    """A finite automaton with a next-token distribution in each state; a `lpverify.decode.models.Model`.

    State S precedes the beginning: the first token of every sequence only marks it and leads to state 0, the empty
    prefix.
    """

    name: str
    log_rows: torch.Tensor  # (S+1, V), log-probabilities of the next token, float64
    step: torch.Tensor  # (S+1, V), the state after each token
    limit: None = field(default=None, init=False)
    limit_reason: str = field(default="", init=False)

    @classmethod
    def from_levels(
        cls, levels: Sequence[Array], name: str = "table", device: str | torch.device = "cpu"
    ) -> TableModel:
        """From probabilities, one array (V^i, V) per level i < L as in `lpverify.core.model_pair.ModelPair`."""
        vocab_size = levels[0].shape[1]
        starts = np.cumsum([0, *map(len, levels)])
        child = [np.arange(level.size).reshape(level.shape) for level in levels]  # its number in the next level
        child[-1] %= len(levels[-1])  # the last level is followed by itself
        step = [start + inside for start, inside in zip([*starts[1:-1], starts[-2]], child, strict=True)]
        step.append(np.zeros((1, vocab_size), dtype=np.int64))
        rows = np.concatenate([as_float(level) for level in levels] + [np.full((1, vocab_size), 1 / vocab_size)])
        with np.errstate(divide="ignore"):
            log_rows = np.log(rows)
        return cls(name, torch.tensor(log_rows, device=device), torch.tensor(np.concatenate(step), device=device))

    @property
    def vocab_size(self) -> int:
        return int(self.log_rows.shape[1])

    @property
    def device(self) -> torch.device:
        return self.log_rows.device

    def content(self) -> dict[str, str]:
        parts = (part.cpu().numpy() for part in (self.log_rows, self.step))
        return {"table": content_hash(self.log_rows.shape, *(part.data for part in parts))}

    def start(self, tokens: Sequence[int]) -> TableState:
        state = len(self.log_rows) - 1
        for token in tokens:
            state = int(self.step[state, token])
        return TableState(self, torch.tensor([state], device=self.device), len(tokens))


class TableState:
    """A state of the table; ``history``: the automaton's state in each branch, after every token since the commit."""

    def __init__(self, model: TableModel, state: torch.Tensor, length: int) -> None:
        self._model, self.history, self._base = model, [state], length

    @property
    def length(self) -> int:
        return self._base + len(self.history) - 1

    def append(self, tokens: torch.Tensor) -> torch.Tensor:
        state = self._model.step[self.history[-1], known(tokens, self._model.vocab_size)]
        self.history.append(state)
        return self._model.log_rows[state]

    def tree(self, tokens: torch.Tensor, parent: Sequence[int], depth: Sequence[int]) -> torch.Tensor:
        step, states = self._model.step, [int(self._model.step[self.history[-1][0], tokens[0]])]
        for above, token in zip(parent[1:], known(tokens, self._model.vocab_size).tolist()[1:], strict=True):
            states.append(int(step[states[above], token]))
        self._nodes = torch.tensor(states, device=step.device)
        return self._model.log_rows[self._nodes]

    def keep_nodes(self, nodes: Sequence[int]) -> None:
        self._base += len(nodes)
        self.history = [self._nodes[nodes[-1] : nodes[-1] + 1]]

    def keep_branch(self, branch: int, length: int) -> None:
        state = self.history[length - self._base]
        self.history = [state[branch : branch + 1] if len(state) > 1 else state]
        self._base = length


@dataclass(frozen=True)
class TableTokenizer:
    """Labels separated by blanks; every sequence begins with the token that `TableModel` ignores."""

    labels: tuple[str, ...]
    eos: frozenset[int] = frozenset()

    @property
    def vocabulary(self) -> dict[str, int]:
        return {label: i for i, label in enumerate(self.labels)}

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        """Token ids of ``text``; there is no chat template. Raises InputError for an unknown label."""
        vocabulary = self.vocabulary
        try:
            return [0] + [vocabulary[label] for label in text.split()]
        except KeyError as unknown:
            expected = "tokens of the table: " + " ".join(self.labels)
            raise errors.fail("prompt", got=f"token {unknown}", expected=expected) from None

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(self.labels[token] for token in tokens)

    def content(self) -> str:
        return content_hash(self.labels)


def is_problem(name: str) -> bool:
    """Is ``name`` a problem file or a built-in problem?"""
    return name.endswith(".json") or name in files.example_names()


def load(name: str, role: str, device: torch.device) -> tuple[TableModel, TableTokenizer]:
    """The ``target`` or ``draft`` of a problem as a model. Raises as `lpverify.core.problem.load_problem`."""
    loaded = files.load_problem(name)
    levels = getattr(loaded.pair, role)
    return TableModel.from_levels(levels, f"{loaded.name} {role}", device), TableTokenizer(loaded.pair.tokens)
