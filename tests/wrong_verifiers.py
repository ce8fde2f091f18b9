"""Outside verifiers for the audit, right and wrong: f(paths, target, draft, rng) -> (accepted tokens, next token).

The wrong ones are the faults of real implementations (S1 to S14, numbered as in the tests) and of ours, each as a small
change of a right one. All take rows of Fraction or float.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lpverify.core.draft_tree import DraftTree, topology
from lpverify.verifiers import verifier
from lpverify.verifiers.traversal import turns_of

Answer = tuple[Sequence[int], int]
Program = Callable[..., Answer]


def positive(row: Any) -> list[Any]:
    return [max(x, 0) for x in row]


def token_residual(w: Any, p: Any, q: Any) -> list[Any]:
    return positive(p - q)


def block_residual(w: Any, p: Any, q: Any) -> list[Any]:
    return positive(w * p - q)


# right ones


def ours(name: str, **options: Any) -> Program:
    """A verifier of the package as an outside one."""
    algorithm = verifier(name, **options)

    def verify(paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
        tree = topology(paths)
        prefixes: list[tuple[int, ...]] = [()]
        for parent, token in zip(tree.parent[1:].tolist(), tree.token[1:].tolist(), strict=True):
            prefixes.append((*prefixes[parent], token))
        rows = [draft(c) for c in prefixes if len(c) < len(paths[0])]
        view = DraftTree.build(paths, np.array([target(c) for c in prefixes]), np.array(rows))
        law = algorithm(view)
        node = rng.categorical(law.stop)
        return prefixes[node], rng.categorical(law.next_token(node))

    return verify


def token_rule(
    paths: Any,
    target: Any,
    draft: Any,
    rng: Any,
    residual: Any = token_residual,
    bonus: Any = None,
    shift: int = 0,
) -> Answer:
    path = paths[0]
    for i, x in enumerate(path):
        p, q = target(path[:i]), draft(path[:i])
        if not rng.bernoulli(min(1, p[x] / q[x])):
            return path[:i], rng.categorical(residual(1, target(path[: i + shift]), q))
    return path, rng.categorical(bonus(draft, path) if bonus else target(path))


def block(
    path: Any,
    p: Any,
    q: Any,
    rng: Any,
    residual: Any = block_residual,
    residual_draft: Any = None,
    forward: bool = False,
) -> Answer:
    """Block verification with rows p (L+1), q (L) along the path."""
    weights = [q[0][0] * 0 + 1]
    for i, x in enumerate(path):
        weights.append(min(1, weights[i] * p[i][x] / q[i][x]))
    tests = [1]
    for i in range(1, len(path)):
        mass = sum(block_residual(weights[i], p[i], q[i]))
        tests.append(1 if mass == 0 and weights[i] == 1 else mass / (mass + 1 - weights[i]))
    tests.append(weights[-1])
    if forward:  # wrong: stops before the first test that fails
        passed = 0
        while passed < len(path) and rng.bernoulli(tests[passed + 1]):
            passed += 1
    else:
        passed = next((i for i in range(len(path), 0, -1) if rng.bernoulli(tests[i])), 0)
    if passed == len(path):
        return path, rng.categorical(p[-1])
    row = (residual_draft or q)[passed]
    return path[:passed], rng.categorical(residual(weights[passed], p[passed], row))


def along(path: Any, rows: Any, count: int) -> list[Any]:
    return [rows(path[:i]) for i in range(count)]


def block_rule(paths: Any, target: Any, draft: Any, rng: Any, **change: Any) -> Answer:
    path = paths[0]
    return block(path, along(path, target, len(path) + 1), along(path, draft, len(path)), rng, **change)


def block_rule_of(block: Any) -> Program:
    return lambda paths, target, draft, rng: block(
        paths[0], along(paths[0], target, len(paths[0]) + 1), along(paths[0], draft, len(paths[0])), rng
    )


def recursive_rejection(
    paths: Any, target: Any, draft: Any, rng: Any, merged: bool = False, updated: bool = True
) -> Answer:
    """SpecInfer. ``merged`` repeats are offered once; not ``updated``: acceptance looks at p, not at the residual."""
    here: tuple[int, ...] = ()
    while len(here) < len(paths[0]):
        p, q = target(here), draft(here)
        law = p
        offered = [path[len(here)] for path in paths if path[: len(here)] == here]
        for x in dict.fromkeys(offered) if merged else offered:
            if rng.bernoulli(min(1, (law if updated else p)[x] / q[x])):
                here = (*here, x)
                break
            rest = positive(law - q)
            law = np.array([r / sum(rest) for r in rest]) if sum(rest) else law
        else:
            return here, rng.categorical(law)
    return here, rng.categorical(target(here))


def powers(better: Any, mass: Any, count: int) -> Any:
    """(1 - better)^K - (1 - better - mass)^K without cancellation."""
    a, b = 1 - better, 1 - better - mass
    return mass * sum(a**i * b ** (count - 1 - i) for i in range(count))


def greedy_multipath(
    paths: Any,
    target: Any,
    draft: Any,
    rng: Any,
    difference: Any = powers,
    skewed_residual: bool = True,
    fallback: Any = lambda count: False,
) -> Answer:
    """GBV: the first path in the lexicographic order by p/q, with the skewed law of it."""

    def order(here: Any) -> list[int]:
        p, q = target(here), draft(here)
        return sorted(range(len(q)), key=lambda x: (-(p[x] / q[x]) if q[x] else 1, x))

    length, count = len(paths[0]), len(paths)
    best = min(paths, key=lambda path: [order(path[:i]).index(path[i]) for i in range(length)])
    better, mass = 0, 1
    skewed = []
    for i in range(length):
        q = draft(best[:i])
        row, at = [q[0] * 0] * len(q), better
        starts = list(row)
        for x in order(best[:i]):
            starts[x] = at
            row[x] = difference(at, mass * q[x], count)
            at = at + mass * q[x]
        skewed.append(q if fallback(count) else np.array([r / sum(row) for r in row]))
        better, mass = starts[best[i]], mass * q[best[i]]
    plain = None if skewed_residual else along(best, draft, length)
    return block(best, along(best, target, length + 1), skewed, rng, residual_draft=plain)


def own_sample(paths: Any, target: Any, draft: Any, rng: Any, fresh: bool = False) -> Answer:
    """Accept a drafted token if the target's own sample is equal; ``fresh``: emits another one where it is not."""
    here: tuple[int, ...] = ()
    while len(here) < len(paths[0]):
        y = rng.categorical(target(here))
        if not any(path[: len(here) + 1] == (*here, y) for path in paths):
            return here, rng.categorical(target(here)) if fresh else y
        here = (*here, y)
    return here, rng.categorical(target(here))


def one_hot_rule(paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
    """The "q = 1" rule: accept x with probability p(x), else draw from p without x; for any choice of drafts."""
    path = paths[0]
    for i, x in enumerate(path):
        p = target(path[:i]).copy()
        if not rng.bernoulli(p[x]):
            p[x] = p[x] * 0
            return path[:i], rng.categorical(p)
    return path, rng.categorical(target(path))


class Drafting:
    """A verifier with its own drafter, which draws one token after the other from ``law(q)``."""

    def __init__(self, law: Any, verify: Program) -> None:
        self.law, self.verify = law, verify

    def draft_paths(self, draft: Any, paths: int, length: int, rng: Any) -> Any:
        drafted = []
        for _ in range(paths):
            path: tuple[int, ...] = ()
            for _ in range(length):
                path += (rng.categorical(self.law(draft(path))),)
            drafted.append(path)
        return tuple(drafted)

    def __call__(self, paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
        return self.verify(paths, target, draft, rng)


def top_two(q: Any) -> Any:
    kept = sorted(range(len(q)), key=lambda x: (-q[x], x))[:2]
    return np.array([q[x] / sum(q[k] for k in kept) if x in kept else q[x] * 0 for x in range(len(q))])


def argmax(q: Any) -> Any:
    best = max(range(len(q)), key=lambda x: (q[x], -x))
    return [int(x == best) for x in range(len(q))]


def filtered(law: Any, verify: Program = token_rule) -> Program:
    """``verify`` told the law that was sampled from."""
    return lambda paths, target, draft, rng: verify(paths, target, lambda c: np.array(law(draft(c))), rng)


def with_uniforms(paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
    """The token rule by uniforms, with the strict comparison."""
    path = paths[0]
    for i, x in enumerate(path):
        p, q = target(path[:i]), draft(path[:i])
        if not rng.uniform() * float(q[x]) < p[x]:
            return path[:i], rng.categorical(token_residual(1, p, q))
    return path, rng.categorical(target(path))


def with_drawn_uniforms(paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
    """The same with numbers, which cannot be enumerated."""
    path = paths[0]
    for i, x in enumerate(path):
        p, q = target(path[:i]), draft(path[:i])
        if not float(rng.uniform()) * float(q[x]) < p[x]:
            return path[:i], rng.categorical(token_residual(1, p, q))
    return path, rng.categorical(target(path))


# faults of real implementations


def u_zero_accepts(paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
    """S4: an inclusive comparison."""
    path = paths[0]
    for i, x in enumerate(path):
        p, q = target(path[:i]), draft(path[:i])
        if not rng.uniform() <= p[x] / q[x]:
            return path[:i], rng.categorical(token_residual(1, p, q))
    return path, rng.categorical(target(path))


def placeholder(paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
    """S4: rejected places are filled with -1 and counted."""
    accepted, token = token_rule(paths, target, draft, rng)
    return (*accepted, *[-1] * (len(paths[0]) - len(accepted))), token


def missing_draft_as_one(paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
    """S5: the block rule with the cumulative product of p, as if q were 1."""
    path = paths[0]
    weights = [1]
    for i, x in enumerate(path):
        weights.append(weights[i] * target(path[:i])[x])
    for i in range(len(path), 0, -1):
        if rng.bernoulli(weights[i]):
            return path[:i], rng.categorical(target(path[:i]))
    return (), rng.categorical(token_residual(1, target(()), draft(())))


def epsilon_everywhere(w: Any, p: Any, q: Any) -> list[Any]:
    """S6: a constant on every token of the residual."""
    return [x + 1e-10 for x in block_residual(w, p, q)]


def undefined(path: Any, p: Any, q: Any, rng: Any) -> Answer:
    """S6: h = R / (R + 1 - w) as it stands, 0/0 where the laws are equal."""
    w, passed = np.float64(1), 0
    for i, x in enumerate(path):
        w = np.minimum(1, w * float(p[i][x]) / float(q[i][x]))
        last = i + 1 == len(path)
        mass = 0 if last else np.sum(block_residual(w, p[i + 1].astype(float), q[i + 1].astype(float)))
        if rng.bernoulli(w if last else mass / (mass + 1 - w)):
            passed = i + 1
    return path[:passed], rng.categorical(p[-1])


def single_precision(better: Any, mass: Any, count: int) -> Any:
    """S7: the difference of powers in float32."""
    a, b = np.float32(1 - better), np.float32(1 - better - mass)
    return float(a**count - b**count)


def cut_target(paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
    """S10: the target's row cut to the draft's vocabulary and renormalised."""

    def cut(here: Any) -> Any:
        p = target(here)
        if len(here) == len(paths[0]):
            return p
        kept = [x if y else x * 0 for x, y in zip(p, draft(here), strict=True)]
        return np.array([x / sum(kept) for x in kept]) if sum(kept) else p

    return token_rule(paths, cut, draft, rng)


class NoiseTwice:
    """S3: the exponentials of the race that picked the draft pick the replacement too. One path."""

    def draft_paths(self, draft: Any, paths: int, length: int, rng: Any) -> Any:
        self.noise = []
        path: tuple[int, ...] = ()
        for _ in range(length):
            q = draft(path)
            self.noise.append([-math.log(1 - rng.uniform()) for _ in q])
            path += (self.race(q, self.noise[-1]),)
        return (path,) * paths

    @staticmethod
    def race(law: Any, noise: Any) -> int:
        return min((e / float(x), i) for i, (e, x) in enumerate(zip(noise, law, strict=True)) if x > 0)[1]

    def __call__(self, paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
        path = paths[0]
        for i, x in enumerate(path):
            p, q = target(path[:i]), draft(path[:i])
            if not rng.bernoulli(min(1, p[x] / q[x])):
                return path[:i], self.replacement(token_residual(1, p, q), i, rng)
        return path, rng.categorical(target(path))

    def replacement(self, law: Any, position: int, rng: Any) -> int:
        return self.race(law, self.noise[position])


class NoiseOnce(NoiseTwice):
    """The right one: the replacement has noise of its own."""

    def replacement(self, law: Any, position: int, rng: Any) -> int:
        return self.race(law, [-math.log(1 - rng.uniform()) for _ in law])


class SameDraftsAgain:
    """S3, S14: the second round drafts with the first one's noise. Every single round is right."""

    def __init__(self) -> None:
        self.drafted: Any = None

    def draft_paths(self, draft: Any, paths: int, length: int, rng: Any) -> Any:
        self.drafted = self.drafted or Drafting(lambda q: q, token_rule).draft_paths(draft, paths, length, rng)
        return self.drafted

    def __call__(self, paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
        return token_rule(paths, target, draft, rng)


class StaleAccept:
    """S14: the second round accepts as much as the first did."""

    def __init__(self) -> None:
        self.count: int | None = None

    def __call__(self, paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
        if self.count is not None:
            return paths[0][: self.count], rng.categorical(target(paths[0][: self.count]))
        accepted, token = token_rule(paths, target, draft, rng)
        self.count = len(accepted)
        return accepted, token


def rewrites_tables(paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
    """S14: the residual is made in the shared row."""
    path = paths[0]
    for i, x in enumerate(path):
        p, q = target(path[:i]), draft(path[:i])
        if not rng.bernoulli(min(1, p[x] / q[x])):
            p -= q
            p[:] = positive(p)
            return path[:i], rng.categorical(p)
    return path, rng.categorical(target(path))


class MemoByDepth:
    """S14: rows are remembered by depth and kept from call to call."""

    def __init__(self) -> None:
        self.memo: dict[int, Any] = {}

    def __call__(self, paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
        return token_rule(paths, lambda c: self.memo.setdefault(len(c), target(c)), draft, rng)


def reseeds(paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
    """S14: a generator that is seeded again in every call."""
    return token_rule(paths, target, draft, Own(random.Random(0)))


class Own:
    """Randomness of one's own behind the offered face."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def bernoulli(self, p: Any) -> bool:
        return bool(self.generator.random() < p)

    def categorical(self, weights: Any) -> int:
        return int(self.generator.choices(range(len(weights)), [float(x) for x in weights])[0])


# faults of ours


def forgets_renormalising(tree: Any, visit: Any, p: Any, q: Any) -> Any:
    """`lpverify.verifiers.traversal.turns_of` without the renormalisation of q after a rejection."""
    turns, latest = turns_of(tree, visit, p, q)
    return [replace(turn, offer=turn.q, scale=turn.scale * 0 + 1) for turn in turns], latest


def expected_length(path: Any, target: Any, draft: Any) -> Any:
    weight = total = draft(())[0] * 0 + 1
    for i, x in enumerate(path):
        weight = min(1, weight * target(path[:i])[x] / draft(path[:i])[x])
        total = total + weight
    return total


def better_of_two(paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
    """BV of the first path, or GBV where another path looks better: chosen after seeing the paths."""
    lengths = [expected_length(path, target, draft) for path in paths]
    rule = block_rule if lengths[0] == max(lengths) else greedy_multipath
    return rule(paths, target, draft, rng)


def most_probable_path(paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
    """BV of the path that the target likes best, as if it were a fresh draft."""
    chosen = max(paths, key=lambda path: math.prod(target(path[:i])[x] for i, x in enumerate(path)))
    return block_rule((chosen,), target, draft, rng)


def tries_all_paths(paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
    """The token rule path by path until one token is accepted."""
    answer: Answer = ((), 0)
    for path in paths:
        answer = token_rule((path,), target, draft, rng)
        if answer[0]:
            break
    return answer


def longest(paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
    """The longest of K block verifications."""
    return max((block_rule((path,), target, draft, rng) for path in paths), key=lambda answer: len(answer[0]))


def off_by_one(paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
    """Acceptance at position i looks at the target's row of the position before."""
    return token_rule(paths, lambda c: target(c[:-1]) if 0 < len(c) < len(paths[0]) else target(c), draft, rng)


def drops_last(paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
    """Returns the last accepted token as the next one when all are accepted: a token less a round, but the same law."""
    accepted, token = token_rule(paths, target, draft, rng)
    return (accepted[:-1], accepted[-1]) if len(accepted) == len(paths[0]) > 1 else (accepted, token)


def slightly_greedy(paths: Any, target: Any, draft: Any, rng: Any) -> Answer:
    """Accepts with probability p/q + 1/60: total variation 0.01 where p/q = 1/3 on q = 0.6."""
    path = paths[0]
    for i, x in enumerate(path):
        p, q = target(path[:i]), draft(path[:i])
        if float(rng.uniform()) >= min(1, p[x] / q[x]) + 1 / 60:
            return path[:i], rng.categorical(token_residual(1, p, q))
    return path, rng.categorical(target(path))
