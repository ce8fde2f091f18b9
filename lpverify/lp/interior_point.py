"""A primal-dual interior-point method for the rank-quantile LP on given bins (THEORY 2.4).

    minimise  -sum_c f(c)   over f, s, v, T >= 0, subject to
        f(cx) + s(cx) - p(x|c) f(c)                          = p(x|root) at level 1, else 0     [lambda(cx)]
        f(c) + v(c) - sum_x (f(cx) + v(cx))                  = 0   at inner nodes               [H(c)]
        f(leaf) + v(leaf) - sum_b phibar_b T(leaf,b)         = 0                                [H(leaf)]
        sum_b T(leaf,b) = Q(leaf) [alpha(leaf)],   sum_leaf T(leaf,b) = width_b                 [beta(b)]

The rows for H are differences of f + v = M along the tree, which makes H(c) the sum of the multipliers y of f <= M on
the path to c: the height that the upper bound sorts the leaves by. Dual feasibility:

    lambda >= 0,  y(c) = H(c) - H(parent) >= 0,  lambda(c) - sum_x p(x|c) lambda(cx) + y(c) >= 1,
    alpha(leaf) + beta(b) >= phibar_b H(leaf).

Mehrotra's predictor-corrector (SIAM J. Optim. 2, 1992) with the tree elimination of `lpverify.lp.tree_newton`. The
method need not converge: the caller turns any iterate into certified bounds (`lpverify.lp.certify`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from lpverify.lp.tree_newton import Breakdown, Direction, Factorisation, RightSide, Shape, Vector

REFINEMENTS = 3

SMALLEST_ROOM = 1e-100
"""A column with less room than this has no scale of its own in a warm start (its quotients would overflow)."""


@dataclass
class Blocks:
    """One number per column: f, s, v per node, T per entry."""

    f: Vector
    s: Vector
    v: Vector
    t: Vector

    def __iter__(self) -> Iterator[Vector]:
        return iter((self.f, self.s, self.v, self.t))


class InteriorPoint:
    """State of the iteration; `step` advances it. ``x`` primal, ``z`` dual slacks, and the dual unknowns."""

    def __init__(self, shape: Shape, leaf_mass: Vector, widths: Vector) -> None:
        self.shape = shape
        self.leaf_mass = leaf_mass
        self.widths = widths
        live_f, live_m = shape.live_budget, shape.live_mass
        table = widths[shape.entry_bin]
        table = table * (leaf_mass / np.where(live_m[-shape.leaves :], shape.leaf_sum(table), 1.0))[shape.entry_leaf]
        mass = self._mass(table)
        budget, room = np.ones(len(mass)), np.ones(len(mass))
        for depth in range(1, shape.depth + 1):
            at = shape.level(depth)
            above = shape.of_parent(budget, 1.0)[at] if depth > 1 else 1.0
            room[at] = shape.target[at] * above
            budget[at] = np.where(live_f[at], 0.5 * np.minimum(room[at], mass[at]), 1.0)
        slack = np.where(live_f, np.maximum(room - budget, 1e-3 * room), 1.0)
        rest = np.where(live_m, np.maximum(mass - np.where(live_f, budget, 0.0), 1e-3 * mass), 1.0)
        self.x = Blocks(budget, slack, rest, table)
        self.multiplier = np.concatenate(
            [np.full(shape.vocab_size**i, 0.5 * (shape.depth - i + 1)) for i in range(1, shape.depth + 1)]
        )
        self.height = np.concatenate([np.full(shape.vocab_size**i, float(i)) for i in range(1, shape.depth + 1)])
        slope = shape.bin_sum(shape.entry_slope) / np.maximum(np.bincount(shape.entry_bin, minlength=shape.bins), 1)
        self.alpha = np.zeros(shape.leaves)
        self.beta = slope * float(shape.depth) + 1.0
        n = len(mass)
        self.z = Blocks(np.ones(n), self.multiplier.copy(), np.ones(n), np.maximum(self._entry_value(self), 1.0))
        self._count = len(table) + int(2 * live_f.sum() + live_m.sum())

    def start_from(self, earlier: InteriorPoint, table: Vector, beta: Vector) -> None:
        """Start near an ``earlier`` point of the same tree on other bins, with a ``table`` and bin prices ``beta``.

        Whatever the other bins leave uneven is lifted towards one complementarity, measured against the scale of each
        column (the room it has; 1 for dual slacks): the smaller of x and z is raised, both where both are small.
        """
        shape = self.shape
        self.multiplier, self.height, self.beta = earlier.multiplier.copy(), earlier.height.copy(), beta
        leaf_height = self.height[shape.inner :][shape.entry_leaf]
        price = shape.entry_slope * leaf_height - beta[shape.entry_bin]
        self.alpha = np.full(shape.leaves, -np.inf)
        np.maximum.at(self.alpha, shape.entry_leaf, price)
        self.alpha = np.where(np.isfinite(self.alpha), self.alpha, 0.0)
        x = Blocks(earlier.x.f, earlier.x.s, earlier.x.v, table)
        z = Blocks(earlier.z.f, earlier.z.s, earlier.z.v, self._entry_value(self))
        room = shape.target * shape.of_parent(np.where(shape.live_budget, x.f, 0.0), 1.0)
        scale = Blocks(room, room, self._mass(table), self.leaf_mass[shape.entry_leaf])
        self.x = Blocks(*(a.copy() for a in x))
        self.z = Blocks(*(np.maximum(b, 0.0) for b in z))
        even = self.complementarity / sum(float(c.sum()) for c in self._masked(scale))
        for a, b, c in zip(self.x, self.z, scale, strict=True):
            relative = np.divide(a, c, out=np.ones_like(a), where=c > SMALLEST_ROOM)
            flat = relative * b < even
            larger = np.maximum(np.maximum(relative, b), np.sqrt(even))
            raise_x = flat & (relative <= b)
            raise_z = flat & (b <= relative)
            both = flat & (larger == np.sqrt(even))
            a[raise_x | both] = (c * even / larger)[raise_x | both]
            b[raise_z | both] = (even / larger)[raise_z | both]

    @property
    def complementarity(self) -> float:
        """x'z, the duality gap of the iterate once both residuals vanish."""
        return float(sum((x * z).sum() for x, z in zip(self._masked(self.x), self._masked(self.z), strict=True)))

    @property
    def primal_residual(self) -> float:
        """Sum of the absolute violations of all equations."""
        return self._primal_residual().size

    def step(self) -> float:
        """One predictor-corrector step; returns the smaller of the two step lengths.

        Raises Breakdown where rounding errors leave no direction; the point then stays as it was.
        """
        try:
            with np.errstate(over="raise", divide="raise", invalid="raise"):
                return self._step()
        except FloatingPointError as error:
            raise Breakdown(str(error)) from None

    def _step(self) -> float:
        x, z = self.x, self.z
        weight = Blocks(*(a / b for a, b in zip(x, z, strict=True)))
        factor = Factorisation(self.shape, weight.f, weight.s, weight.v, weight.t)
        primal = self._primal_residual()
        dual = self._dual_value()
        missing = Blocks(*(b - d for b, d in zip(z, dual, strict=True)))  # z minus its definition
        now = self.complementarity
        target = Blocks(*(-a * b for a, b in zip(x, z, strict=True)))
        dx, dz, _ = self._direction(factor, weight, primal, missing, target)
        primal_step, dual_step = self._length(x, dx), self._length(z, dz)
        trial = sum(
            ((a + primal_step * da) * (b + dual_step * db)).sum()
            for a, da, b, db in zip(*(self._masked(k) for k in (x, dx, z, dz)), strict=True)
        )
        centre = max(float(trial) / now, 0.0) ** 3 * now / self._count
        target = Blocks(*(centre - a * b - da * db for a, da, b, db in zip(x, dx, z, dz, strict=True)))
        dx, dz, direction = self._direction(factor, weight, primal, missing, target)
        primal_step, dual_step = (min(1.0, 0.995 * self._length(a, da)) for a, da in ((x, dx), (z, dz)))
        self.x = self._moved(x, dx, primal_step)
        self.z = self._moved(z, dz, dual_step)
        self.multiplier = self.multiplier + dual_step * direction.multiplier
        self.height = self.height + dual_step * direction.height
        self.alpha = self.alpha + dual_step * direction.alpha
        self.beta = self.beta + dual_step * direction.beta
        return min(primal_step, dual_step)

    def _direction(
        self, factor: Factorisation, weight: Blocks, primal: RightSide, missing: Blocks, target: Blocks
    ) -> tuple[Blocks, Blocks, Direction]:
        """Solve z dx + x dz = target, A dx = primal, dz = A'd - missing, refining until A dx stops improving.

        f is recovered from its own unknown phi and v from the rise of H: where such a column is basic its weight is
        huge, and weight times a difference of dual unknowns would keep no digit.
        """
        shape, x, z = self.shape, self.x, self.z
        u = self._live(Blocks(*(t / b + w * m for t, b, w, m in zip(target, z, weight, missing, strict=True))))
        nothing = np.zeros(len(u.f))
        right = self._rows(Blocks(nothing, u.s, u.v, u.t)) - primal
        right = replace(right, budget=np.where(shape.live_budget, u.f / weight.f, 0.0))
        direction = factor.solve(right)
        best: tuple[float, Blocks, Blocks, Direction] | None = None
        for _ in range(REFINEMENTS):
            change = Blocks(missing.f, direction.multiplier, direction.rise, self._entry_value(direction))
            dz = Blocks(*(d - m for d, m in zip(change, missing, strict=True)))
            dx = Blocks(*((t - a * d) / b for t, a, d, b in zip(target, x, dz, z, strict=True)))
            dx.f = direction.budget
            dz.f = (target.f - z.f * dx.f) / x.f
            dx, dz = self._live(dx), self._live(dz)
            left = self._rows(dx) - primal
            error = left.size
            improved = best is None or error < best[0]
            enough = best is not None and error > 0.5 * best[0]
            if improved:
                best = (error, dx, dz, direction)
            if enough or error < 1e-15:
                break
            direction = direction + factor.solve(left)
        assert best is not None
        return best[1], best[2], best[3]

    def _mass(self, table: Vector) -> Vector:
        """M(c) for every node below the root."""
        shape = self.shape
        mass = np.zeros(len(shape.target))
        mass[shape.level(shape.depth)] = shape.leaf_sum(shape.entry_slope * table)
        for depth in range(shape.depth - 1, 0, -1):
            below, at = shape.level(depth + 1), shape.level(depth)
            mass[at] = mass[below].reshape(-1, shape.vocab_size).sum(axis=1)
        return mass

    def _rows(self, x: Blocks) -> RightSide:
        """A x, without the constant p(x|root) f(root)."""
        shape = self.shape
        f = np.where(shape.live_budget, x.f, 0.0)
        multiplier = np.where(shape.live_budget, f + x.s - shape.target * shape.of_parent(f, 0.0), 0.0)
        carried = f + np.where(shape.live_mass, x.v, 0.0)
        height = carried.copy()
        height[: shape.inner] -= shape.sibling_sum(carried)[1:]
        height[shape.inner :] -= shape.leaf_sum(shape.entry_slope * x.t)
        return RightSide(multiplier, height, shape.leaf_sum(x.t), shape.bin_sum(x.t), np.zeros(len(f)))

    def _primal_residual(self) -> RightSide:
        shape = self.shape
        got = self._rows(self.x)
        constant = np.zeros(len(shape.target))
        constant[: shape.vocab_size] = np.where(
            shape.live_budget[: shape.vocab_size], shape.target[: shape.vocab_size], 0.0
        )
        return RightSide(
            constant - got.multiplier, -got.height, self.leaf_mass - got.alpha, self.widths - got.beta, got.budget
        )

    def _dual_value(self) -> Blocks:
        """What the dual slacks have to be."""
        shape, at = self.shape, self
        weighted = shape.target * np.where(shape.live_budget, at.multiplier, 0.0)
        below = np.zeros(len(shape.target))
        below[: shape.inner] = shape.sibling_sum(weighted)[1:]
        rise = at.height - shape.of_parent(at.height, 0.0)
        f = at.multiplier - below + rise - 1.0
        return Blocks(f, at.multiplier, rise, self._entry_value(at))

    def _entry_value(self, at: Direction | InteriorPoint) -> Vector:
        """alpha(leaf) + beta(bin) - slope H(leaf) for every entry."""
        shape = self.shape
        leaf_height = at.height[shape.inner :][shape.entry_leaf]
        return at.alpha[shape.entry_leaf] + at.beta[shape.entry_bin] - shape.entry_slope * leaf_height

    def _live(self, blocks: Blocks) -> Blocks:
        """The same with 0 in the columns that take no part."""
        live_f, live_m = self.shape.live_budget, self.shape.live_mass
        f, s, v = (np.where(m, x, 0.0) for m, x in ((live_f, blocks.f), (live_f, blocks.s), (live_m, blocks.v)))
        return Blocks(f, s, v, blocks.t)

    def _masked(self, blocks: Blocks) -> tuple[Vector, ...]:
        live_f, live_m = self.shape.live_budget, self.shape.live_mass
        return (blocks.f[live_f], blocks.s[live_f], blocks.v[live_m], blocks.t)

    def _length(self, x: Blocks, dx: Blocks) -> float:
        """Largest step in [0, 1] that keeps ``x`` nonnegative."""
        length = 1.0
        for a, da in zip(self._masked(x), self._masked(dx), strict=True):
            falls = da < 0
            if falls.any():
                length = min(length, float((a[falls] / -da[falls]).min()))
        return length

    def _moved(self, x: Blocks, dx: Blocks, length: float) -> Blocks:
        return Blocks(*(a + length * da for a, da in zip(x, dx, strict=True)))
