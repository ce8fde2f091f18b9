r"""Bounds on the multi-path optimum that need no solver, and the check of a certificate (theory 2.4).

**Lower bound.** A table T(leaf, b) >= 0 with row sums Q(leaf) and the widths of the bins as column sums says how to
draw ranks. The path of smallest rank has the distribution ``Q*(leaf) = sum_b phibar_b T(leaf, b)``, phibar_b the mean
of phi' on the bin; block verification of it has f(cx) = min(p(x|c) f(c), Q*(cx)). So a verifier attains ``sum f``.

**Upper bound.** For any lambda >= 0 let H(leaf) be the sum of `path_prices` along its path. With leaves sorted by H
descending and S_k their cumulative Q: ``1 + sum_x p(x|root) lambda(x) + sum_k H_(k) [phi(S_k) - phi(S_{k-1})]``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from lpverify import errors
from lpverify.core import prefix_tree as tree
from lpverify.core.model_pair import ModelPair
from lpverify.core.problem import ProblemLike, as_problem
from lpverify.core.results import Certificate, DraftCertificate, LpSolution, RankTable, RefinementStep
from lpverify.core.rows import ROW_SUM_TOLERANCE
from lpverify.lp.coverage import Paths, phi_chord, phi_mean_slope, prefix_acceptance, separate
from lpverify.numerics import (
    Array,
    Levels,
    accumulate,
    as_float,
    down_the_tree,
    is_exact,
    total,
    up_the_tree,
    zeros,
)

__all__ = [
    "CertificateCheck",
    "certificate_of",
    "check",
    "check_coverage",
    "exact_certificate",
    "leaf_heights",
    "path_prices",
    "repair",
    "selection_distribution",
    "upper_bound",
]

RELATIVE, ABSOLUTE = 1e-9, 1e-13
"""Slack per entry of a float check: RELATIVE times the entry that it is compared with, plus ABSOLUTE. So the checked
value is off by at most about ``nodes * ABSOLUTE + block efficiency * RELATIVE``."""

Requirement = tuple[str, Array, Array | None]  # excess <= 0, with slack where entries of a size are compared


@dataclass(frozen=True)
class CertificateCheck:
    """Outcome of `check`. The bounds are recomputed from the certificate; they are proved when ``valid``."""

    lower_bound: Any
    upper_bound: Any
    valid: bool
    violations: tuple[str, ...]


def repair(pair: ModelPair, ranks: RankTable) -> RankTable:
    """Make the marginals of a table with entries of any sign exactly legal.

    Negative entries become 0. Each row is rescaled to sum to Q(leaf); an empty row is spread over all bins in
    proportion to their widths. Then the edges move to the cumulative column sums, so every column fits its bin by
    construction. A table that is already legal stays as it is up to rounding.

    The result is in float64 for a float pair. For a rational pair it is exact, in Fractions: entries are rounded to
    multiples of ``Q(leaf) / 2**60`` and the largest entry of each row takes the remainder.
    """
    leaf_mass, leaf, column = pair.draft_paths[-1], ranks.leaf, ranks.bin
    if pair.rational and is_exact(ranks.mass) and is_exact(ranks.edges):
        rows = accumulate(leaf, ranks.mass, leaf_mass.size)
        columns = accumulate(column, ranks.mass, len(ranks.edges) - 1)
        legal = (rows == leaf_mass).all() and (columns == np.diff(ranks.edges)).all()
        if legal and (ranks.mass >= 0).all() and ranks.edges[0] == 0:
            return ranks
    mass = np.maximum(as_float(ranks.mass), 0.0)
    sums = np.bincount(leaf, weights=mass, minlength=leaf_mass.size)
    empty = np.flatnonzero((sums <= 0) & (as_float(leaf_mass) > 0))
    if empty.size:
        width = np.diff(as_float(ranks.edges))
        leaf = np.concatenate([leaf, np.repeat(empty, width.size)])
        column = np.concatenate([column, np.tile(np.arange(width.size), empty.size)])
        mass = np.concatenate([mass, np.tile(width, empty.size)])
        sums = np.bincount(leaf, weights=mass, minlength=leaf_mass.size)
    used = (mass > 0) & (as_float(leaf_mass)[leaf] > 0)
    leaf, column, mass = leaf[used], column[used], mass[used]
    share = mass / sums[leaf]
    mass = _exact_rows(leaf, share, leaf_mass) if pair.rational else share * leaf_mass[leaf]
    widths = accumulate(column, mass, len(ranks.edges) - 1)
    edges = np.concatenate([zeros(1, mass), np.cumsum(widths)])
    if not pair.rational:
        edges /= edges[-1]  # float rows need not sum to 1 exactly
    return RankTable(edges=edges, leaf=leaf, bin=column, mass=mass)


def selection_distribution(pair: ModelPair, ranks: RankTable, num_paths: Paths) -> Levels:
    """Q*(c) of the path of smallest rank among K = ``num_paths``, one (V**i,) array per level i = 0..L.

    ``num_paths`` is K, here and below, or another draft distribution with C(A) = phi(Q(A)).

    ``ranks`` must be legal (`repair`).
    """
    slopes = np.asarray(phi_mean_slope(ranks.edges[:-1], np.diff(ranks.edges), num_paths))
    leaf_mass = accumulate(ranks.leaf, ranks.mass * slopes[ranks.bin], pair.draft_paths[-1].size)
    return up_the_tree(leaf_mass, pair.vocab_size, pair.depth)


def path_prices(pair: ModelPair, multipliers: Levels) -> Levels:
    """The smallest y(c) >= 0 with ``y(c) >= 1 - lambda(c) + sum_x p(x|c) lambda(cx)``; 0 at the root."""
    prices = [zeros(1, multipliers[-1])]
    for depth in range(1, pair.depth + 1):
        price = 1 - multipliers[depth]
        if depth < pair.depth:
            price = price + (pair.target[depth] * multipliers[depth + 1].reshape(-1, pair.vocab_size)).sum(axis=1)
        prices.append(np.maximum(price, 0 * price))
    return tuple(prices)


def leaf_heights(pair: ModelPair, multipliers: Levels) -> Array:
    """H of every leaf, (V**L,): the sum of `path_prices` along its path."""
    return down_the_tree(path_prices(pair, multipliers))


def upper_bound(pair: ModelPair, multipliers: Levels, num_paths: Paths) -> Any:
    """The upper bound on the optimum of K = ``num_paths`` paths that any multipliers prove.

    Args:
        pair: target and draft tables.
        multipliers: lambda >= 0, one ``(V**i,)`` array per level 0..L; the root's is not used.
        num_paths: K.

    >>> coin = ModelPair.from_levels([[[0.25, 0.75]]], [[[0.6, 0.4]]])
    >>> round(float(upper_bound(coin, (np.zeros(1), np.array([1.0, 0.0])), 2)), 12)
    1.89
    """
    heights = leaf_heights(pair, multipliers)
    order = np.argsort(-heights, kind="stable")
    mass = pair.draft_paths[-1][order]
    chords = phi_chord(np.cumsum(mass) - mass, mass, num_paths)
    return 1 + (pair.target[0][0] * multipliers[1]).sum() + (heights[order] * chords).sum()


def certificate_of(pair: ModelPair, ranks: RankTable, multipliers: Levels, num_paths: Paths) -> Certificate:
    """Certificate of a legal table (`repair`) and multipliers >= 0; ``prefix_acceptance`` sums to the lower bound."""
    selected = selection_distribution(pair, ranks, num_paths)
    return Certificate(num_paths, ranks, selected, prefix_acceptance(pair.target, selected), multipliers)


class Bounds:
    """The best bounds that the iterates of a solver have proved so far, and what proves them."""

    def __init__(self, pair: ModelPair, num_paths: Paths) -> None:
        self.pair, self.num_paths = pair, num_paths
        self.lower, self.upper = -np.inf, np.inf

    @property
    def gap(self) -> float:
        return self.upper - self.lower

    def see_ranks(self, ranks: RankTable) -> float:
        """Turn any nonnegative table into a lower bound, and return it."""
        legal = repair(self.pair, ranks)
        selected = selection_distribution(self.pair, legal, self.num_paths)
        bound = float(total(prefix_acceptance(self.pair.target, selected)))
        if bound > self.lower:
            self.lower, self.ranks = bound, legal
        return bound

    def see_multipliers(self, multipliers: Levels) -> float:
        """Turn any multipliers >= 0 into an upper bound, and return it."""
        bound = float(upper_bound(self.pair, multipliers, self.num_paths))
        if bound < self.upper:
            self.upper, self.multipliers = bound, multipliers
        return bound

    def solution(self, steps: list[RefinementStep], **fields: Any) -> LpSolution:
        """The bounds with what proves them."""
        proof = certificate_of(self.pair, self.ranks, self.multipliers, self.num_paths)
        return bounded(self.lower, self.upper, certificate=proof, refinement_steps=tuple(steps), **fields)


def bounded(lower: Any, upper: Any, *, began: float, **fields: Any) -> LpSolution:
    """The solution with these bounds, of which the lower is attained, ``began`` at a time of `time.perf_counter`.

    With Fractions ``exact_bounds`` are set, and ``exact`` where they are equal. ``fields`` are those of `LpSolution`.
    """
    if isinstance(lower, Fraction):
        fields |= {"exact_bounds": (lower, upper), "exact": lower if lower == upper else None}
    value, seconds = float(lower), time.perf_counter() - began
    return LpSolution(value=value, lower_bound=value, upper_bound=max(value, float(upper)), seconds=seconds, **fields)


def check(
    problem: ProblemLike, certificate: Certificate | DraftCertificate, *, exact: bool = False
) -> CertificateCheck:
    """Check a certificate without a solver and recompute both bounds.

    Lower side: T >= 0; row sums Q(leaf); edges from 0 to 1, never falling; column sums equal to the bin widths;
    ``selected`` is the distribution that T selects; ``f(root) = 1``, ``0 <= f(cx) <= p(x|c) f(c)``, ``f <= selected``.
    Upper side: lambda >= 0. For a `DraftCertificate` its selection takes the place of T. A float check allows
    ``1e-13 + 1e-9 * size`` per entry (1e-9 is also what float probability rows may miss a sum of 1 by) and for the
    marginals of the bins ``1e-9 * (L+1)``.

    Args:
        problem: target and draft tables, or what `as_problem` takes; its K is not used.
        certificate: as a solver returned it, or read from a file.
        exact: work in Fractions without tolerance (rational pairs only). The float T and lambda are first made
            feasible exactly (`repair`; lambda rounded to multiples of 2^-40); f and Q* follow from T. What remains to
            be checked is that entries are nonnegative and arrays well-formed.

    Returns:
        The bounds, whether they are proved, and a line per violation.

    Raises:
        InputError: ``exact`` with a float pair, or arrays of wrong shape.

    >>> from lpverify.lp import single_path
    >>> coin = ModelPair.from_levels([[[0.25, 0.75]]], [[[0.6, 0.4]]])
    >>> check(coin, single_path.solve(coin).certificate)
    CertificateCheck(lower_bound=1.65, upper_bound=1.65, valid=True, violations=())
    """
    pair = as_problem(problem).pair
    _shapes(pair, certificate)
    if isinstance(certificate, DraftCertificate):
        from lpverify.lp import draft_certificate

        if exact and not pair.rational:
            raise errors.fail("exact check", got="a problem in floating point", expected="rational probabilities")
        return draft_certificate.check(pair, certificate, exact=exact)
    table, num_paths = certificate.ranks, certificate.num_paths
    if exact:
        if not pair.rational:
            raise errors.fail("exact check", got="a problem in floating point", expected="rational probabilities")
        negative = {
            "a rank mass is negative": (table.mass < 0).any(),
            "a multiplier is negative": any((level < 0).any() for level in certificate.multipliers[1:]),
        }
        legal = exact_certificate(pair, certificate)
        violations = [what for what, found in negative.items() if found]
        upper = upper_bound(pair, legal.multipliers, num_paths)
        return CertificateCheck(total(legal.prefix_acceptance), upper, not violations, tuple(violations))
    pair = pair.floats
    ranks = RankTable(as_float(table.edges), table.leaf, table.bin, as_float(table.mass))
    selected, acceptance, multipliers = (
        tuple(as_float(level) for level in levels)
        for levels in (certificate.selected, certificate.prefix_acceptance, certificate.multipliers)
    )
    leaf_mass, widths = pair.draft_paths[-1], np.diff(ranks.edges)
    rows = accumulate(ranks.leaf, ranks.mass, leaf_mass.size)
    columns = accumulate(ranks.bin, ranks.mass, widths.size)
    margin = (pair.depth + 1) * ROW_SUM_TOLERANCE
    violations = violated(
        [
            ("an edge falls", -widths, None),
            ("the edges miss 0 or 1", np.abs(ranks.edges[[0, -1]] - [0.0, 1.0]), None),
            ("a rank mass is negative", -ranks.mass, None),
            ("a row of the ranks misses the draft's leaf mass", np.abs(rows - leaf_mass), leaf_mass),
            ("a column of the ranks misses its bin", np.abs(columns - widths) - margin, None),
        ]
    )
    claims: list[Requirement] = []
    if not violations:
        for depth, proved in enumerate(selection_distribution(pair, ranks, num_paths)):
            what = f"the selection distribution is not the ranks', level {depth},"
            claims.append((what, np.abs(selected[depth] - proved), proved))
    for depth in range(1, pair.depth + 1):
        what = f"a prefix acceptance probability exceeds the selection distribution, level {depth},"
        claims.append((what, acceptance[depth] - selected[depth], selected[depth]))
    violations += violated(claims + flow_requirements(pair, acceptance, multipliers))
    upper = float(upper_bound(pair, multipliers, num_paths))
    return CertificateCheck(float(total(acceptance)), upper, not violations, tuple(violations))


def check_coverage(pair: ModelPair, acceptance: Levels, multipliers: Levels, num_paths: int) -> CertificateCheck:
    """Check a primal-dual pair (f, lambda) of the coverage program directly, all antichains included.

    Lower side: ``f(root) = 1``, ``0 <= f(cx) <= p(x|c) f(c)`` and, by exact separation, ``f(A) <= phi(Q(A))`` for every
    antichain; then ``sum f`` is attained, by Hall's condition. Upper side: lambda >= 0.

    Args:
        pair: target and draft tables.
        acceptance, multipliers: f and lambda, one ``(V**i,)`` array per level 0..L.
        num_paths: K.

    Returns:
        As `check`. Without tolerance when the pair and f are Fractions: equal bounds then prove the optimum.
    """
    exact = pair.rational and is_exact(acceptance[-1])
    relative, absolute = (0.0, 0.0) if exact else (RELATIVE, ABSOLUTE)
    violations = violated(flow_requirements(pair, acceptance, multipliers), relative, absolute)
    if not separate(pair.draft_paths, acceptance, num_paths)[1] <= relative:
        violations.append("an antichain is not covered")
    upper = upper_bound(pair, multipliers, num_paths)
    return CertificateCheck(total(acceptance), upper, not violations, tuple(violations))


def exact_certificate(pair: ModelPair, certificate: Certificate) -> Certificate:
    """The certificate in Fractions, legal without tolerance: T repaired, lambda rounded to multiples of 2^-40.

    Its table runs the optimum in exact arithmetic (`lpverify.verifiers.policy`). Raises InputError for a float pair.

    >>> from lpverify.lp import single_path
    >>> coin = ModelPair.from_levels([[[Fraction(1, 4), Fraction(3, 4)]]], [[[Fraction(3, 5), Fraction(2, 5)]]])
    >>> rough = single_path.solve(coin.floats).certificate
    >>> total(exact_certificate(coin, rough).prefix_acceptance)
    Fraction(33, 20)
    """
    if not pair.rational:
        raise errors.fail("exact certificate", got="a problem in floating point", expected="rational probabilities")
    ranks, multipliers = repair(pair, certificate.ranks), rounded(certificate.multipliers)
    return certificate_of(pair, ranks, multipliers, certificate.num_paths)


def rounded(multipliers: Levels) -> Levels:
    """Multipliers >= 0 in Fractions: floats rounded to multiples of 2^-40."""
    scale = 1 << 40
    return tuple(
        np.maximum(level, 0 * level)
        if is_exact(level)
        else np.array([Fraction(round(Fraction(x) * scale), scale) for x in np.maximum(level, 0.0).tolist()])
        for level in multipliers
    )


def flow_requirements(pair: ModelPair, acceptance: Levels, multipliers: Levels) -> list[Requirement]:
    """``f(root) = 1``, ``0 <= f(cx) <= p(x|c) f(c)`` and lambda >= 0."""
    required: list[Requirement] = [("f of the root misses 1", np.abs(acceptance[0] - 1), None)]
    for depth in range(1, pair.depth + 1):
        scaled = (acceptance[depth - 1][:, None] * pair.target[depth - 1]).reshape(-1)
        excess = acceptance[depth] - scaled
        required += [
            (f"a prefix acceptance probability is negative, level {depth},", -acceptance[depth], None),
            (f"a prefix acceptance probability exceeds p f of its parent, level {depth},", excess, scaled),
            (f"a multiplier is negative, level {depth},", -multipliers[depth], None),
        ]
    return required


def violated(required: list[Requirement], relative: float = RELATIVE, absolute: float = ABSOLUTE) -> list[str]:
    """A line for every requirement that an entry violates; NaN does."""
    violations = []
    for what, excess, size in required:
        slack = 0 if size is None else absolute + relative * np.abs(size)
        bad = ~np.asarray(excess - slack <= 0, dtype=bool)
        if bad.any():
            entry = int(np.argmax(bad))
            violations.append(f"{what} by {float((excess - slack)[entry]):.3g} at entry {entry}")
    return violations


def _exact_rows(leaf: npt.NDArray[np.int64], share: npt.NDArray[np.float64], leaf_mass: Array) -> Array:
    """Fractions near ``share * leaf_mass[leaf]`` (shares of a row sum to 1 up to rounding) with exact row sums."""
    scale = 1 << 60
    units = np.array([int(Fraction(value) * scale) for value in share.tolist()], dtype=object)
    by_leaf = np.lexsort((-share, leaf))
    largest = by_leaf[np.flatnonzero(np.diff(leaf[by_leaf], prepend=-1))]
    units[largest] += scale - accumulate(leaf, units, leaf_mass.size)[leaf[largest]]
    assert (units >= 0).all()
    return np.array([Fraction(int(u), scale) for u in units], dtype=object) * leaf_mass[leaf]


def _shapes(pair: ModelPair, certificate: Certificate | DraftCertificate) -> None:
    sizes = [tree.level_size(pair.vocab_size, depth) for depth in range(pair.depth + 1)]
    for name in ("selected", "prefix_acceptance", "multipliers"):
        got = [level.shape for level in getattr(certificate, name)]
        if got != [(size,) for size in sizes]:
            raise errors.fail(f"certificate's {name}", got=f"levels of shape {got}", expected=f"sizes {sizes}")
    if isinstance(certificate, DraftCertificate):
        return
    ranks = certificate.ranks
    bins = len(ranks.edges) - 1
    if not (ranks.leaf.shape == ranks.bin.shape == ranks.mass.shape and ranks.leaf.ndim == 1 and bins >= 1):
        raise errors.fail("rank table", got="arrays of different shape", expected="one leaf, bin and mass per entry")
    for name, index, size in (("leaf", ranks.leaf, sizes[-1]), ("bin", ranks.bin, bins)):
        if index.size and not (0 <= index.min() and index.max() < size):
            raise errors.fail(f"rank table's {name}", got="an index out of range", expected=f"0..{size - 1}")


def __dir__() -> list[str]:
    return __all__
