r"""Bin refinement and column selection from the dual heights of the leaves.

Fix dual multipliers; let H(leaf) be the height (sum of y on the path) and lay the leaves out on [0, 1] by H
descending, so that H becomes a step function H(u) of the rank u with steps at S_k (cumulative draft mass). This order
is the best response to H, and the upper bound of theory 2.4 is ``const + int phi'(u) H(u) du``. Three facts follow:

* The loss of a bin. Inside a bin [a, b] ranks are uniform whatever the leaf. Against the best order this loses
  ``loss(a, b) = int_a^b (phi'(u) - phibar) H(u) du >= 0`` (both factors fall). The sum over the bins is the part of
  the gap that only finer bins can close, and a cut helps only where H jumps.
* The cost of an entry. ``beta(u) = int_0^u phi''(t) H(t) dt`` is the optimal potential of ranks. Moving a unit of mass
  of a leaf of height h and own rank u0 to rank u costs ``cost(u) = beta(u) - beta(u0) - h (phi'(u) - phi'(u0)) >= 0``;
  it is 0 for ranks of leaves of equal height.
* In any optimal table the entries of cost above theta carry at most ``gap / theta`` mass, so they may be left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from lpverify.lp.coverage import Paths, phi_chord, phi_slope

Vector = npt.NDArray[np.float64]
IntVector = npt.NDArray[np.int64]


class Heights:
    """H as a function of the rank.

    ``order`` (N,): the leaves by height descending; ``height`` (N,): theirs in this order; ``steps`` (N+1,): the ranks
    where H may jump, 0 and 1 included.
    """

    def __init__(self, height: Vector, mass: Vector, num_paths: Paths) -> None:
        """``height`` and ``mass``: H and Q of the leaves, (N,); ``num_paths``: K."""
        self.num_paths = num_paths
        self.order = np.argsort(-height, kind="stable")
        self.height = height[self.order]
        mass = mass[self.order]
        self.steps = np.minimum(np.concatenate([[0.0], np.cumsum(mass)]), 1.0)
        self.steps[-1] = 1.0
        self.weighted = self._integral(lambda start, stop: phi_chord(start, stop - start, num_paths))
        self.plain = self._integral(lambda start, stop: stop - start)
        self.potential = self._integral(lambda start, stop: phi_slope(stop, num_paths) - phi_slope(start, num_paths))

    def _integral(self, measure: Callable[[Vector, Vector], Vector]) -> Callable[[Vector], Vector]:
        """``u -> int_0^u H dmu`` for the measure with ``mu[start, stop] = measure(start, stop)``.

        ``weighted`` has density phi', ``plain`` density 1, and ``potential`` density phi'': it is beta.
        """
        whole_steps = np.cumsum(self.height * measure(self.steps[:-1], self.steps[1:]))
        before = np.concatenate([[0.0], whole_steps])

        def integral(rank: Vector) -> Vector:
            step = np.clip(np.searchsorted(self.steps, rank, side="right") - 1, 0, len(self.height) - 1)
            return np.asarray(before[step] + self.height[step] * measure(self.steps[step], rank))

        return integral

    def loss(self, start: Vector, stop: Vector) -> Vector:
        """``int (phi' - phibar) H`` over the bins ``[start, stop]``."""
        width = stop - start
        weighted, plain = (integral(stop) - integral(start) for integral in (self.weighted, self.plain))
        mean = phi_chord(start, width, self.num_paths) / np.where(width > 0, width, 1.0)
        return np.asarray(np.maximum(weighted - mean * plain, 0.0))

    def refined(self, edges: Vector, goal: float, most: int) -> Vector:
        """Cut the bins of largest loss at their best jump until the losses sum to ``goal`` or there are ``most`` edges.

        Takes and returns edges from 0 to 1.
        """
        losses = self.loss(edges[:-1], edges[1:])
        heap = [(-x, a, b) for x, a, b in zip(losses.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True)]
        heapq.heapify(heap)
        left = float(losses.sum())
        result = edges.tolist()
        while left > goal and len(result) < most and heap:
            lost, start, stop = heapq.heappop(heap)
            cut = self._best_cut(start, stop)
            if cut is None:
                continue
            parts = self.loss(np.array([start, cut]), np.array([cut, stop])).tolist()
            left += lost + sum(parts)
            heapq.heappush(heap, (-parts[0], start, cut))
            heapq.heappush(heap, (-parts[1], cut, stop))
            result.append(cut)
        return np.array(sorted(result))

    def support(self, edges: Vector, theta: float) -> tuple[IntVector, IntVector]:
        """First and last bin that each leaf (N,) needs: those of cost at most ``theta`` and one more on either side."""
        last = len(edges) - 2
        middle, own = (edges[1:] + edges[:-1]) / 2, (self.steps[1:] + self.steps[:-1]) / 2
        slope = phi_slope(middle, self.num_paths)
        potential = self.potential(middle)
        own_slope = phi_slope(own, self.num_paths)
        own_potential = self.potential(own)

        def cost(column: IntVector) -> Vector:
            return np.asarray(potential[column] - own_potential - self.height * (slope[column] - own_slope))

        home = np.clip(np.searchsorted(edges, own, side="right") - 1, 0, last)
        # The cost grows away from the leaf's own rank, so the first and last affordable bin are found by bisection.
        ends = []
        for far in (np.zeros_like(home), np.full_like(home, last)):
            near = home.copy()
            while (near != far).any():
                between = np.where(far < near, (near + far) // 2, (near + far + 1) // 2)
                affordable = cost(between) <= theta
                far = np.where(affordable, far, between + np.sign(near - between))
                near = np.where(affordable, between, near)
            ends.append(near)
        lowest, highest = np.empty_like(home), np.empty_like(home)
        lowest[self.order] = np.maximum(ends[0] - 1, 0)
        highest[self.order] = np.minimum(ends[1] + 1, last)
        return lowest, highest

    def _best_cut(self, start: float, stop: float) -> float | None:
        """The step inside the bin that leaves the least loss, None when H does not jump inside."""
        first = int(np.searchsorted(self.steps, start, side="right"))
        end = int(np.searchsorted(self.steps, stop, side="left"))
        steps = self.steps[first:end]
        steps = steps[self.height[first - 1 : end - 1] > self.height[first:end]]
        steps = steps[(steps > start) & (steps < stop)]
        if not steps.size:
            return None
        left = self.loss(np.full_like(steps, start), steps) + self.loss(steps, np.full_like(steps, stop))
        return float(steps[np.argmin(left)])
