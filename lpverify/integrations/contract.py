"""What the tensor contracts of serving engines have in common: requests, arrays, and a function called by name.

An engine verifies several requests in one call. Its function gets tensors of fixed meaning and shape, writes its answer
into some of them or returns it. A `Contract` makes those tensors out of drafted paths and rows, and reads the answer.
The function is called by name: it gets those of the contract's tensors that its parameters name. So functions of
several versions of an engine fit, and a function of one's own names only what it needs.

In front of the requests that are audited stands another one, whose answer is not read: a function that takes one
request for another, or an index in its request for one in the batch, is found in every case.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from lpverify import errors
from lpverify.auditing.adapter import BatchProgram, Rows, Tokens, returned
from lpverify.auditing.choices import Choices, SampledChoices
from lpverify.auditing.guard import Fault
from lpverify.core.draft_tree import Topology, topology
from lpverify.core.results import Finding
from lpverify.numerics import Array

Answer = tuple[Tokens, int]
ArrayKind = Literal["torch", "numpy"]
ARRAYS: tuple[ArrayKind, ...] = ("torch", "numpy")
LARGEST = 1 - 2**-24
"""The largest uniform below 1 in single precision."""
NO_TOKEN = -1
"""What engines fill places without a token with."""


@dataclass(frozen=True)
class Request:
    """One request of a batch: the distinct prefixes of its drafted paths, with their rows."""

    tree: Topology
    prefixes: tuple[Tokens, ...]  # of every node, the root first
    target: tuple[Array, ...]  # the target's row after every node
    draft: tuple[Array, ...]  # the draft's, of nodes that have children

    @classmethod
    def of(cls, paths: Sequence[Tokens], target: Rows, draft: Rows) -> Request:
        """The request with these drafted paths."""
        tree = topology(paths)
        prefixes: list[Tokens] = [()]
        for parent, token in zip(tree.parent[1:].tolist(), tree.token[1:].tolist(), strict=True):
            prefixes.append((*prefixes[parent], token))
        rows = tuple(draft(prefixes[node]) for node in tree.inner_nodes.tolist())
        return cls(tree, tuple(prefixes), tuple(target(prefix) for prefix in prefixes), rows)

    @property
    def path(self) -> Tokens:
        """Its first path, which in a chain is the only one."""
        return tuple(self.tree.paths[0].tolist())


class Arrays:
    """Makes the arrays of a call: of torch in single precision, or of numpy in the arithmetic of the rows."""

    def __init__(self, kind: ArrayKind) -> None:
        self.kind = kind

    def rows(self, rows: Any) -> Any:
        """Probabilities, (..., V)."""
        array = np.array(rows)
        return array if self.kind == "numpy" else self._tensor(array.astype(np.float64), "float32")

    def uniforms(self, values: Any) -> Any:
        """Uniforms in [0, 1). In numpy those that nothing is known of stay what they are (`choices.Uniform`)."""
        if self.kind == "torch":
            return self._tensor(np.minimum(np.array(values, dtype=np.float64), LARGEST), "float32")
        array = np.array(values, dtype=object)
        plain = all(isinstance(value, float) for value in array.flat)
        return array.astype(np.float64) if plain else array

    def integers(self, values: Any, kind: str = "int64") -> Any:
        """Token ids, indices and flags."""
        array = np.array(values, dtype=np.int64)
        return array.astype(kind) if self.kind == "numpy" else self._tensor(array, kind)

    @staticmethod
    def _tensor(array: Any, kind: str) -> Any:
        import torch

        return torch.tensor(array, dtype=getattr(torch, kind))


class Contract(ABC):
    """The tensors of one function of a serving engine.

    ``max_paths`` is 1 for chains. ``read_only`` names the tensors that the function must not change,
    ``outputs`` those that it writes to and may return instead.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    source: ClassVar[str]
    max_paths: ClassVar[int | None]
    read_only: ClassVar[tuple[str, ...]]
    outputs: ClassVar[tuple[str, ...]]

    @abstractmethod
    def tensors(self, requests: Sequence[Request], arrays: Arrays, rng: Choices) -> Mapping[str, Callable[[], Any]]:
        """How to make each tensor, by name. What is random is drawn for functions that ask for it only.

        The first request is not audited: its draws are fixed.
        """

    @abstractmethod
    def answers(self, outputs: Mapping[str, Any], requests: Sequence[Request]) -> list[Answer]:
        """(accepted tokens, next token) of each request but the first.

        ``outputs`` are the written or returned tensors as numpy arrays. Raises Fault for what an engine could not use.
        """

    def first_paths(self, path: Tokens) -> tuple[Tokens, ...]:
        """The drafted paths of the request in front, given a possible path."""
        return (path,)

    def uniforms(self, rng: Choices, shape: tuple[int, ...]) -> Any:
        """Uniforms for so many requests (the first entry of ``shape``), 1/2 for the first of them."""
        values = np.full(shape, 0.5, dtype=object)
        for index in np.ndindex(shape[0] - 1, *shape[1:]):
            values[(index[0] + 1, *index[1:])] = rng.uniform()
        return values


class EngineProgram(BatchProgram):
    """A function of a serving engine as a third-party verifier. `adapt` makes it."""

    def __init__(self, function: Callable[..., Any], contract: Contract, arrays: Arrays) -> None:
        self.function, self.contract, self.arrays = function, contract, arrays
        self.max_paths = contract.max_paths
        self.__name__ = str(getattr(function, "__name__", type(function).__name__))
        self._names = _parameters(function, contract, arrays)

    def verify(self, drafts: Sequence[tuple[Tokens, ...]], target: Rows, draft: Rows, rng: Choices) -> list[Any]:
        first: Tokens = ()
        for _ in range(len(drafts[0][0])):
            first += (int(np.argmax(draft(first))),)
        every = (self.contract.first_paths(first), *drafts)
        distinct = {paths: Request.of(paths, target, draft) for paths in dict.fromkeys(every)}
        batch = [distinct[paths] for paths in every]
        makers = self.contract.tensors(batch, self.arrays, rng)
        made = {name: makers[plain]() for name, plain in self._names.items()}
        before = {name: _copy(made[name]) for name, plain in self._names.items() if plain in self.contract.read_only}
        function = self.function() if isinstance(self.function, type) else self.function
        answer = function(**made)
        for name, array in before.items():
            if array is not None and not np.array_equal(_plain(made[name]), array):
                raise Fault(Finding("changed its input", f"it changed {name}"))
        return self.contract.answers(self._outputs(answer, made), batch)

    def _outputs(self, answer: Any, made: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs that were returned, or written to."""
        names = self.contract.outputs
        if answer is None:
            written = {plain: _plain(made[name]) for name, plain in self._names.items() if plain in names}
            if names[0] not in written:
                raise returned("returned", None, f"{', '.join(names)}, or writes to them")
            return written
        several = answer if isinstance(answer, tuple | list) else (answer,)
        if len(several) > len(names):
            raise returned("returned", answer, f"{', '.join(names)}")
        return {name: _plain(value) for name, value in zip(names, several, strict=False)}


def _parameters(function: Callable[..., Any], contract: Contract, arrays: Arrays) -> dict[str, str]:
    """The parameters of a function that get a tensor, and which one. Raises InputError for a parameter without one."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        got = f"{errors.shown(function)}, whose parameters are unknown"
        raise errors.fail("verifier", got=got, expected=f"a function of the tensors of {contract.name}") from None
    offered = contract.tensors((), arrays, SampledChoices(0))
    names = {}
    for parameter in parameters:
        plain = parameter.name.replace("retrive_", "retrieve_")  # both are in use
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if plain in offered and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            names[parameter.name] = plain
        elif parameter.default is parameter.empty and not variadic:
            got = f"a function with the parameter {parameter.name}"
            raise errors.fail("verifier", got=got, expected=f"parameters out of {', '.join(offered)}")
    return names


def _plain(array: Any) -> Any:
    """A tensor as a numpy array."""
    return array.detach().cpu().numpy() if hasattr(array, "detach") else np.asarray(array)


def _copy(array: Any) -> Any:
    return None if array is None else _plain(array).copy()
