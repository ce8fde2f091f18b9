"""Newton's equations of the rank-quantile LP, solved by elimination along the prefix tree.

The normal equations S = A D A^T of the LP (see `lpverify.lp.interior_point`) have the unknowns lambda(c), H(c) for
every node below the root, alpha(leaf) and beta(bin). Their graph is the prefix tree plus the bins, so eliminating
from the leaves to the root leaves one dense system in the B bins. The column of f(c) would join all children of c to
each other; it is kept as an extra unknown phi(c) = -df(c) instead (the quasi-definite form of the same equations).
Then c meets its parent only in H(parent) and phi(parent), and every level is eliminated in a few vectorised
operations. Cost of one factorisation: O(N s^2 + (n - N) B^2) for N leaves with s bins each and n nodes.

All pivots are sums of terms of one sign, and the product forms below avoid differences of nearly equal numbers. This
keeps the directions accurate when the weights span 20 orders of magnitude near the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

Vector = npt.NDArray[np.float64]
IntVector = npt.NDArray[np.int64]


class Breakdown(ArithmeticError):
    """The Newton system is too ill-conditioned for another direction; the current iterate is final."""


@dataclass(frozen=True)
class Shape:
    """Index structure of the LP: nodes below the root, concatenated level by level; the leaves are the last N.

    Vectors of the method are flat. Columns (x, z): f, s, v with one entry per node, then T with one per table entry.
    Equations and unknowns: lambda (n), H (n), alpha (N), beta (B), f (n: the extra unknowns), and for a direction also
    the rise H(c) - H(parent) (n).
    """

    vocab_size: int
    depth: int
    bins: int
    target: Vector  # (n,) p(x|c) of node cx
    entry_leaf: IntVector  # (E,) sorted
    entry_bin: IntVector  # (E,)
    entry_slope: Vector  # (E,) mean of phi' on the entry's bin
    live_f: npt.NDArray[np.bool_]  # (n,) False where f(c) = 0 is fixed
    live_mass: npt.NDArray[np.bool_]  # (n,) False where no draft mass passes

    @property
    def nodes(self) -> int:
        return len(self.target)

    @property
    def leaves(self) -> int:
        return int(self.vocab_size**self.depth)

    @property
    def inner(self) -> int:
        """Number of nodes below the root that are not leaves."""
        return self.nodes - self.leaves

    @cached_property
    def live(self) -> npt.NDArray[np.bool_]:
        """Which columns take part."""
        return np.concatenate([self.live_f, self.live_f, self.live_mass, np.ones(len(self.entry_leaf), dtype=bool)])

    def columns(self, x: Vector) -> list[Vector]:
        """Views of f, s, v and T."""
        n = self.nodes
        return np.split(x, [n, 2 * n, 3 * n])

    def unknowns(self, x: Vector) -> list[Vector]:
        """Views of lambda, H, alpha, beta, f and the rise of H; the last two are empty where ``x`` has none."""
        n = self.nodes
        return np.split(x, np.cumsum([n, n, self.leaves, self.bins, n]))

    def level(self, depth: int) -> slice:
        """The nodes of one level, ``1 <= depth <= L``."""
        start = sum(self.vocab_size**i for i in range(1, depth))
        return slice(start, start + self.vocab_size**depth)

    def sibling_sum(self, x: Vector) -> Vector:
        """One entry per parent: the root first, then the inner nodes in order."""
        return np.asarray(x.reshape(-1, self.vocab_size).sum(axis=1))

    def of_parent(self, x: Vector, root: float) -> Vector:
        """The parent's value at every node."""
        return np.repeat(np.concatenate([[root], x[: self.inner]]), self.vocab_size)

    def leaf_sum(self, x: Vector) -> Vector:
        return np.bincount(self.entry_leaf, x, self.leaves).astype(np.float64, copy=False)

    def bin_sum(self, x: Vector) -> Vector:
        return np.bincount(self.entry_bin, x, self.bins).astype(np.float64, copy=False)


class _Level(NamedTuple):
    """What `Factorisation.solve` needs of one eliminated level; (V**depth,) each, the last two (V**depth, B)."""

    at: slice
    pivot: Vector  # of the rise of H
    stiffness: Vector
    one: Vector
    inverse: Vector  # 1 / pivot of phi
    to_height: Vector  # coupling of phi to H(parent)
    to_f: Vector  # coupling of phi to phi(parent)
    coupling: Any  # of the rise of H to the bins
    gamma: Any  # of phi to the bins, after the rise is eliminated


class Factorisation:
    """S factorised for the weights D = x / z, (3n+E,) in the order of `Shape.columns`."""

    def __init__(self, shape: Shape, weight: Vector) -> None:
        self._shape = shape
        size, bins = shape.vocab_size, shape.bins
        df, self._ds, self._dv, dt = shape.columns(weight)
        # Leaves: alpha first. A weighted variance of the slopes remains on H(leaf), so it is computed as one.
        total = shape.leaf_sum(dt)
        self._total = np.where(total > 0, total, 1.0)
        self._mean = shape.leaf_sum(dt * shape.entry_slope) / self._total
        deviation = shape.entry_slope - self._mean[shape.entry_leaf]
        start = np.searchsorted(shape.entry_leaf, np.arange(shape.leaves + 1))
        self._weights = weights = sp.csr_array((dt, shape.entry_bin, start), shape=(shape.leaves, bins))
        coupling: Any = sp.csr_array((-dt * deviation, shape.entry_bin, start), shape=(shape.leaves, bins))
        coupling_f: Any = None
        schur = -(weights.T @ sp.diags_array(1 / self._total) @ weights).toarray()
        height = shape.leaf_sum(dt * deviation * deviation)
        cross, own_f = np.zeros(shape.leaves), np.zeros(shape.leaves)
        self._levels: list[_Level] = []
        for depth in range(shape.depth, 0, -1):
            at = shape.level(depth)
            dv, ds, target = self._dv[at], self._ds[at], shape.target[at]
            pivot = np.where(shape.live_mass[at], dv + height, 1.0)
            one = 1.0 + cross
            remaining = 1.0 / df[at] + one * one / pivot + own_f
            inverse = np.where(shape.live_f[at], 1.0 / (remaining + 1.0 / ds), 0.0)
            to_height = (dv * cross - height) / pivot
            to_f = target / ds
            if depth == shape.depth:
                gamma = sp.diags_array(-one / pivot) @ coupling
                schur += (coupling.T @ sp.diags_array((inverse * one * one / pivot - 1.0) / pivot) @ coupling).toarray()
            else:
                gamma = coupling_f - (one / pivot)[:, None] * coupling
                schur += gamma.T @ (gamma * inverse[:, None]) - coupling.T @ (coupling / pivot[:, None])
            self._levels.append(_Level(at, pivot, height, one, inverse, to_height, to_f, coupling, gamma))
            if depth == 1:
                break
            parents = np.repeat(np.arange(len(dv) // size), size)
            siblings = sp.csr_array((np.ones(len(dv)), (parents, np.arange(len(dv)))))
            to_parent = siblings @ sp.diags_array(dv / pivot), siblings @ sp.diags_array(to_height * inverse)
            coupling, coupling_f = (
                part.toarray() if sp.issparse(part) else part
                for part in (
                    to_parent[0] @ coupling + to_parent[1] @ gamma,
                    siblings @ sp.diags_array(to_f * inverse) @ gamma,
                )
            )
            height_part = np.where(shape.live_mass[at], dv * height / pivot, 0.0) + to_height**2 * inverse
            f_part, cross_part = target * to_f * remaining * inverse, to_height * to_f * inverse
            height, own_f, cross = (shape.sibling_sum(part) for part in (height_part, f_part, cross_part))
        # A constant added to beta and taken from alpha changes nothing. So the rows of the bin system sum to 0, which
        # gives the diagonal, and the last beta stays 0.
        schur = (schur + schur.T) / 2
        np.fill_diagonal(schur, 0.0)
        np.fill_diagonal(schur, -schur.sum(axis=1))
        free = schur[:-1, :-1]
        if not np.isfinite(schur).all():
            raise Breakdown("a weight overflowed")
        self._scale = 1.0 / np.sqrt(np.maximum(np.diag(free), np.finfo(float).tiny))
        self._scaled = free * self._scale[:, None] * self._scale[None, :]
        self._chol = _cholesky(self._scaled)

    def solve(self, right: Vector) -> Vector:
        """The direction for one right-hand side, by one pass up the tree and one down.

        ``right`` is in the order of `Shape.unknowns` without the rise, the result in that order. The changes of f and
        of the rise of H keep digits that differences of the other unknowns would lose.
        """
        shape = self._shape
        mean, total, size = self._mean, self._total, shape.vocab_size
        on_multiplier, height, on_alpha, on_beta, on_f, _ = (part.copy() for part in shape.unknowns(right))
        leaves = shape.level(shape.depth)
        height[leaves] += mean * on_alpha
        on_beta = on_beta - self._weights.T @ (on_alpha / total)
        saved = []
        for at, pivot, _, one, inverse, to_height, to_f, coupling, gamma in self._levels:
            h = height[at].copy()
            reduced = on_f[at] - one * h / pivot - on_multiplier[at] / self._ds[at]
            saved.append((h, reduced))
            on_beta = on_beta - coupling.T @ (h / pivot) + gamma.T @ (inverse * reduced)
            if at.start > 0:
                above = slice(at.start - len(h) // size, at.start)
                live_h = np.where(shape.live_mass[at], self._dv[at] * h / pivot, 0.0)
                live_f = np.where(shape.live_f[at], on_multiplier[at], 0.0)
                height[above] += shape.sibling_sum(live_h + to_height * inverse * reduced)
                on_f[above] += shape.sibling_sum(to_f * (live_f + inverse * reduced))
        scaled = on_beta[:-1] * self._scale
        solved = scipy.linalg.cho_solve(self._chol, scaled)
        solved = solved + scipy.linalg.cho_solve(self._chol, scaled - self._scaled @ solved)
        d_beta = np.append(solved * self._scale, 0.0)
        d_height, d_rise, d_phi, d_multiplier = np.zeros((4, shape.nodes))
        levels = zip(reversed(self._levels), reversed(saved), strict=True)
        for (at, pivot, stiffness, one, inverse, to_height, to_f, coupling, gamma), (h, reduced) in levels:
            above = slice(at.start - len(h) // size, at.start)
            parent_h, parent_phi = (
                np.repeat(x[above], size) if at.start else np.zeros(len(h)) for x in (d_height, d_phi)
            )
            phi = -inverse * (reduced - to_height * parent_h - to_f * parent_phi - gamma @ d_beta)
            rise = (h - stiffness * parent_h - one * phi - coupling @ d_beta) / pivot
            multiplier = (on_multiplier[at] - phi + shape.target[at] * parent_phi) / self._ds[at]
            d_phi[at] = phi
            d_rise[at] = np.where(shape.live_mass[at], rise, 0.0)
            d_height[at] = parent_h + d_rise[at]
            d_multiplier[at] = np.where(shape.live_f[at], multiplier, 0.0)
        d_alpha = (on_alpha - self._weights @ d_beta) / total + mean * d_height[leaves]
        return np.concatenate([d_multiplier, d_height, d_alpha, d_beta, -d_phi, d_rise])


def _cholesky(matrix: npt.NDArray[np.float64]) -> Any:
    """Cholesky with the smallest shift that makes it exist; iterative refinement removes the shift's effect."""
    shift = 0.0
    while True:
        try:
            return scipy.linalg.cho_factor(matrix + shift * np.eye(len(matrix)))
        except scipy.linalg.LinAlgError:
            shift = max(10 * shift, 1e-15)
            if shift >= 1e-6:
                raise Breakdown("the bin system is singular in floating point") from None
