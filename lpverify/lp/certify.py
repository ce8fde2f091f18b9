r"""Bounds on the multi-path optimum that need no solver, and the check of a certificate (THEORY 2.4).

**Lower bound.** Let T(leaf, b) >= 0 have row sums Q(leaf) and column sums equal to the widths of the bins of [0, 1].
Give each of the K drafted paths a rank U: first its bin, with probability T(leaf, b) / Q(leaf), then uniform inside
it. Over a random path U is uniform on [0, 1], so the smallest of K ranks has density phi'(u) = K (1-u)^(K-1), and its
path is

    Q*(leaf) = sum_b phibar_b T(leaf, b),   phibar_b = [phi(e_{b+1}) - phi(e_b)] / (e_{b+1} - e_b).

Block verification on that path with draft law Q* is lossless and keeps the budgets f(cx) = min(p(x|c) f(c), Q*(cx)). So
``sum f`` is attained by a verifier, whatever T is. (It also obeys the coverage constraints: Q*(A) <= phi(Q(A)),
because the selected path hits A only if some path does.)

**Upper bound.** Take any lambda >= 0 on the nodes below the root, put lambda = 0 below the leaves, and
``y(c) = max(0, 1 - lambda(c) + sum_x p(x|c) lambda(cx))``. For every feasible f,

    sum_c f(c) <= sum_c f(c) + sum_{cx} lambda(cx) [p(x|c) f(c) - f(cx)]
               <= 1 + sum_x p(x|root) lambda(x) + sum_{c != root} y(c) f(c).

Let Y(c) be the sum of y along the path to c, root excluded. For t > 0 the nodes where Y first reaches t form an
antichain A_t, the leaves below it are those with H = Y(leaf) >= t, and ``sum_c y(c) f(c) = int f(A_t) dt <= int
phi(Q{H >= t}) dt``. With leaves sorted by H descending and S_k their cumulative Q this integral is ``sum_k H_(k)
[phi(S_k) - phi(S_{k-1})]``.

Both hold in float64 up to rounding and in Fraction exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lpverify import errors
from lpverify.core import prefix_tree as tree
from lpverify.core.model_pair import ROW_SUM_TOLERANCE, ModelPair
from lpverify.core.results import Certificate, RankTable
from lpverify.lp.coverage import capped_budgets, phi_chord, phi_mean_slope, separate
from lpverify.numerics import Array, Levels, accumulate, as_float, down_the_tree, is_exact, total, up_the_tree, zeros

RELATIVE = 1e-9
"""Float check: slack per entry relative to the entry that it is compared with ..."""
ABSOLUTE = 1e-13
"""... plus this. So the checked value is off by at most about ``nodes * ABSOLUTE + block efficiency * RELATIVE``."""

ROUNDING_BITS = 60
"""`repair` in Fractions rounds table entries down to multiples of 2^-60 of their row, `check` multipliers to 2^-40."""
MULTIPLIER_BITS = 40


class LowerBound(NamedTuple):
    """``value = sum(budgets)``, attained by block verification on the path of smallest rank."""

    value: Any
    selected: Levels  # Q*(c), one (V**i,) array per level i = 0..L
    budgets: Levels  # f(c), likewise


@dataclass(frozen=True)
class CertificateCheck:
    """Outcome of `check`. The bounds are recomputed from the certificate; they are proved when ``valid``."""

    lower_bound: Any
    upper_bound: Any
    valid: bool
    violations: tuple[str, ...]


def repair(pair: ModelPair, ranks: RankTable) -> RankTable:
    """Make the marginals of a nonnegative table exactly legal.

    Negative entries become 0; each row is rescaled to sum to Q(leaf), an empty row being spread over all bins as
    their widths; then the edges are moved to the cumulative column sums, so that every column fits its bin by
    construction. A table that is already legal stays as it is up to rounding.

    In float64 for a float pair. For a rational pair the result is in Fractions and exact: entries are rounded to
    multiples of ``Q(leaf) / 2**60`` and the largest entry of each row takes what is left.
    """
    leaf_mass = pair.draft_paths[-1]
    leaf, column = np.asarray(ranks.leaf), np.asarray(ranks.bin)
    if pair.rational and is_exact(ranks.mass) and _legal(pair, ranks):
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


def lower_bound(pair: ModelPair, ranks: RankTable, paths: int) -> LowerBound:
    """The value of the best policy that ranks paths by ``ranks``, which must be legal (`repair`)."""
    leaf_law = accumulate(ranks.leaf, ranks.mass * _mean_slopes(ranks, paths)[ranks.bin], pair.draft_paths[-1].size)
    selected = up_the_tree(leaf_law, pair.vocab_size, pair.depth)
    budgets = capped_budgets(pair, selected)
    return LowerBound(total(budgets), selected, budgets)


def path_prices(pair: ModelPair, multipliers: Levels) -> Levels:
    """The least y(c) >= 0 with ``y(c) >= 1 - lambda(c) + sum_x p(x|c) lambda(cx)``; 0 at the root."""
    prices = [zeros(1, multipliers[-1])]
    for depth in range(1, pair.depth + 1):
        price = 1 - multipliers[depth]
        if depth < pair.depth:
            price = price + (pair.target[depth] * multipliers[depth + 1].reshape(-1, pair.vocab_size)).sum(axis=1)
        prices.append(np.maximum(price, 0 * price))
    return tuple(prices)


def upper_bound(pair: ModelPair, multipliers: Levels, paths: int) -> Any:
    """The bound that any ``multipliers`` lambda >= 0 prove, one ``(V**i,)`` array per level 0..L (root unused)."""
    prices = down_the_tree(path_prices(pair, multipliers))
    order = np.argsort(-prices, kind="stable")
    mass = pair.draft_paths[-1][order]
    chords = phi_chord(np.cumsum(mass) - mass, mass, paths)
    return 1 + (pair.target[0][0] * multipliers[1]).sum() + (prices[order] * chords).sum()


def check(pair: ModelPair, certificate: Certificate, *, exact: bool = False) -> CertificateCheck:
    """Check a certificate without a solver and recompute both bounds.

    Lower side: T >= 0; row sums Q(leaf); edges from 0 to 1, never falling; column sums equal to the bin widths;
    ``selected`` is what T selects; ``f(root) = 1``, ``0 <= f(cx) <= p(x|c) f(c)``, ``f <= selected``. Upper side:
    lambda >= 0. A float check allows ``1e-13 + 1e-9 * size`` per entry (1e-9 is also what float probability rows may
    miss a sum of 1 by) and for the marginals of the bins ``1e-9 * (L+1)``.

    ``exact=True`` (rational pairs only) works in Fractions without any tolerance. The float T and lambda are first
    made exactly feasible (`repair`; lambda rounded to multiples of 2^-40); f and Q* follow from T. What is checked
    for validity is then what remains an assumption: nonnegative entries and well-formed arrays.

    Raises InputError for ``exact`` with a float pair or arrays of wrong shape.
    """
    _shapes(pair, certificate)
    if exact:
        return _check_exact(pair, certificate)
    pair = pair.floats
    ranks = RankTable(
        as_float(certificate.ranks.edges),
        certificate.ranks.leaf,
        certificate.ranks.bin,
        as_float(certificate.ranks.mass),
    )
    selected, budgets, multipliers = (
        tuple(as_float(level) for level in function)
        for function in (certificate.selected, certificate.budgets, certificate.multipliers)
    )
    violations = []

    def require(what: str, excess: Array) -> None:
        if not (excess <= 0).all():
            entry = int(np.argmax(~(excess <= 0)))  # NaN counts as a violation
            violations.append(f"{what} by {excess[entry]:.3g} at entry {entry}")

    leaf_mass, widths = pair.draft_paths[-1], np.diff(ranks.edges)
    require("an edge falls", -widths)
    require("the edges miss 0 or 1", np.abs(ranks.edges[[0, -1]] - [0.0, 1.0]))
    require("a rank mass is negative", -ranks.mass)
    rows = accumulate(ranks.leaf, ranks.mass, leaf_mass.size)
    require("a row of the ranks misses the draft's leaf mass", _slack(np.abs(rows - leaf_mass), leaf_mass))
    columns = accumulate(ranks.bin, ranks.mass, widths.size)
    require("a column of the ranks misses its bin", np.abs(columns - widths) - (pair.depth + 1) * ROW_SUM_TOLERANCE)
    if not violations:
        proved = lower_bound(pair, ranks, certificate.num_paths).selected
        for depth, (claimed, legal) in enumerate(zip(selected, proved, strict=True)):
            require(f"the selected law is not the ranks', level {depth},", _slack(np.abs(claimed - legal), legal))
    require("the root's budget misses 1", np.abs(budgets[0] - 1))
    for depth in range(1, pair.depth + 1):
        scaled = (budgets[depth - 1][:, None] * pair.target[depth - 1]).reshape(-1)
        require(f"a budget is negative, level {depth},", -budgets[depth])
        require(f"a budget exceeds p f of its parent, level {depth},", _slack(budgets[depth] - scaled, scaled))
        require(
            f"a budget exceeds the selected path's law, level {depth},",
            _slack(budgets[depth] - selected[depth], selected[depth]),
        )
        require(f"a multiplier is negative, level {depth},", -multipliers[depth])
    return CertificateCheck(
        lower_bound=float(total(budgets)),
        upper_bound=float(upper_bound(pair, multipliers, certificate.num_paths)),
        valid=not violations,
        violations=tuple(violations),
    )


def check_coverage(pair: ModelPair, budgets: Levels, multipliers: Levels, paths: int) -> CertificateCheck:
    """Check a primal-dual pair (f, lambda) of the coverage program directly, all antichains included.

    Lower side: ``f(root) = 1``, ``0 <= f(cx) <= p(x|c) f(c)`` and, by exact separation, ``f(A) <= phi(Q(A))`` for every
    antichain; then ``sum f`` is attained, by Hall's condition. Upper side: lambda >= 0. Without tolerance
    when the pair, f and lambda are Fractions (equal bounds are then a proof of the optimum); else with that of `check`.
    """
    exact = pair.rational and is_exact(budgets[-1])
    relative, absolute = (0, 0) if exact else (RELATIVE, ABSOLUTE)
    violations = []
    if budgets[0][0] != 1:
        violations.append("the root's budget misses 1")
    for depth in range(1, pair.depth + 1):
        scaled = (budgets[depth - 1][:, None] * pair.target[depth - 1]).reshape(-1)
        if not (budgets[depth] >= 0).all():
            violations.append(f"a budget is negative, level {depth}")
        if not (budgets[depth] - scaled <= absolute + relative * scaled).all():
            violations.append(f"a budget exceeds p f of its parent, level {depth}")
        if not (multipliers[depth] >= 0).all():
            violations.append(f"a multiplier is negative, level {depth}")
    if not separate(pair.draft_paths, budgets, paths)[1] <= relative:
        violations.append("an antichain is not covered")
    upper = upper_bound(pair, multipliers, paths)
    return CertificateCheck(total(budgets), upper, not violations, tuple(violations))


def certify(pair: ModelPair, ranks: RankTable, multipliers: Levels, paths: int) -> tuple[Certificate, LowerBound, Any]:
    """Certificate of a legal table and multipliers >= 0, with the lower bound and the upper bound that they prove."""
    lower = lower_bound(pair, ranks, paths)
    certificate = Certificate(paths, ranks, lower.selected, lower.budgets, multipliers)
    return certificate, lower, upper_bound(pair, multipliers, paths)


def exact_certificate(pair: ModelPair, certificate: Certificate) -> Certificate:
    """The certificate in Fractions, legal without tolerance: T repaired, lambda rounded to multiples of 2^-40.

    Its table is what runs the optimum in exact arithmetic (`lpverify.verifiers.policy`). Raises InputError for a float
    pair.

    >>> from lpverify.lp import single_path
    >>> coin = ModelPair.from_levels([[[Fraction(1, 4), Fraction(3, 4)]]], [[[Fraction(3, 5), Fraction(2, 5)]]])
    >>> rough = single_path.solve(coin.floats).certificate
    >>> total(exact_certificate(coin, rough).budgets)
    Fraction(33, 20)
    """
    if not pair.rational:
        raise errors.fail("exact certificate", got="a problem in floating point", expected="rational probabilities")
    return _made_exact(pair, certificate)[0]


def _made_exact(pair: ModelPair, certificate: Certificate) -> tuple[Certificate, LowerBound, Any]:
    multipliers = tuple(_rounded(np.maximum(level, 0 * level)) for level in certificate.multipliers)
    return certify(pair, repair(pair, certificate.ranks), multipliers, certificate.num_paths)


def _check_exact(pair: ModelPair, certificate: Certificate) -> CertificateCheck:
    if not pair.rational:
        raise errors.fail("exact check", got="a problem in floating point", expected="rational probabilities")
    violations = []
    if (certificate.ranks.mass < 0).any():
        violations.append("a rank mass is negative")
    if any((level < 0).any() for level in certificate.multipliers[1:]):
        violations.append("a multiplier is negative")
    _, lower, upper = _made_exact(pair, certificate)
    return CertificateCheck(lower.value, upper, not violations, tuple(violations))


def _mean_slopes(ranks: RankTable, paths: int) -> Array:
    return np.asarray(phi_mean_slope(ranks.edges[:-1], np.diff(ranks.edges), paths))


def _legal(pair: ModelPair, ranks: RankTable) -> bool:
    """Exact table with exact marginals."""
    leaf_mass = pair.draft_paths[-1]
    rows = accumulate(ranks.leaf, ranks.mass, leaf_mass.size)
    columns = accumulate(ranks.bin, ranks.mass, len(ranks.edges) - 1)
    return bool(
        is_exact(ranks.edges)
        and (ranks.mass >= 0).all()
        and (rows == leaf_mass).all()
        and (columns == np.diff(ranks.edges)).all()
        and ranks.edges[0] == 0
    )


def _exact_rows(leaf: npt.NDArray[np.int64], share: npt.NDArray[np.float64], leaf_mass: Array) -> Array:
    """Fractions near ``share * leaf_mass[leaf]`` (shares of a row sum to 1 up to rounding) with exact row sums."""
    scale = 1 << ROUNDING_BITS
    units = np.array([int(Fraction(value) * scale) for value in share.tolist()], dtype=object)
    by_leaf = np.lexsort((-share, leaf))
    largest = by_leaf[np.flatnonzero(np.diff(leaf[by_leaf], prepend=-1))]
    rest = np.full(leaf_mass.size, 0, dtype=object)
    np.add.at(rest, leaf, units)
    units[largest] += scale - rest[leaf[largest]]
    assert (units >= 0).all()
    return np.array([Fraction(int(u), scale) for u in units], dtype=object) * leaf_mass[leaf]


def _rounded(values: Array) -> Array:
    """Fractions: exact input unchanged, floats to the nearest multiple of 2^-40."""
    if is_exact(values):
        return values
    scale = 1 << MULTIPLIER_BITS
    return np.array([Fraction(round(Fraction(v) * scale), scale) for v in values.tolist()], dtype=object)


def _slack(excess: Array, size: Array) -> Array:
    return excess - ABSOLUTE - RELATIVE * np.abs(size)


def _shapes(pair: ModelPair, certificate: Certificate) -> None:
    sizes = [tree.level_size(pair.vocab_size, depth) for depth in range(pair.depth + 1)]
    for name in ("selected", "budgets", "multipliers"):
        got = [level.shape for level in getattr(certificate, name)]
        if got != [(size,) for size in sizes]:
            raise errors.fail(f"certificate's {name}", got=f"levels of shape {got}", expected=f"sizes {sizes}")
    ranks = certificate.ranks
    bins = len(ranks.edges) - 1
    if not (ranks.leaf.shape == ranks.bin.shape == ranks.mass.shape and ranks.leaf.ndim == 1 and bins >= 1):
        raise errors.fail("rank table", got="arrays of different shape", expected="one leaf, bin and mass per entry")
    for name, index, size in (("leaf", ranks.leaf, sizes[-1]), ("bin", ranks.bin, bins)):
        if index.size and not (0 <= index.min() and index.max() < size):
            raise errors.fail(f"rank table's {name}", got="an index out of range", expected=f"0..{size - 1}")
