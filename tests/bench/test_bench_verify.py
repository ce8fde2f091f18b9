"""Verification of one drafted tree at real vocabulary sizes, against plain loops over nodes and tokens.

`pytest tests/bench` (make bench) prints the times; every verifier must be at least `FACTOR` times faster than its plain
loop in the same run, and give the same law. Times are CPU seconds of one thread: other processes do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from lpverify.core.draft_tree import DraftTree, topology  # noqa: E402
from lpverify.verifiers import sample, verifier  # noqa: E402
from lpverify.verifiers.ebv import entropic_split  # noqa: E402
from lpverify.verifiers.pbv import proportional_split  # noqa: E402
from lpverify.verifiers.rank_measure import whole  # noqa: E402
from lpverify.verifiers.smallest_rank import smallest_rank  # noqa: E402
from lpverify.verifiers.tgbv import tempered_split  # noqa: E402
from lpverify.verifiers.token_buckets import HEAVY, MOST_BLOCKS, OCTAVES, SMALLEST  # noqa: E402

FACTOR = 10
DEPTH, PATHS = 8, 4
Rows = list[list[float]]


def drafted_view(vocab_size: int, seed: int = 0) -> DraftTree:
    """A tree drafted from random rows with the peaks of a language model, target near draft."""
    rng = np.random.default_rng(seed)
    rows: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def laws(prefix: tuple[int, ...]) -> tuple[Any, Any]:
        if prefix not in rows:
            logits = 2.5 * rng.standard_normal(vocab_size)
            logits = logits, logits + 0.3 * rng.standard_normal(vocab_size)
            rows[prefix] = tuple(np.exp(x) / np.exp(x).sum() for x in logits)
        return rows[prefix]

    paths = []
    for _ in range(PATHS):
        path: tuple[int, ...] = ()
        for _ in range(DEPTH):
            path = (*path, int(np.searchsorted(np.cumsum(laws(path)[1]), 0.999999 * rng.random())))
        paths.append(path)
    tree = topology(paths)
    prefixes: list[tuple[int, ...]] = [()]
    for parent, token in zip(tree.parent[1:].tolist(), tree.token[1:].tolist(), strict=True):
        prefixes.append((*prefixes[parent], token))
    inner = [prefix for prefix in prefixes if len(prefix) < DEPTH]
    target, draft = (np.stack([laws(c)[i] for c in nodes]) for i, nodes in enumerate((prefixes, inner)))
    return DraftTree.of(tree, torch.from_numpy(target), torch.from_numpy(draft))


# The same algorithms as they stand on paper: a loop over nodes, a loop over tokens.


def plain_pick(row: list[float], uniform: float) -> int:
    left = uniform * sum(row)
    for token, value in enumerate(row):
        left -= value
        if left < 0:
            return token
    return len(row) - 1


def plain_block(view: DraftTree, p: Rows, q: Rows) -> list[float]:
    stop = [0.0] * len(p)
    _block_on_path(view.node_of[0].tolist(), view, p, q, 1.0, stop)
    return stop


def _block_on_path(nodes: list[int], view: DraftTree, p: Rows, q: Rows, chance: float, stop: list[float]) -> None:
    weight, tests = 1.0, []
    for node, child in zip(nodes, nodes[1:], strict=False):
        mass = 0.0
        for a, b in zip(p[node], q[node], strict=True):
            if weight * a > b:
                mass += weight * a - b
        tests.append(mass / (mass + 1 - weight) if node else 1.0)
        token = int(view.token[child])
        weight = min(1.0, weight * p[node][token] / q[node][token])
    tests.append(weight)
    for node, test in zip(reversed(nodes), reversed(tests), strict=True):
        stop[node] += chance * test
        chance *= 1 - test


def plain_walk(view: DraftTree, p: Rows, q: Rows, choose: Any) -> list[float]:
    """``choose(p row, q row, drafted)``: accepted mass of drafted tokens, what is left, the law of the rest."""
    reach, stop = [1.0] + [0.0] * (len(p) - 1), [0.0] * len(p)
    for node in range(len(p)):
        if node >= view.inner:
            stop[node] = reach[node]
            continue
        chosen, alive, law = choose(p[node], q[node], view.drafted(node))
        drafted = set()
        for child in view.children(node):
            token = int(view.token[child])
            drafted.add(token)
            reach[child] = reach[node] * (chosen.get(token, 0.0) + alive * law[token])
        stop[node] = reach[node] * alive * sum(law[x] for x in range(len(law)) if x not in drafted)
    return stop


def plain_specinfer(view: DraftTree, p: Rows, q: Rows) -> list[float]:
    def choose(target: list[float], draft: list[float], drafted: tuple[int, ...]) -> Any:
        law, alive, chosen = list(target), 1.0, {}
        for token in drafted:
            accept = min(1.0, law[token] / draft[token])
            chosen[token] = chosen.get(token, 0.0) + alive * accept
            alive *= 1 - accept
            mass = 0.0
            for x in range(len(law)):
                law[x] = max(law[x] - draft[x], 0.0)
                mass += law[x]
            for x in range(len(law)):
                law[x] /= mass
        return chosen, alive, law

    return plain_walk(view, p, q, choose)


def plain_spectr(view: DraftTree, p: Rows, q: Rows) -> list[float]:
    """With rho bisected on [1, k], one loop over the tokens a halving."""

    def choose(target: list[float], draft: list[float], drafted: tuple[int, ...]) -> Any:
        count = len(drafted)

        def gamma(rho: float) -> float:
            beta = 0.0
            for a, b in zip(target, draft, strict=True):
                beta += min(b, a / rho)
            return float(sum((1 - beta) ** i for i in range(count)))

        low, high = 1.0, float(count)
        if gamma(low) <= low:
            high = low
        while count > 1 and high - low > 1e-10:
            middle = (low + high) / 2
            low, high = (low, middle) if gamma(middle) <= middle else (middle, high)
        rho, alive, chosen = high, 1.0, {}
        factor, mass, law = gamma(rho), 0.0, []
        for a, b in zip(target, draft, strict=True):
            law.append(max(a - factor * min(b, a / rho), 0.0))
            mass += law[-1]
        for token in drafted:
            accept = min(1.0, target[token] / (rho * draft[token]))
            chosen[token] = chosen.get(token, 0.0) + alive * accept
            alive *= 1 - accept
        return chosen, alive, [x / mass for x in law]

    return plain_walk(view, p, q, choose)


def plain_traversal(view: DraftTree, p: Rows, q: Rows) -> list[float]:
    stop = [0.0] * len(p)

    def visit(node: int, weight: float, alive: float) -> float:
        children = view.children(node)
        law, draft = list(p[node]), list(q[node]) if children else []
        for child in children:
            token = int(view.token[child])
            alive = visit(child, min(1.0, weight * law[token] / draft[token]), alive)
            mass, left = 0.0, 0.0
            for x in range(len(law)):
                law[x] = max(weight * law[x] - draft[x], 0.0)
                mass += law[x]
                left += draft[x] if x != token else 0.0
            draft[token] = 0.0
            for x in range(len(law)):
                law[x] = law[x] / mass if mass else p[node][x]
                draft[x] = draft[x] / left if left else 0.0
            weight = mass / (mass + 1 - weight) if mass or weight < 1 else 1.0
        stop[node] = alive * weight if node else alive
        return alive - stop[node]

    visit(0, 1.0, 1.0)
    return stop


def plain_gbv(view: DraftTree, p: Rows, q: Rows) -> list[float]:
    ahead, mass, rank = {0: 0.0}, {0: 1.0}, {0: ()}
    q_star: Rows = []
    for node in range(view.inner):
        order = sorted(range(len(q[node])), key=lambda x: -p[node][x] / q[node][x])
        row, begun = [0.0] * len(order), 0.0
        wanted = {int(view.token[child]): child for child in view.children(node)}
        for i, x in enumerate(order):
            high = 1 - ahead[node] - mass[node] * begun
            low = high - mass[node] * q[node][x]
            row[x] = q[node][x] * sum(high**j * low ** (PATHS - 1 - j) for j in range(PATHS))
            if x in wanted:
                child = wanted[x]
                ahead[child], mass[child] = 1 - high, mass[node] * q[node][x]
                rank[child] = (*rank[node], i)
            begun += q[node][x]
        total = sum(row)
        q_star.append([value / total for value in row])
    best = min(range(view.inner, len(p)), key=lambda leaf: rank[leaf])
    stop = [0.0] * len(p)
    _block_on_path(view.node_of[view.node_of[:, -1] == best][0].tolist(), view, p, q_star, 1.0, stop)
    return stop


def plain_blocks(split: Any) -> Callable[[DraftTree, Rows, Rows], list[float]]:
    """TGBV, PBV and EBV: tokens in blocks; the splits of 64 blocks are the library's, they have no loop over tokens."""

    def law(view: DraftTree, p: Rows, q: Rows) -> list[float]:
        slots = MOST_BLOCKS // 2
        buckets = MOST_BLOCKS - slots - 1
        measures, weights, ranks = {0: whole(1, np.ones(1))}, {0: 1.0}, {0: ()}
        q_star: Rows = []
        for node in range(view.inner):
            label, heavy = [], 0
            big, small = [0.0] * MOST_BLOCKS, [0.0] * MOST_BLOCKS
            for a, b in zip(p[node], q[node], strict=True):
                if b >= HEAVY and heavy < slots:
                    where, heavy = heavy, heavy + 1
                else:
                    ratio = np.float32(a / max(b, SMALLEST))
                    octave = np.log2(min(max(ratio, np.float32(2.0**-OCTAVES)), np.float32(2.0**OCTAVES)))
                    step = np.float32(octave + np.float32(OCTAVES)) * np.float32(buckets / (2 * OCTAVES))
                    where = slots + min(max(int(step), 0), buckets - 1)
                label.append(where)
                big[where] += a
                small[where] += b
            done = split(measures[node], np.array([big]), np.array([small]), np.array([weights[node]]), PATHS)
            skew = [wanted / have if have else 0.0 for wanted, have in zip(done.q_star[0], small, strict=True)]
            q_star.append([b * skew[where] for b, where in zip(q[node], label, strict=True)])
            for child in view.children(node):
                token = int(view.token[child])
                measures[child] = done.children([0], [label[token]])
                weights[child] = min(1.0, weights[node] * p[node][token] / q_star[node][token])
                ranks[child] = (*ranks[node], int(done.place[0, label[token]]), token)
        leaves = sorted(range(view.inner, len(p)), key=lambda leaf: ranks[leaf])
        most = max(measures[leaf].mass.shape[1] for leaf in leaves)
        stacked = type(measures[0])(
            *(
                np.concatenate(
                    [np.pad(getattr(m, name), ((0, 0), (0, most - m.mass.shape[1]))) for m in map(measures.get, leaves)]
                )
                for name in ("above", "width", "mass")
            ),
            np.concatenate([measures[leaf].scale for leaf in leaves]),
        )
        stop = [0.0] * len(p)
        for leaf, chance in zip(leaves, smallest_rank(stacked, view.multiplicity[leaves].tolist()), strict=True):
            _block_on_path(view.node_of[view.node_of[:, -1] == leaf][0].tolist(), view, p, q_star, float(chance), stop)
        return stop

    return law


# token and nss have no loop over the vocabulary to speak of; ot refuses such vocabularies
PLAIN = {
    "bv": plain_block,
    "specinfer": plain_specinfer,
    "spectr": plain_spectr,
    "traversal": plain_traversal,
    "gbv": plain_gbv,
    "tgbv": plain_blocks(tempered_split),
    "pbv": plain_blocks(proportional_split),
    "ebv": plain_blocks(entropic_split),
}


@pytest.fixture(scope="module", params=[49_152, 151_936])
def case(request: pytest.FixtureRequest) -> tuple[DraftTree, Rows]:
    torch.set_num_threads(1)
    view = drafted_view(request.param)
    return view, view.target.tolist()


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize("name", PLAIN)
def test_verification_is_at_least_ten_times_faster_than_plain_loops(name: str, case: Any, benchmark: Any) -> None:
    view, p = case
    algorithm, rng = verifier(name), np.random.default_rng(0)

    def verify() -> None:
        sample(algorithm(view), rng)

    benchmark.pedantic(verify, rounds=5, warmup_rounds=1)
    begin = time.process_time()
    expected = PLAIN[name](view, view.target.tolist(), view.draft.tolist())
    plain_pick(p[0], 0.37)
    plain = time.process_time() - begin
    np.testing.assert_allclose(algorithm(view).stop, expected, atol=1e-4)  # a label may differ by rounding
    ratio = plain / benchmark.stats.stats.min
    benchmark.extra_info |= {"plain_seconds": round(plain, 3), "ratio": round(ratio, 1), "vocabulary": view.vocab_size}
    assert ratio >= FACTOR, f"{name}: {plain:.3f} s in plain loops, only {ratio:.1f} times as long"
