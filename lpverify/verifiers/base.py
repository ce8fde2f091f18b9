"""What a verifier is: a deterministic map from a drafted tree to a law.

A verifier looks at one `DraftTree` and says for every drafted node the probability of stopping there (drafted tokens
up to the node are accepted), and for a node the law of the one token emitted after it. No randomness, no state: the
same object is summed over all drafts (`lpverify.exact`), drawn from (`lpverify.verifiers.sample`) and averaged
(`expected_accepted`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from lpverify import errors
from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, namespace, on_cpu, on_device, sharing


@dataclass(frozen=True, eq=False)
class StopDistribution:
    """The law of (stop node, next token) given a drafted tree.

    * ``stop`` (n,): probability of stopping at each node of ``view``; sums to 1 as far as the rows do.
    * ``rows``: node -> (V,), the law of the next token when stopping there; called only for nodes asked for. The node
      is an int, or an integer on the device of the rows, which is not brought to the host.
    """

    view: DraftTree
    stop: Array
    rows: Callable[[Any], Array]

    def next_token(self, node: int) -> Array:
        """Law of the token emitted after ``node``, shape (V,). Raises InputError where the verifier never stops."""
        errors.integer("node", node, least=0, most=len(self.view.parent) - 1)
        if not self.stop[node] > 0:
            raise errors.fail(f"next token at node {node}", got="a stop of probability 0", expected="a reachable stop")
        return self.rows(node)


def expected_accepted(law: StopDistribution) -> Any:
    """Expected number of accepted drafted tokens given the tree, sum over nodes of stop(c) |c| (THEORY 8).

    Averaged over drafted trees it is an unbiased estimate of block efficiency - 1, of lower variance than the sampled
    accepted lengths.
    """
    stop = law.stop
    xp = namespace(stop)
    if isinstance(stop, np.ndarray):
        return (stop * law.view.depth).sum()
    return (stop * xp.asarray(law.view.depth, dtype=stop.dtype, device=stop.device)).sum()


class NodeRule(Protocol):
    """How a tree walker chooses one token at a node, given the tokens drafted there."""

    def conditional(self, drafted: Any) -> Array:
        """Law of the chosen token y for each row of ``drafted``: integers (T, k) -> a new array (T, V).

        Averaged over k i.i.d. draws of the draft it is the target row.
        """


@dataclass(frozen=True)
class Verifier:
    """A named verification algorithm; call it with a `DraftTree` to get its `StopDistribution`.

    ``law`` gets views of numpy arrays and of tensors on a device: tensors in the host's memory are shared with numpy,
    whose operations cost less.

    ``path_order``: the law depends on the order of the paths; exact evaluation sums over multisets where it is False.
    ``first_path_only``: paths other than the first are ignored. ``node_rule``: for tree walkers, (target row, draft
    row, k) -> `NodeRule`, from which exact evaluation recurses on (node, k) instead of enumerating drafts.
    """

    name: str
    law: Callable[[DraftTree], StopDistribution]
    path_order: bool = True
    first_path_only: bool = False
    node_rule: Callable[[Array, Array, int], NodeRule] | None = None

    def __call__(self, view: DraftTree) -> StopDistribution:
        if not on_cpu(view.target):
            return self.law(view)
        law = self.law(replace(view, target=sharing(view.target), draft=sharing(view.draft)))
        return StopDistribution(
            view, on_device(law.stop, view.target), lambda node: on_device(law.rows(int(node)), view.target)
        )
