r"""What the heights of the leaves say about the bins: the loss of a binning, where to cut, which bins a leaf needs.

Fix dual multipliers; let H(leaf) be the height (sum of y on the path) and lay the leaves out on [0, 1] by H
descending, so that H becomes a step function H(u) of the rank u with steps at S_k (cumulative draft mass). This order
is the best response to H, and the upper bound of THEORY 2.4 is ``const + int phi'(u) H(u) du``. Three facts follow:

* A bin [a, b] makes the ranks inside it neutral. Against the best order it loses
  ``loss(a, b) = int_a^b (phi'(u) - phibar) H(u) du >= 0`` (both factors fall). The sum over the bins is the part of
  the gap that only finer bins can close, and a cut helps only where H jumps.
* ``beta(u) = int_0^u phi''(t) H(t) dt`` is the optimal potential of ranks: a leaf of height h whose own rank is u0 pays
  ``cost(u) = beta(u) - beta(u0) - h (phi'(u) - phi'(u0)) >= 0`` per unit of mass that is moved to rank u; it is 0 for
  ranks of leaves of equal height.
* In any optimal table the entries of cost above theta carry at most ``gap / theta`` mass, so they may be left out.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import numpy.typing as npt

from lpverify.lp.coverage import phi_chord, phi_slope

Vector = npt.NDArray[np.float64]
IntVector = npt.NDArray[np.int64]


class Heights:
    """H as a function of the rank. ``height`` and ``mass`` have one entry per leaf, ``paths`` is K."""

    def __init__(self, height: Vector, mass: Vector, paths: int) -> None:
        self.paths = paths
        self.order = np.argsort(-height, kind="stable")
        self.height = height[self.order]
        mass = mass[self.order]
        self.steps = np.minimum(np.concatenate([[0.0], np.cumsum(mass)]), 1.0)
        self.steps[-1] = 1.0
        self._weighted = _before(self.height * phi_chord(self.steps[:-1], np.diff(self.steps), paths))
        self._plain = _before(self.height * np.diff(self.steps))
        self._potential = _before(self.height * np.diff(phi_slope(self.steps, paths)))

    def loss(self, start: Vector, stop: Vector) -> Vector:
        """``int (phi' - phibar) H`` over the bins ``[start, stop]``."""
        width = stop - start
        weighted = self._upto(stop, self._weighted, "weighted") - self._upto(start, self._weighted, "weighted")
        plain = self._upto(stop, self._plain, "plain") - self._upto(start, self._plain, "plain")
        mean = phi_chord(start, width, self.paths) / np.where(width > 0, width, 1.0)
        return np.asarray(np.maximum(weighted - mean * plain, 0.0))

    def refined(self, edges: Vector, goal: float, most: int) -> Vector:
        """``edges`` with the bins of largest loss cut at their best jump, until the losses sum to ``goal`` at most.

        At most ``most`` edges come out.
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
        """First and last bin that each leaf needs: those of cost at most ``theta`` and one more on either side."""
        last = len(edges) - 2
        middle, own = (edges[1:] + edges[:-1]) / 2, (self.steps[1:] + self.steps[:-1]) / 2
        slope = phi_slope(middle, self.paths)
        potential = self.potential(middle)
        own_slope = phi_slope(own, self.paths)
        own_potential = self.potential(own)

        def cost(column: IntVector) -> Vector:
            return np.asarray(potential[column] - own_potential - self.height * (slope[column] - own_slope))

        home = np.clip(np.searchsorted(edges, own, side="right") - 1, 0, last)
        # The cost grows away from the leaf's own rank, so the first and last affordable bin are found by bisection.
        ends = []
        for far in (np.zeros_like(home), np.full_like(home, last)):
            near = home.copy()
            while (near != far).any():
                middle_bin = np.where(far < near, (near + far) // 2, (near + far + 1) // 2)
                affordable = cost(middle_bin) <= theta
                near, far = (
                    np.where(affordable, middle_bin, near),
                    np.where(affordable, far, middle_bin + np.sign(near - middle_bin)),
                )
            ends.append(near)
        lowest, highest = np.empty_like(home), np.empty_like(home)
        lowest[self.order] = np.maximum(ends[0] - 1, 0)
        highest[self.order] = np.minimum(ends[1] + 1, last)
        return lowest, highest

    def potential(self, rank: Vector) -> Vector:
        """``beta(u) = int_0^u phi''(t) H(t) dt``."""
        return self._upto(rank, self._potential, "potential")

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

    def _upto(self, rank: Vector, at_steps: Vector, kind: str) -> Vector:
        """The running integral at any rank, from its values at the steps."""
        step = np.clip(np.searchsorted(self.steps, rank, side="right") - 1, 0, len(self.height) - 1)
        start = self.steps[step]
        part: Any
        if kind == "weighted":
            part = phi_chord(start, rank - start, self.paths)
        elif kind == "plain":
            part = rank - start
        else:
            part = phi_slope(rank, self.paths) - phi_slope(start, self.paths)
        return np.asarray(at_steps[step] + self.height[step] * part)


def _before(x: Vector) -> Vector:
    return np.concatenate([[0.0], np.cumsum(x)])
