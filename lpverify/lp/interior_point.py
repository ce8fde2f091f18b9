"""A primal-dual interior-point method for the rank-quantile LP on given bins (theory 2.4).

    minimise  -sum_c f(c)   over f, s, v, T >= 0, subject to
        f(cx) + s(cx) - p(x|c) f(c)                          = p(x|root) at level 1, else 0     [lambda(cx)]
        f(c) + v(c) - sum_x (f(cx) + v(cx))                  = 0   at inner nodes               [H(c)]
        f(leaf) + v(leaf) - sum_b phibar_b T(leaf,b)         = 0                                [H(leaf)]
        sum_b T(leaf,b) = Q(leaf) [alpha(leaf)],   sum_leaf T(leaf,b) = width_b                 [beta(b)]

The rows for H are differences of f + v = M along the tree. So H(c) is the sum of the multipliers y of f <= M on the
path to c: the height that the upper bound sorts the leaves by. Dual feasibility:

    lambda >= 0,  y(c) = H(c) - H(parent) >= 0,  lambda(c) - sum_x p(x|c) lambda(cx) + y(c) >= 1,
    alpha(leaf) + beta(b) >= phibar_b H(leaf).

Mehrotra's predictor-corrector (SIAM J. Optim. 2, 1992) with the tree elimination of `lpverify.lp.tree_newton`. The
method need not converge: the caller turns any iterate into certified bounds (`lpverify.lp.certify`).
"""

from __future__ import annotations

import numpy as np

from lpverify.lp.tree_newton import Breakdown, Factorisation, Shape, Vector

REFINEMENTS = 3

SMALLEST_ROOM = 1e-100
"""A column with less room than this has no scale of its own in a warm start (its quotients would overflow)."""


class InteriorPoint:
    """State of the iteration; `step` advances it.

    ``x`` (3n+E,): the primal point, and ``z``: the dual slacks, both in the order of `Shape.columns`. ``dual``: lambda,
    H, alpha and beta, in the order of `Shape.unknowns`. Columns that take no part have x = z = 1.
    """

    def __init__(self, shape: Shape, leaf_mass: Vector, widths: Vector) -> None:
        """The cold start.

        Args:
            shape: the LP's index structure.
            leaf_mass: Q of the leaves, (N,), 0 where a leaf takes no part.
            widths: of the bins, (B,), with the sum of ``leaf_mass``.
        """
        self.shape, self.leaf_mass, self.widths = shape, leaf_mass, widths
        live_f, live_m = shape.live_f, shape.live_mass
        table = widths[shape.entry_bin]
        table = table * (leaf_mass / np.where(live_m[-shape.leaves :], shape.leaf_sum(table), 1.0))[shape.entry_leaf]
        mass = self._mass(table)
        f, room = np.ones(shape.nodes), np.ones(shape.nodes)
        for depth in range(1, shape.depth + 1):
            at = shape.level(depth)
            room[at] = shape.target[at] * shape.of_parent(f, 1.0)[at]
            f[at] = np.where(live_f[at], 0.5 * np.minimum(room[at], mass[at]), 1.0)
        s = np.where(live_f, np.maximum(room - f, 1e-3 * room), 1.0)
        v = np.where(live_m, np.maximum(mass - np.where(live_f, f, 0.0), 1e-3 * mass), 1.0)
        self.x = np.concatenate([f, s, v, table])
        levels = [(depth, shape.vocab_size**depth) for depth in range(1, shape.depth + 1)]
        multiplier = np.concatenate([np.full(size, 0.5 * (shape.depth - depth + 1)) for depth, size in levels])
        height = np.concatenate([np.full(size, float(depth)) for depth, size in levels])
        slope = shape.bin_sum(shape.entry_slope) / np.maximum(np.bincount(shape.entry_bin, minlength=shape.bins), 1)
        self.dual = np.concatenate([multiplier, height, np.zeros(shape.leaves), slope * float(shape.depth) + 1.0])
        n = np.ones(shape.nodes)
        self.z = np.concatenate([n, multiplier, n, np.maximum(self._entry_value(self.dual), 1.0)])

    def start_from(self, earlier: InteriorPoint, table: Vector, beta: Vector) -> None:
        """Start near an ``earlier`` point of the same tree on other bins, with a ``table`` and bin prices ``beta``.

        Entries that the change of bins left small are lifted towards one common complementarity, measured against the
        scale of each column (the room it has; 1 for dual slacks): the smaller of x and z is raised, or both where both
        are small.
        """
        shape = self.shape
        multiplier, height, *_ = shape.unknowns(earlier.dual)
        price = shape.entry_slope * height[shape.inner :][shape.entry_leaf] - beta[shape.entry_bin]
        alpha = np.full(shape.leaves, -np.inf)
        np.maximum.at(alpha, shape.entry_leaf, price)
        self.dual = np.concatenate([multiplier, height, np.where(np.isfinite(alpha), alpha, 0.0), beta])
        nodes = slice(0, 3 * shape.nodes)
        x = self.x = np.concatenate([earlier.x[nodes], table])
        z = self.z = np.maximum(np.concatenate([earlier.z[nodes], self._entry_value(self.dual)]), 0.0)
        room = shape.target * shape.of_parent(np.where(shape.live_f, x[: shape.nodes], 0.0), 1.0)
        scale = np.concatenate([room, room, self._mass(table), self.leaf_mass[shape.entry_leaf]])
        even = self.complementarity / float(scale[shape.live].sum())
        relative = np.divide(x, scale, out=np.ones_like(x), where=scale > SMALLEST_ROOM)
        small = relative * z < even
        larger = np.maximum(np.maximum(relative, z), np.sqrt(even))
        both = small & (larger == np.sqrt(even))
        raise_x, raise_z = both | (small & (relative <= z)), both | (small & (z <= relative))
        x[raise_x] = (scale * even / larger)[raise_x]
        z[raise_z] = (even / larger)[raise_z]

    @property
    def table(self) -> Vector:
        """T, one mass per table entry, (E,)."""
        return self.shape.columns(self.x)[3]

    @property
    def complementarity(self) -> float:
        """x'z, the duality gap of the iterate once both residuals vanish."""
        return float(self.x[self.shape.live] @ self.z[self.shape.live])

    @property
    def primal_residual(self) -> float:
        """Sum of the absolute violations of all equations."""
        return float(np.abs(self._primal_residual()).sum())

    def step(self) -> float:
        """One predictor-corrector step; returns the smaller of the two step lengths.

        Raises Breakdown where rounding errors leave no direction; the point is then unchanged.
        """
        try:
            with np.errstate(over="raise", divide="raise", invalid="raise"):
                return self._step()
        except FloatingPointError as error:
            raise Breakdown(str(error)) from None

    def _step(self) -> float:
        x, z, live = self.x, self.z, self.shape.live
        factor = Factorisation(self.shape, x / z)
        primal = self._primal_residual()
        missing = z - self._dual_slacks()
        now = self.complementarity
        dx, dz, _ = self._direction(factor, primal, missing, -x * z)
        trial = float((x + _length(x, dx) * dx)[live] @ (z + _length(z, dz) * dz)[live])
        centre = max(trial / now, 0.0) ** 3 * now / np.count_nonzero(live)
        dx, dz, direction = self._direction(factor, primal, missing, centre - x * z - dx * dz)
        primal_step, dual_step = (min(1.0, 0.995 * _length(a, da)) for a, da in ((x, dx), (z, dz)))
        self.x = x + primal_step * dx
        self.z = z + dual_step * dz
        self.dual = self.dual + dual_step * direction[: len(self.dual)]
        return min(primal_step, dual_step)

    def _direction(
        self, factor: Factorisation, primal: Vector, missing: Vector, target: Vector
    ) -> tuple[Vector, Vector, Vector]:
        """Solve z dx + x dz = target, A dx = primal, dz = A'd - missing, refining until A dx stops improving.

        f is recovered from its own unknown phi and v from the rise of H: where such a column is basic its weight is
        huge, and weight times a difference of dual unknowns would keep no digit.
        """
        shape, x, z, n = self.shape, self.x, self.z, self.shape.nodes
        u = np.where(shape.live, target / z + x / z * missing, 0.0)
        own_f = np.where(shape.live_f, u[:n] / (x[:n] / z[:n]), 0.0)
        u[:n] = 0.0
        right = self._rows(u) - primal
        right[-n:] = own_f
        direction = factor.solve(right)
        best: tuple[float, Vector, Vector, Vector] | None = None
        for _ in range(REFINEMENTS):
            multiplier, _, _, _, f, rise = shape.unknowns(direction)
            dz = np.concatenate([missing[:n], multiplier, rise, self._entry_value(direction)]) - missing
            dx = (target - x * dz) / z
            dx[:n] = f
            dz[:n] = (target[:n] - z[:n] * f) / x[:n]
            dx, dz = np.where(shape.live, dx, 0.0), np.where(shape.live, dz, 0.0)
            left = self._rows(dx) - primal
            error = float(np.abs(left).sum())
            enough = best is not None and error > 0.5 * best[0]
            if best is None or error < best[0]:
                best = (error, dx, dz, direction)
            if enough or error < 1e-15:
                break
            direction = direction + factor.solve(left)
        assert best is not None
        return best[1], best[2], best[3]

    def _mass(self, table: Vector) -> Vector:
        """M(c) for every node below the root."""
        shape = self.shape
        levels = [shape.leaf_sum(shape.entry_slope * table)]
        for _ in range(shape.depth - 1):
            levels.append(shape.sibling_sum(levels[-1]))
        return np.concatenate(levels[::-1])

    def _rows(self, x: Vector) -> Vector:
        """A x without the constant p(x|root) f(root), in the order of `Shape.unknowns` (0 for the extra unknowns f)."""
        shape = self.shape
        f, s, v, t = shape.columns(x)
        f = np.where(shape.live_f, f, 0.0)
        multiplier = np.where(shape.live_f, f + s - shape.target * shape.of_parent(f, 0.0), 0.0)
        carried = f + np.where(shape.live_mass, v, 0.0)
        height = carried.copy()
        height[: shape.inner] -= shape.sibling_sum(carried)[1:]
        height[shape.inner :] -= shape.leaf_sum(shape.entry_slope * t)
        return np.concatenate([multiplier, height, shape.leaf_sum(t), shape.bin_sum(t), np.zeros(shape.nodes)])

    def _primal_residual(self) -> Vector:
        shape = self.shape
        first = np.zeros(2 * shape.nodes)  # right sides of lambda and H
        first[: shape.vocab_size] = np.where(shape.live_f, shape.target, 0.0)[: shape.vocab_size]
        right = np.concatenate([first, self.leaf_mass, self.widths, np.zeros(shape.nodes)])
        return np.asarray(right - self._rows(self.x))

    def _dual_slacks(self) -> Vector:
        """What the dual slacks z are by their definition."""
        shape = self.shape
        multiplier, height, *_ = shape.unknowns(self.dual)
        below = np.zeros(shape.nodes)
        below[: shape.inner] = shape.sibling_sum(shape.target * np.where(shape.live_f, multiplier, 0.0))[1:]
        rise = height - shape.of_parent(height, 0.0)
        return np.concatenate([multiplier - below + rise - 1.0, multiplier, rise, self._entry_value(self.dual)])

    def _entry_value(self, dual: Vector) -> Vector:
        """alpha(leaf) + beta(bin) - slope H(leaf) for every entry."""
        shape = self.shape
        _, height, alpha, beta, *_ = shape.unknowns(dual)
        leaf_height = height[shape.inner :][shape.entry_leaf]
        return np.asarray(alpha[shape.entry_leaf] + beta[shape.entry_bin] - shape.entry_slope * leaf_height)


def _length(x: Vector, dx: Vector) -> float:
    """Largest step in [0, 1] that keeps ``x`` nonnegative."""
    falls = dx < 0
    return min(1.0, float((x[falls] / -dx[falls]).min())) if falls.any() else 1.0
