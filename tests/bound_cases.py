"""Shared by the tests of ``lpverify bound``: both estimators against exact values, by enumeration and by sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np

from lpverify.core.model_pair import ModelPair
from lpverify.core.prefix_tree import level_size
from lpverify.core.problem import VerifyProblem
from lpverify.exact.closed_form import block_efficiency
from lpverify.exact.evaluate import evaluate
from lpverify.lp.coverage import node_relaxation
from lpverify.studies.bound import BoundSettings, on_text
from lpverify.studies.teacher_forced import TextRows
from lpverify.verifiers import Verifier, names, verifier

CLOSED = names(closed_form=True)
UPPER = "upper bound"


def verifiers(names: Iterable[str]) -> dict[str, Verifier]:
    return {name: verifier(name) for name in names}


def shortened(pair: ModelPair, depth: int) -> ModelPair:
    """The first ``depth`` levels; the rows below follow a leaf."""
    bonus = pair.bonus_rows if depth == pair.depth else pair.target[depth]
    return ModelPair.from_levels(pair.target[:depth], pair.draft[:depth], bonus=bonus)


def exact(pair: ModelPair, name: str, paths: int, depth: int) -> float:
    """Block efficiency, or the node relaxation, at this K and L."""
    short = shortened(pair, depth)
    if name == UPPER:
        return float(node_relaxation(short, paths)[0])
    if name in CLOSED:
        return float(block_efficiency(short, name, paths))
    return float(evaluate(VerifyProblem(short, paths), name).block_efficiency)


def rows_along(pair: ModelPair, leaves: Sequence[int]) -> TextRows:
    """One text: the paths to ``leaves`` one after the other, with the rows of ``pair`` along each."""
    size, depth = pair.vocab_size, pair.depth
    nodes = np.array(leaves)[:, None] // [level_size(size, depth - i) for i in range(depth + 1)]
    tokens = (nodes[:, 1:] % size).reshape(-1)
    rows = [
        np.stack([levels[i][nodes[:, i]] for i in range(depth)], axis=1).reshape(-1, size)
        for levels in (pair.target, pair.draft)
    ]
    return TextRows(tokens.tolist(), *rows)


def text_values(
    pair: ModelPair, leaves: Sequence[int], paths: Sequence[int], names: Iterable[str] = CLOSED
) -> dict[tuple[str, int, int], np.ndarray]:
    """(name, K, L) -> the estimate from each path to ``leaves``, for all L."""
    depths = tuple(range(1, pair.depth + 1))
    settings = BoundSettings(tuple(paths), depths)
    starts = [i * pair.depth for i in range(len(leaves))]
    cells = on_text(rows_along(pair, leaves), starts, verifiers(names), settings)
    shapes = [(k, depth) for k in paths for depth in depths]
    values = {}
    for (k, depth), (upper, by_name) in zip(shapes, cells, strict=True):
        for name, column in {UPPER: upper, **by_name}.items():
            values[name, k, depth] = np.array(column)
    return values


def assert_text_is_unbiased(pair: ModelPair, paths: Sequence[int], names: Iterable[str] = CLOSED) -> None:
    """The sum over all paths that the target can write, weighted by P, is the exact value to 1e-12."""
    masses = pair.target_paths[-1]
    leaves = np.flatnonzero(masses > 0)
    for (name, k, depth), values in text_values(pair, leaves.tolist(), paths, names).items():
        assert (values >= 1).all()
        assert (values <= depth + 1 + 1e-12).all()
        found, expected = float(values @ masses[leaves]), exact(pair, name, k, depth)
        assert abs(found - expected) <= 1e-12, f"{name} K = {k} L = {depth}: {found}, not {expected}"


def assert_means(values: Mapping[Any, Sequence[float]], expected: Callable[..., float]) -> None:
    """Means of independent values within 4 standard errors of ``expected(name, K, L, ...)``.

    One deviation of L, the largest there is, is added to the squares: most values are skewed, and a rare tree that was
    not drawn would not show in the sample's own variance.
    """
    for key, sample in values.items():
        count, depth = len(sample), key[2]
        error = sqrt((float(np.var(sample)) + depth**2 / count) / count)
        off = abs(float(np.mean(sample)) - expected(*key))
        assert off <= 4 * error, f"{key}: off by {off}, standard error {error}"
