"""The LP optimum as a verifier (THEORY 2.5).

A certificate holds a rank table T, a joint law of (leaf, bin of [0, 1]), whose marginals are the draft's law Q of a
path and the widths of the bins. Every drafted path draws its bin from T(leaf, .)/Q(leaf) and its rank uniformly in the
bin, so that the ranks of all paths are uniform; the path of smallest rank is selected. It has the law

    Q*(leaf) = sum_b phibar_b T(leaf, b),     phibar_b the mean of K (1-u)^(K-1) on bin b,

and block verification with rows q*(x|c) = Q*(cx)/Q*(c) attains the certificate's f(cx) = min(p(x|c) f(c), Q*(cx)), the
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
from lpverify.numerics import Array, Levels, as_float, divide, is_exact, on_device, zero, zeros
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.rank_selection import block_law_of_selected, smallest_in


@dataclass(frozen=True, eq=False)
class PolicyLaw:
    """Verification of drafts of the problem that the certificate belongs to."""

    certificate: Certificate

    def __call__(self, view: DraftTree) -> StopDistribution:
        """Raises InputError for drafts of another shape, and for rows of Fractions where the certificate has floats."""
        ranks, selected = self.tables(view)
        index = level_index(view.parent, view.token, view.vocab_size)
        rows = []
        for depth in range(view.paths.shape[1]):
            below = selected[depth + 1].reshape(-1, view.vocab_size)[index[view.depth == depth]]
            rows.append(divide(below, below.sum(axis=1, keepdims=True), where_zero=zero(below)))
        leaves = np.arange(view.inner, len(view.parent))
        chance = smallest_in(bin_laws(ranks, index[leaves]), view.multiplicity[leaves].tolist())
        q_star, chance = (on_device(values, view.draft) for values in (np.concatenate(rows), chance))
        on_edges = view.at_edges(q_star, range(1, len(view.parent)))
        return block_law_of_selected(view, q_star.__getitem__, on_edges, chance)

    def tables(self, view: DraftTree) -> tuple[RankTable, Levels]:
        """T and Q* in the arithmetic of ``view``."""
        certificate = self.certificate
        paths, depth = view.paths.shape
        expected = certificate.num_paths, len(certificate.selected) - 1, len(certificate.selected[1])
        if (paths, depth, view.vocab_size) != expected:
            shapes = ("{} paths of {} out of {} tokens".format(*s) for s in ((paths, depth, view.vocab_size), expected))
            raise errors.fail("drafts of the policy", got=next(shapes), expected=next(shapes))
        if is_exact(view.target) == is_exact(certificate.ranks.mass):
            return certificate.ranks, certificate.selected
        if is_exact(view.target):
            raise errors.fail("policy", got="rows of Fractions", expected="floats, as its certificate is in floats")
        return self._in_floats

    @cached_property
    def _in_floats(self) -> tuple[RankTable, Levels]:
        ranks, selected = self.certificate.ranks, self.certificate.selected
        floats = RankTable(as_float(ranks.edges), ranks.leaf, ranks.bin, as_float(ranks.mass))
        return floats, tuple(as_float(level) for level in selected)


def bin_laws(ranks: RankTable, leaves: npt.NDArray[np.int64]) -> Array:
    """T(leaf, .)/Q(leaf) of ``leaves`` (n,), numbered among all leaves: shape (n, bins)."""
    widths = np.diff(ranks.edges)
    mass = zeros((len(leaves), len(widths)), ranks.mass)
    for row, leaf in zip(mass, leaves.tolist(), strict=True):
        entries = ranks.leaf == leaf
        np.add.at(row, ranks.bin[entries], ranks.mass[entries])
    return divide(mass, mass.sum(axis=1, keepdims=True), where_zero=widths)


def verifier(optimum: LpSolution | Certificate) -> Verifier:
    """The verifier ``policy`` of a solved problem. Raises InputError for a solution without a certificate.

    For exact arithmetic the certificate's table must be in Fractions with exact marginals: see
    `lpverify.lp.certify.exact_certificate`.
    """
    certificate = optimum.certificate if isinstance(optimum, LpSolution) else optimum
    if certificate is None:
        raise errors.fail("optimum", got="a solution without a certificate", expected="one of another method")
    return Verifier(
        "policy",
        PolicyLaw(certificate),
        "the optimum of the linear program, run",
        "this project, theory 2.5",
        path_order=False,
        any_vocabulary=False,
    )
