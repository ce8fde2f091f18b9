"""The engine emits the target's law, at the exact block efficiency, for every verifier; broken engines are caught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from decode_cases import assert_matches_exact_evaluation, table_pair, tables  # noqa: E402

from lpverify.core.draft_tree import DraftTree  # noqa: E402
from lpverify.decode import drafter, engine  # noqa: E402
from lpverify.decode import rng as keys  # noqa: E402
from lpverify.verifiers import VERIFIERS, StopDistribution, Verifier, verifier  # noqa: E402

NAMES = tuple(name for name in VERIFIERS if name != "policy")
SHAPES = (("token", 1, 1), ("bv", 3, 3), ("specinfer", 3, 2), ("traversal", 3, 2), ("traversal", 4, 1))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", NAMES)
def test_every_verifier_against_exact_evaluation(name: str) -> None:
    rounds = assert_matches_exact_evaluation(tables("coin-2"), verifier(name), paths=2, depth=2, requests=250, tokens=5)
    assert rounds >= 500


@pytest.mark.parametrize(("name", "paths", "depth"), SHAPES)
def test_other_shapes_against_exact_evaluation(name: str, paths: int, depth: int) -> None:
    assert_matches_exact_evaluation(
        tables("markov-3"), verifier(name), paths=paths, depth=depth, requests=150, tokens=depth + 2
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_long_runs_against_exact_evaluation(name: str) -> None:
    rounds = 0
    for problem, paths, depth, requests, tokens in (
        ("coin-2", 2, 2, 5000, 6),
        ("skewed-3", 3, 2, 2000, 5),
        ("tree-v2-l3-a", 4, 3, 2000, 7),
    ):
        rounds += assert_matches_exact_evaluation(
            tables(problem), verifier(name), paths=paths, depth=depth, requests=requests, tokens=tokens, seed=1
        )
    assert rounds >= 20_000  # 10 verifiers: at least 200,000 rounds


def naive_correction(view: DraftTree) -> StopDistribution:
    """Draws the replacement from the target instead of the residual."""
    return replace(verifier("token")(view), rows=lambda node: view.target[node])


MUTANT = Verifier("token", naive_correction, first_path_only=True)
EAGER = table_pair([[[0.5, 0.5]]], [[[0.9, 0.1]]])
"""A draft far from its target: what is wrong shows soon."""


def check_with_eager_draft(algorithm: Verifier) -> None:
    assert_matches_exact_evaluation(EAGER, algorithm, paths=1, depth=2, requests=400, tokens=4)


def test_a_wrong_verifier_fails_the_same_test() -> None:
    check_with_eager_draft(verifier("token"))
    with pytest.raises(AssertionError, match="joint law"):
        check_with_eager_draft(MUTANT)


def test_draft_noise_used_again_fails_the_same_test(monkeypatch: pytest.MonkeyPatch) -> None:  # fault S3
    original = keys.Keys.bits

    def without_role(self: keys.Keys, round_: int, role: keys.Role, path: int = 0, depth: int = 0) -> int:
        return original(self, round_, keys.Role.DRAFT, path, depth)

    monkeypatch.setattr(keys.Keys, "bits", without_role)
    with pytest.raises(AssertionError, match="joint law|block efficiency"):
        check_with_eager_draft(verifier("bv"))


def test_declared_law_that_is_not_the_sampled_one_fails_the_same_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults S1, S2, S13: rows handed to verification are not those that were drawn from."""
    original = drafter.draft_paths

    def declared(*arguments: Any) -> drafter.DraftedPaths:
        drafted = original(*arguments)
        return replace(drafted, rows=torch.softmax(drafted.rows.log() * 0.25, dim=-1))

    monkeypatch.setattr(engine, "draft_paths", declared)
    with pytest.raises(AssertionError, match="joint law|block efficiency"):
        check_with_eager_draft(verifier("bv"))


def test_draft_left_a_token_behind_fails_the_same_test(monkeypatch: pytest.MonkeyPatch) -> None:  # fault S11
    """Output stays right, acceptance decays: only the exact block efficiency shows it."""
    one, other = [0.1, 0.9], [0.9, 0.1]
    second_last_token_decides = [[[0.5, 0.5]], [one, other], [one, one, other, other]]
    models = table_pair(second_last_token_decides, second_last_token_decides)

    def check() -> None:
        assert_matches_exact_evaluation(models, verifier("bv"), paths=1, depth=1, requests=100, tokens=5)

    check()

    original = engine.ActiveRequest.commit

    def behind(self: engine.ActiveRequest, tree: DraftTree, node: int, token: int) -> list[int]:
        """The last token of a path that is accepted as a whole is counted, but not fed to the draft."""
        with monkeypatch.context() as patch:
            if tree.depth[node] == tree.paths.shape[1]:
                patch.setattr(self.draft, "append", lambda tokens: setattr(self.draft, "_base", self.draft._base + 1))
            return original(self, tree, node, token)

    monkeypatch.setattr(engine.ActiveRequest, "commit", behind)
    with pytest.raises(AssertionError, match="block efficiency"):
        check()
