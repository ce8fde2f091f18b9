"""Verification of one drafted tree at real vocabulary sizes, as multiples of one residual pass over the same rows.

`make bench` prints a table for each vocabulary: milliseconds, and the ratio to ``sum max(w p - q, 0)`` over the inner
rows of the same tree, which is the least that any lossless verifier with a residual has to read. Everything is
interleaved in one run on one thread; the spread is that of the ratio over repetitions. `LIMITS` are what we promise;
ratios above them are marked. What a benchmark asserts is that the numbers are numbers, never that a machine is fast.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from lpverify.core.draft_tree import DraftTree  # noqa: E402
from lpverify.verifiers import names, verifier  # noqa: E402
from lpverify.verifiers.compiled import kernels  # noqa: E402
from lpverify.verifiers.rank_selection import selection  # noqa: E402
from lpverify.verifiers.rows import rows_of  # noqa: E402

DEPTH, PATHS, TREES, REPEATS = 8, 4, 3, 7
LIMITS = {"bv": 2, "gbv": 4, "tgbv": 5, "pbv": 5, "ebv": 8, "nss": 5, "specinfer": 5, "spectr": 5, "traversal": 5}


@dataclass(frozen=True)
class Case:
    """What is timed once: a drafted tree of torch rows, built anew from ``paths`` and rows as a decoder does."""

    paths: Any
    target: Any
    draft: Any

    @property
    def tree(self) -> DraftTree:
        return DraftTree.build(self.paths, self.target, self.draft)


def drafted(vocab_size: int, seed: int) -> Case:
    """A tree drafted from random rows with the peaks of a language model, target near draft."""
    rng = np.random.default_rng(seed)
    rows: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def rows_at(prefix: tuple[int, ...]) -> tuple[Any, Any]:
        if prefix not in rows:
            logits = 2.5 * rng.standard_normal(vocab_size)
            weights = [np.exp(x) for x in (logits, logits + 0.3 * rng.standard_normal(vocab_size))]
            rows[prefix] = weights[0] / weights[0].sum(), weights[1] / weights[1].sum()
        return rows[prefix]

    paths = []
    for _ in range(PATHS):
        path: tuple[int, ...] = ()
        for _ in range(DEPTH):
            path = (*path, int(np.searchsorted(np.cumsum(rows_at(path)[1]), 0.999999 * rng.random())))
        paths.append(path)
    nodes = list(dict.fromkeys(path[:i] for i in range(DEPTH + 1) for path in paths))
    target = np.stack([rows_at(node)[0] for node in nodes])
    draft = np.stack([rows_at(node)[1] for node in nodes if len(node) < DEPTH])
    return Case(paths, torch.from_numpy(target), torch.from_numpy(draft))


def residual_pass(tree: DraftTree) -> Any:
    """sum max(w p - q, 0) at every inner node, w = 0.7, one long row at a time."""
    target, draft = tree.target.numpy(), tree.draft.numpy()
    return np.array([np.maximum(0.7 * target[n] - draft[row], 0).sum() for row, n in enumerate(tree.inner_nodes)])


def verified(name: str, case: Case) -> Any:
    """What is timed: the drafted tree is built from paths and rows, and the stop distribution taken."""
    return verifier(name)(case.tree).stop


def host_part(name: str, tree: DraftTree) -> Callable[[], Any]:
    """The splits and the selection alone, after the buckets."""
    check = verifier(name)
    seen = rows_of(tree).observe(np.arange(len(tree.inner_nodes)), blocks=check.blocks)

    def selected() -> Any:
        with kernels(True):
            return selection(tree, seen, check.split)

    return selected


@pytest.mark.parametrize("vocab_size", [49_152, 151_936])
def test_verification(vocab_size: int, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    every = names(any_vocabulary=True)
    ratios: dict[str, list[float]] = {name: [] for name in every}
    seconds: dict[str, list[float]] = {name: [] for name in (*every, "residual pass")}
    host: dict[str, list[float]] = {name: [] for name in every if verifier(name).split}
    cases = [drafted(vocab_size, seed) for seed in range(TREES)]
    for repeat in range(REPEATS + 1):
        for case in cases:
            tree = case.tree
            jobs: dict[str, Callable[[], Any]] = {
                name: (lambda name=name, tree=tree: verifier(name)(tree).stop) for name in every
            }
            took = {"residual pass": timed(lambda tree=tree: residual_pass(tree))}
            took |= {name: timed(job) for name, job in jobs.items()}
            if repeat == 0:
                continue  # caches warm up
            for name, value in took.items():
                seconds[name].append(value)
            for name in every:
                ratios[name].append(took[name] / took["residual pass"])
            for name in host:
                host[name].append(timed(host_part(name, tree)))
    torch.set_num_threads(threads)
    with capsys.disabled():
        base = 1e3 * np.median(seconds["residual pass"])
        print(f"\nV = {vocab_size}, K = {PATHS}, L = {DEPTH}: residual pass {base:.2f} ms")
        for name in every:
            value, low, high = np.quantile(ratios[name], [0.5, 0.1, 0.9])
            limit = f"limit {LIMITS[name]}" if name in LIMITS else ""
            over = "  ABOVE THE LIMIT" if value > LIMITS.get(name, np.inf) else ""
            alone = f"host part {1e3 * np.median(host[name]):.1f} ms" if name in host else ""
            milliseconds = 1e3 * np.median(seconds[name])
            print(
                f"  {name:10} {milliseconds:7.2f} ms  {value:5.2f} ({low:.2f} to {high:.2f})  {limit:8} {alone}{over}"
            )
    assert all(np.isfinite(ratios[name]).all() for name in every)


def timed(job: Callable[[], Any]) -> float:
    began = time.thread_time()  # of this thread: other processes do not count
    job()
    return time.thread_time() - began
