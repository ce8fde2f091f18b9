"""Families of random problems, each with a stated distribution and a seed.

Every function takes V = ``vocab``, L = ``depth``, and a ``seed``, which is an integer or a numpy Generator (advanced by
one draw). The rows of level i depend on the seed, the parameters and i alone: a problem of depth 3 is the top of the
problem of depth 4 with the same seed. Random numbers are those of PCG64, the same on every machine for one version of
numpy (up to the last bit of the platform's exp and log). All functions return a `ModelPair`, and raise InputError for
parameters out of range and SizeError for tables too large to build.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from inspect import signature
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.core import rows as probability_rows
from lpverify.core.model_pair import ModelPair, check_size
from lpverify.numerics import Array

Seed = int | np.random.Generator
Draw = Callable[[np.random.Generator, int], tuple[Array, Array]]  # (generator, rows) -> target rows, draft rows


def dirichlet(vocab: int, depth: int, seed: Seed, alpha: float = 1.0) -> ModelPair:
    """Every row of both tables is drawn independently from Dirichlet(alpha, ..., alpha).

    Small ``alpha`` gives peaked rows and a poor draft, large ``alpha`` near-uniform rows and a good one.

    >>> dirichlet(10, 3, seed=1, alpha=0.5).nodes
    1110
    """
    _size(vocab, depth)
    errors.number("alpha", alpha, above=0)

    def draw(rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
        return _dirichlet(rng, rows, vocab, alpha), _dirichlet(rng, rows, vocab, alpha)

    return _tree(depth, vocab, seed, draw)


def markov(vocab: int, depth: int, seed: Seed, alpha: float = 1.0) -> ModelPair:
    """Target and draft are Markov chains; all initial and transition rows are independent Dirichlet(alpha, ..., alpha).

    >>> pair = markov(3, 3, seed=0)
    >>> bool((pair.target[2][:3] == pair.target[1]).all())
    True
    """
    _size(vocab, depth)
    errors.number("alpha", alpha, above=0)
    rng = _generator(_key(seed), 0)
    target, draft = [(_dirichlet(rng, 1, vocab, alpha)[0], _dirichlet(rng, vocab, vocab, alpha)) for _ in range(2)]
    return ModelPair.markov(target, draft, depth)


def softmax(vocab: int, depth: int, seed: Seed, temperature: float = 1.0, draft_noise: float = 1.0) -> ModelPair:
    """Model-like rows: independent logits z ~ N(0, 1) and e ~ N(0, 1) for every token of every row,

        target = softmax(z / T),    draft = softmax((z + draft_noise e) / T).

    >>> pair = softmax(5, 1, seed=0, draft_noise=0)
    >>> bool((pair.target[0] == pair.draft[0]).all())
    True
    """
    _size(vocab, depth)
    errors.number("temperature", temperature, above=0)
    errors.number("draft_noise", draft_noise, min=0)

    def draw(rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
        logits, noise = rng.standard_normal((2, rows, vocab))
        target = probability_rows.softmax("logits", logits, temperature)
        return target, probability_rows.softmax("logits", logits + draft_noise * noise, temperature)

    return _tree(depth, vocab, seed, draw)


def rational(vocab: int, depth: int, seed: Seed, denominator: int = 12) -> ModelPair:
    """Rows of Fractions n_x / denominator, for exact arithmetic.

    Every row is uniform among the ways to write ``denominator`` as an ordered sum of ``vocab`` integers n_x >= 0 (so
    zero masses and exact ties of p/q occur).

    >>> rational(3, 2, seed=0, denominator=4).target[0].sum()
    Fraction(1, 1)
    """
    _size(vocab, depth)
    errors.integer("denominator", denominator, min=1, max=10**15)

    def rows_of(rng: np.random.Generator, rows: int) -> Array:
        result = np.empty((rows, vocab), dtype=object)
        for row in result:  # stars and bars: V - 1 bars at denominator + V - 1 positions
            bars = np.sort(rng.choice(denominator + vocab - 1, size=vocab - 1, replace=False))
            counts = np.diff(bars, prepend=-1, append=denominator + vocab - 1) - 1
            row[:] = [Fraction(int(count), denominator) for count in counts]
        return result

    return _tree(depth, vocab, seed, lambda rng, rows: (rows_of(rng, rows), rows_of(rng, rows)))


def adversarial(kind: str, vocab: int, depth: int, seed: Seed = 0) -> ModelPair:
    """Pairs at the edges of what a verifier must survive. Rows are independent; ``Dir`` means Dirichlet(1, ..., 1).

    * ``one-hot-target``: target one-hot on a uniform token (temperature 0), draft Dir.
    * ``one-hot-draft``: draft one-hot on a uniform token (a greedy drafter), target Dir.
    * ``disjoint``: the tokens are split at random into two parts of sizes V//2 and V - V//2; target Dir on the first,
      draft Dir on the second. Nothing can be accepted.
    * ``zero-draft-mass``: target Dir; draft Dir on all but one uniform token.
    * ``equal``: draft = target, Dir.
    * ``ties``: the tokens are split at random into A (V - V//2 tokens) and B, each of draft mass 1/2 in dyadic parts;
      target = 3/2 draft on A and 1/2 draft on B, so that p/q ties exactly, in float64 too. V <= 64.
    * ``subnormal``: one uniform token has mass 1 (to rounding), every other 10^-u with u uniform on [300, 323], in both
      tables independently.

    >>> pair = adversarial("disjoint", 4, 2)
    >>> float((pair.target[1] * pair.draft[1]).sum())
    0.0
    """
    errors.choice("kind", kind, ADVERSARIAL_KINDS)
    _size(vocab, depth, 1 if kind == "equal" else 2)
    if kind == "ties":
        errors.integer("vocab", vocab, min=2, max=64)
    return _tree(depth, vocab, seed, lambda rng, rows: _adversarial(kind, rng, rows, vocab))


BUILDERS: dict[str, Callable[..., ModelPair]]
BUILDERS = {"dirichlet": dirichlet, "markov": markov, "softmax": softmax, "rational": rational}

# What each family takes besides its size and seed; the kinds of `adversarial` take nothing.
PARAMETERS = {name: tuple(signature(build).parameters)[3:] for name, build in BUILDERS.items()}
ADVERSARIAL_KINDS = ("one-hot-target", "one-hot-draft", "disjoint", "zero-draft-mass", "equal", "ties", "subnormal")
FAMILIES = (*PARAMETERS, *ADVERSARIAL_KINDS)  # the names that `family` takes
__all__ = [*BUILDERS, "adversarial", "family", "ADVERSARIAL_KINDS", "FAMILIES", "PARAMETERS"]


def family(name: str, vocab: int, depth: int, seed: Seed, **parameters: Any) -> ModelPair:
    """A member of the family ``name`` of `FAMILIES`. Raises InputError for another name or an unknown parameter.

    >>> family("dirichlet", 3, 2, seed=0, alpha=0.5).nodes
    12
    """
    errors.choice("family", name, FAMILIES)
    takes = PARAMETERS.get(name, ())
    for parameter in parameters:
        if parameter not in takes:
            expected = f"only {' and '.join(takes)}" if takes else "no parameter"
            raise errors.fail(f"family {name}", got=f"the parameter {parameter!r}", expected=expected)
    if name in ADVERSARIAL_KINDS:
        return adversarial(name, vocab, depth, seed)
    return BUILDERS[name](vocab, depth, seed, **parameters)


def _adversarial(kind: str, rng: np.random.Generator, rows: int, vocab: int) -> tuple[Array, Array]:
    """Target and draft rows of a kind of `adversarial`."""
    target, draft = np.zeros((2, rows, vocab))
    if kind.startswith("one-hot"):
        one_hot = np.eye(vocab)[rng.integers(vocab, size=rows)]
        other = _dirichlet(rng, rows, vocab, 1.0)
        return (one_hot, other) if kind == "one-hot-target" else (other, one_hot)
    if kind == "equal":
        target = _dirichlet(rng, rows, vocab, 1.0)
        return target, target
    if kind == "subnormal":
        tables = 10.0 ** -rng.uniform(300, 323, size=(2, rows, vocab))
        np.put_along_axis(tables, rng.integers(vocab, size=(2, rows, 1)), 1.0, axis=2)
        return tables[0], tables[1]
    if kind == "disjoint":
        half = vocab // 2
        target[:, :half] = _dirichlet(rng, rows, half, 1.0)
        draft[:, half:] = _dirichlet(rng, rows, vocab - half, 1.0)
    elif kind == "zero-draft-mass":
        draft[:, 1:] = _dirichlet(rng, rows, vocab - 1, 1.0)
        target = _dirichlet(rng, rows, vocab, 1.0)
    else:  # ties
        larger = vocab - vocab // 2
        draft = np.tile(np.concatenate([_dyadic(larger), _dyadic(vocab - larger)]) / 2, (rows, 1))
        target = draft * np.where(np.arange(vocab) < larger, 1.5, 0.5)
    order = rng.permuted(np.tile(np.arange(vocab), (rows, 1)), axis=1)  # the same relabelling in both tables
    return np.take_along_axis(target, order, axis=1), np.take_along_axis(draft, order, axis=1)


def _tree(depth: int, vocab: int, seed: Seed, draw: Draw) -> ModelPair:
    key = _key(seed)
    levels = [draw(_generator(key, i), vocab**i) for i in range(depth)]
    return ModelPair.from_levels([target for target, _ in levels], [draft for _, draft in levels])


def _key(seed: Any) -> int:
    if isinstance(seed, np.random.Generator):
        return int(seed.integers(2**63))
    return errors.integer("seed", seed, min=0)


def _generator(key: int, level: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key, spawn_key=(level,))))


def _size(vocab: int, depth: int, smallest: int = 1) -> None:
    check_size("problem", errors.integer("vocab", vocab, min=smallest), errors.integer("depth", depth, min=1))


def _dirichlet(rng: np.random.Generator, rows: int, vocab: int, alpha: float) -> Array:
    return np.asarray(rng.dirichlet(np.full(vocab, alpha), size=rows))


def _dyadic(size: int) -> Array:
    """(1/2, 1/4, ..., 2^-(n-1), 2^-(n-1)): powers of two that sum to exactly 1."""
    return 2.0 ** -np.minimum(np.arange(1, size + 1), max(size - 1, 0))


def __dir__() -> list[str]:
    return __all__
