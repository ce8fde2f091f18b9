r"""Coverage: what K draft paths can serve (THEORY 2.1, 2.3).

A set A of nodes, none an ancestor of another (an antichain), is hit by at least one of K i.i.d. draft paths with
probability ``phi(Q(A))``, ``phi(s) = 1 - (1-s)^K``. Node budgets f can be matched to drafts exactly when

    f(A) <= phi(Q(A))   for every antichain A.

phi is concave, so the violation ``f(A) - phi(Q(A))`` is largest at a vertex of the upper hull of the points
``(Q(A), f(A))``; the hull is built bottom-up, which separates over exponentially many antichains in O(N log N).

Everything works in float64 and in Fraction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.numerics import Array, Levels, divide, is_exact, ones, total, zeros

Mask = tuple[npt.NDArray[np.bool_], ...]


def phi(mass: Any, paths: int) -> Any:
    """Probability ``1 - (1 - mass)^K`` that one of K paths hits a set of draft mass ``mass`` in [0, 1].

    Accurate for tiny masses; exact for Fraction (a scalar or an object array).

    >>> float(phi(1e-9, 4))
    3.999999994e-09
    """
    if _exact(mass):
        return 1 - (1 - mass) ** paths
    with np.errstate(divide="ignore"):  # log1p(-1) = -inf gives phi(1) = 1
        return -np.expm1(paths * np.log1p(-np.minimum(mass, 1.0)))


def phi_slope(mass: Any, paths: int) -> Any:
    """Derivative ``K (1 - mass)^(K-1)`` of `phi`."""
    if _exact(mass):
        return paths * (1 - mass) ** (paths - 1)
    return paths * np.maximum(1.0 - np.asarray(mass), 0.0) ** (paths - 1)


def phi_mean_slope(start: Any, width: Any, paths: int) -> Any:
    """Mean of `phi_slope` on ``[start, start + width]``, which is ``[phi(start+width) - phi(start)] / width``.

    Evaluated as ``sum_i (1-start)^i (1-start-width)^(K-1-i)``, K positive terms, hence without cancellation and also
    for width 0.

    >>> f"{phi_mean_slope(0.9999, 1e-30, 4) / phi_slope(0.9999, 4):.12f}"
    '1.000000000000'
    """
    if _exact(start):
        above, below = 1 - start, 1 - start - width
    else:
        above = np.maximum(1.0 - np.asarray(start, dtype=np.float64), 0.0)
        below = np.maximum(above - width, 0.0)
    power = above**0
    result = power
    for _ in range(paths - 1):
        power = power * above
        result = result * below + power
    return result


def phi_chord(start: Any, width: Any, paths: int) -> Any:
    """``phi(start + width) - phi(start)`` by `phi_mean_slope`: relative accuracy however small ``width`` is."""
    return width * phi_mean_slope(start, width, paths)


def capped_budgets(pair: ModelPair, caps: Levels) -> Levels:
    """The largest f with ``f(root) = 1``, ``f(cx) <= p(x|c) f(c)`` and ``f <= caps`` (below the root).

    One top-down pass ``f(cx) = min(p(x|c) f(c), caps(cx))``; it is the coordinate-wise largest feasible point, so it
    maximises every nonnegative combination of f. ``caps`` has one ``(V**i,)`` array per level; ``caps[0]`` is unused.
    """
    budgets = [ones(1, pair.target[0])]
    for rows, cap in zip(pair.target, caps[1:], strict=True):
        budgets.append(np.minimum((budgets[-1][:, None] * rows).reshape(-1), cap))
    return tuple(budgets)


def node_relaxation(pair: ModelPair, paths: int) -> tuple[Any, Levels]:
    """Upper bound that keeps only the coverage constraints of single nodes, ``f(c) <= phi(Q(c))``.

    Returns (value, budgets). Equal to the LP for K = 1.
    """
    errors.integer("paths (K)", paths, least=1)
    budgets = capped_budgets(pair, tuple(phi(level, paths) for level in pair.draft_paths))
    return total(budgets), budgets


def marginal_bound(pair: ModelPair, paths: int) -> Any:
    """Upper bound ``sum_c min(P(c), phi(Q(c)))``, which forgets the order of the nodes along a path too."""
    errors.integer("paths (K)", paths, least=1)
    smaller = (np.minimum(p, phi(q, paths)) for p, q in zip(pair.target_paths, pair.draft_paths, strict=True))
    return total(tuple(smaller))


@dataclass(frozen=True)
class Hull:
    """Upper hull of ``(Q(A), f(A))`` over all antichains below the root, empty one included.

    Vertex k has abscissa ``mass[k]`` and ordinate ``height[k]``, k = 0 .. len(owners). It is the antichain of the
    topmost nodes among ``owners[:k]`` (numbered breadth-first, the first child of the root being 0). With ties of
    slopes some of these lie inside a straight edge; each is attained by its antichain all the same.
    """

    mass: Array
    height: Array
    owners: npt.NDArray[np.int64]
    sizes: tuple[int, ...]  # V**i for i = 1..L

    def antichain(self, vertex: int) -> Mask:
        """The nodes of a vertex as one boolean array per level 0..L (the root's is False)."""
        chosen = np.zeros(sum(self.sizes), dtype=bool)
        chosen[self.owners[:vertex]] = True
        levels = np.split(chosen, np.cumsum(self.sizes)[:-1])
        covered = np.zeros(1, dtype=bool)
        mask = [covered]
        for level in levels:
            above = np.repeat(covered, level.size // covered.size)
            mask.append(level & ~above)
            covered = level | above
        return tuple(mask)


def hull(draft_paths: Levels, budgets: Levels) -> Hull:
    """Build the `Hull` of the node functions Q and f, one ``(V**i,)`` array per level 0..L each (root unused).

    Bottom-up, the subtrees of one level being the rows of a matrix of edges: a node's hull is its children's edges
    merged by slope; then the node's own point, at the right end, replaces the part of that chain below its tangent.
    """
    sizes = tuple(level.size for level in budgets[1:])
    first = np.cumsum((0, *sizes))
    leaves = sizes[-1]
    edges = _Edges(
        run=draft_paths[-1].reshape(leaves, 1),
        rise=np.maximum(budgets[-1], 0 * budgets[-1]).reshape(leaves, 1),
        owner=(first[-2] + np.arange(leaves)).reshape(leaves, 1),
    )
    for depth in range(len(sizes) - 1, 0, -1):
        owners = first[depth - 1] + np.arange(sizes[depth - 1])
        edges = edges.merged(sizes[depth - 1]).capped(budgets[depth], owners)
    edges = edges.merged(1)
    rising = edges.rise[0] > 0
    run, rise = edges.run[0, rising], edges.rise[0, rising]
    start = zeros(1, run)
    return Hull(
        mass=np.concatenate([start, np.cumsum(run)]),
        height=np.concatenate([start, np.cumsum(rise)]),
        owners=edges.owner[0, rising],
        sizes=sizes,
    )


def separate(draft_paths: Levels, budgets: Levels, paths: int) -> tuple[Mask, Any]:
    """Exact separation: the antichain below the root that maximises ``f(A) - phi(Q(A))``, and that maximum.

    Arguments as in `hull`. Returns one boolean array per level and the violation; the empty antichain with 0 when no
    constraint is violated.

    >>> q = tuple(np.array(level) for level in ([1.0], [0.5, 0.5], [0.25, 0.25, 0.25, 0.25]))
    >>> f = tuple(np.array(level) for level in ([1.0], [0.4, 0.3], [0.4, 0.0, 0.3, 0.0]))
    >>> mask, violation = separate(q, f, 1)  # the leaves "00" and "10": 0.7 > 0.5
    >>> [level.nonzero()[0].tolist() for level in mask], round(float(violation), 3)
    ([[], [], [0, 2]], 0.2)
    """
    errors.integer("paths (K)", paths, least=1)
    vertices = hull(draft_paths, budgets)
    excess = vertices.height - phi(vertices.mass, paths)
    best = int(np.argmax(excess))
    return vertices.antichain(best), excess[best]


@dataclass(frozen=True)
class _Edges:
    """Hull edges, one row per subtree: run in Q, rise in f, the node whose inclusion is this step.

    Within a row the edges of one node's hull stand in order of falling slope. A replaced edge has run and rise 0.
    """

    run: Array  # (rows, edges)
    rise: Array  # (rows, edges)
    owner: npt.NDArray[np.int64]  # (rows, edges)

    def merged(self, rows: int) -> _Edges:
        """Join the hulls of siblings: sort by slope, edges without mass first."""
        run, rise, owner = (part.reshape(rows, -1) for part in (self.run, self.rise, self.owner))
        with np.errstate(over="ignore"):
            slope = divide(rise, run, where_zero=np.inf)
        order = np.argsort(-slope, axis=1, kind="stable")
        return _Edges(*(np.take_along_axis(part, order, axis=1) for part in (run, rise, owner)))

    def capped(self, height: Array, owners: npt.NDArray[np.int64]) -> _Edges:
        """Replace, in every row, the tail below the tangent from the row's right end at ``height``."""
        rows = np.arange(owners.size)
        edge = zeros((owners.size, 1), height)
        left = np.concatenate([edge, np.cumsum(self.rise, axis=1)], axis=1)
        right = np.concatenate([np.cumsum(self.run[:, ::-1], axis=1)[:, ::-1], edge], axis=1)
        rise = height[:, None] - left
        with np.errstate(over="ignore"):
            tangent = divide(rise, right, where_zero=np.inf)
        touch = np.argmin(tangent, axis=1)
        rises = rise[:, -1] > 0
        kept = (np.arange(self.run.shape[1]) < touch[:, None]) | ~rises[:, None]
        none = edge[:, 0]
        own_run = np.where(rises, right[rows, touch], none)[:, None]
        own_rise = np.where(rises, rise[rows, touch], none)[:, None]
        return _Edges(
            run=np.concatenate([np.where(kept, self.run, edge), own_run], axis=1),
            rise=np.concatenate([np.where(kept, self.rise, edge), own_rise], axis=1),
            owner=np.concatenate([self.owner, owners[:, None]], axis=1),
        )


def _exact(value: Any) -> bool:
    return is_exact(np.asarray(value))
