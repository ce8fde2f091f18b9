r"""Coverage: which prefix acceptance probabilities K draft paths can serve (theory 2.1, 2.3).

At least one of K i.i.d. draft paths passes through a set A of nodes, none an ancestor of another (an antichain), with
probability ``phi(Q(A))``, ``phi(s) = 1 - (1-s)^K``. Prefix acceptance probabilities f can be matched to draft paths
exactly when

    f(A) <= phi(Q(A))   for every antichain A.

phi is concave, so the violation ``f(A) - phi(Q(A))`` is largest at a vertex of the upper hull of the points
``(Q(A), f(A))``. The hull is built bottom-up: this separates over exponentially many antichains in O(N log N).

Everything works in float64 and in Fraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lpverify import errors
from lpverify.core.model_pair import ModelPair
from lpverify.drafting import DraftLike, draft_distribution
from lpverify.drafting.base import ConcaveCoverage
from lpverify.drafting.iid_paths import IidPaths, phi
from lpverify.numerics import Array, Levels, divide, ones, total, zeros

Mask = tuple[npt.NDArray[np.bool_], ...]
Edges = tuple[Array, ...]  # run, rise and owner, (rows, edges) each


Paths: TypeAlias = int | ConcaveCoverage  # K i.i.d. paths, or another draft distribution with C(A) = phi(Q(A))


def concave(paths: Paths) -> ConcaveCoverage:
    """The draft distribution of K i.i.d. paths, or the given one."""
    return paths if isinstance(paths, ConcaveCoverage) else IidPaths(paths)


def phi_slope(mass: Any, paths: Paths) -> Any:
    """Derivative ``K (1 - mass)^(K-1)`` of `phi`: the density of the smallest of K uniform ranks."""
    return concave(paths).density(np.maximum(1 - mass, 0 * mass))


def phi_mean_slope(start: Any, width: Any, paths: Paths) -> Any:
    """Mean of `phi_slope` on ``[start, start + width]``, which is ``[phi(start+width) - phi(start)] / width``.

    A sum of K positive terms (`mean_density`): accurate however small ``width`` is, and defined for width 0.

    >>> f"{phi_mean_slope(0.9999, 1e-30, 4) / phi_slope(0.9999, 4):.12f}"
    '1.000000000000'
    """
    above = np.maximum(1 - start, 0 * start)
    return concave(paths).mean_density(np.maximum(above - width, 0 * width), above)


def phi_chord(start: Any, width: Any, paths: Paths) -> Any:
    """``phi(start + width) - phi(start)`` with the relative accuracy of `phi_mean_slope`."""
    return width * phi_mean_slope(start, width, paths)


def prefix_acceptance(target: Sequence[Array], caps: Sequence[Array]) -> Levels:
    """The largest f with ``f(root) = 1``, ``f(cx) <= p(x|c) f(c)`` and ``f <= caps`` below the root.

    One top-down pass ``f(cx) = min(p(x|c) f(c), caps(cx))``. The result is the coordinate-wise largest feasible point,
    so it maximises every nonnegative combination of f. With ``caps`` = Q* it is block verification of a path with
    distribution Q* (theory 1).

    Args:
        target: rows p of level i = 0..L-1, shape (..., n_i, V), n_0 = 1.
        caps: one array per level i = 0..L, shape (..., n_i), n_{i+1} = n_i V; the root's is not used.

    Returns:
        f, one array per level, shaped like ``caps``. Leading axes are a batch.

    >>> prefix_acceptance([np.array([[0.25, 0.75]])], [np.ones(1), np.array([0.5, 0.5])])[1].tolist()
    [0.25, 0.5]
    """
    shape = np.broadcast_shapes(target[0].shape[:-2], caps[1].shape[:-1])
    acceptance = [ones((*shape, 1), target[0])]
    for rows, cap in zip(target, caps[1:], strict=True):
        allowed = acceptance[-1][..., None] * rows
        acceptance.append(np.minimum(allowed.reshape(*allowed.shape[:-2], -1), cap))
    return tuple(acceptance)


def node_relaxation(pair: ModelPair, draft: DraftLike) -> tuple[Any, Levels]:
    """Upper bound that keeps only the coverage constraints of single nodes, ``f(c) <= C({c})`` (theory 2.6, 9.1).

    ``draft`` is a draft distribution, or K for K i.i.d. paths, where ``C({c}) = phi(Q(c))``. The bound (a Fraction for
    a rational pair) and its f, one ``(V**i,)`` array per level. For one path it is the optimum. Raises InputError for
    no draft distribution of the pair.

    >>> coin = ModelPair.from_levels([[[0.25, 0.75]]], [[[0.6, 0.4]]])
    >>> round(float(node_relaxation(coin, 2)[0]), 12)
    1.89
    """
    acceptance = prefix_acceptance(pair.target, draft_distribution(draft).node_coverage(pair))
    return total(acceptance), acceptance


@dataclass(frozen=True)
class Hull:
    """Upper hull of ``(Q(A), f(A))`` over all antichains below the root, the empty one included.

    Vertex k, k = 0..n, is the antichain of the topmost nodes among ``owners[:k]`` (numbered breadth-first from the
    first child of the root). Where slopes tie, a vertex lies inside a straight edge; its antichain attains it all the
    same.
    """

    mass: Array  # (n+1,) Q(A)
    height: Array  # (n+1,) f(A)
    owners: npt.NDArray[np.int64]  # (n,)
    sizes: tuple[int, ...]  # V**i for i = 1..L

    def antichain(self, vertex: int) -> Mask:
        """The nodes of a vertex as one boolean array per level 0..L (the root's is False)."""
        chosen = np.zeros(sum(self.sizes), dtype=bool)
        chosen[self.owners[:vertex]] = True
        covered = np.zeros(1, dtype=bool)
        mask = [covered]
        for level in np.split(chosen, np.cumsum(self.sizes)[:-1]):
            above = np.repeat(covered, level.size // covered.size)
            mask.append(level & ~above)
            covered = level | above
        return tuple(mask)


def hull(draft_paths: Levels, acceptance: Levels) -> Hull:
    """Build the `Hull` of Q and f bottom-up; ``draft_paths`` and ``acceptance`` hold one array per level 0..L.

    A node's hull is the edges of its children's hulls merged by slope; then the node's own point, at the right end,
    replaces the part of that chain below its tangent. An edge has a run in Q, a rise in f and an owner, the node that
    it adds; the subtrees of one level are the rows of matrices of edges, in order of falling slope. A replaced edge has
    run and rise 0.
    """
    sizes = tuple(level.size for level in acceptance[1:])
    numbers = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    leaves = draft_paths[-1], np.maximum(acceptance[-1], 0 * acceptance[-1]), numbers[-1]
    edges: Edges = tuple(part[:, None] for part in leaves)
    for depth in range(len(sizes) - 1, 0, -1):
        edges = _capped(_merged(edges, sizes[depth - 1]), acceptance[depth], numbers[depth - 1])
    run, rise, owners = (part[0] for part in _merged(edges, 1))
    rising = rise > 0
    mass, height = (np.concatenate([zeros(1, run), np.cumsum(part[rising])]) for part in (run, rise))
    return Hull(mass, height, owners[rising], sizes)


def _merged(edges: Edges, rows: int) -> Edges:
    """Join the hulls of siblings: sort by slope, edges without mass first."""
    edges = tuple(part.reshape(rows, -1) for part in edges)
    with np.errstate(over="ignore"):
        slope = divide(edges[1], edges[0], where_zero=np.inf)
    order = np.argsort(-slope, axis=1, kind="stable")
    return tuple(np.take_along_axis(part, order, axis=1) for part in edges)


def _capped(edges: Edges, height: Array, owners: npt.NDArray[np.int64]) -> Edges:
    """Replace, in every row, the tail below the tangent from the row's right end at ``height``."""
    run, rise, owner = edges
    edge = zeros((owners.size, 1), height)
    room = height[:, None] - np.concatenate([edge, np.cumsum(rise, axis=1)], axis=1)
    right = np.concatenate([np.cumsum(run[:, ::-1], axis=1)[:, ::-1], edge], axis=1)
    with np.errstate(over="ignore"):
        tangent = divide(room, right, where_zero=np.inf)
    touch = np.argmin(tangent, axis=1)[:, None]
    rises = room[:, -1:] > 0
    stays = (np.arange(run.shape[1]) < touch) | ~rises
    run, rise = (
        np.hstack([np.where(stays, part, edge), np.where(rises, np.take_along_axis(own, touch, axis=1), edge)])
        for part, own in ((run, right), (rise, room))
    )
    return run, rise, np.hstack([owner, owners[:, None]])


def separate(draft_paths: Levels, acceptance: Levels, num_paths: int) -> tuple[Mask, Any]:
    """Exact separation: the antichain below the root that maximises ``f(A) - phi(Q(A))``, and this violation.

    One boolean array per level; the empty antichain and 0 when no constraint is violated. ``draft_paths`` and
    ``acceptance``: as in `hull`. Raises InputError for K < 1.

    >>> q = tuple(np.array(level) for level in ([1.0], [0.5, 0.5], [0.25, 0.25, 0.25, 0.25]))
    >>> f = tuple(np.array(level) for level in ([1.0], [0.4, 0.3], [0.4, 0.0, 0.3, 0.0]))
    >>> mask, violation = separate(q, f, 1)  # the leaves "00" and "10": 0.7 > 0.5
    >>> [level.nonzero()[0].tolist() for level in mask], round(float(violation), 3)
    ([[], [], [0, 2]], 0.2)
    """
    errors.integer("num_paths (K)", num_paths, min=1)
    vertices = hull(draft_paths, acceptance)
    excess = vertices.height - phi(vertices.mass, num_paths)
    best = int(np.argmax(excess))
    return vertices.antichain(best), excess[best]
