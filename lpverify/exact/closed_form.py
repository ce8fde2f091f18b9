"""Exact block efficiency of verifiers with a closed form: one pass down the tree (theory 1, 3, 4, 5).

With the selection distribution Q* of the verified path (Q for verifiers of the first path), the probability f(c) that
the accepted prefix passes through node c is f(root) = 1, f(cx) = min(p(x|c) f(c), Q*(cx)) (token rule: f(cx) = f(c)
min(p(x|c), q(x|c))), and block efficiency is sum_c f(c). `Verifier.closed_form` says which formula a verifier follows,
and `Verifier.split` how its Q* splits at a node. On a rational pair everything is a Fraction; ``pair.floats`` is the
same in float64, with full relative accuracy down to path probabilities of 1e-300.

Leviathan et al. 2023 (token rule), Sun et al. arXiv 2403.10444 (BV), Thomas and Pal arXiv 2602.16961 (GBV).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lpverify import errors
from lpverify.core.model_pair import ModelPair, path_probabilities
from lpverify.core.problem import ProblemLike, as_problem
from lpverify.lp.coverage import prefix_acceptance
from lpverify.numerics import Levels, ones, total
from lpverify.verifiers import Verifier, names, verifier
from lpverify.verifiers.rank_measure import compact, stacked, whole
from lpverify.verifiers.residual import acceptance
from lpverify.verifiers.splits import SplitRule
from lpverify.verifiers.token_buckets import in_blocks

CHUNK = 300_000  # rows of a level are split in chunks of about this many (child, child or piece) cells, 2.4 MB an array


@dataclass(frozen=True)
class ClosedForm:
    """Prefix acceptance probabilities of an algorithm, and the distribution of the path that it verifies."""

    algorithm: str
    num_paths: int
    prefix_acceptance: Levels  # f(c), one (V**i,) array per level i = 0..L
    selected: Levels  # Q*(c), likewise

    @property
    def block_efficiency(self) -> float | Fraction:
        """Expected tokens per target call, sum of f; a Fraction when the pair is rational."""
        value = total(self.prefix_acceptance)
        return value if isinstance(value, Fraction) else float(value)


def closed_form(pair: ModelPair, algorithm: Verifier | str, num_paths: int = 1) -> ClosedForm:
    """f and Q* of every node, for a verifier with a closed form, or its name; verifiers of the first path use K = 1.

    Larger vocabularies than the verifier's ``blocks`` are merged into so many buckets. Raises InputError if it has no
    closed form, and for K < 1.

    >>> pair = ModelPair.from_levels([[[0.5, 0.5]], [[0.5, 0.5]] * 2], [[[0.5, 0.5]], [[0.5, 0.5]] * 2])
    >>> [closed_form(pair, name, 2).block_efficiency for name in ("gbv", "tgbv", "pbv")]
    [2.4375, 3.0, 3.0]
    """
    num_paths = errors.integer("num_paths (K)", num_paths, min=1)
    known = names(closed_form=True)
    checked = algorithm if isinstance(algorithm, Verifier) else verifier(errors.choice("algorithm", algorithm, known))
    if checked.closed_form is None:
        raise errors.fail("closed form", got=f"the verifier {checked.name}", expected="one of " + ", ".join(known))
    if checked.closed_form == "token":
        accepted = path_probabilities([np.minimum(p, q) for p, q in zip(pair.target, pair.draft, strict=True)])
        return ClosedForm(checked.name, 1, accepted, pair.draft_paths)
    if checked.split is None:
        num_paths, selected = 1, pair.draft_paths
    else:
        selected = selection_distribution(pair, num_paths, in_blocks(checked.split, checked.blocks))
    return ClosedForm(checked.name, num_paths, prefix_acceptance(pair.target, selected), selected)


def block_efficiency(problem: ProblemLike, algorithm: Verifier | str, num_paths: int | None = None) -> float | Fraction:
    """Exact expected tokens per target call of a verifier with a closed form.

    Args:
        problem: what `as_problem` takes: a problem, a pair, a built-in name, a file.
        algorithm: a verifier, or its name.
        num_paths: K; None: the problem's.

    Returns:
        A Fraction for a rational problem, else a float.

    Raises:
        InputError: as `closed_form`.

    >>> block_efficiency("one-position", "pbv", num_paths=2)
    Fraction(46, 25)
    """
    checked = as_problem(problem, num_paths)
    return closed_form(checked.pair, algorithm, checked.num_paths).block_efficiency


def selection_distribution(pair: ModelPair, num_paths: int, split: SplitRule) -> Levels:
    """Q*(c) of every node when ``split`` splits the rank measure at every node, one (V**i,) array per level 0..L."""
    vocab_size = pair.vocab_size
    selected = [ones(1, pair.draft[0])]
    weight, measure = selected[0], whole(1, selected[0])  # w = f / Q* and the rank measure of each node of a level
    for depth, (target, draft) in enumerate(zip(pair.target, pair.draft, strict=True)):
        rows, weights, measures = [], [], []
        step = max(1, CHUNK // (vocab_size * (2 * vocab_size + measure.mass.shape[1])))
        for start in range(0, len(draft), step):
            part = slice(start, start + step)
            result = split(compact(measure[part]), target[part], draft[part], weight[part], num_paths)
            rows.append(result.q_star)
            if depth < pair.depth - 1:
                weights.append(acceptance(weight[part, None] * target[part], result.q_star).reshape(-1))
                nodes, tokens = np.indices(result.q_star.shape).reshape(2, -1)
                measures.append(compact(result.children(nodes, tokens)))
        selected.append((selected[-1][:, None] * np.concatenate(rows)).reshape(-1))
        if depth < pair.depth - 1:
            weight, measure = np.concatenate(weights), stacked(measures)
    return tuple(selected)
