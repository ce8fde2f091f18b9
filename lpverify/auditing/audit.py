"""Is a verifier lossless? An audit over a table of cases.

A verifier of this package is a law: it is summed over all drafts and compared with the target's law of L+1 tokens,
without tolerance on rational cases. An outside verifier is a program

    f(paths, target, draft, rng) -> (accepted_tokens, next_token)

``paths`` are K tuples of L tokens; ``target(prefix)`` and ``draft(prefix)`` are probability rows (arrays of Fraction on
rational cases; float64 where f does not take those) after at most L, at most L-1 tokens; ``rng`` offers
``bernoulli(p)``, ``categorical(weights)`` and ``uniform()``. While it draws with the first two only, its law is exact
too: every draft and every choice is enumerated (`lpverify.auditing.choices`). Otherwise it is sampled and tested
(`lpverify.auditing.identity`), all cases together with a false alarm of at most 1e-6, and its uniforms also take
the ends of [0, 1), where no impossible token may come out.

Some cases run two rounds (draft, verify, draft again) with one ``rng``: the joint law of the tokens of both rounds,
each continued by the target to L+1, must be the product. The audit drafts through the same ``rng``, path by path. To
audit a drafter together with its verifier (noise that is used twice, a declared draft law that is not the one sampled
from), give f an attribute ``draft_paths(draft, paths, length, rng) -> K tuples of L tokens``. A class is instantiated
anew for every run of one or two rounds, anything else keeps its state.
"""

from __future__ import annotations

import random
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.auditing.adapter import Fault, Program, Rounds, RowTable, Tokens
from lpverify.auditing.cases import Case, select
from lpverify.auditing.choices import Choices, NotEnumerable, SampledChoices, enumerate_outcomes
from lpverify.auditing.identity import identity_test, smallest_found
from lpverify.core import prefix_tree as tree
from lpverify.core.model_pair import ModelPair, path_probabilities
from lpverify.core.results import AuditReport, CaseAudit, Finding
from lpverify.exact import evaluate, recursion
from lpverify.numerics import Array, as_float
from lpverify.verifiers import Verifier

FALSE_ALARM = 1e-6
DRAWS = 20_000
TOLERANCE = 1e-12
"""Total variation that rounding may cause where floats are summed."""
MAX_RUNS = 50_000
"""Most runs that are enumerated for a case; beyond it is sampled."""
BOUNDARY_RUNS = 2_000
REPEATS = 20
"""How often an enumeration that leaves the target is repeated, to see whether the program brings randomness of its own:
such randomness that makes a total variation of d stays unseen with probability exp(-20 d) at most."""
OWN_RANDOMNESS = "it brings randomness of its own"
MAX_SEQUENCES = 1_000_000


def audit(
    subject: str | Verifier | Program,
    *,
    cases: Sequence[str | Case] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    stop_early: bool = False,
    progress: Callable[[str], None] = lambda case: None,
) -> AuditReport:
    """Audit a verifier given by name, as a `Verifier` or as an outside function (see the module).

    ``cases``: names as `lpverify.auditing.cases.select` takes them, or cases; default: the whole table. ``draws``
    and ``seed`` are for cases that are sampled, ``tolerance`` for laws summed in floats, ``stop_early`` ends at the
    first finding, ``progress`` is told each case. Raises InputError for an unknown name, SizeError for a case too
    large.

    >>> audit("bv", cases=["one step", "coin"]).lossless
    True
    >>> def greedy(paths, target, draft, rng):
    ...     return paths[0], rng.categorical(target(paths[0]))
    >>> audit(greedy, cases=["one step"], stop_early=True).findings[0][1].message
    'the law leaves the target at "0": probability 3/5, the target has 1/5'
    """
    errors.integer("draws", draws, min=1)
    errors.integer("seed", seed, min=0)
    if not 0 <= tolerance < 1:
        raise errors.fail("tolerance", got=tolerance, expected="a number in [0, 1)")
    chosen = _cases(cases)
    if isinstance(subject, str | Verifier):
        chosen = [case for case in chosen if case.rounds == 1]  # a law has no state that a second round could see
    elif not callable(subject):
        raise errors.fail("verifier", got=repr(subject), expected="a name, a Verifier or a function")
    results: list[CaseAudit] = []
    for case in chosen:
        progress(case.name)
        if isinstance(subject, str | Verifier):
            results.append(_audit_law(subject, case, tolerance))
        else:
            own = any(OWN_RANDOMNESS in result.note for result in results)
            convicted = any(result.finding for result in results)
            settings = _Settings(draws, f"{seed} {case.name}", FALSE_ALARM / len(chosen), tolerance, own, convicted)
            results.append(_audit_program(subject, case, settings))
        if stop_early and results[-1].finding:
            break
    sampled = any(result.mode == "sampled" for result in results)
    return AuditReport(_name(subject), tuple(results), FALSE_ALARM if sampled else 0.0)


def _cases(wanted: Sequence[str | Case] | None) -> list[Case]:
    if wanted is None:
        return select(None)
    groups = [[case] if isinstance(case, Case) else select([case]) for case in wanted]
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


def _name(subject: str | Verifier | Program) -> str:
    if isinstance(subject, str):
        return subject
    if isinstance(subject, Verifier):
        return subject.name
    return getattr(subject, "__name__", type(subject).__name__)


def _blank(case: Case, mode: str, pair: ModelPair, **fields: Any) -> CaseAudit:
    shape = (pair.vocab_size, pair.depth, case.problem.num_paths, case.rounds)
    return CaseAudit(case.name, *shape, mode, pair.rational, **fields)


# laws


def _audit_law(subject: str | Verifier, case: Case, tolerance: float) -> CaseAudit:
    pair, paths = case.problem.pair, case.problem.num_paths
    try:
        algorithm = subject if isinstance(subject, Verifier) else evaluate.build(subject, case.problem)
        everything = replace(algorithm, path_order=True, first_path_only=False)  # its word is not taken for it
        masses, terms = evaluate.enumerated_masses(pair, everything, paths)
    except errors.SizeError as error:
        return _blank(case, "refused", pair, note=str(error))
    law = evaluate.emitted_law(pair, masses)
    distance, finding = compare_laws(pair, law, 1, tolerance)
    return _blank(case, "exact", pair, count=terms, total_variation=distance, finding=finding)


def compare_laws(pair: ModelPair, law: Array, rounds: int, tolerance: float) -> tuple[Any, Finding | None]:
    """Total variation of ``law`` (V**(rounds (L+1)),) to the target's, and the finding if it is more than rounding.

    ``tolerance`` is 0 where all is rational. A token of target probability 0 has no tolerance.
    """
    expected, possible = _target_law(pair, rounds)
    if not (pair.rational and all(isinstance(mass, Fraction) for mass in law)):
        law, expected = as_float(law), as_float(expected)
    else:
        tolerance = 0
    distance = evaluate.scalar(evaluate.total_variation(law, expected))
    impossible = (law > 0) & ~possible
    if not distance > tolerance and not impossible.any():
        return distance, None
    length = rounds * (pair.depth + 1)
    for depth in range(length + 1):
        got, wanted, wrong = (x.reshape(pair.vocab_size**depth, -1).sum(axis=1) for x in (law, expected, impossible))
        gap = abs(got - wanted)
        if evaluate.total_variation(got, wanted) > tolerance or depth == length:
            break
    never = (wanted == 0) & (wrong > 0)
    index = int(np.argmax(np.where(never, gap, -1) if never.any() else gap))
    return distance, law_finding(pair, law, expected, (depth, index))


def _target_law(pair: ModelPair, rounds: int) -> tuple[Array, Array]:
    """The target's law of ``rounds`` times L+1 tokens, and which sequences are possible (products may underflow)."""
    rows = (*pair.target, pair.bonus_rows)
    law, possible = path_probabilities(rows)[-1], path_probabilities([level > 0 for level in rows])[-1] > 0
    joint, joint_possible = law, possible
    for _ in range(rounds - 1):
        joint = (joint[:, None] * law).reshape(-1)
        joint_possible = (joint_possible[:, None] & possible).reshape(-1)
    return joint, joint_possible


def law_finding(pair: ModelPair, law: Array, expected: Array, place: tuple[int, int]) -> Finding:
    """The finding that the probability of a prefix, given by its length and index, is not the target's."""
    depth, index = place
    if depth == 0:
        return Finding("law", f"the law sums to {_shown(law.sum())}", (), expected.sum(), law.sum())
    below = pair.vocab_size**depth
    got, wanted = (x.reshape(below, -1)[index].sum() for x in (law, expected))
    prefix = tree.prefix_of(index, depth, pair.vocab_size)
    words = [pair.tokens[token] for token in prefix]
    first = pair.depth + 1
    shown = " ".join(words[:first]) + (" | " + " ".join(words[first:]) if len(words) > first else "")
    message = f'the law leaves the target at "{shown}": probability {_shown(got)}, the target has {_shown(wanted)}'
    kind = "impossible token" if wanted == 0 else "law"
    return Finding(kind, message, prefix, evaluate.scalar(wanted), evaluate.scalar(got))


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, Fraction) and value.denominator < 10**7 else f"{float(value):.9g}"


# programs


@dataclass(frozen=True)
class _Settings:
    draws: int
    seed: str
    alpha: float
    tolerance: float
    sample: bool  # the program has shown randomness of its own
    convicted: bool  # it has left the target on another case


def _audit_program(function: Program, case: Case, settings: _Settings) -> CaseAudit:
    exact = case.problem.pair
    result = _audit_in(exact, function, case, settings)
    if not (exact.rational and result.finding and result.finding.kind == "raised"):
        return result
    again = _audit_in(exact.floats, function, case, settings)
    note = f"in floats, as it does not take Fractions ({result.finding.message})"
    if again.finding and again.finding.kind == "raised":
        return again
    return replace(again, note="; ".join(filter(None, (again.note, note))))


def _audit_in(pair: ModelPair, function: Program, case: Case, settings: _Settings) -> CaseAudit:
    """In the arithmetic of ``pair``."""
    table = RowTable(pair)
    play = Rounds(function, table, case.problem.num_paths, case.rounds)
    try:
        with np.errstate(all="ignore"):
            if settings.sample:
                raise NotEnumerable(OWN_RANDOMNESS)
            before = _global_states()
            masses, runs = enumerate_outcomes(play, max_runs=MAX_RUNS)
            if _global_states() != before:
                raise NotEnumerable(OWN_RANDOMNESS)
            distance, finding = compare_laws(pair, joint_law(pair, masses), case.rounds, settings.tolerance)
            for _ in range(REPEATS if finding and not settings.convicted else 0):
                if enumerate_outcomes(play, max_runs=MAX_RUNS)[0] != masses:
                    raise NotEnumerable(OWN_RANDOMNESS)
        finding = table.changed() or finding
        return _blank(case, "exact", pair, count=runs, total_variation=distance, finding=finding)
    except Fault as fault:
        return _blank(case, "exact", pair, finding=table.changed() or fault.finding)
    except NotEnumerable as why:
        changed = table.changed()
        if changed:
            return _blank(case, "exact", pair, finding=changed)
        return _sampled(pair.floats, function, case, settings, str(why))


def _global_states() -> tuple[Any, ...]:
    """States of the global generators of Python, numpy and (where the program has loaded it) torch."""
    torch = sys.modules.get("torch")
    legacy = str(np.random.get_state(legacy=False))  # noqa: NPY002
    return random.getstate(), legacy, torch.get_rng_state().tolist() if torch else None


def _sampled(pair: ModelPair, function: Program, case: Case, settings: _Settings, why: str) -> CaseAudit:
    table = RowTable(pair)
    play = Rounds(function, table, case.problem.num_paths, case.rounds)
    expected, possible = _target_law(pair, case.rounds)
    length = case.rounds * (pair.depth + 1)
    cells = int((expected > 0).sum())
    found = smallest_found(cells, settings.draws, settings.alpha)
    fields = {"count": settings.draws, "smallest_found": found}
    try:
        with np.errstate(all="ignore"):
            note = _at_boundaries(play, pair, possible)
            counts = _sample(play, pair, settings)
    except Fault as fault:
        return _blank(case, "sampled", pair, finding=table.changed() or fault.finding, note=why, **fields)
    test = identity_test(counts, expected, pair.vocab_size, length, settings.alpha)
    finding = None
    if test.prefix is not None:
        finding = law_finding(pair, counts / settings.draws, expected, test.prefix)
    return _blank(
        case,
        "sampled",
        pair,
        total_variation=test.total_variation,
        threshold=test.threshold,
        finding=table.changed() or finding,
        note="; ".join(filter(None, (why, note))),
        **fields,
    )


def _at_boundaries(play: Rounds, pair: ModelPair, possible: Array) -> str:
    """Raise Fault when a uniform at an end of [0, 1) makes an impossible token; a note when it makes an error."""

    def run(choices: Choices) -> bool:
        emitted = play(choices)
        for emission in emitted:
            below = pair.vocab_size ** (pair.depth + 1 - len(emission))
            first = tree.index_of(emission, pair.vocab_size) * below
            if not possible[first : first + below].any():
                shown = " ".join(pair.tokens[token] for token in emission)
                message = f'a uniform of 0 or 1 - 2^-53 makes it emit "{shown}", which the target never does'
                raise Fault(Finding("impossible token", message, emission, 0.0, None))
        return True

    try:
        enumerate_outcomes(run, max_runs=BOUNDARY_RUNS, boundary=True)
    except NotEnumerable:
        pass
    except Fault as fault:
        if fault.finding.kind != "raised":
            raise
        return f"at a uniform of 0 or 1 - 2^-53 it {fault.finding.message}"
    return ""


def _sample(play: Rounds, pair: ModelPair, settings: _Settings) -> Any:
    """How often each sequence of rounds (L+1) tokens comes out, every round continued by the target."""
    choices, continuation = SampledChoices(settings.seed), random.Random(f"continuation {settings.seed}")
    size, full = pair.vocab_size, pair.depth + 1
    cumulative = [[list(accumulate(row)) for row in rows.tolist()] for rows in (*pair.target, pair.bonus_rows)]
    counts = np.zeros(size ** (play.rounds * full), dtype=np.int64)
    for _ in range(settings.draws):
        sequence = 0
        for emission in play(choices):
            place = tree.index_of(emission, size)
            for depth in range(len(emission), full):
                row = cumulative[depth][place]
                place = place * size + bisect_right(row, continuation.random() * row[-1])
            sequence = sequence * size**full + place
        counts[sequence] += 1
    return counts


def joint_law(pair: ModelPair, masses: Mapping[tuple[Tokens, ...], Any]) -> Array:
    """Law of the tokens of all rounds, each round continued by the target to L+1 tokens, from the emissions' masses."""
    if len(next(iter(masses))) == 1:
        emitted = recursion.no_masses(pair)
        for (emission,), mass in masses.items():
            *accepted, token = emission
            emitted[len(accepted)][tree.index_of(accepted, pair.vocab_size), token] += mass
        return evaluate.emitted_law(pair, emitted)
    by_first: dict[Tokens, dict[tuple[Tokens, ...], Any]] = {}
    for (first, *others), mass in masses.items():
        by_first.setdefault(first, {})[tuple(others)] = mass
    parts = (joint_law(pair, {(e,): 1})[:, None] * joint_law(pair, rest) for e, rest in by_first.items())
    return np.asarray(sum(parts)).reshape(-1)
