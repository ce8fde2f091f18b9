"""The tensor contracts of SGLang: a tree verified by target probabilities, and a chain with draft probabilities.

The tree is given by the first child and the next sibling of every node, -1 where there is none. Node 0 is the last
token of the context. TensorRT-LLM and sglang-jax have the same contract for trees. Shapes, for B requests of at most N
nodes, a depth of L and V tokens:

    candidates                            (B, N)       the token of every node
    retrieve_index                        (B, N)       the index of every node in the batch, b N + i
    retrieve_next_token                   (B, N)       first child
    retrieve_next_sibling                 (B, N)       next child of the same node
    uniform_samples                       (B, N)       uniforms
    uniform_samples_for_final_sampling    (B,)         one more for the last token
    target_probs                          (B, N, V)    the target's rows after every node
    draft_probs                           (B, N, V)    trees: zeros, which the function may write to
                                          (B, L, V)    chains: the draft's rows

    predicts           (B N,)      written: at the index of an accepted node, the token that comes after it
    accept_index       (B, L+1)    written: the indices of the accepted nodes, node 0 first; -1 after them
    accept_token_num   (B,)        written: how many drafted tokens were accepted

``retrive_index`` and so on, the spelling of SGLang, are the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from lpverify.auditing.adapter import returned
from lpverify.auditing.choices import Choices
from lpverify.integrations.contract import NO_TOKEN, Answer, Arrays, Contract, Request

OUTPUTS = ("predicts", "accept_index", "accept_token_num")
TREE = ("candidates", "retrieve_index", "retrieve_next_token", "retrieve_next_sibling", "target_probs")


class Tree(Contract):
    """A drafted tree whose siblings differ, verified without draft probabilities."""

    name = "sglang-tree"
    max_paths: ClassVar[int | None] = None
    help = "SGLang's tree verification by target probabilities (tree_speculative_sampling_target_only)"
    source = "sgl-project/sglang, speculative_sampling.cuh"
    read_only: ClassVar[tuple[str, ...]] = TREE
    outputs = OUTPUTS

    def tensors(self, requests: Sequence[Request], arrays: Arrays, rng: Choices) -> Mapping[str, Callable[[], Any]]:
        count, size = len(requests), max((request.tree.size for request in requests), default=1)
        depth = max((request.tree.paths.shape[1] for request in requests), default=0)

        def nodes(values: Callable[[Request], list[int]], other: int) -> Any:
            return arrays.integers([(values(r) + [other] * size)[:size] for r in requests])

        def target() -> Any:
            return arrays.rows([[r.target[i if i < r.tree.size else 0] for i in range(size)] for r in requests])

        return {
            "predicts": lambda: arrays.integers([NO_TOKEN] * (count * size), "int32"),
            "accept_index": lambda: arrays.integers([[NO_TOKEN] * (depth + 1)] * count, "int32"),
            "accept_token_num": lambda: arrays.integers([0] * count, "int32"),
            "candidates": lambda: nodes(lambda r: [0, *r.tree.token[1:].tolist()], 0),
            "retrieve_index": lambda: arrays.integers(np.arange(count * size).reshape(count, size)),
            "retrieve_next_token": lambda: nodes(lambda r: _links(r)[0], NO_TOKEN),
            "retrieve_next_sibling": lambda: nodes(lambda r: _links(r)[1], NO_TOKEN),
            "uniform_samples": lambda: arrays.uniforms(self.uniforms(rng, (count, size))),
            "uniform_samples_for_final_sampling": lambda: arrays.uniforms(self.uniforms(rng, (count,))),
            "target_probs": target,
            "draft_probs": lambda: self.draft(requests, arrays, size),
            "threshold_single": lambda: 1.0,
            "threshold_acc": lambda: 1.0,
            "deterministic": lambda: True,
            "num_slots": lambda: count * size,
        }

    def draft(self, requests: Sequence[Request], arrays: Arrays, size: int) -> Any:
        """``draft_probs``."""
        return arrays.rows([[request.target[0] * 0] * size for request in requests])

    def answers(self, outputs: Mapping[str, Any], requests: Sequence[Request]) -> list[Answer]:
        missing = [name for name in OUTPUTS if name not in outputs]
        if missing:
            raise returned("returned no", missing[0], ", ".join(OUTPUTS))
        predicts, index, number = (outputs[name] for name in OUTPUTS)
        size = len(predicts) // len(requests)
        return [
            _answer(request, b, size, predicts, index[b].tolist(), int(number[b]))
            for b, request in enumerate(requests)
            if b
        ]


class Chain(Tree):
    """One path, verified with draft probabilities."""

    name, max_paths = "sglang-chain", 1
    help = "SGLang's chain verification with draft probabilities (--speculative-use-rejection-sampling)"
    source = "sgl-project/sglang, reject_sampling.py"
    read_only = (*TREE, "draft_probs")

    def draft(self, requests: Sequence[Request], arrays: Arrays, size: int) -> Any:
        return arrays.rows([request.draft for request in requests])


def _links(request: Request) -> tuple[list[int], list[int]]:
    """First child and next sibling of every node, -1 where there is none."""
    tree = request.tree
    child, sibling = [NO_TOKEN] * tree.size, [NO_TOKEN] * tree.size
    for node in tree.inner_nodes.tolist():
        children = tree.children(node)
        child[node] = children[0]
        for one, other in zip(children, children[1:], strict=False):
            sibling[one] = other
    return child, sibling


def _answer(request: Request, b: int, size: int, predicts: Any, index: list[int], number: int) -> Answer:
    """Accepted tokens and next token of request ``b``. Raises Fault for what the engine could not use."""
    tree = request.tree
    if not 0 <= number < len(index):
        raise returned("accept_token_num is", number, f"at most {len(index) - 1} accepted tokens")
    if any(entry != NO_TOKEN for entry in index[number + 1 :]):
        raise returned("accept_index is", index, f"-1 after node 0 and {number} accepted nodes")
    nodes = [entry - b * size for entry in index[: number + 1]]
    parents = [int(tree.parent[node]) if 0 <= node < tree.size else None for node in nodes]
    if parents != [-1, *nodes[:-1]]:
        expected = f"the index of node 0, {b * size}, and of nodes that are each a child of the one before"
        raise returned("accept_index is", index, expected)
    tokens = [int(predicts[entry]) for entry in index[: number + 1]]
    accepted = [int(tree.token[node]) for node in nodes[1:]]
    if tokens[:-1] != accepted:
        raise returned("predicts at the accepted nodes is", tokens, f"the accepted tokens {accepted} and one more")
    return tuple(accepted), tokens[-1]
