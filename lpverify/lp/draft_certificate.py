r"""Bounds for any draft distribution that need no solver, and the check of their certificate (theory 9.1).

**Lower bound.** A rule that selects a drafted path, looking at the drafted tree only, has some distribution M of the
selected path, and block verification of it has f(cx) = min(p(x|c) f(c), M(cx)). So a verifier attains ``sum f``.

**Upper bound.** For any lambda >= 0, with H(c) the sum of `lpverify.lp.certify.path_prices` on the way to c,
``1 + sum_x p(x|root) lambda(x) + E[the largest H of a drafted node]``.
"""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.core.results import DraftCertificate, LeafOrders, LpSolution, RankTable
from lpverify.drafting.base import DraftDistribution
from lpverify.drafting.delayed import Delayed
from lpverify.drafting.fixed_tree import TopNodes
from lpverify.lp import certify
from lpverify.lp.coverage import prefix_acceptance
from lpverify.numerics import Array, Levels, as_float, total, up_the_tree, zeros


def upper_bound(pair: ModelPair, draft: DraftDistribution, multipliers: Levels) -> Any:
    """The upper bound on the optimum of a draft distribution that any multipliers prove.

    ``multipliers``: lambda >= 0, one ``(V**i,)`` array per level 0..L; the root's is not used.

    >>> from lpverify.drafting import draft_distribution
    >>> coin = ModelPair.from_levels([[[0.25, 0.75]]], [[[0.6, 0.4]]])
    >>> round(float(upper_bound(coin, draft_distribution("iid:2"), (np.zeros(1), np.array([1.0, 0.0])))), 12)
    1.89
    """
    heights: list[Array] = []
    for price in certify.path_prices(pair, multipliers):
        heights.append(price + np.repeat(heights[-1], pair.vocab_size) if heights else price)
    return 1 + (pair.target[0][0] * multipliers[1]).sum() + draft.expected_best(pair, tuple(heights))


def selected_by_orders(pair: ModelPair, draft: DraftDistribution, mixture: LeafOrders) -> Levels:
    """The distribution M of the drafted path that comes first in an order drawn from ``mixture``, one array per level.

    >>> from lpverify.drafting import draft_distribution
    >>> coin = ModelPair.from_levels([[[0.25, 0.75]]], [[[0.6, 0.4]]])
    >>> orders = LeafOrders(np.array([[0, 1], [1, 0]]), np.array([0.5, 0.5]))
    >>> selected_by_orders(coin, draft_distribution("iid:2"), orders)[1].round(12).tolist()  # (.84 + .36)/2, ...
    [0.6, 0.4]
    """
    leaves = zeros(pair.draft_paths[-1].size, pair.draft[0])
    for order, weight in zip(mixture.orders, mixture.weights, strict=True):
        leaves[order] += weight * draft.first_drafted(pair, order)
    return up_the_tree(leaves, pair.vocab_size, pair.depth)


def selected_below_stems(pair: ModelPair, draft: Delayed, stems: dict[int, RankTable]) -> Levels:
    """The distribution M of the path of smallest rank below the drafted stem; ``stems``: a legal table for each."""
    width = pair.vocab_size ** (pair.depth - draft.stem)
    leaves = zeros(pair.draft_paths[-1].size, pair.draft[0])
    for stem, ranks in stems.items():
        below = certify.selection_distribution(draft.below(pair, stem), ranks, draft.num_paths)[-1]
        leaves[stem * width : (stem + 1) * width] = pair.draft_paths[draft.stem][stem] * below
    return up_the_tree(leaves, pair.vocab_size, pair.depth)


def selected(pair: ModelPair, draft: DraftDistribution, selection: LeafOrders | dict[int, RankTable] | None) -> Levels:
    """M of a selection of `DraftCertificate`. Raises InputError for one that does not belong to the draft."""
    if isinstance(selection, LeafOrders):
        return selected_by_orders(pair, draft, selection)
    if isinstance(selection, dict) and isinstance(draft, Delayed):
        return selected_below_stems(pair, draft, selection)
    if selection is None and draft.count(pair) == 1:
        return draft.node_coverage(pair)
    got, expected = type(selection).__name__, "leaf orders, rank tables of stems, or none for a fixed tree"
    raise errors.fail(f"selection of a certificate for {draft.spec}", got=got, expected=expected)


def certificate_of(
    pair: ModelPair,
    draft: DraftDistribution,
    selection: LeafOrders | dict[int, RankTable] | None,
    multipliers: Levels,
) -> DraftCertificate:
    """Certificate of a selection and multipliers >= 0; ``prefix_acceptance`` sums to the lower bound."""
    mass = selected(pair, draft, selection)
    return DraftCertificate(draft, selection, mass, prefix_acceptance(pair.target, mass), multipliers)


def solve_fixed_tree(pair: ModelPair, draft: TopNodes) -> LpSolution:
    """The optimum of a fixed tree, 1 + the target's probability of its nodes; exact for a rational pair.

    With lambda(c) = 1 + sum_x p(x|c) lambda(cx) inside the tree and 0 outside nothing is left for y there, so the upper
    bound is that value too. Sampling from the target (NSS) attains it.

    >>> round(solve_fixed_tree(ModelPair.iid([0.25, 0.75], [0.6, 0.4], depth=2), TopNodes(3)).value, 4)
    2.0625
    """
    began = time.perf_counter()
    draft.check(pair)
    inside = draft.node_coverage(pair)
    multipliers: list[Array] = []
    below = 0 * inside[-1]
    for depth in range(pair.depth, 0, -1):
        multipliers.insert(0, inside[depth] * (1 + below))
        below = (pair.target[depth - 1] * multipliers[0].reshape(-1, pair.vocab_size)).sum(axis=1)
    proof = certificate_of(pair, draft, None, (zeros(1, pair.target[0]), *multipliers))
    upper = upper_bound(pair, draft, proof.multipliers)
    return certify.bounded(
        total(proof.prefix_acceptance), upper, certificate=proof, status="optimal", method="closed form", began=began
    )


def exact_certificate(pair: ModelPair, certificate: DraftCertificate) -> DraftCertificate:
    """The certificate in Fractions, legal without tolerance. Raises InputError for a float pair.

    Weights of leaf orders are rounded to multiples of 2^-40 (the largest takes the remainder), rank tables are
    repaired (`certify.repair`), lambda is rounded to multiples of 2^-40.
    """
    if not pair.rational:
        raise errors.fail("exact certificate", got="a problem in floating point", expected="rational probabilities")
    draft, selection, scale = certificate.draft, certificate.selection, 1 << 40
    if isinstance(selection, LeafOrders):
        weights = [Fraction(round(Fraction(weight) * scale), scale) for weight in selection.weights.tolist()]
        weights[int(np.argmax(as_float(selection.weights)))] += 1 - sum(weights)
        selection = replace(selection, weights=np.array(weights))
    elif selection is not None:
        selection = {stem: certify.repair(draft.below(pair, stem), ranks) for stem, ranks in selection.items()}
    return certificate_of(pair, draft, selection, certify.rounded(certificate.multipliers))


def check(pair: ModelPair, certificate: DraftCertificate, *, exact: bool) -> certify.CertificateCheck:
    """`lpverify.lp.certify.check` for the certificate of a draft distribution."""
    draft, selection = certificate.draft, certificate.selection
    draft.check(pair)
    violations = []
    if isinstance(selection, LeafOrders):
        leaves = np.arange(pair.draft_paths[-1].size)
        if not all(np.array_equal(np.sort(order), leaves) for order in selection.orders):
            violations.append("an order is not one of all leaves")
        if not (as_float(selection.weights) >= 0).all() or abs(as_float(selection.weights).sum() - 1) > 1e-12:
            violations.append("the weights of the orders are not a distribution")
    if any(not (as_float(level) >= 0).all() for level in certificate.multipliers[1:]):
        violations.append("a multiplier is negative")
    if violations:
        return certify.CertificateCheck(-np.inf, np.inf, False, tuple(violations))
    if exact:
        proved = exact_certificate(pair, certificate)
        upper = upper_bound(pair, draft, proved.multipliers)
        return certify.CertificateCheck(total(proved.prefix_acceptance), upper, True, ())
    pair = pair.floats
    if isinstance(selection, dict):
        for stem, ranks in selection.items():
            below = draft.below(pair, stem)
            table = certify.certificate_of(below, ranks, _no_multipliers(below), draft.num_paths)
            found = certify.check(below, table)
            violations += [f"below stem {stem}: {what}" for what in found.violations]
        missing = sorted(set(np.flatnonzero(pair.draft_paths[draft.stem] > 0).tolist()) - set(selection))
        violations += [f"no rank table for stem {stem}" for stem in missing]
    mass = selected(pair, draft, selection)
    claims = []
    for depth in range(1, pair.depth + 1):
        off = np.abs(as_float(certificate.selected[depth]) - mass[depth])
        claims.append((f"the selection distribution is not the selection's, level {depth},", off, mass[depth]))
        excess = as_float(certificate.prefix_acceptance[depth]) - mass[depth]
        claims.append((f"a prefix acceptance exceeds the selection distribution, level {depth},", excess, mass[depth]))
    acceptance = tuple(as_float(level) for level in certificate.prefix_acceptance)
    multipliers = tuple(as_float(level) for level in certificate.multipliers)
    violations += certify.violated(claims + certify.flow_requirements(pair, acceptance, multipliers))
    upper = float(upper_bound(pair, draft, multipliers))
    return certify.CertificateCheck(float(total(acceptance)), upper, not violations, tuple(violations))


def _no_multipliers(pair: ModelPair) -> Levels:
    return tuple(np.zeros(level.size) for level in pair.draft_paths)
