"""Newton's equations of the rank-quantile LP, solved by elimination along the prefix tree.

The normal equations S = A D A^T of the LP (see `lpverify.lp.interior_point`) have the unknowns lambda(c), H(c) for
every node below the root, alpha(leaf) and beta(bin). Their graph is the prefix tree plus the bins, so eliminating
from the leaves to the root leaves one dense system in the B bins. The column of f(c), which would join all children
of c to each other, is kept as an extra unknown phi(c) (the quasi-definite form of the same equations): then c meets
its parent only in H(parent) and phi(parent), and every level is eliminated in a few vectorised operations. Cost of
one factorisation: O(N s^2 + (n - N) B^2) for N leaves with s bins each.

All pivots are sums of terms of one sign, and differences of nearly equal numbers are avoided by the product forms
below, which is what keeps the directions accurate when the weights span 20 orders of magnitude near the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

Vector = npt.NDArray[np.float64]
IntVector = npt.NDArray[np.int64]


class Breakdown(ArithmeticError):
    """The weights have become too uneven for another direction: the point reached is as good as it gets."""


@dataclass(frozen=True)
class Shape:
    """Index structure of the LP: nodes below the root, concatenated level by level; the leaves are the last N.

    ``sibling_sum`` of a node vector has one entry per parent: the root first, then the inner nodes in the same order.
    """

    vocab_size: int
    depth: int
    bins: int
    target: Vector  # (n,) p(x|c) of node cx
    entry_leaf: IntVector  # (E,) sorted
    entry_bin: IntVector  # (E,)
    entry_slope: Vector  # (E,) mean of phi' on the entry's bin
    live_budget: npt.NDArray[np.bool_]  # (n,) False where f(c) = 0 is fixed
    live_mass: npt.NDArray[np.bool_]  # (n,) False where no draft mass passes

    @property
    def leaves(self) -> int:
        return int(self.vocab_size**self.depth)

    @property
    def inner(self) -> int:
        """Number of nodes below the root that are not leaves."""
        return len(self.target) - self.leaves

    def level(self, depth: int) -> slice:
        """The nodes of one level, ``1 <= depth <= L``."""
        start = sum(self.vocab_size**i for i in range(1, depth))
        return slice(start, start + self.vocab_size**depth)

    def sibling_sum(self, x: Vector) -> Vector:
        return np.asarray(x.reshape(-1, self.vocab_size).sum(axis=1))

    def of_parent(self, x: Vector, root: float) -> Vector:
        """The parent's value at every node."""
        return np.repeat(np.concatenate([[root], x[: self.inner]]), self.vocab_size)

    def leaf_sum(self, x: Vector) -> Vector:
        return np.bincount(self.entry_leaf, x, self.leaves).astype(np.float64, copy=False)

    def bin_sum(self, x: Vector) -> Vector:
        return np.bincount(self.entry_bin, x, self.bins).astype(np.float64, copy=False)


@dataclass(frozen=True)
class Direction:
    """A change of the dual unknowns, and two derived changes that would lose their digits as differences of them."""

    multiplier: Vector  # (n,) lambda
    height: Vector  # (n,) H
    alpha: Vector  # (N,)
    beta: Vector  # (B,)
    rise: Vector  # (n,) H(c) - H(parent)
    budget: Vector  # (n,) f (the negative of phi)

    def __add__(self, other: Direction) -> Direction:
        return Direction(*(getattr(self, k.name) + getattr(other, k.name) for k in fields(self)))


@dataclass(frozen=True)
class RightSide:
    """Right-hand side of the equations, a value per row of A; ``budget`` belongs to the extra unknowns phi."""

    multiplier: Vector  # (n,)
    height: Vector  # (n,)
    alpha: Vector  # (N,)
    beta: Vector  # (B,)
    budget: Vector  # (n,)

    def __sub__(self, other: RightSide) -> RightSide:
        return RightSide(*(getattr(self, k.name) - getattr(other, k.name) for k in fields(self)))

    @property
    def size(self) -> float:
        """Sum of absolute entries."""
        return float(sum(np.abs(getattr(self, k.name)).sum() for k in fields(self)))


class Factorisation:
    """S factorised for the weights D = x / z of the columns f, s, v (one per node) and T (one per entry)."""

    def __init__(self, shape: Shape, df: Vector, ds: Vector, dv: Vector, dt: Vector) -> None:
        self._shape = shape
        self._ds, self._dv = ds, dv
        size, bins = shape.vocab_size, shape.bins
        # Leaves: alpha first. What is left on H(leaf) is a weighted variance of the slopes, so it is computed as one.
        total = shape.leaf_sum(dt)
        self._total = np.where(total > 0, total, 1.0)
        self._mean = shape.leaf_sum(dt * shape.entry_slope) / self._total
        deviation = shape.entry_slope - self._mean[shape.entry_leaf]
        start = np.searchsorted(shape.entry_leaf, np.arange(shape.leaves + 1))
        weights = sp.csr_array((dt, shape.entry_bin, start), shape=(shape.leaves, bins))
        self._weights = weights
        coupling: Any = sp.csr_array((-dt * deviation, shape.entry_bin, start), shape=(shape.leaves, bins))
        coupling_budget: Any = None
        schur = -(weights.T @ sp.diags_array(1 / self._total) @ weights).toarray()
        height = shape.leaf_sum(dt * deviation * deviation)
        cross = np.zeros(shape.leaves)
        budget = np.zeros(shape.leaves)
        self._steps: list[tuple[Any, ...]] = []
        for depth in range(shape.depth, 0, -1):
            at = shape.level(depth)
            level_dv = dv[at]
            pivot = np.where(shape.live_mass[at], level_dv + height, 1.0)
            one = 1.0 + cross
            rest = 1.0 / df[at] + one * one / pivot + budget
            inverse = np.where(shape.live_budget[at], 1.0 / (rest + 1.0 / ds[at]), 0.0)
            to_height = (level_dv * cross - height) / pivot
            to_budget = shape.target[at] / ds[at]
            if depth == shape.depth:
                gamma = sp.diags_array(-one / pivot) @ coupling
                schur += (coupling.T @ sp.diags_array((inverse * one * one / pivot - 1.0) / pivot) @ coupling).toarray()
            else:
                gamma = coupling_budget - (one / pivot)[:, None] * coupling
                schur += gamma.T @ (gamma * inverse[:, None]) - coupling.T @ (coupling / pivot[:, None])
            self._steps.append((at, pivot, height, one, inverse, to_height, to_budget, coupling, gamma))
            if depth > 1:
                if depth == shape.depth:
                    count = shape.leaves // size
                    gather = sp.csr_array(
                        (np.ones(shape.leaves), np.arange(shape.leaves), np.arange(0, shape.leaves + 1, size)),
                        shape=(count, shape.leaves),
                    )
                    scale = np.where(shape.live_mass[at], (level_dv - to_height * inverse * one) / pivot, 0.0)
                    next_coupling = (gather @ sp.diags_array(scale) @ coupling).toarray()
                    next_budget = (gather @ sp.diags_array(to_budget * inverse) @ gamma).toarray()
                else:
                    part = (level_dv / pivot)[:, None] * coupling + (to_height * inverse)[:, None] * gamma
                    next_coupling = part.reshape(-1, size, bins).sum(axis=1)
                    next_budget = ((to_budget * inverse)[:, None] * gamma).reshape(-1, size, bins).sum(axis=1)
                live = shape.live_mass[at]
                height_part = np.where(live, level_dv * height / pivot, 0.0) + to_height**2 * inverse
                budget_part = shape.target[at] * to_budget * rest * inverse
                cross_part = to_height * to_budget * inverse
                height, budget, cross = (shape.sibling_sum(x) for x in (height_part, budget_part, cross_part))
                coupling, coupling_budget = next_coupling, next_budget
        # A constant added to beta and taken from alpha changes nothing: rows of the bin system sum to 0 (so the
        # diagonal is what the rest of a row leaves) and the last beta stays 0.
        schur = (schur + schur.T) / 2
        np.fill_diagonal(schur, 0.0)
        np.fill_diagonal(schur, -schur.sum(axis=1))
        free = schur[:-1, :-1]
        if not np.isfinite(schur).all():
            raise Breakdown("a weight overflowed")
        self._scale = 1.0 / np.sqrt(np.maximum(np.diag(free), np.finfo(float).tiny))
        self._scaled = free * self._scale[:, None] * self._scale[None, :]
        self._chol = _cholesky(self._scaled)

    def solve(self, right: RightSide) -> Direction:
        """The direction for one right-hand side (one pass up the tree, one down)."""
        shape = self._shape
        mean, total = self._mean, self._total
        height = right.height.copy()
        budget = right.budget.copy()
        leaves = shape.level(shape.depth)
        height[leaves] += mean * right.alpha
        beta = right.beta - self._weights.T @ (right.alpha / total)
        saved = []
        for at, pivot, _, one, inverse, to_height, to_budget, coupling, gamma in self._steps:
            h = height[at]
            reduced = budget[at] - one * h / pivot - right.multiplier[at] / self._ds[at]
            saved.append((h.copy(), reduced))
            beta = beta - coupling.T @ (h / pivot) + gamma.T @ (inverse * reduced)
            if at.start > 0:
                size = at.stop - at.start
                above = slice(at.start - size // shape.vocab_size, at.start)
                live_h = np.where(shape.live_mass[at], self._dv[at] * h / pivot, 0.0)
                live_b = np.where(shape.live_budget[at], right.multiplier[at], 0.0)
                height[above] += shape.sibling_sum(live_h + to_height * inverse * reduced)
                budget[above] += shape.sibling_sum(to_budget * (live_b + inverse * reduced))
        d_beta = np.zeros(shape.bins)
        d_beta[:-1] = self._bins(beta[:-1])
        d_height = np.zeros(len(height))
        d_rise = np.zeros(len(height))
        d_phi = np.zeros(len(height))
        d_multiplier = np.zeros(len(height))
        for (at, pivot, stiffness, one, inverse, to_height, to_budget, coupling, gamma), (h, reduced) in zip(
            reversed(self._steps), reversed(saved), strict=True
        ):
            if at.start == 0:
                parent_h = parent_phi = np.zeros(at.stop)
            else:
                size = at.stop - at.start
                above = slice(at.start - size // shape.vocab_size, at.start)
                parent_h = np.repeat(d_height[above], shape.vocab_size)
                parent_phi = np.repeat(d_phi[above], shape.vocab_size)
            phi = -inverse * (reduced - to_height * parent_h - to_budget * parent_phi - gamma @ d_beta)
            d_phi[at] = phi
            d_rise[at] = np.where(
                shape.live_mass[at], (h - stiffness * parent_h - one * phi - coupling @ d_beta) / pivot, 0.0
            )
            d_height[at] = parent_h + d_rise[at]
            free = (right.multiplier[at] - phi + shape.target[at] * parent_phi) / self._ds[at]
            d_multiplier[at] = np.where(shape.live_budget[at], free, 0.0)
        d_alpha = (right.alpha - self._weights @ d_beta) / total + mean * d_height[leaves]
        return Direction(d_multiplier, d_height, d_alpha, d_beta, d_rise, -d_phi)

    def _bins(self, right: Vector) -> Vector:
        right = right * self._scale
        x = scipy.linalg.cho_solve(self._chol, right)
        x = x + scipy.linalg.cho_solve(self._chol, right - self._scaled @ x)
        return np.asarray(x * self._scale)


def _cholesky(matrix: npt.NDArray[np.float64]) -> Any:
    """Cholesky with the smallest shift that makes it exist; iterative refinement removes the shift's effect."""
    shift = 0.0
    while True:
        try:
            return scipy.linalg.cho_factor(matrix + shift * np.eye(len(matrix)))
        except scipy.linalg.LinAlgError:
            shift = max(10 * shift, 1e-15)
            if shift >= 1e-6:
                raise Breakdown("the bin system lost its digits") from None
