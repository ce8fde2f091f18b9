"""Exact evaluation of a verifier: block efficiency, accepted lengths, and the distribution of the emitted tokens.

``"enumeration"`` sums the `StopDistribution` over all drafts with their exact probabilities: multisets of K leaves, or
ordered K-tuples for verifiers that look at the order of the paths. It runs the very code that decodes. ``"recursion"``
(`exact.recursion`) is for top-down verifiers and Traversal; ``"closed form"`` (`exact.closed_form`) gives the value.

The first two give the emitted mass of every (stop node, next token). Continued by the target, this is the distribution
of the first L+1 tokens; a verifier is lossless if it equals the target's. Everything is exact for rational problems.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from lpverify import errors
from lpverify.core.draft_tree import DraftTree, level_index
from lpverify.core.model_pair import ModelPair, path_probabilities
from lpverify.core.problem import ProblemLike, VerifyProblem, as_problem
from lpverify.core.results import Certificate, Evaluation, LpSolution
from lpverify.drafting.iid_paths import IidPaths
from lpverify.exact import recursion
from lpverify.exact.closed_form import block_efficiency
from lpverify.lp.certify import exact_certificate
from lpverify.lp.solve import solve
from lpverify.numerics import Array, Levels, is_exact
from lpverify.verifiers import StopDistribution, Verifier, names, verifier

Algorithm: TypeAlias = str | Verifier | Callable[[DraftTree], StopDistribution]  # a verifier, its name, or a function

METHODS = ("auto", "enumeration", "recursion", "closed form")
MAX_DRAFTS = 20_000  # multisets or ordered tuples of paths: up to about 20 seconds in floats


def evaluate(
    problem: ProblemLike,
    algorithm: Algorithm,
    num_paths: int | None = None,
    *,
    method: str = "auto",
    max_terms: int | None = None,
) -> Evaluation:
    """Evaluate a verifier on a problem: block efficiency, accepted lengths, and whether it is lossless.

    Args:
        problem: A problem or what can become one: a name, a file, a pair, a document (`lpverify.as_problem`).
        algorithm: A name of `lpverify.verifiers.VERIFIERS`, a `Verifier`, or a function of one `DraftTree` that returns
            a `StopDistribution`. "policy" is the optimum of the linear program, which is then solved.
        num_paths: K; None: that of the problem.
        method: One of `METHODS`. "auto" is the recursion for verifiers that have one, else enumeration up to
            ``max_terms`` terms, else the closed form.
        max_terms: Largest number of terms; None: a limit of the method.

    Returns:
        The evaluation, in Fractions for a rational problem.

    Raises:
        InputError: No problem, an unknown algorithm, or a method that the verifier does not have.
        SizeError: More than ``max_terms`` terms.

    >>> coin = ModelPair.iid([0.25, 0.75], [0.6, 0.4], depth=1)
    >>> round(evaluate(coin, "specinfer", 2).block_efficiency, 6)
    1.79
    """
    problem = as_problem(problem, num_paths)
    errors.choice("method", method, METHODS)
    pair, checked = problem.pair, as_verifier(algorithm, problem)
    paths = 1 if checked.first_path_only else problem.num_paths
    recursive = checked.node_rule is not None or checked.leaf_to_root
    closed = checked.closed_form is not None
    if method == "recursion" and not recursive:
        raise errors.fail("method", got=f"recursion for {checked.name}", expected="a top-down verifier or traversal")
    if method == "closed form" and not closed:
        expected = "one of " + ", ".join(names(closed_form=True))
        raise errors.fail("method", got=f"closed form for {checked.name}", expected=expected)
    if method == "auto":
        fits = IidPaths(paths).count(pair, ordered=checked.path_order) <= (max_terms or MAX_DRAFTS)
        method = "recursion" if recursive else "closed form" if closed and not fits else "enumeration"
    if method == "closed form":
        value = block_efficiency(pair, checked, paths)
        return Evaluation(checked.name, problem.num_paths, value, method, pair.nodes)
    if method == "enumeration":
        masses, terms = enumerated_masses(pair, checked, paths, max_terms or MAX_DRAFTS)
    elif (rule := checked.node_rule) is not None:
        limit = max_terms or recursion.MAX_TUPLES
        masses, terms = recursion.top_down_masses(pair, rule, paths, ordered=checked.path_order, max_terms=limit)
    else:
        masses, terms = recursion.traversal_masses(pair, paths, max_terms or recursion.MAX_VISITS)
    stopping = np.array([level.sum() for level in masses], dtype=masses[0].dtype)
    accepted, law = np.cumsum(stopping[::-1])[::-1], emitted_law(pair, masses)
    law_error = scalar(total_variation(law, path_probabilities((*pair.target, pair.bonus_rows))[-1]))
    value = scalar(1 + accepted[1:].sum())
    return Evaluation(checked.name, problem.num_paths, value, method, terms, accepted, law, law_error)


def as_verifier(algorithm: Algorithm, problem: VerifyProblem) -> Verifier:
    """The verifier that `evaluate` runs for a name, a verifier or a function. Raises InputError for anything else.

    The policy of the linear program is that of ``problem``, which is solved.
    """
    if isinstance(algorithm, Verifier):
        return algorithm
    if algorithm == "policy":
        return verifier("policy", policy_certificate(problem, solve(problem)))
    if isinstance(algorithm, str) or not callable(algorithm):
        return verifier(algorithm)
    try:
        inspect.signature(algorithm).bind(None)
    except (TypeError, ValueError):
        expected = "a function of one DraftTree that returns a StopDistribution (audit() takes programs)"
        raise errors.fail("algorithm", got=errors.shown(algorithm), expected=expected) from None
    name = getattr(algorithm, "__name__", type(algorithm).__name__)

    def stop_distribution(tree: DraftTree) -> StopDistribution:
        result = algorithm(tree)
        if not isinstance(result, StopDistribution):
            raise errors.fail(f"algorithm {name}", got=errors.shown(result), expected="a StopDistribution")
        return result

    return Verifier(name, stop_distribution)


def policy_certificate(problem: VerifyProblem, optimum: LpSolution) -> Certificate:
    """The certificate that runs the optimum, in the problem's arithmetic.

    In Fractions it attains the optimum to about 1e-9. Raises InputError if the method of ``optimum`` has none.
    """
    certificate = optimum.certificate
    if certificate is None:
        expected = "another method, with a certificate"
        raise errors.fail("policy", got=f"an optimum of the method {optimum.method}", expected=expected)
    exact = problem.pair.rational and not is_exact(certificate.ranks.mass)
    return exact_certificate(problem.pair, certificate) if exact else certificate


def enumerated_masses(
    pair: ModelPair, algorithm: Verifier, paths: int, max_terms: int = MAX_DRAFTS
) -> tuple[Levels, int]:
    """Emitted masses (see `lpverify.exact.recursion`) summed over all drafts, and their number. Raises SizeError."""
    terms = IidPaths(paths).count(pair, ordered=algorithm.path_order)
    if terms > max_terms:
        instead = "use fewer paths or a smaller tree"
        if algorithm.node_rule is not None or algorithm.leaf_to_root:
            instead = 'use method="recursion"'
        elif algorithm.closed_form is not None:
            instead = 'use method="closed form" for the value alone'
        what = f"enumeration of {paths} paths of {pair.depth} out of {pair.vocab_size} tokens for {algorithm.name}"
        size = f"{terms} {'ordered tuples' if algorithm.path_order else 'multisets'}"
        raise errors.too_large(what, size=size, limit=str(max_terms), instead=instead)
    emitted = recursion.no_masses(pair)
    for draft in IidPaths(paths).enumerate(pair, ordered=algorithm.path_order):
        view = DraftTree.from_pair(pair, draft.paths)
        stops = algorithm(view)
        index = level_index(view, pair.vocab_size)
        for node in np.flatnonzero(stops.stop > 0).tolist():
            emitted[view.depth[node]][index[node]] += draft.probability * stops.stop[node] * stops.next_token(node)
    return emitted, terms


def emitted_law(pair: ModelPair, emitted: Levels) -> Array:
    """Distribution of the first L+1 tokens, shape (V**(L+1),), if the target continues after each emitted token."""
    begun = emitted[0].reshape(-1)
    for rows, stopped in zip((*pair.target[1:], pair.bonus_rows), emitted[1:], strict=True):
        begun = (begun[:, None] * rows + stopped).reshape(-1)
    return begun


def total_variation(first: Array, second: Array) -> Any:
    """Half the sum of absolute differences of two distributions."""
    return abs(first - second).sum() / 2


def scalar(value: Any) -> float | Fraction:
    """A Fraction as it is, anything else as a float."""
    return value if isinstance(value, Fraction) else float(value)
