"""Problems that the tests of the LP package share."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from lpverify.core.model_pair import ModelPair

REFERENCE = sorted((Path(__file__).parent / "data" / "reference").glob("*.json"))


def random_pair(vocab: int, depth: int, seed: int, alpha: float = 0.5) -> ModelPair:
    """Dirichlet rows."""
    rng = np.random.default_rng(seed)
    tables = [[rng.dirichlet(np.full(vocab, alpha), vocab**i) for i in range(depth)] for _ in range(2)]
    return ModelPair.from_levels(*tables)


def rational_pair(vocab: int, depth: int, seed: int, denominator: int = 10) -> ModelPair:
    """Rows of multiples of 1/denominator; with a small one ties and zeros are frequent."""
    rng = np.random.default_rng(seed)

    def table() -> list[Any]:
        weights = [rng.dirichlet(np.full(vocab, 0.7), vocab**i) for i in range(depth)]
        return [rng.multinomial(denominator, rows).astype(object) * Fraction(1, denominator) for rows in weights]

    return ModelPair.from_levels(table(), table())


def iid_pair(target: list[Any], draft: list[Any], depth: int) -> ModelPair:
    """The same row at every prefix."""
    return ModelPair.from_levels(*([np.array([row] * len(row) ** i) for i in range(depth)] for row in (target, draft)))


def reference_pair(path: Path) -> tuple[ModelPair, dict[str, Any]]:
    """A reference problem and its expected block efficiencies."""
    data = json.loads(path.read_text())
    problem = data["problem"]
    pair = ModelPair.from_levels(*(_levels(problem[side], problem["depth"]) for side in ("target", "draft")))
    return pair, data["block_efficiency"]


def _levels(table: dict[str, Any], depth: int) -> list[Any]:
    if table["kind"] == "tree":
        rows = [np.array(level, dtype=float) for level in table["levels"]]
        return [level / level.sum(axis=1, keepdims=True) for level in rows]
    assert table["kind"] == "iid"
    return [np.array([table["probs"]] * len(table["probs"]) ** i, dtype=float) for i in range(depth)]
