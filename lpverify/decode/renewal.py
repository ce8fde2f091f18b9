"""Tokens per target call of a whole decoding run, measured on the target's own text without drafting.

Contexts at evenly spread places of a text are not the contexts in which the rounds of a decoder begin: where tokens are
easy to predict rounds are long, so fewer of them begin there, and the mean block efficiency over places is larger than
the tokens per round of the run. What a run does on a given text is known, however. For a lossless verifier with node
budgets f, a round that begins before y_1, y_2, ... passes through y_1..y_j with probability f(y_1..y_j), after which
the text goes on with the target's law; so given the whole text

    Pr(tau >= j | y) = f(y_1..y_j) / P(y_1..y_j) = r(t, j)        for a round that begins after t tokens,

which `on_path.TextRows` gives, rounds being independent given the text. A round takes tau + 1 tokens of it, so

    u(0) = 1,     u(t) = sum_s u(s) Pr(tau = t - s - 1 | y, s)

is the probability that a round begins after t tokens, and the sum of u(t) over t < N is the expected number of rounds
in which the first N tokens are committed: given the text the run's own count with its randomness averaged out
(THEORY 8). Over texts of the target it is unbiased for the number of rounds of a run that is cut after N tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """One text, expectations given it: ``tokens`` N, ``rounds``, ``full``: rounds that accept all L drafted tokens."""

    tokens: int
    rounds: float
    full: float


def run_on_text(reached: Floats) -> Run:
    """The run that commits as many tokens as ``reached`` (N, L+1) has rows; row t is Pr(tau >= 0..L) after t tokens.

    A round whose last drafted tokens are cut off at the end counts as full by what it accepted before the cut.

    >>> run_on_text(np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0]]))
    Run(tokens=4, rounds=3.0, full=1.0)
    """
    size = len(reached)
    stops = reached - np.concatenate([reached[:, 1:], np.zeros((size, 1))], axis=1)
    begins = np.zeros(size + reached.shape[1])
    begins[0] = 1.0
    for t in range(size):
        begins[t + 1 : t + 1 + stops.shape[1]] += begins[t] * stops[t]
    begins = begins[:size]
    return Run(size, float(begins.sum()), float(begins @ reached[:, -1]))
