"""What a verifier is: a deterministic map from a drafted tree to a stop distribution.

No randomness, no state: the same object is summed over all drafts (`lpverify.exact`), sampled
(`lpverify.verifiers.sample`) and averaged (`StopDistribution.expected`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from lpverify import errors
from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, namespace


@dataclass(frozen=True, eq=False, repr=False)
class StopDistribution:
    """The distribution of (stop node, next token) given a drafted tree.

    * ``stop`` (n,): probability of stopping at each node of ``tree``, the tokens up to it being accepted; sums to 1 as
      far as the rows do. A numpy array where the rows are in host memory, else a tensor on their device.
    * ``rows``: node -> (V,), the distribution of the next token when stopping there; called only for nodes asked for.
      The node is an int, or an integer tensor on the device of the rows, which causes no synchronisation.
    """

    tree: DraftTree
    stop: Array
    rows: Callable[[Any], Array]

    def __repr__(self) -> str:
        return f"StopDistribution(tree={self.tree!r}, stop=<{self.tree.size} probabilities>)"

    def next_token(self, node: int) -> Array:
        """Distribution (V,) of the token emitted after ``node``. Raises InputError where the verifier never stops."""
        errors.integer("node", node, min=0, max=self.tree.size - 1)
        if not self.stop[node] > 0:
            raise errors.fail(f"next token at node {node}", got="a stop of probability 0", expected="a reachable stop")
        return self.rows(node)

    def expected(self, values: Any) -> Any:
        """sum over nodes of stop(c) value(c), for ``values`` (n,) on the host; where ``stop`` is, unsynchronised."""
        if not isinstance(self.stop, np.ndarray):
            values = namespace(self.stop).asarray(values, dtype=self.stop.dtype, device=self.stop.device)
        return (self.stop * values).sum()


def expected_accepted(distribution: StopDistribution) -> Any:
    """Expected number of accepted drafted tokens given the tree, sum over nodes of stop(c) |c| (theory 8).

    Averaged over drafted trees it estimates block efficiency - 1 without bias, at lower variance than sampled lengths.
    """
    return distribution.expected(distribution.tree.depth)


class NodeRule(Protocol):
    """How top-down tree verification chooses one token y at a node, given the tokens drafted there.

    Averaged over k i.i.d. draws of the draft, y has the target row's distribution.
    """

    def conditional(self, drafted: Any) -> Array:
        """Distribution of y for each row of ``drafted``: integers (T, k) -> a new array (T, V)."""


@dataclass(frozen=True, repr=False)
class Verifier:
    """A named verification algorithm; call it with a `DraftTree` to get its `StopDistribution`.

    What others need to know about an algorithm is a field here, never a question of its name or identity.

    * ``help``: one line for tables and help texts. ``source``: paper and algorithm number, or "this project".
    * ``needs``: what of the draft it relies on. "any tree": nothing but the tokens. "a path": the first path, drawn
      token by token from the draft rows. "independent children": the paths at a node continue with i.i.d. draws from
      its draft row. "distinct children": the distinct children of a node, in order of first appearance, are drawn
      without replacement from its draft row. "independent paths": the paths are i.i.d. down to the leaves, and end only
      there.
    * ``path_order``: the result depends on the order of the paths. ``first_path_only``: the others are ignored.
    * ``node_rule``: of top-down tree verifiers, (target row, draft row, k) -> `NodeRule`, from which exact evaluation
      recurses on (node, k) instead of enumerating drafts. ``leaf_to_root``: of Traversal, with the same use.
    * ``closed_form``: the formula, if any, for the prefix acceptance probability: "token", f(cx) = f(c) min(p(x|c),
      q(x|c)), or "block", f(cx) = min(p(x|c) f(c), Q*(cx)) with Q* the distribution of the verified path.
    * ``split``: how rank measures are split among the children of a node (`lpverify.verifiers.splits`); None: the
      first path is verified, or the verifier does not select a path at all. ``blocks``: a larger vocabulary is merged
      into so many buckets of tokens before it is split (None: never).
    * ``any_vocabulary``: runs at the vocabulary of a language model; OT and the LP's policy do not.
    """

    name: str
    stop_distribution: Callable[[DraftTree], StopDistribution]
    help: str = ""
    source: str = ""
    needs: str = "independent paths"
    path_order: bool = True
    first_path_only: bool = False
    node_rule: Callable[[Array, Array, int], NodeRule] | None = None
    leaf_to_root: bool = False
    closed_form: Literal["token", "block"] | None = None
    split: Any = None
    blocks: int | None = None
    any_vocabulary: bool = True

    def __repr__(self) -> str:
        return f"Verifier({errors.shown(self.name)}: {self.help or 'a function of your own'}; needs {self.needs})"

    def __call__(self, tree: DraftTree) -> StopDistribution:
        if tree.size == 1:  # nothing was drafted: the next token is from the target
            return StopDistribution(tree, tree.target[:, 0] * 0 + 1, lambda node: tree.target[0])
        return self.stop_distribution(tree)
