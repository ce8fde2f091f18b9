"""Losslessness audit of a verifier over a table of cases.

The stop distributions of a verifier of this package are summed over all drafts, and the emitted distribution is
compared with the target's distribution of L+1 tokens, without tolerance on rational cases. A third-party verifier is a
program

    f(paths, target, draft, rng) -> (accepted_tokens, next_token)

``paths`` are K tuples of L tokens. ``target(prefix)`` and ``draft(prefix)`` return probability rows after at most L and
at most L-1 tokens: arrays of Fraction on rational cases, float64 where f does not take those. ``rng`` offers
``bernoulli(p)``, ``categorical(weights)`` and ``uniform()``. A program that compares its uniforms with numbers, and
draws nothing else, is audited exactly too: every draft and every choice is enumerated (`lpverify.auditing.choices`).
Any other program is sampled and tested (`lpverify.auditing.identity`), all cases together with a false alarm of at most
1e-6. Uniforms also take the ends of [0, 1), where no impossible token may come out.

Some cases run two rounds (draft, verify, draft again) with one ``rng``. The joint distribution of the tokens of both
rounds, each continued by the target to L+1 tokens, must be the product. The audit drafts through the same ``rng``, path
by path. To audit a drafter together with its verifier (noise that is used twice, a declared draft distribution that is
not the one sampled from), give f an attribute ``draft_paths(draft, paths, length, rng) -> K tuples of L tokens``. A
class is instantiated for every run of one or two rounds; anything else keeps its state.
"""

from __future__ import annotations

import random
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.auditing.adapter import Adapter, BatchProgram, Program, RowTable, Tokens
from lpverify.auditing.cases import Case, select
from lpverify.auditing.choices import (
    UNIFORMS,
    EndChoices,
    NotEnumerable,
    SampledChoices,
    enumerate_outcomes,
)
from lpverify.auditing.guard import Fault, guarded, interrupts_pass
from lpverify.auditing.identity import identity_test, smallest_found
from lpverify.core import prefix_tree as tree
from lpverify.core.model_pair import ModelPair, path_probabilities
from lpverify.core.results import AuditReport, CaseAudit, Finding
from lpverify.exact import evaluate, recursion
from lpverify.numerics import Array, Levels, as_float
from lpverify.verifiers import Verifier

FALSE_ALARM = 1e-6
DRAWS = 20_000
TOLERANCE = 1e-12
"""Total variation attributed to rounding where floats are summed."""
MAX_RUNS = 50_000
"""Maximum number of enumerated runs of a case; programs with more are sampled."""
BOUNDARY_RUNS = 2_000
REPEATS = 20
"""Repetitions of an enumeration that found a difference, to detect randomness that the program did not get from
``rng``. If it causes a total variation of d, it stays undetected with probability exp(-20 d) at most."""
OWN_RANDOMNESS = "it brings randomness of its own"
MAX_SEQUENCES = 1_000_000
ROUNDING = 1e-5
"""A total variation up to this, in floats, may be rounding: sums in single precision."""


def audit(
    subject: str | Verifier | Program | BatchProgram,
    *,
    cases: Sequence[str | Case] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    stop_early: bool = False,
    progress: Callable[[str], None] = lambda case: None,
) -> AuditReport:
    """Is a verifier lossless?

    Args:
        subject: name of an algorithm, a `Verifier`, or a third-party verifier (see the module), also one that
            `lpverify.adapt` made of a function of a serving engine.
        cases: cases, or names as `lpverify.auditing.cases.select` takes them; None: the whole table.
        draws: sample size of each sampled case.
        seed: of what is sampled.
        tolerance: total variation attributed to rounding where floats are summed.
        stop_early: end at the first finding.
        progress: called with the name of each case before it is audited.

    Returns:
        One `CaseAudit` per case; ``outcome``, ``lossless`` and ``findings`` summarise them. Whatever a third-party
        verifier raises is a finding, ``SystemExit`` and other ``BaseException`` included.

    Raises:
        InputError: an unknown name or a bad option. SizeError: a case is too large.

    >>> audit("bv", cases=["one step", "coin"]).lossless
    True
    >>> def greedy(paths, target, draft, rng):
    ...     return paths[0], rng.categorical(target(paths[0]))
    >>> audit(greedy, cases=["one step"], stop_early=True).findings[0][1].message
    'the emitted distribution differs from the target at "0": probability 3/5, expected 1/5'
    """
    errors.integer("draws", draws, min=1)
    errors.integer("seed", seed, min=0)
    if not 0 <= tolerance < 1:
        raise errors.fail("tolerance", got=tolerance, expected="a number in [0, 1)")
    chosen = _cases(cases)
    ours = isinstance(subject, str | Verifier)
    if ours:
        chosen = [case for case in chosen if case.rounds == 1]  # a stop distribution has no state for a second round
    elif isinstance(subject, BatchProgram):
        chosen = [case for case in chosen if case.problem.num_paths <= (subject.max_paths or case.problem.num_paths)]
        if not chosen:
            expected = f"a case of at most {subject.max_paths} path"
            raise errors.fail("cases", got="only cases of more paths", expected=expected)
    elif not callable(subject):
        raise errors.fail("verifier", got=repr(subject), expected="a name, a Verifier or a function")
    results: list[CaseAudit] = []
    with interrupts_pass():
        for case in chosen:
            progress(case.name)
            if isinstance(subject, str | Verifier):
                results.append(_audit_verifier(subject, case, tolerance))
            else:
                own = any(OWN_RANDOMNESS in result.note for result in results)
                differs = any(result.finding for result in results)
                settings = _Settings(draws, f"{seed} {case.name}", FALSE_ALARM / len(chosen), tolerance, own, differs)
                results.append(_audit_program(subject, case, settings))
            if stop_early and results[-1].finding:
                break
    results = _ties_only(results, chosen)
    name = subject if isinstance(subject, str) else type(subject).__name__
    with suppress(Fault), guarded():
        own_name = getattr(subject, "name" if ours else "__name__", name)
        name = own_name if isinstance(own_name, str) and own_name else name
    sampled = any(result.mode == "sampled" for result in results)
    return AuditReport(name, tuple(results), FALSE_ALARM if sampled else 0.0)


def _cases(names: Sequence[str | Case] | None) -> list[Case]:
    if names is None:
        return select(None)
    groups = [[case] if isinstance(case, Case) else select([case]) for case in names]
    chosen = list({case.name: case for group in groups for case in group}.values())
    if not chosen:
        raise errors.fail("cases", got="none", expected="at least one")
    for case in chosen:
        pair = case.problem.pair
        sequences = pair.vocab_size ** (case.rounds * (pair.depth + 1))
        if sequences > MAX_SEQUENCES:
            raise errors.too_large(
                f"audit of case {case.name}",
                size=f"{sequences:,} sequences of tokens",
                limit=f"{MAX_SEQUENCES:,}",
                instead="use a smaller vocabulary or depth",
            )
    return chosen


def _result(case: Case, mode: str, pair: ModelPair, **fields: Any) -> CaseAudit:
    shape = (pair.vocab_size, pair.depth, case.problem.num_paths, case.rounds)
    return CaseAudit(case.name, *shape, mode, pair.rational, **fields)


# comparison with the target


def compare_distributions(pair: ModelPair, emitted: Array, rounds: int, tolerance: float) -> tuple[Any, Finding | None]:
    """Total variation of an emitted distribution to the target's, and the finding if rounding does not explain it.

    ``emitted`` (V**(rounds (L+1)),): probabilities of the sequences of ``rounds`` times L+1 tokens. ``tolerance`` is
    0 where everything is rational, and for tokens of target probability 0.
    """
    expected, possible = _target_distribution(pair, rounds)
    if pair.rational and all(isinstance(mass, Fraction) for mass in emitted):
        tolerance = 0
    else:
        emitted, expected = as_float(emitted), as_float(expected)
    distance = evaluate.scalar(evaluate.total_variation(emitted, expected))
    impossible = (emitted > 0) & ~possible
    if not distance > tolerance and not impossible.any():
        return distance, None
    length = rounds * (pair.depth + 1)
    for depth in range(length + 1):  # the shortest prefixes that differ
        got, right, wrong = (x.reshape(pair.vocab_size**depth, -1).sum(axis=1) for x in (emitted, expected, impossible))
        gap = abs(got - right)
        if evaluate.total_variation(got, right) > tolerance or depth == length:
            break
    never = (right == 0) & (wrong > 0)
    index = int(np.argmax(np.where(never, gap, -1) if never.any() else gap))
    return distance, _difference(pair, emitted, expected, depth, index)


def _target_distribution(pair: ModelPair, rounds: int) -> tuple[Array, Array]:
    """Of ``rounds`` times L+1 tokens, and which sequences are possible (products may underflow)."""
    rows = (*pair.target, pair.bonus_rows)
    once, possible = path_probabilities(rows)[-1], path_probabilities([level > 0 for level in rows])[-1] > 0
    joint, joint_possible = once, possible
    for _ in range(rounds - 1):
        joint = (joint[:, None] * once).reshape(-1)
        joint_possible = (joint_possible[:, None] & possible).reshape(-1)
    return joint, joint_possible


def _difference(pair: ModelPair, emitted: Array, expected: Array, depth: int, index: int) -> Finding:
    """The finding that a prefix, given by its length and index, does not have the target's probability."""
    if depth == 0:
        message = f"the emitted probabilities sum to {_shown(emitted.sum())}"
        return Finding("law", message, (), expected.sum(), emitted.sum())
    got, right = (x.reshape(pair.vocab_size**depth, -1)[index].sum() for x in (emitted, expected))
    prefix = tree.prefix_of(index, depth, pair.vocab_size)
    words, first = [errors.label(pair.tokens[token]) for token in prefix], pair.depth + 1
    shown = " ".join(words[:first]) + (" | " + " ".join(words[first:]) if len(words) > first else "")
    difference = f"probability {_shown(got)}, expected {_shown(right)}"
    message = f'the emitted distribution differs from the target at "{shown}": {difference}'
    kind = "impossible token" if right == 0 else "law"
    return Finding(kind, message, prefix, evaluate.scalar(right), evaluate.scalar(got))


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, Fraction) and value.denominator < 10**7 else f"{float(value):.9g}"


# what a fault looks like


def _with_cause(pair: ModelPair, masses: Levels, finding: Finding, distance: Any, tolerance: float) -> Finding:
    """The finding with its cause. ``masses`` (V**i, V) a level: probability of accepting c and emitting y.

    With f(c) the probability that the accepted prefix passes through c, a lossless verifier has
    f(cy) <= p(y|c) f(c), and emits y at c with probability p(y|c) f(c) - f(cy). If the first holds everywhere, only
    the second, the residual distribution, is wrong.
    """
    if finding.kind == "law" and 0 < distance <= ROUNDING and not isinstance(distance, Fraction):
        enough = float(f"{distance:.0e}")
        enough = enough if enough >= distance else float(f"{distance * 1.5:.0e}")
        explanation = f"if rounding explains this, --tolerance {enough:g} passes"
        return replace(finding, cause="rounding", explanation=explanation)
    reach = [level.sum(axis=1) for level in masses]
    for depth in range(pair.depth, 0, -1):
        reach[depth - 1] = reach[depth - 1] + reach[depth].reshape(-1, pair.vocab_size).sum(axis=1)
    for depth, rows in enumerate(pair.target):
        excess = reach[depth + 1] - (reach[depth][:, None] * rows).reshape(-1)
        if (excess > tolerance * (not pair.rational)).any():
            prefix = tree.prefix_of(int(np.argmax(excess)), depth + 1, pair.vocab_size)
            shown = errors.label(" ".join(pair.tokens[token] for token in prefix))
            explanation = f'it accepts the last token of "{shown}" too often'
            return replace(finding, cause="acceptance", explanation=explanation)
    if finding.kind == "law" and not finding.prefix:
        return finding
    explanation = "what it accepts is possible, so the residual distribution of the next token is wrong"
    return replace(finding, cause="residual", explanation=explanation)


def _ties_only(results: list[CaseAudit], chosen: Sequence[Case]) -> list[CaseAudit]:
    """Where only cases with ties of p/q have findings, and others of several paths do not, ties are the cause."""
    tied = [_has_ties(case.problem.pair) for case in chosen[: len(results)]]
    clean = [result for result, ties in zip(results, tied, strict=True) if result.num_paths > 1 and not ties]
    wrong = [ties for result, ties in zip(results, tied, strict=True) if result.finding]
    if not clean or not wrong or not all(wrong):
        return results
    advice = "only where tokens have equal p/q: selection and correction must order ties alike"
    return [
        replace(result, finding=replace(result.finding, cause="ties", explanation=advice))
        if result.finding and result.finding.kind in ("law", "impossible token")
        else result
        for result in results
    ]


def _has_ties(pair: ModelPair) -> bool:
    """Do two tokens that can be drafted have the same p/q in some row?"""
    for target, draft in zip(pair.target, pair.draft, strict=True):
        for p, q in zip(target, draft, strict=True):
            with np.errstate(over="ignore"):
                ratios = (p[q > 0] / q[q > 0]).tolist()
            if len(set(ratios)) < len(ratios):
                return True
    return False


# verifiers of this package


def _audit_verifier(subject: str | Verifier, case: Case, tolerance: float) -> CaseAudit:
    pair = case.problem.pair
    try:
        algorithm = subject if isinstance(subject, Verifier) else evaluate.as_verifier(subject, case.problem)
        unsymmetric = replace(algorithm, path_order=True, first_path_only=False)  # do not trust declared symmetries
        with guarded():
            masses, terms = evaluate.enumerated_masses(pair, unsymmetric, case.problem.num_paths)
    except errors.SizeError as error:
        return _result(case, "refused", pair, note=str(error))
    except Fault as fault:
        if isinstance(fault.__cause__, errors.SizeError):
            return _result(case, "refused", pair, note=str(fault.__cause__))
        return _result(case, "exact", pair, finding=fault.finding)
    distance, finding = compare_distributions(pair, evaluate.emitted_law(pair, masses), 1, tolerance)
    finding = finding and _with_cause(pair, masses, finding, distance, tolerance)
    return _result(case, "exact", pair, count=terms, total_variation=distance, finding=finding)


# third-party verifiers


@dataclass(frozen=True)
class _Settings:
    draws: int
    seed: str
    alpha: float
    tolerance: float
    sample: bool  # the program has shown randomness of its own
    differs: bool  # it has a finding on another case


def _audit_program(function: Program | BatchProgram, case: Case, settings: _Settings) -> CaseAudit:
    """In the case's arithmetic; in floats where the program does not take Fractions."""
    pair = case.problem.pair
    result = _audit_in(pair, function, case, settings)
    if not (pair.rational and result.finding and result.finding.kind == "raised"):
        return result
    again = _audit_in(pair.floats, function, case, settings)
    if again.finding and again.finding.kind == "raised":
        return again
    note = f"in floats, as it does not take Fractions ({result.finding.message})"
    return replace(again, note="; ".join(filter(None, (again.note, note))))


def _audit_in(pair: ModelPair, function: Program | BatchProgram, case: Case, settings: _Settings) -> CaseAudit:
    """In the arithmetic of ``pair``: by enumeration, else by sampling."""
    table = RowTable(pair)
    adapter = Adapter(function, table, case.problem.num_paths, case.rounds)
    try:
        with np.errstate(all="ignore"):
            if settings.sample:
                raise NotEnumerable(OWN_RANDOMNESS)
            before, modules = _global_states(), len(sys.modules)
            masses, runs = enumerate_outcomes(adapter, max_runs=MAX_RUNS)
            if len(sys.modules) > modules:  # what an import does to the generators is not the program's randomness
                before = _global_states()
                masses, runs = enumerate_outcomes(adapter, max_runs=MAX_RUNS)
            if _global_states() != before:
                raise NotEnumerable(OWN_RANDOMNESS)
            emitted = joint_distribution(pair, masses)
            distance, finding = compare_distributions(pair, emitted, case.rounds, settings.tolerance)
            for _ in range(REPEATS if finding and not settings.differs else 0):
                if enumerate_outcomes(adapter, max_runs=MAX_RUNS)[0] != masses:
                    raise NotEnumerable(OWN_RANDOMNESS)
        if finding and case.rounds == 1:
            finding = _with_cause(pair, emitted_masses(pair, masses), finding, distance, settings.tolerance)
        elif finding and len(finding.prefix or ()) > pair.depth + 1:
            finding = replace(finding, cause="rounds", explanation=f"the second {adapter.round} depends on the first")
        finding, note = table.changed() or finding, ""
        if adapter.uniforms and finding is None:
            note = _at_boundaries(adapter, pair, settings.seed)
        return _result(case, "exact", pair, count=runs, total_variation=distance, finding=finding, note=note)
    except Fault as fault:
        if fault.finding.kind == "raised" and adapter.uniforms and not pair.rational and not table.changed():
            return _audit_sampled(pair, function, case, settings, UNIFORMS)
        return _result(case, "exact", pair, finding=table.changed() or fault.finding)
    except NotEnumerable as reason:
        changed = table.changed()
        if changed:
            return _result(case, "exact", pair, finding=changed)
        return _audit_sampled(pair.floats, function, case, settings, str(reason))


def _global_states() -> tuple[Any, ...]:
    """States of the global generators of Python, numpy and (if the program has loaded it) torch."""
    torch = sys.modules.get("torch")
    legacy = str(np.random.get_state(legacy=False))  # noqa: NPY002
    return random.getstate(), legacy, torch.get_rng_state().tolist() if torch else None


def _audit_sampled(
    pair: ModelPair, function: Program | BatchProgram, case: Case, settings: _Settings, reason: str
) -> CaseAudit:
    table = RowTable(pair)
    adapter = Adapter(function, table, case.problem.num_paths, case.rounds)
    expected, _ = _target_distribution(pair, case.rounds)
    smallest = smallest_found(int((expected > 0).sum()), settings.draws, settings.alpha)
    fields: dict[str, Any] = {"count": settings.draws, "smallest_found": smallest}
    try:
        with np.errstate(all="ignore"):
            note = _at_boundaries(adapter, pair, settings.seed)
            counts = _sample(adapter, pair, settings)
    except Fault as fault:
        return _result(case, "sampled", pair, finding=table.changed() or fault.finding, note=reason, **fields)
    test = identity_test(counts, expected, pair.vocab_size, case.rounds * (pair.depth + 1), settings.alpha)
    finding = test.prefix and _difference(pair, counts / settings.draws, expected, *test.prefix)
    fields |= {"total_variation": test.total_variation, "threshold": test.threshold}
    note = "; ".join(filter(None, (reason, note)))
    return _result(case, "sampled", pair, finding=table.changed() or finding, note=note, **fields)


def _at_boundaries(adapter: Adapter, pair: ModelPair, seed: str) -> str:
    """Raise Fault when a uniform at an end of [0, 1) makes an impossible token; a note when it makes an error.

    All choices among the ends and 1/2 are enumerated; where they are too many, or drawn before it is known which of
    them matter, some are drawn.
    """
    possible = _target_distribution(pair, 1)[1]

    def check(emissions: tuple[Tokens, ...]) -> bool:
        for emission in emissions:
            below = pair.vocab_size ** (pair.depth + 1 - len(emission))
            first = tree.index_of(emission, pair.vocab_size) * below
            if not possible[first : first + below].any():
                shown = errors.label(" ".join(pair.tokens[token] for token in emission))
                message = f'a uniform of 0 or 1 - 2^-53 makes it emit "{shown}", which the target never does'
                explanation = (
                    "it must reject where the uniform equals the acceptance probability: u >= p/q, not u > p/q"
                )
                raise Fault(Finding("impossible token", message, emission, 0.0, None, "boundary", explanation))
        return True

    try:
        if not isinstance(adapter.function, BatchProgram):
            with suppress(NotEnumerable):
                enumerate_outcomes(lambda choices: check(adapter(choices)), max_runs=BOUNDARY_RUNS, boundary=True)
                return ""
        for emissions in adapter.several(EndChoices(f"ends {seed}"), BOUNDARY_RUNS):
            check(emissions)
    except Fault as fault:
        if fault.finding.kind != "raised":
            raise
        return f"at a uniform of 0 or 1 - 2^-53 it {fault.finding.message}"
    return ""


def _sample(adapter: Adapter, pair: ModelPair, settings: _Settings) -> Any:
    """Counts of each sequence of rounds (L+1) tokens, every round continued by the target."""
    choices, continuation = SampledChoices(settings.seed), random.Random(f"continuation {settings.seed}")
    size, full = pair.vocab_size, pair.depth + 1
    cumulative = [[list(accumulate(row)) for row in rows.tolist()] for rows in (*pair.target, pair.bonus_rows)]
    counts = np.zeros(size ** (adapter.rounds * full), dtype=np.int64)
    for emissions in adapter.several(choices, settings.draws):
        sequence = 0
        for emission in emissions:
            node = tree.index_of(emission, size)
            for depth in range(len(emission), full):
                row = cumulative[depth][node]
                node = node * size + bisect_right(row, continuation.random() * row[-1])
            sequence = sequence * size**full + node
        counts[sequence] += 1
    return counts


def emitted_masses(pair: ModelPair, masses: Mapping[tuple[Tokens, ...], Any]) -> Levels:
    """Of one round, as `lpverify.exact.recursion` has them: at (c, y) the probability to accept c and emit y."""
    emitted = recursion.no_masses(pair)
    for (emission,), mass in masses.items():
        *accepted, token = emission
        emitted[len(accepted)][tree.index_of(accepted, pair.vocab_size), token] += mass
    return emitted


def joint_distribution(pair: ModelPair, masses: Mapping[tuple[Tokens, ...], Any]) -> Array:
    """Distribution of the tokens of all rounds, each round continued by the target to L+1 tokens.

    ``masses``: probability of the emissions (one tuple of tokens per round).
    """
    if len(next(iter(masses))) == 1:
        return evaluate.emitted_law(pair, emitted_masses(pair, masses))
    by_first: dict[Tokens, dict[tuple[Tokens, ...], Any]] = {}
    for (first, *others), mass in masses.items():
        by_first.setdefault(first, {})[tuple(others)] = mass
    parts = (joint_distribution(pair, {(e,): 1})[:, None] * joint_distribution(pair, m) for e, m in by_first.items())
    return np.asarray(sum(parts)).reshape(-1)
