"""What a verifier is: a deterministic map from a drafted tree to a law.

A verifier looks at one `DraftTree` and says for every drafted node the probability of stopping there (drafted tokens
up to the node are accepted), and for a node the law of the one token emitted after it. No randomness, no state: the
same object is summed over all drafts (`lpverify.exact`), drawn from (`lpverify.verifiers.sample`) and averaged
(`expected_accepted`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from lpverify import errors
from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, namespace, on_cpu, on_device, sharing


@dataclass(frozen=True, eq=False)
class StopDistribution:
    """The law of (stop node, next token) given a drafted tree.

    * ``stop`` (n,): probability of stopping at each node of ``tree``; sums to 1 as far as the rows do.
    * ``rows``: node -> (V,), the law of the next token when stopping there; called only for nodes asked for. The node
      is an int, or an integer on the device of the rows, which is not brought to the host.
    """

    tree: DraftTree
    stop: Array
    rows: Callable[[Any], Array]

    def next_token(self, node: int) -> Array:
        """Law of the token emitted after ``node``, shape (V,). Raises InputError where the verifier never stops."""
        errors.integer("node", node, min=0, max=len(self.tree.parent) - 1)
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
        return (stop * law.tree.depth).sum()
    return (stop * xp.asarray(law.tree.depth, dtype=stop.dtype, device=stop.device)).sum()


class NodeRule(Protocol):
    """How a tree walker chooses one token at a node, given the tokens drafted there."""

    def conditional(self, drafted: Any) -> Array:
        """Law of the chosen token y for each row of ``drafted``: integers (T, k) -> a new array (T, V).

        Averaged over k i.i.d. draws of the draft it is the target row.
        """


@dataclass(frozen=True)
class Verifier:
    """A named verification algorithm; call it with a `DraftTree` to get its `StopDistribution`.

    What other rooms need to know about an algorithm is a field here, never a question of its name or identity.

    * ``name``: as in `lpverify.verifiers.VERIFIERS`.
    * ``stop_distribution``: `DraftTree` -> `StopDistribution`. It gets numpy arrays or tensors on a device: tensors in
      the host's memory are shared with numpy, whose operations cost less.
    * ``help``: one line for tables and help texts. ``source``: paper and algorithm number, or "this project".
    * ``path_order``: the result depends on the order of the paths; exact evaluation sums over multisets where it is
      False.
    * ``first_path_only``: paths other than the first are ignored.
    * ``node_rule``: of top-down tree verifiers, (target row, draft row, k) -> `NodeRule`, from which exact evaluation
      recurses on (node, k) instead of enumerating drafts. ``leaf_to_root``: of Traversal, with the same use.
    * ``closed_form``: how the prefix acceptance probability f goes down the tree, where there is a formula:
      "token", f(cx) = f(c) min(p(x|c), q(x|c)), or "block", f(cx) = min(p(x|c) f(c), Q*(cx)) with Q* the distribution
      of the verified path: that of the first path, or of the path of smallest rank if there is a ``split``.
    * ``split``: how rank measures are split among the children of a node (`lpverify.verifiers.splits`); None: the
      first path is verified, or the verifier does not select a path at all. ``blocks``: a larger vocabulary is merged
      into so many buckets of tokens before it is split (None: never).
    * ``any_vocabulary``: runs at the vocabulary of a language model; OT and the LP's policy do not.
    """

    name: str
    stop_distribution: Callable[[DraftTree], StopDistribution]
    help: str = ""
    source: str = ""
    path_order: bool = True
    first_path_only: bool = False
    node_rule: Callable[[Array, Array, int], NodeRule] | None = None
    leaf_to_root: bool = False
    closed_form: Literal["token", "block"] | None = None
    split: Any = None
    blocks: int | None = None
    any_vocabulary: bool = True

    def __call__(self, tree: DraftTree) -> StopDistribution:
        if not on_cpu(tree.target):
            return self.stop_distribution(tree)
        shared = self.stop_distribution(replace(tree, target=sharing(tree.target), draft=sharing(tree.draft)))
        stop = on_device(shared.stop, tree.target)
        return StopDistribution(tree, stop, lambda node: on_device(shared.rows(int(node)), tree.target))
