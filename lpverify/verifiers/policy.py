"""The optimum as a verifier: it selects a drafted path and block-verifies it (theory 2.5, 9.1).

For i.i.d. paths the certificate holds a rank table T, a joint distribution of (leaf, bin of [0, 1]). Every drafted path
draws its bin from T(leaf, .)/Q(leaf) and its rank uniformly in the bin; the path of smallest rank is selected. For
other draft distributions it may hold a mixture of leaf orders: the drafted leaf that comes first in the order drawn is
selected; or a rank table for every stem; or nothing for a fixed tree, where NSS is optimal. With M the distribution of
the selected path, block verification with the rows of M attains f(cx) = min(p(x|c) f(c), M(cx)), the optimum.

It serves one problem: which path is selected depends on the rows of the whole tree, drafted or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lpverify import errors
from lpverify.core.draft_tree import DraftTree, level_index
from lpverify.core.results import Certificate, DraftCertificate, LeafOrders, LpSolution, RankTable
from lpverify.numerics import Array, Levels, accumulate, as_float, divide, inverse_in_rows, is_exact, ones, zero
from lpverify.verifiers import nss
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.block import block_verification
from lpverify.verifiers.residual import acceptance
from lpverify.verifiers.rows import HostRows, on_host
from lpverify.verifiers.smallest_rank import smallest_in

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Policy:
    """Verification of drafts of the problem that the certificate belongs to."""

    certificate: Certificate | DraftCertificate

    def __call__(self, tree: DraftTree) -> StopDistribution:
        """Raises InputError for drafts of another shape, and for rows of Fractions where the certificate has floats."""
        tree = on_host(tree)
        if self.selection is None:
            return nss.verify(tree)
        selected = self.selected(tree)
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
        chance = self.chance(index[leaves], tree.ends[leaves].tolist(), tree.vocab_size, exact=is_exact(tree.target))
        skew = divide(q_star, tree.draft, where_zero=zero(tree.draft))
        return block_verification(rows, weight, paths, chance, skew)

    @property
    def selection(self) -> RankTable | LeafOrders | dict[int, RankTable] | None:
        """How a drafted path is selected."""
        return self.certificate.ranks if isinstance(self.certificate, Certificate) else self.certificate.selection

    def selected(self, tree: DraftTree) -> Levels:
        """The distribution of the selected path, in the arithmetic of ``tree``."""
        selected, paths = self.certificate.selected, getattr(self.certificate, "num_paths", None)
        got, expected = (*tree.paths.shape, tree.vocab_size), (paths, len(selected) - 1, len(selected[1]))
        if got[1:] != expected[1:] or (isinstance(paths, int) and got[0] != paths):
            text = "{} paths of {} out of {} tokens"
            wanted = text.format(*expected if isinstance(paths, int) else ("", *expected[1:])).strip()
            raise errors.fail("drafts of the policy", got=text.format(*got), expected=wanted)
        if is_exact(tree.target) == is_exact(selected[-1]):
            return selected
        if is_exact(tree.target):
            raise errors.fail("policy", got="rows of Fractions", expected="floats, as its certificate is in floats")
        return self._selected_in_floats

    @cached_property
    def _selected_in_floats(self) -> Levels:
        return tuple(as_float(level) for level in self.certificate.selected)

    def chance(self, leaves: Ints, multiplicity: list[int], vocab_size: int, *, exact: bool) -> Array:
        """Probability (n,) that each of the drafted ``leaves``, drafted ``multiplicity`` times each, is selected."""
        selection = self.selection
        if isinstance(selection, LeafOrders):
            places = self._places[:, leaves]
            first: Any = places == places.min(axis=1, keepdims=True)
            weights = selection.weights if exact else as_float(selection.weights)
            return np.asarray((first * weights[:, None]).sum(axis=0))
        if isinstance(selection, dict):
            width = vocab_size ** (len(self.certificate.selected) - 1 - self.certificate.draft.stem)  # type: ignore[union-attr]
            [stem] = set((leaves // width).tolist())  # all paths continue one stem
            ranks, leaves = selection[stem], leaves % width
        else:
            assert selection is not None
            ranks = selection
        part = bin_distributions(ranks, leaves)
        return smallest_in(part if exact else as_float(part), multiplicity)

    @cached_property
    def _places(self) -> Ints:
        """The position of every leaf in every order, (J, V**L)."""
        assert isinstance(self.selection, LeafOrders)
        places: Ints = inverse_in_rows(self.selection.orders)
        return places


def bin_distributions(ranks: RankTable, leaves: npt.NDArray[np.int64]) -> Array:
    """T(leaf, .)/Q(leaf) of ``leaves`` (n,), numbered among all leaves: shape (n, bins)."""
    widths = np.diff(ranks.edges)
    entries = (ranks.leaf == leaf for leaf in leaves.tolist())
    mass = np.stack([accumulate(ranks.bin[of], ranks.mass[of], len(widths)) for of in entries])
    return divide(mass, mass.sum(axis=1, keepdims=True), where_zero=widths)


def verifier(optimum: LpSolution | Certificate | DraftCertificate) -> Verifier:
    """The verifier ``policy`` of a solved problem.

    Raises InputError for a solution without a certificate, and for drafts that are sometimes empty.

    For exact arithmetic the certificate's table must be in Fractions with exact marginals: see
    `lpverify.lp.certify.exact_certificate`. It is lossless for drafts of the certificate's draft distribution alone.
    """
    certificate = optimum.certificate if isinstance(optimum, LpSolution) else optimum
    if certificate is None:
        raise errors.fail("optimum", got="a solution without a certificate", expected="one of another method")
    if certificate.selected[0][0] < 1 - 1e-9:  # it would have to emit a residual where nothing was drafted
        got, expected = "a draft distribution that sometimes drafts nothing", "one that always drafts a path"
        raise errors.fail("policy", got=got, expected=expected)
    text, source = "the optimum of the linear program, run", "this project, theory 2.5"
    needs: Any = "independent paths" if isinstance(certificate, Certificate) else certificate.draft.spec
    return Verifier("policy", Policy(certificate), text, source, needs=needs, path_order=False, any_vocabulary=False)
