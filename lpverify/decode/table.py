"""A table of conditional laws as a model: exact, tiny, and fed token by token like any other.

Prefixes are the states of an automaton. Beyond the table's depth the next token depends on the last L-1 tokens, by the
rows of the last level; so i.i.d. and Markov tables go on as they are meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from lpverify import errors
from lpverify.core import problem_files as files
from lpverify.core.model_pair import ModelPair
from lpverify.decode.models import known
from lpverify.numerics import Array, as_float


@dataclass(frozen=True, eq=False)
class TableModel:
    """A finite automaton with a law at each state.

    ``laws`` (S+1, V): log-probabilities; ``step`` (S+1, V): the state after a token. State S stands before the
    beginning: the first token of every sequence marks it, is otherwise ignored and leads to state 0, the empty prefix.
    """

    name: str
    laws: torch.Tensor
    step: torch.Tensor
    limit: None = field(default=None, init=False)

    @classmethod
    def from_levels(
        cls, levels: Sequence[Array], name: str = "table", device: str | torch.device = "cpu"
    ) -> TableModel:
        """From one (V^i, V) array of probabilities per level i < L, as in `ModelPair`."""
        vocab_size = levels[0].shape[1]
        sizes = [len(level) for level in levels]
        offset = np.concatenate([[0], np.cumsum(sizes)])
        step = []
        for i, size in enumerate(sizes):
            child = np.arange(size)[:, None] * vocab_size + np.arange(vocab_size)
            last = i + 1 == len(levels)
            step.append(offset[-2] + child % sizes[-1] if last else offset[i + 1] + child)
        step.append(np.zeros((1, vocab_size), dtype=np.int64))
        laws = np.concatenate([as_float(level) for level in levels] + [np.full((1, vocab_size), 1 / vocab_size)])
        with np.errstate(divide="ignore"):
            logits = np.log(laws)
        return cls(name, torch.tensor(logits, device=device), torch.tensor(np.concatenate(step), device=device))

    @property
    def vocab_size(self) -> int:
        return int(self.laws.shape[1])

    @property
    def device(self) -> torch.device:
        return self.laws.device

    def start(self, tokens: Sequence[int]) -> TableState:
        state = len(self.laws) - 1
        for token in tokens:
            state = int(self.step[state, token])
        return TableState(self, torch.tensor([state], device=self.device), len(tokens))


class TableState:
    """The automaton's state in each branch after every token of the current round."""

    def __init__(self, model: TableModel, state: torch.Tensor, length: int) -> None:
        self._model = model
        self._history = [state]
        self._base = length

    @property
    def length(self) -> int:
        return self._base + len(self._history) - 1

    @property
    def states(self) -> list[int]:
        """The automaton's state in each branch."""
        return [int(state) for state in self._history[-1]]

    def append(self, tokens: torch.Tensor) -> torch.Tensor:
        state = self._model.step[self._history[-1], known(tokens, self._model.vocab_size)]
        self._history.append(state)
        return self._model.laws[state]

    def tree(self, tokens: torch.Tensor, parent: Sequence[int], depth: Sequence[int]) -> torch.Tensor:
        step = self._model.step
        states = [int(step[self._history[-1][0], tokens[0]])]
        for above, token in zip(parent[1:], known(tokens, self._model.vocab_size).tolist()[1:], strict=True):
            states.append(int(step[states[above], token]))
        self._nodes = torch.tensor(states, device=step.device)
        return self._model.laws[self._nodes]

    def keep_nodes(self, nodes: Sequence[int]) -> None:
        self._base += len(nodes)
        self._history = [self._nodes[nodes[-1] : nodes[-1] + 1]]

    def keep_branch(self, branch: int, length: int) -> None:
        state = self._history[length - self._base]
        self._history = [state[branch : branch + 1] if len(state) > 1 else state]
        self._base = length


@dataclass(frozen=True)
class TableTokenizer:
    """Labels separated by blanks; every sequence begins with the marker that `TableModel` ignores."""

    labels: tuple[str, ...]
    eos: frozenset[int] = frozenset()

    @property
    def vocabulary(self) -> dict[str, int]:
        return {label: i for i, label in enumerate(self.labels)}

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        """Raises InputError for a label that the table does not have."""
        vocabulary = self.vocabulary
        for label in text.split():
            if label not in vocabulary:
                expected = "tokens of the table: " + " ".join(self.labels)
                raise errors.fail("prompt", got=f"token {label!r}", expected=expected)
        return [0] + [vocabulary[label] for label in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(self.labels[token] for token in tokens)


def is_problem(name: str) -> bool:
    """Does ``name`` mean a problem file or a built-in problem."""
    return name.endswith(".json") or name in files.example_names()


def load(name: str, role: str, device: torch.device) -> tuple[TableModel, TableTokenizer]:
    """One half of a problem. Raises as `lpverify.core.problem_files.load_problem`."""
    loaded = files.load_problem(name)
    levels = loaded.pair.target if role == "target" else loaded.pair.draft
    return TableModel.from_levels(levels, f"{loaded.name} {role}", device), TableTokenizer(loaded.pair.tokens)


def rooted(model: TableModel, state: int, depth: int) -> list[Array]:
    """The levels (V^i, V), i < ``depth``, of the model's conditional laws from one of its states on."""
    states = np.array([state])
    step, laws = model.step.cpu().numpy(), np.exp(model.laws.cpu().numpy())
    levels = []
    for _ in range(depth):
        levels.append(laws[states] / laws[states].sum(axis=1, keepdims=True))
        states = step[states].reshape(-1)
    return levels


def rooted_pair(target: TableModel, draft: TableModel, states: tuple[int, int], depth: int) -> ModelPair:
    """The problem that one round of the engine solves when it begins at these states."""
    levels = rooted(target, states[0], depth + 1)
    return ModelPair.from_levels(levels[:depth], rooted(draft, states[1], depth), bonus=levels[depth])
