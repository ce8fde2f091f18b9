"""Exact evaluation of a verifier: block efficiency, accepted lengths, the emitted law and its distance to the target.

Three methods, which agree where they overlap:

* ``"enumeration"``: the `StopDistribution` summed over all drafts with their exact probabilities: multisets of K
  leaves, or ordered K-tuples for verifiers that look at the order of the paths. It runs the very code that decodes.
* ``"recursion"``: on (node, number of paths through it), for tree walkers and Traversal (`lpverify.exact.recursion`).
* ``"closed form"``: prefix acceptance probabilities (`lpverify.exact.closed_form`), the value only.

The first two give the emitted mass of every (stop node, next token). Continued by the target this is the law of the
first L+1 tokens; a verifier is lossless when it equals the target's. Everything is exact for rational problems.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.core.draft_tree import DraftTree, level_index
from lpverify.core.model_pair import ModelPair, path_probabilities
from lpverify.core.problem import VerifyProblem
from lpverify.core.results import Evaluation, LpSolution
from lpverify.drafting.iid_paths import IidPaths
from lpverify.exact import recursion
from lpverify.exact.closed_form import block_efficiency
from lpverify.numerics import Array, Levels
from lpverify.verifiers import Verifier, names, verifier

METHODS = ("auto", "enumeration", "recursion", "closed form")
MAX_DRAFTS = 20_000
"""Most drafts (multisets or ordered tuples of paths) that are enumerated: up to about 20 seconds in floats."""


def evaluate(
    problem: VerifyProblem, algorithm: Verifier | str, *, method: str = "auto", max_terms: int | None = None
) -> Evaluation:
    """Evaluate a verifier (or the one of that name) on ``problem``.

    ``method`` is one of `METHODS`; ``"auto"`` takes the recursion where there is one, else enumeration up to
    ``max_terms`` terms, else the closed form. Raises InputError for an unknown name or a method that the verifier has
    not, SizeError beyond ``max_terms`` (default: the limit of the method).

    >>> from lpverify.core.model_pair import ModelPair
    >>> coin = ModelPair.from_levels([[[0.25, 0.75]]], [[[0.6, 0.4]]])
    >>> round(evaluate(VerifyProblem(coin, num_paths=2), "specinfer").block_efficiency, 6)
    1.79
    """
    errors.choice("method", method, METHODS)
    checked = build(algorithm, problem) if isinstance(algorithm, str) else algorithm
    paths = 1 if checked.first_path_only else problem.num_paths
    recursive = checked.node_rule is not None or checked.leaf_to_root
    closed = checked.closed_form is not None
    if method == "recursion" and not recursive:
        raise errors.fail("method", got=f"recursion for {checked.name}", expected="a tree walker or traversal")
    if method == "closed form" and not closed:
        expected = "one of " + ", ".join(names(closed_form=True))
        raise errors.fail("method", got=f"closed form for {checked.name}", expected=expected)
    if method == "auto":
        fits = draft_count(problem.pair, checked, paths) <= (max_terms or MAX_DRAFTS)
        method = "recursion" if recursive else "closed form" if closed and not fits else "enumeration"
    if method == "closed form":
        value = block_efficiency(problem.pair, checked, paths)
        return Evaluation(checked.name, problem.num_paths, value, method, problem.pair.nodes)
    if method == "enumeration":
        masses, terms = enumerated_masses(problem.pair, checked, paths, max_terms or MAX_DRAFTS)
    elif checked.node_rule is not None:
        masses, terms = recursion.top_down_masses(
            problem.pair,
            checked.node_rule,
            paths,
            ordered=checked.path_order,
            max_terms=max_terms or recursion.MAX_TUPLES,
        )
    else:
        masses, terms = recursion.traversal_masses(problem.pair, paths, max_terms or recursion.MAX_VISITS)
    return _evaluation(problem, checked.name, masses, terms, method)


def build(name: str, problem: VerifyProblem, optimum: LpSolution | None = None) -> Verifier:
    """The verifier called ``name``; ``policy`` from the problem's ``optimum``, which is solved for where not given.

    In Fractions for a rational problem. Raises InputError for an unknown name and an optimum without a certificate.
    """
    if name != "policy":
        return verifier(name)
    from lpverify.lp import certify, solve

    solution = optimum or solve.solve(problem)
    if solution.certificate is not None and problem.pair.rational:
        return verifier(name, certify.exact_certificate(problem.pair, solution.certificate))
    return verifier(name, solution)


def enumerated_masses(
    pair: ModelPair, algorithm: Verifier, paths: int, max_terms: int = MAX_DRAFTS
) -> tuple[Levels, int]:
    """Emitted masses (see `lpverify.exact.recursion`) summed over all drafts, and their number. Raises SizeError."""
    terms = draft_count(pair, algorithm, paths)
    if terms > max_terms:
        kind = "ordered tuples" if algorithm.path_order else "multisets"
        raise errors.too_large(
            f"enumeration of {paths} paths of {pair.depth} out of {pair.vocab_size} tokens for {algorithm.name}",
            size=f"{terms} {kind}",
            limit=str(max_terms),
            instead=_instead(algorithm),
        )
    emitted = recursion.no_masses(pair)
    for draft in IidPaths(paths).enumerate(pair, ordered=algorithm.path_order):
        view = DraftTree.from_pair(pair, draft.paths)
        law = algorithm(view)
        index = level_index(view, pair.vocab_size)
        for node in np.flatnonzero(law.stop > 0).tolist():
            emitted[view.depth[node]][index[node]] += draft.probability * law.stop[node] * law.next_token(node)
    return emitted, terms


def draft_count(pair: ModelPair, algorithm: Verifier, paths: int) -> int:
    """How many drafts `enumerated_masses` sums over."""
    return IidPaths(paths).count(pair, ordered=algorithm.path_order)


def emitted_law(pair: ModelPair, emitted: Levels) -> Array:
    """Law of the first L+1 tokens, shape (V**(L+1),), when the target continues after each emitted token."""
    begun = emitted[0].reshape(-1)
    for rows, stopped in zip((*pair.target[1:], pair.bonus_rows), emitted[1:], strict=True):
        begun = (begun[:, None] * rows + stopped).reshape(-1)
    return begun


def total_variation(first: Array, second: Array) -> Any:
    """Half the sum of absolute differences of two laws."""
    return abs(first - second).sum() / 2


def _evaluation(problem: VerifyProblem, name: str, masses: Levels, terms: int, method: str) -> Evaluation:
    pair = problem.pair
    stopping = [level.sum() for level in masses]
    accepted = np.cumsum(np.array(stopping, dtype=masses[0].dtype)[::-1])[::-1]
    law = emitted_law(pair, masses)
    target = path_probabilities((*pair.target, pair.bonus_rows))[-1]
    return Evaluation(
        algorithm=name,
        num_paths=problem.num_paths,
        block_efficiency=scalar(1 + accepted[1:].sum()),
        method=method,
        terms=terms,
        accepted=accepted,
        law=law,
        law_error=scalar(total_variation(law, target)),
    )


def scalar(value: Any) -> float | Fraction:
    """A Fraction as it is, anything else as a float."""
    return value if isinstance(value, Fraction) else float(value)


def _instead(algorithm: Verifier) -> str:
    if algorithm.node_rule is not None or algorithm.leaf_to_root:
        return 'use method="recursion"'
    if algorithm.closed_form is not None:
        return 'use method="closed form" for the value without the law'
    return "use fewer paths or a smaller tree"
