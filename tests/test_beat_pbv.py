"""The candidates of experiments/beat_pbv.py are what their names say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpverify import VerifyProblem, make, solve
from lpverify.drafting.iid_paths import mean_density
from lpverify.verifiers.ebv import onto_marginals
from lpverify.verifiers.rank_measure import whole

ROOT = Path(__file__).parent.parent


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "experiments")
    import beat_pbv

    return beat_pbv


def test_left_curtain_is_a_martingale_coupling_without_crossings(experiment: Any) -> None:
    """Sums and means are met, and the child of smallest mean takes an interval that no other reaches into."""
    rng = np.random.default_rng(1)
    mu, q = rng.dirichlet(np.ones(40)), np.array([0.2, 0.5, 0.3])
    phi = np.sort(rng.uniform(0, 3, 40))
    spread = q[:, None] * mu * np.exp(np.array([[-0.6], [0.1], [0.5]]) * phi)
    spread = onto_marginals(spread[None] / spread.sum(), mu[None], q[None])[0]
    wanted = spread @ phi
    found = experiment.left_curtain(mu[None], phi[None], q[None], wanted[None])[0]
    assert found.sum(axis=0) == pytest.approx(mu, abs=1e-12)
    assert found.sum(axis=1) == pytest.approx(q, abs=1e-12)
    assert found @ phi == pytest.approx(wanted, abs=1e-9)
    lowest = int(np.argmin(wanted / q))
    inside = np.flatnonzero(found[lowest] > 1e-12)
    others = np.delete(found, lowest, axis=0)[:, inside[1:-1]]
    assert (others < 1e-12).all()  # the first child takes an interval


def test_no_candidate_beats_the_optimum(experiment: Any) -> None:
    for family, (paths, build) in experiment.FAMILIES.items():
        pair = build(3)
        best = solve(VerifyProblem(pair, paths), tolerance=1e-6).upper_bound
        values = {name: experiment.value(pair, paths, split) for name, split in experiment.CANDIDATES.items()}
        assert max(values.values()) <= best + 1e-9, family
        assert min(values.values()) == min(values["BV (neutral)"], values["GBV (ordered)"]), family


def test_either_takes_the_mild_split_where_nothing_is_lost(experiment: Any) -> None:
    pair = make.adversarial("equal", 4, 2, 0)
    assert experiment.value(pair, 3, experiment.either) == pytest.approx(3, abs=1e-12)


def test_measures_of_either_have_its_law(experiment: Any) -> None:
    """q* is the integral of phi' over a child's measure, whichever split its node takes; both are taken."""
    rng = np.random.default_rng(3)
    target, draft = rng.dirichlet(np.ones(6), 20), rng.dirichlet(np.ones(6), 20)
    weight = np.linspace(0.3, 1, 20)
    arguments = (whole(20, np.ones(1)), target, draft, weight, 3)
    split, mild = experiment.either(*arguments), experiment.tempered_split(*arguments)
    taken = (split.q_star == mild.q_star).all(axis=1)
    assert 0 < taken.sum() < 20
    rows, tokens = np.divmod(np.arange(120), 6)
    measure = split.children(rows, tokens)
    above, width = measure.above * measure.scale[:, None], measure.width * measure.scale[:, None]
    integral = (measure.mass * mean_density(above, above + width, 3)).sum(axis=1)
    assert draft[rows, tokens] * integral == pytest.approx(split.q_star[rows, tokens], abs=1e-12)
