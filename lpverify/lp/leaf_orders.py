r"""The optimum of drafting by any distribution, over mixtures of leaf orders (theory 9.1).

An order of the leaves selects the drafted leaf that comes first in it. The distributions M_j of the selected leaf, one
for each order j, are the vertices of the base polytope of the coverage, so the optimum is

    maximise  sum_c f(c)
    s.t.  f(root) = 1,  0 <= f(cx) <= p(x|c) f(c)  [lambda],  f(c) <= sum_j alpha_j M_j(c)  [y],  sum_j alpha_j = 1  [t]

over all orders. Columns are generated: the multipliers lambda give heights H of the leaves (`certify.leaf_heights`);
the order of falling H is the best response to them, so it improves the program, and with it lambda proves the bound

    1 + sum_x p(x|root) lambda(x) + E[H of the highest drafted leaf].

Three things make it converge in some dozens of rounds. The program on the columns so far is not solved but followed
along its central path, to where its own duality gap equals the gap of the bounds; orders there are far better than at
a vertex. Every round adds orders at random points of the Dikin ellipsoid as well. And columns of little weight leave.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import linalg
from threadpoolctl import threadpool_limits

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.core.results import LeafOrders, LpSolution, RefinementStep
from lpverify.drafting.base import DraftDistribution, Ints
from lpverify.lp import certify, draft_certificate, single_path
from lpverify.lp.coverage import prefix_acceptance
from lpverify.numerics import Levels, total, up_the_tree

MAX_NODES = 3_000  # dense systems of this size, twice in every Newton step
TOLERANCE = 1e-7  # where none is given; rounding errors allow about 1e-9
FIRST_ORDERS = 12
MORE_ORDERS = 3  # at random points, beside that of the iterate
RADIUS = 0.3  # of the ellipsoid that they are drawn from
NEWTON_STEPS = 15  # a round
STALLED_ROUNDS = 60
NEGLIGIBLE = 1e-13  # f = 0 is fixed where target or coverage is below
RIDGE = 1e-13  # on systems scaled to a unit diagonal

Vector = npt.NDArray[np.float64]


def solve(
    pair: ModelPair,
    draft: DraftDistribution,
    *,
    tolerance: float = TOLERANCE,
    time_limit: float | None = None,
    progress: Callable[[RefinementStep], None] | None = None,
) -> LpSolution:
    """The optimum between certified bounds, for any draft distribution whose paths have the depth of the pair.

    Args:
        pair: target and draft tables; floats are used.
        draft: the draft distribution.
        tolerance: certified gap to stop at, in tokens.
        time_limit: seconds; the bounds are valid when it is reached.
        progress: called after every round.

    Returns:
        The solution with a `DraftCertificate`. ``status`` is "optimal", "time_limit", or "stalled" when rounding errors
        keep the bounds further apart.

    Raises:
        InputError: The draft distribution does not fit the pair. SizeError: more than 3,000 nodes.

    >>> from lpverify.drafting.distinct_paths import DistinctPaths
    >>> coin = ModelPair.from_levels([[[0.2, 0.5, 0.3]]], [[[0.6, 0.3, 0.1]]])
    >>> round(solve(coin, DistinctPaths(2)).value, 6)
    1.992857
    """
    if pair.nodes > MAX_NODES:
        size, instead = f"{pair.nodes:,} nodes", "use a smaller tree; the node relaxation bounds any size"
        raise errors.too_large(
            f"optimum over leaf orders for {draft.spec}", size=size, limit=f"{MAX_NODES:,}", instead=instead
        )
    draft.check(pair)
    with threadpool_limits(limits=1, user_api="blas"):
        return _Search(pair.floats, draft, tolerance, time_limit).run(progress)


class _Search:
    """The best bounds so far, what proves them, and the orders that the program works on."""

    def __init__(self, pair: ModelPair, draft: DraftDistribution, tolerance: float, time_limit: float | None) -> None:
        self.began = time.perf_counter()
        self.pair, self.draft, self.tolerance, self.time_limit = pair, draft, tolerance, time_limit
        self.lower, self.upper = -np.inf, np.inf
        covered = np.concatenate(draft.node_coverage(pair)[1:]) > NEGLIGIBLE
        possible = np.concatenate(pair.target_paths[1:]) > NEGLIGIBLE
        self.covered, self.live = covered, np.flatnonzero(covered & possible)
        self.generator = np.random.default_rng(0)
        self.orders: list[Ints] = []
        self.leaves: list[Vector] = []  # M of every order at the leaves

    @property
    def gap(self) -> float:
        return self.upper - self.lower

    def respond(self, multipliers: Levels, noise: float = 0.0) -> Vector:
        """Take the bound that multipliers prove; keep their order of the leaves and return its M at the live nodes."""
        heights = certify.leaf_heights(self.pair, multipliers)
        key = heights + noise * self.generator.standard_normal(heights.size) if noise else heights
        order = np.argsort(-key, kind="stable")
        first = self.draft.first_drafted(self.pair, order)
        if not noise:
            bound = 1 + (self.pair.target[0][0] * multipliers[1]).sum() + (heights[order] * first).sum()
            if bound < self.upper:
                self.upper, self.multipliers = float(bound), multipliers
        self.orders.append(order)
        leaves = np.empty_like(first)
        leaves[order] = first
        self.leaves.append(leaves)
        return np.concatenate(up_the_tree(leaves, self.pair.vocab_size, self.pair.depth)[1:])[self.live]

    def multipliers_of(self, flat: Vector) -> Levels:
        """lambda of the live nodes as levels. Where f = 0 is fixed a node gets the price 0, which costs nothing."""
        place = np.full(self.pair.nodes, -1)
        place[self.live] = np.arange(self.live.size)
        covered = single_path.split_levels(self.covered, self.pair, True)
        levels: list[Vector] = []
        below = np.zeros(self.pair.draft_paths[-1].size)
        for depth, at in reversed(list(enumerate(single_path.split_levels(place, self.pair, -1)))[1:]):
            fixed = np.where(covered[depth], 1 + below, 0.0)
            levels.insert(0, np.where(at >= 0, flat[at] if flat.size else 0.0, fixed))
            below = (self.pair.target[depth - 1] * levels[0].reshape(-1, self.pair.vocab_size)).sum(axis=1)
        return (np.zeros(1), *levels)

    def see_mixture(self, weights: Vector) -> None:
        """Take the bound that a mixture of the orders attains."""
        weights = weights / weights.sum()
        selected = up_the_tree(weights @ np.array(self.leaves), self.pair.vocab_size, self.pair.depth)
        bound = float(total(prefix_acceptance(self.pair.target, selected)))
        if bound > self.lower:
            self.lower, self.mixture = bound, LeafOrders(np.array(self.orders), weights)

    def run(self, progress: Callable[[RefinementStep], None] | None) -> LpSolution:
        steps: list[RefinementStep] = []
        start = single_path.solve(self.pair).certificate
        assert start is not None
        columns = [self.respond(self.multipliers_of(np.concatenate(start.multipliers[1:])[self.live]))]
        columns += [self.respond(start.multipliers, noise=0.3) for _ in range(FIRST_ORDERS - 1)]
        program = _Program(self.pair, self.live, np.array(columns).T) if self.live.size else None
        status, without_gain, best = "optimal", 0, np.inf
        self.see_mixture(np.ones(FIRST_ORDERS))
        while self.gap > self.tolerance:
            assert program is not None, "where nothing can be accepted both bounds are 1"
            program.center(self.gap)
            self.see_mixture(program.weight)
            kept = program.drop_idle()
            self.orders, self.leaves = ([kind[column] for column in kept] for kind in (self.orders, self.leaves))
            points = [program.multiplier, *(program.nearby(self.generator) for _ in range(MORE_ORDERS))]
            program.add(np.array([self.respond(self.multipliers_of(point)) for point in points]).T)
            seconds = time.perf_counter() - self.began
            steps.append(RefinementStep(0, len(self.orders), self.lower, self.upper, seconds))
            if progress is not None:
                progress(steps[-1])
            without_gain, best = (0, self.gap) if self.gap < 0.9 * best else (without_gain + 1, best)
            if self.time_limit is not None and seconds > self.time_limit:
                status = "time_limit"
                break
            if without_gain == STALLED_ROUNDS:
                status = "stalled"
                break
        proof = draft_certificate.certificate_of(self.pair, self.draft, self.mixture, self.multipliers)
        return certify.bounded(
            total(proof.prefix_acceptance),
            self.upper,
            certificate=proof,
            refinement_steps=tuple(steps),
            status=status,
            method="leaf orders",
            began=self.began,
        )


class _Program:
    """An interior point of the program on some columns, all rows those of the n live nodes.

    The slacks are ``s = p f - f >= 0`` with multipliers lambda, ``r = M alpha - f >= 0`` with multipliers y, and
    ``z = t - M' y >= 0`` of the weights alpha; dual feasibility is ``A' lambda + y = 1`` for the flow matrix A.
    Newton's equations are reduced to a system in lambda, ``B = s/lambda + A (r/y) A'``, and one in alpha.
    """

    def __init__(self, pair: ModelPair, live: Ints, columns: Vector) -> None:
        """``columns``: M_j at the ``live`` nodes (indices below the root, breadth-first), (n, J)."""
        self.flow = single_path.flow_matrix(pair)[live][:, live].toarray()
        self.limit = single_path.flow_bounds(pair)[live]
        self.columns, count = columns, columns.shape[1]
        self.weight = np.full(count, 1 / count)
        mixed = columns @ self.weight
        depth = np.searchsorted(np.cumsum([pair.vocab_size**i for i in range(1, pair.depth + 1)]), live, side="right")
        levels = np.zeros(pair.nodes)
        levels[live] = 0.99 * mixed
        best = prefix_acceptance(pair.target, single_path.split_levels(levels, pair, 1.0))
        self.f = np.concatenate(best[1:])[live] * 0.9 ** (depth + 1.0)
        self.s = np.maximum(self.limit - self.flow @ self.f, 1e-9)
        self.r = np.maximum(mixed - self.f, 1e-9)
        self.multiplier, self.price = np.full(live.size, 0.5), np.full(live.size, 0.5)
        self.top = (self.price @ columns).max() + 0.1
        self.z = self.top - self.price @ columns

    def center(self, gap: float) -> None:
        """Newton steps to where the program's own duality gap is about ``gap``."""
        terms = 2 * len(self.f) + len(self.weight)
        goal = gap / terms
        self.reach = self.flow @ self.columns
        for _ in range(NEWTON_STEPS):
            products = self.s @ self.multiplier + self.r @ self.price + self.weight @ self.z
            if self._step(goal, max(goal, 0.1 * products / terms)) < 0.01 * gap and products < 2 * gap:
                break

    def _step(self, goal: float, barrier: float) -> float:
        """One step towards the point of the central path at ``barrier``; the residual before it."""
        f, s, r, weight = self.f, self.s, self.r, self.weight
        multiplier, price, z = self.multiplier, self.price, self.z
        flow, columns, reach = self.flow, self.columns, self.reach
        off_flow = self.limit - flow @ f - s
        off_cover = columns @ weight - f - r
        off_sum = 1 - weight.sum()
        off_f = 1 - flow.T @ multiplier - price
        off_weight = columns.T @ price - self.top + z
        residual = max(float(np.abs(off).max()) for off in (off_flow, off_cover, [off_sum], off_f, off_weight))

        stiff_s, stiff_r, stiff_w = multiplier / s, price / r, z / weight
        on_s, on_r, on_w = (barrier - s * multiplier) / s, (barrier - r * price) / r, (barrier - weight * z) / weight
        self.factor = _Factor((flow / stiff_r) @ flow.T + np.diag(1 / stiff_s))
        right = flow @ (off_cover - (on_r - off_f) / stiff_r) - off_flow + on_s / stiff_s
        solved = self.factor.half(np.column_stack([reach, right]))
        self.half, right = solved[:, :-1], solved[:, -1]
        self.weights_factor = _Factor(self.half.T @ self.half + np.diag(stiff_w))
        aim = columns.T @ off_f + on_w + off_weight - self.half.T @ right
        to_aim, to_one = self.weights_factor.solve(np.column_stack([aim, np.ones(weight.size)])).T
        d_top = (to_aim.sum() - off_sum) / to_one.sum()
        d_weight = to_aim - d_top * to_one
        d_multiplier = self.factor.back(right + self.half @ d_weight)
        d_price = off_f - flow.T @ d_multiplier
        d_f = off_cover + columns @ d_weight - (on_r - d_price) / stiff_r
        d_s, d_r, d_z = (on_s - d_multiplier) / stiff_s, (on_r - d_price) / stiff_r, on_w - stiff_w * d_weight
        self.stiffness = stiff_s, stiff_r, stiff_w, barrier

        primal = _length((s, d_s), (r, d_r), (weight, d_weight))
        dual = _length((multiplier, d_multiplier), (price, d_price), (z, d_z))
        self.f, self.s, self.r = f + primal * d_f, s + primal * d_s, r + primal * d_r
        self.weight = weight + primal * d_weight
        self.multiplier, self.price = multiplier + dual * d_multiplier, price + dual * d_price
        self.z, self.top = z + dual * d_z, self.top + dual * d_top
        return residual

    def nearby(self, generator: np.random.Generator) -> Vector:
        """lambda at a random point around the iterate, normal with the inverse Hessian of the barrier as covariance."""
        stiff_s, stiff_r, stiff_w, barrier = self.stiffness
        draw = generator.standard_normal
        noise = draw(len(self.f)) / np.sqrt(stiff_s) + self.flow @ (draw(len(self.f)) / np.sqrt(stiff_r))
        noise = self.factor.half(noise + self.reach_before @ (draw(len(stiff_w)) / np.sqrt(stiff_w)))
        noise = self.factor.back(noise - self.half @ self.weights_factor.solve(self.half.T @ noise))
        point: Vector = np.maximum(self.multiplier + RADIUS * np.sqrt(barrier) * noise, 0.0)
        return point

    def drop_idle(self) -> Ints:
        """Forget columns of little weight, but not the newest; the indices of those that stay."""
        count = len(self.weight)
        self.reach_before = self.reach
        kept = np.flatnonzero((self.weight > 0.1 / count) | (np.arange(count) >= count - 10))
        self.columns, self.z = self.columns[:, kept], self.z[kept]
        self.weight = self.weight[kept] / self.weight[kept].sum()
        return kept

    def add(self, columns: Vector) -> None:
        """New columns, together at a weight of 1/20."""
        count = columns.shape[1]
        weight = np.full(count, 0.05 / count)
        barrier = self.stiffness[-1]
        self.z = np.concatenate([self.z, np.maximum(self.top - self.price @ columns, barrier / weight)])
        self.weight = np.concatenate([0.95 * self.weight, weight])
        self.columns = np.concatenate([self.columns, columns], axis=1)
        self.r = np.maximum(self.columns @ self.weight - self.f, 0.5 * self.r)


class _Factor:
    """The factor of a positive definite matrix, scaled to a unit diagonal and raised by `RIDGE`."""

    def __init__(self, matrix: Vector) -> None:
        self.scale = 1 / np.sqrt(np.diag(matrix))
        matrix = matrix * self.scale[:, None] * self.scale + RIDGE * np.eye(len(matrix))
        self.lower = linalg.cholesky(matrix, lower=True, check_finite=False)

    def half(self, right: Vector) -> Vector:
        """``L^-1 right`` for the factor L."""
        scaled = right * (self.scale if right.ndim == 1 else self.scale[:, None])
        solved: Vector = linalg.solve_triangular(self.lower, scaled, lower=True, check_finite=False)
        return solved

    def back(self, right: Vector) -> Vector:
        """``L'^-1 right``."""
        solved: Vector = linalg.solve_triangular(self.lower, right, lower=True, trans="T", check_finite=False)
        return solved * (self.scale if right.ndim == 1 else self.scale[:, None])

    def solve(self, right: Vector) -> Vector:
        """``matrix^-1 right``."""
        return self.back(self.half(right))


def _length(*moves: tuple[Vector, Vector]) -> float:
    """The largest step, at most 1, that keeps 1 % of every positive vector."""
    shrinking = [(-value[move < 0] / move[move < 0]).min(initial=np.inf) for value, move in moves]
    return float(min(1.0, 0.99 * min(shrinking)))
