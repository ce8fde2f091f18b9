"""The LP optimum as a verifier (theory 2.5).

A certificate holds a rank table T, a joint distribution of (leaf, bin of [0, 1]). Every drafted path draws its bin
from T(leaf, .)/Q(leaf) and its rank uniformly in the bin; the path of smallest rank has the distribution Q*, the
``selected`` of the certificate, and block verification with rows q* attains f(cx) = min(p(x|c) f(c), Q*(cx)), the
optimum. It serves one problem: which ranks a leaf gets depends on the rows of the whole tree, drafted or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lpverify import errors
from lpverify.core.draft_tree import DraftTree, level_index
from lpverify.core.results import Certificate, LpSolution, RankTable
from lpverify.numerics import Array, Levels, accumulate, as_float, divide, is_exact, ones, zero
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.block import block_verification
from lpverify.verifiers.residual import acceptance
from lpverify.verifiers.rows import HostRows, on_host
from lpverify.verifiers.smallest_rank import smallest_in


@dataclass(frozen=True, eq=False)
class Policy:
    """Verification of drafts of the problem that the certificate belongs to."""

    certificate: Certificate

    def __call__(self, tree: DraftTree) -> StopDistribution:
        """Raises InputError for drafts of another shape, and for rows of Fractions where the certificate has floats."""
        tree = on_host(tree)
        ranks, selected = self.tables(tree)
        index = level_index(tree, tree.vocab_size)
        levels = [level.reshape(-1, tree.vocab_size) for level in selected[1:]]
        q_star = np.array([levels[tree.depth[node]][index[node]] for node in tree.inner_nodes])
        q_star = divide(q_star, q_star.sum(axis=1, keepdims=True), where_zero=zero(q_star))
        rows = HostRows(tree)
        seen = rows.observe(np.arange(len(tree.inner_nodes)))
        weight = ones(tree.size, tree.target)
        for node, above in enumerate(tree.parent[1:].tolist(), 1):
            drafted = q_star[tree.draft_row[above], tree.token[node]]
            weight[node] = acceptance(weight[above] * seen.target_edge[node - 1], drafted)
        leaves, paths = np.unique(tree.node_of[:, -1], return_index=True)
        chance = smallest_in(bin_distributions(ranks, index[leaves]), tree.ends[leaves].tolist())
        skew = divide(q_star, tree.draft, where_zero=zero(tree.draft))
        return block_verification(rows, weight, paths, chance, skew)

    def tables(self, tree: DraftTree) -> tuple[RankTable, Levels]:
        """T and Q* in the arithmetic of ``tree``."""
        ranks, selected = self.certificate.ranks, self.certificate.selected
        shapes = (*tree.paths.shape, tree.vocab_size), (self.certificate.num_paths, len(selected) - 1, len(selected[1]))
        if shapes[0] != shapes[1]:
            got, expected = ("{} paths of {} out of {} tokens".format(*shape) for shape in shapes)
            raise errors.fail("drafts of the policy", got=got, expected=expected)
        if is_exact(tree.target) == is_exact(ranks.mass):
            return ranks, selected
        if is_exact(tree.target):
            raise errors.fail("policy", got="rows of Fractions", expected="floats, as its certificate is in floats")
        return self._in_floats

    @cached_property
    def _in_floats(self) -> tuple[RankTable, Levels]:
        ranks = self.certificate.ranks
        floats = RankTable(as_float(ranks.edges), ranks.leaf, ranks.bin, as_float(ranks.mass))
        return floats, tuple(as_float(level) for level in self.certificate.selected)


def bin_distributions(ranks: RankTable, leaves: npt.NDArray[np.int64]) -> Array:
    """T(leaf, .)/Q(leaf) of ``leaves`` (n,), numbered among all leaves: shape (n, bins)."""
    widths = np.diff(ranks.edges)
    entries = (ranks.leaf == leaf for leaf in leaves.tolist())
    mass = np.stack([accumulate(ranks.bin[of], ranks.mass[of], len(widths)) for of in entries])
    return divide(mass, mass.sum(axis=1, keepdims=True), where_zero=widths)


def verifier(optimum: LpSolution | Certificate) -> Verifier:
    """The verifier ``policy`` of a solved problem. Raises InputError for a solution without a certificate.

    For exact arithmetic the certificate's table must be in Fractions with exact marginals: see
    `lpverify.lp.certify.exact_certificate`.
    """
    certificate = optimum.certificate if isinstance(optimum, LpSolution) else optimum
    if certificate is None:
        raise errors.fail("optimum", got="a solution without a certificate", expected="one of another method")
    text, source = "the optimum of the linear program, run", "this project, theory 2.5"
    return Verifier("policy", Policy(certificate), text, source, path_order=False, any_vocabulary=False)
