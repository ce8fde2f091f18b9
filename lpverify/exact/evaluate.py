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
from lpverify.core.results import Certificate, DraftCertificate, Evaluation, LpSolution
from lpverify.drafting import DraftLike, draft_distribution
from lpverify.drafting.base import DraftDistribution
from lpverify.drafting.iid_paths import IidPaths
from lpverify.exact import recursion
from lpverify.exact.closed_form import block_efficiency
from lpverify.lp import draft_certificate
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
    draft: DraftLike | None = None,
    method: str = "auto",
    max_terms: int | None = None,
) -> Evaluation:
    """Evaluate a verifier on a problem: block efficiency, accepted lengths, and whether it is lossless.

    Args:
        problem: A problem or what can become one: a name, a file, a pair, a document (`lpverify.as_problem`).
        algorithm: A name of `lpverify.verifiers.VERIFIERS`, a `Verifier`, or a function of one `DraftTree` that returns
            a `StopDistribution`. "policy" is the optimum of the linear program, which is then solved.
        num_paths: K i.i.d. paths; None: that of the problem.
        draft: Another draft distribution, or its spec such as "distinct-paths:3", instead of K i.i.d. paths; it is
            enumerated.
        method: One of `METHODS`. "auto" is the recursion for verifiers that have one, else enumeration up to
            ``max_terms`` terms, else the closed form.
        max_terms: Largest number of terms; None: a limit of the method.

    Returns:
        The evaluation, in Fractions for a rational problem.

    Raises:
        InputError: No problem, an unknown algorithm, a method that the verifier does not have, or a draft distribution
            that does not provide what the verifier needs.
        SizeError: More than ``max_terms`` terms.

    >>> coin = ModelPair.iid([0.25, 0.75], [0.6, 0.4], depth=1)
    >>> round(evaluate(coin, "specinfer", 2).block_efficiency, 6)
    1.79
    >>> evaluate("coin-2", "traversal", draft="distinct-children:2,1").law_error
    Fraction(0, 1)
    """
    problem, law = with_draft(problem, num_paths, draft)
    errors.choice("method", method, METHODS)
    pair, checked = problem.pair, as_verifier(algorithm, problem, law)
    check_draft(checked, law)
    iid, paths = isinstance(law, IidPaths), problem.num_paths
    if iid and checked.first_path_only:
        law, paths = IidPaths(1), 1
    recursive = iid and (checked.node_rule is not None or checked.leaf_to_root)
    closed = iid and checked.closed_form is not None
    if method == "recursion" and not recursive:
        raise errors.fail("method", got=f"recursion for {checked.name}", expected="a top-down verifier or traversal")
    if method == "closed form" and not closed:
        expected = "one of " + ", ".join(names(closed_form=True))
        raise errors.fail("method", got=f"closed form for {checked.name}", expected=expected)
    if method == "auto":
        fits = law.count(pair, ordered=checked.path_order) <= (max_terms or MAX_DRAFTS)
        method = "recursion" if recursive else "closed form" if closed and not fits else "enumeration"
    if method == "closed form":
        value = block_efficiency(pair, checked, paths)
        return Evaluation(checked.name, problem.num_paths, value, method, pair.nodes)
    if method == "enumeration":
        masses, terms = enumerated_masses(pair, checked, law, max_terms or MAX_DRAFTS)
    elif (rule := checked.node_rule) is not None:
        limit = max_terms or recursion.MAX_TUPLES
        masses, terms = recursion.top_down_masses(pair, rule, paths, ordered=checked.path_order, max_terms=limit)
    else:
        masses, terms = recursion.traversal_masses(pair, paths, max_terms or recursion.MAX_VISITS)
    stopping = np.array([level.sum() for level in masses], dtype=masses[0].dtype)
    accepted, emitted = np.cumsum(stopping[::-1])[::-1], emitted_law(pair, masses)
    law_error = scalar(total_variation(emitted, path_probabilities((*pair.target, pair.bonus_rows))[-1]))
    value = scalar(1 + accepted[1:].sum())
    return Evaluation(checked.name, problem.num_paths, value, method, terms, accepted, emitted, law_error)


def with_draft(
    problem: ProblemLike, num_paths: int | None, draft: DraftLike | None
) -> tuple[VerifyProblem, DraftDistribution]:
    """The problem and its draft distribution: K = ``num_paths`` i.i.d. paths, or ``draft``, if that is not None.

    For another draft distribution than i.i.d. paths the K of the problem means nothing. Raises InputError where both
    are given, or the draft distribution does not fit the problem.
    """
    if draft is None:
        checked = as_problem(problem, num_paths)
        return checked, IidPaths(checked.num_paths)
    law = draft_distribution(draft)
    if num_paths is not None:
        raise errors.fail("num_paths", got=f"{num_paths} beside {law.spec}", expected="one of them")
    checked = as_problem(problem, law.num_paths if isinstance(law, IidPaths) else None)
    law.check(checked.pair)
    return checked, law


def check_draft(algorithm: Verifier, draft: DraftDistribution) -> None:
    """Raise InputError if a verifier is not lossless for a draft distribution: it needs more than that provides."""
    if algorithm.needs in draft.provides or algorithm.needs == draft.spec:
        return
    expected = f"a verifier that needs {' or '.join(sorted(draft.provides))}"
    raise errors.fail(
        f"algorithm {algorithm.name} with {draft.spec}", got=f"one that needs {algorithm.needs}", expected=expected
    )


def as_verifier(algorithm: Algorithm, problem: VerifyProblem, draft: DraftDistribution | None = None) -> Verifier:
    """The verifier that `evaluate` runs for a name, a verifier or a function. Raises InputError for anything else.

    The policy of the linear program is that of ``problem`` and ``draft``, which is solved; None: i.i.d. paths.
    """
    if isinstance(algorithm, Verifier):
        return algorithm
    if algorithm == "policy":
        other = None if draft is None or isinstance(draft, IidPaths) else draft
        return verifier("policy", policy_certificate(problem, solve(problem, draft=other)))
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

    return Verifier(name, stop_distribution, needs="any tree")


def policy_certificate(problem: VerifyProblem, optimum: LpSolution) -> Certificate | DraftCertificate:
    """The certificate that runs the optimum, in the problem's arithmetic.

    In Fractions it attains the optimum to about 1e-9. Raises InputError if the method of ``optimum`` has none.
    """
    certificate = optimum.certificate
    if certificate is None:
        expected = "another method, with a certificate"
        raise errors.fail("policy", got=f"an optimum of the method {optimum.method}", expected=expected)
    if not problem.pair.rational or is_exact(certificate.selected[-1]):
        return certificate
    if isinstance(certificate, DraftCertificate):
        return draft_certificate.exact_certificate(problem.pair, certificate)
    return exact_certificate(problem.pair, certificate)


def enumerated_masses(
    pair: ModelPair, algorithm: Verifier, drawn: DraftLike, max_terms: int = MAX_DRAFTS
) -> tuple[Levels, int]:
    """Emitted masses (see `lpverify.exact.recursion`) summed over all drafts, and their number. Raises SizeError."""
    law = draft_distribution(drawn)
    terms = law.count(pair, ordered=algorithm.path_order)
    if terms > max_terms:
        instead = "use fewer paths or a smaller tree"
        if isinstance(law, IidPaths) and (algorithm.node_rule is not None or algorithm.leaf_to_root):
            instead = 'use method="recursion"'
        elif isinstance(law, IidPaths) and algorithm.closed_form is not None:
            instead = 'use method="closed form" for the value alone'
        drafts = f"{law.num_paths} paths" if isinstance(law, IidPaths) else law.spec
        what = f"enumeration of {drafts} of {pair.depth} out of {pair.vocab_size} tokens for {algorithm.name}"
        size = f"{terms} {'ordered tuples' if algorithm.path_order else 'multisets'}"
        raise errors.too_large(what, size=size, limit=str(max_terms), instead=instead)
    emitted = recursion.no_masses(pair)
    for draft in law.enumerate(pair, ordered=algorithm.path_order):
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
