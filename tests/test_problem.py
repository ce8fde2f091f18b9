"""Whatever can become a problem: constructors of tables, `as_problem`, and every public function that takes one."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import lpverify as lv
from lpverify.core.problem_file import problem_document
from lpverify.errors import InputError, SizeError
from lpverify.verifiers import StopDistribution, verifier

TARGET, DRAFT = ["1/5", "1/2", "3/10"], ["3/5", "3/10", "1/10"]
ROWS = [[0.5, 0.5], [0.2, 0.8], [1.0, 0.0]]


# ---- tables from whatever holds numbers ----


def test_the_same_table_in_every_form() -> None:
    """One pair from rows, levels, arrays, frames, strings, Fractions and decimals."""
    expected = lv.ModelPair.from_levels([ROWS[:1], ROWS[1:]], [ROWS[:1], ROWS[1:]])
    assert expected.target[1].tolist() == ROWS[1:]
    frame = pd.DataFrame(ROWS)
    for rows in (ROWS, np.array(ROWS), np.array(ROWS, dtype=np.float32), frame, [tuple(row) for row in ROWS]):
        pair = lv.ModelPair.from_rows(rows, rows, normalize=True)
        assert not pair.rational
        assert np.allclose(np.concatenate(pair.target), ROWS, atol=1e-7)
    assert lv.ModelPair.from_rows(ROWS, frame) == expected
    exact = [["1/2", "0.5"], [Fraction(1, 5), Fraction(4, 5)], [1, 0]]
    pair = lv.ModelPair.from_rows(exact, [[Decimal("0.5")] * 2] + exact[1:])
    assert pair.rational
    assert pair.target[1].tolist() == [[Fraction(1, 5), Fraction(4, 5)], [1, 0]]
    assert pair == lv.ModelPair.from_levels([exact[:1], exact[1:]], [exact[:1], exact[1:]])
    assert pair != expected
    assert pair.floats == expected
    assert hash(pair.floats) == hash(expected)


def test_columns_of_a_frame_name_the_tokens() -> None:
    frame = pd.DataFrame(ROWS, columns=["yes", "no"])
    assert lv.ModelPair.from_rows(frame, frame).tokens == ("yes", "no")
    assert lv.ModelPair.from_rows(frame, frame, tokens="ab").tokens == ("a", "b")


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_torch_tensors_of_any_float_type_and_with_gradients(kind: str) -> None:
    torch = pytest.importorskip("torch")
    rows = torch.tensor(ROWS, dtype=getattr(torch, kind), requires_grad=True)
    pair = lv.ModelPair.from_rows(rows, list(rows), normalize=True)
    assert pair.target[0].dtype == np.float64
    assert np.allclose(np.concatenate(pair.target), ROWS, atol=1e-2)


def test_float32_softmax_needs_normalize_and_is_told_so() -> None:
    torch = pytest.importorskip("torch")
    rows = torch.softmax(torch.randn(50, generator=torch.Generator().manual_seed(1)) * 3, dim=0)
    assert abs(float(rows.double().sum()) - 1) > 1e-9
    with pytest.raises(
        InputError, match=r"target: got a sum of \S+, expected a sum of 1 \(normalize=True rescales rows\)"
    ):
        lv.ModelPair.iid(rows, rows, 2)
    pair = lv.ModelPair.iid(rows, rows, 2, normalize=True)
    assert abs(pair.target[0].sum() - 1) < 1e-15


def test_iid_and_markov_tables() -> None:
    pair = lv.ModelPair.iid(TARGET, DRAFT, 2, tokens="ABC")
    assert pair.rational
    assert pair.target[1].tolist() == [[Fraction(x) for x in TARGET]] * 3
    assert (pair.bonus_rows == pair.target[0]).all()
    chain = (["1/2", "1/2"], [["1/3", "2/3"], [1, 0]])
    pair = lv.ModelPair.markov(chain, chain, 3)
    rows = {0: [Fraction(1, 3), Fraction(2, 3)], 1: [1, 0]}
    assert pair.target[2].tolist() == [rows[0], rows[1], rows[0], rows[1]]
    assert pair.bonus_rows[5].tolist() == rows[1]
    document = {"kind": "markov", "initial": chain[0], "transition": chain[1]}
    file = {"format": "lpverify/problem@1", "vocab": 2, "depth": 3, "target": document, "draft": document}
    assert lv.as_problem(file).pair == pair


def test_logits() -> None:
    logits, noise = np.random.default_rng(0).standard_normal((2, 3, 2))
    pair = lv.ModelPair.from_logits(logits, noise, temperature=0.5)
    weights = np.exp(logits / 0.5)
    assert np.allclose(np.concatenate(pair.target), weights / weights.sum(axis=1, keepdims=True), atol=1e-15)
    greedy = lv.ModelPair.from_logits([1.0, 3.0, 3.0], [0.0, float("-inf"), 0.0], temperature=0, depth=2)
    assert greedy.target[1].tolist() == [[0, 1, 0]] * 3
    assert lv.ModelPair.from_logits([1, 3], [0, float("-inf")], depth=1).draft[0].tolist() == [[1, 0]]


IID, LEVELS, FROM_ROWS = lv.ModelPair.iid, lv.ModelPair.from_levels, lv.ModelPair.from_rows


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: IID([0.5, 0.6], [1, 0], 2), r"target: got a sum of 1\.1, expected a sum of 1 \(normalize=True"),
        (
            lambda: IID([0.5, 0.5], [1.5, -0.5], 2),
            r"draft entry 1 \(token '1'\): got a negative number, -0\.5, expected a p",
        ),
        (lambda: IID([0.5, float("nan")], [1, 0], 2), r"target entry 1 \(token '1'\): got nan"),
        (lambda: IID([0.5, float("inf")], [1, 0], 2), r"target entry 1 .*got a number too large, inf"),
        (lambda: IID(["1/2", "x"], [1, 0], 2), r"target entry 1: got 'x', which is no number like 0\.2 or 1/3"),
        (lambda: IID(["1/2", True], [1, 0], 2), r"target entry 1: got True, expected a probability"),
        (lambda: IID(["1/2", None], [1, 0], 2), r"target entry 1: got None"),
        (lambda: IID([True, False], [1, 0], 2), r"target: got entries of type bool, expected numbers"),
        (lambda: IID(["1/2", 0.5], [1, 0], 2), r"target: got Fractions in some entries and floats in others"),
        (lambda: IID(["1/2", "1/2"], [0.5, 0.5], 2), r"tables: got Fractions in some rows and floats in others"),
        (lambda: IID([0.5, 0.5], [1.0], 2), r"draft: got rows of 1 tokens, expected 2 as in target"),
        (lambda: IID("half", [1.0], 2), r"target entry: got .half., which is no number"),
        (lambda: IID([0.5, 0.5], [1, 0], 0), r"depth: got 0, expected an integer >= 1"),
        (lambda: IID([0.5, 0.5], [1, 0], "2"), r"depth: got '2'"),
        (lambda: IID([0.5, 0.5], [1, 0], 2, tokens="A"), r"tokens: got 1 labels, expected 2"),
        (lambda: IID([0.5, 0.5], [1, 0], 2, tokens=["A", "A"]), r"tokens\[1\]: got 'A' again, expected another label"),
        (lambda: IID([0.5, 0.5], [1, 0], 2, tokens=[1, 2]), r"tokens\[0\]: got 1, expected a string"),
        (lambda: IID([0.0, 0.0], [1, 0], 2, normalize=True), r"target: got a sum of 0, expected a positive finite sum"),
        (lambda: FROM_ROWS(ROWS[:2], ROWS[:2]), r"target: got 2 rows, expected 1 \+ V \+ .*, 1 or 3 for V = 2"),
        (
            lambda: FROM_ROWS(ROWS, ROWS[:1]),
            r"draft: got an array of shape \(1, 2\), expected .*\(3, 2\) as in the target",
        ),
        (lambda: FROM_ROWS([[1, 0], [1]], ROWS), r"target: got rows of different lengths"),
        (lambda: FROM_ROWS([["1/2", "1/2"], ["1"]], ROWS), r"target.*: got rows of different lengths"),
        (lambda: LEVELS(0.5, [[[1.0]]]), r"target: got 0\.5, expected one array of rows per level"),
        (lambda: LEVELS([], []), r"target: got no level, expected a depth of at least 1"),
        (lambda: LEVELS([[[1.0]]], [[[1.0]]] * 2), r"draft: got 2 levels, expected 1 as in the target"),
        (
            lambda: LEVELS([ROWS[:1]] * 2, [ROWS[:1]] * 2),
            r"target level 1: got an array of shape \(1, 2\), expected \(2, 2\)",
        ),
        (
            lambda: LEVELS([ROWS[:1], [[0.5, 0.6], [1, 0]]], [ROWS[:1], ROWS[1:]]),
            r"target level 1 row 0: got a sum of 1\.1",
        ),
        (
            lambda: LEVELS([ROWS[:1]], [ROWS[:1]], bonus=[[1, 0]] * 3),
            r"bonus: got an array of shape \(3, 2\), expected one of",
        ),
        (
            lambda: lv.ModelPair.markov([1, 0, 0], ROWS, 2),
            r"target: got \[1, 0, 0\], expected a pair \(first row, trans",
        ),
        (
            lambda: lv.ModelPair.markov((ROWS[0], ROWS), (ROWS[0], ROWS[:2]), 2),
            r"target transition: .*expected \(V, V\)",
        ),
        (
            lambda: lv.ModelPair.from_logits([float("nan"), 0], [0, 0], depth=1),
            r"target row 0: got a largest logit of nan",
        ),
        (
            lambda: lv.ModelPair.from_logits([0, 0], [0, 0], depth=1, temperature=-1),
            r"temperature: got -1, expected a fin",
        ),
        (lambda: lv.VerifyProblem("coin-2"), r"pair: got 'coin-2', expected a ModelPair; as_problem\(\) accepts names"),
        (lambda: lv.VerifyProblem(IID([1.0], [1.0], 1), 1, "\ud800"), r"name: got '\\ud800', half of a surrogate pair"),
        (
            lambda: lv.VerifyProblem(IID([1.0], [1.0], 1), 0),
            r"num_paths \(K\): got 0, expected an integer in 1\.\.1024",
        ),
    ],
)
def test_wrong_tables_are_refused(build: Any, match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_sizes_are_refused_before_memory_is_spent() -> None:
    for build in (IID, lambda p, q, depth: lv.ModelPair.markov((p, [p, p]), (q, [q, q]), depth)):
        with pytest.raises(
            SizeError, match="tables: got a table of at least 67108862 entries, expected at most 50000000"
        ):
            build([0.5, 0.5], [0.5, 0.5], 100)  # type: ignore[operator]


# ---- one mind about problems ----


def sources(folder: Path) -> dict[str, Any]:
    """Problem "skewed-3" in every form."""
    problem = lv.load_problem("skewed-3")
    lv.save_problem(problem, folder / "mine.json")
    document = problem_document(problem)
    forms = {"name": "skewed-3", "path": folder / "mine.json", "text path": str(folder / "mine.json")}
    return forms | {"problem": problem, "pair": problem.pair, "document": document}


def test_every_function_takes_every_form(tmp_path: Path) -> None:
    expected = lv.load_problem("skewed-3", num_paths=2)
    optimum, law = lv.solve(expected).value, lv.evaluate(expected, "bv").block_efficiency
    for form in sources(tmp_path).values():
        assert lv.as_problem(form, 2) == expected
        assert lv.solve(form, 2).value == pytest.approx(optimum, abs=1e-9)
        assert lv.evaluate(form, "bv", 2).block_efficiency == law
        assert lv.block_efficiency(form, "bv", 2) == law
        assert lv.compare(form, 2, algorithms="bv")["paths"].tolist() == [2] * 4
        assert lv.balance(form).rejected_mass == lv.balance(expected.pair).rejected_mass
        assert lv.as_problem(form).num_paths == 1
        lv.save_problem(form, tmp_path / "again.json")
        assert lv.load_problem(tmp_path / "again.json").pair == expected.pair
    with_k = lv.load_problem("skewed-3", num_paths=3)
    assert lv.block_efficiency(with_k, "pbv") == lv.block_efficiency(with_k.pair, "pbv", 3)
    assert lv.as_problem(with_k).num_paths == 3
    assert lv.as_problem(with_k, 5).num_paths == 5


@pytest.mark.parametrize(
    "wrong", [3, None, [[0.5, 0.5]], np.eye(2), verifier("bv"), lv.ModelPair], ids=lambda wrong: type(wrong).__name__
)
@pytest.mark.parametrize("function", ["as_problem", "solve", "evaluate", "compare", "block_efficiency", "balance"])
def test_the_wrong_thing_names_the_right_one(function: str, wrong: Any) -> None:
    arguments = ["bv"] if function in ("evaluate", "block_efficiency") else []
    with pytest.raises(
        InputError, match="problem: got an object of type .*, expected a VerifyProblem, a ModelPair, the n"
    ):
        getattr(lv, function)(wrong, *arguments)


def test_documents_are_checked_like_files() -> None:
    document = json.loads(json.dumps(problem_document(lv.load_problem("coin-2"))))
    document["target"]["probs"][0] = "2"
    with pytest.raises(InputError, match=r"problem: target\.probs: got a sum of \S+, expected a sum of 1"):
        lv.solve(document)
    with pytest.raises(InputError, match="problem: format: got nothing"):
        lv.solve({})


def test_several_numbers_of_paths() -> None:
    solutions = lv.solve("coin-2", range(1, 4))
    assert [round(one.value, 6) for one in solutions] == [round(lv.solve("coin-2", k).value, 6) for k in (1, 2, 3)]
    assert isinstance(lv.solve("coin-2", [2]), list)
    assert isinstance(lv.solve("coin-2", np.int64(2)), lv.LpSolution)
    frame = lv.compare("coin-2", [1, 3], algorithms=["bv"])
    assert frame["paths"].tolist() == [1] * 4 + [3] * 4
    for numbers in ([], [0], [1.5], "x", [2000]):
        with pytest.raises(InputError, match=r"num_paths \(K\): got"):
            lv.solve("coin-2", numbers)


def test_the_bonus_rows_survive_saving(tmp_path: Path) -> None:
    """A tree table has no formula for the rows after a path: they are written."""
    for bonus in (None, [0.25, 0.75], [[0.25, 0.75], [1, 0]], [[0.5, 0.5], [1, 0], [0, 1], [0.1, 0.9]]):
        pair = LEVELS([ROWS[:1], ROWS[1:]], [ROWS[:1], ROWS[1:]], bonus=bonus)
        lv.save_problem(pair, tmp_path / "x.json")
        again = lv.load_problem(tmp_path / "x.json").pair
        assert again == pair
        assert (again.bonus_rows == pair.bonus_rows).all()
    document = problem_document(lv.VerifyProblem(pair))
    assert len(document["target"]["bonus"]) == 4
    with pytest.raises(InputError, match=r"problem: target\.bonus: got a list of 3, expected 1, 2 or 4 rows"):
        lv.as_problem(document | {"target": document["target"] | {"bonus": [[0.5, 0.5]] * 3}})
    with pytest.raises(InputError, match=r"problem: draft: got the unknown key 'bonus'"):
        lv.as_problem(document | {"draft": document["draft"] | {"bonus": [[0.5, 0.5]]}})


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Fraction(1, 10**400)
    with pytest.raises(InputError, match=r"probability: got \d+\.\.\. \(\d+ characters\), expected at most 400 digits"):
        lv.save_problem(IID([1 - tiny, tiny], [1, 0], 1), tmp_path / "x.json")
    monkeypatch.setattr("lpverify.core.problem.MAX_BYTES", 50)
    with pytest.raises(
        SizeError, match=r"x\.json: got a file of \d+ bytes, expected at most 50; use a smaller problem"
    ):
        lv.save_problem("coin-2", tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []


# ---- own verifiers ----


def always_reject(tree: lv.DraftTree) -> StopDistribution:
    """Stops at the root and draws from the target: lossless, one token per call."""
    return StopDistribution(tree, np.eye(tree.size)[0], lambda node: tree.target[node])


def test_own_verifiers_are_evaluated_and_compared() -> None:
    own = lv.Verifier("mine", verifier("bv").stop_distribution, first_path_only=True)
    assert lv.evaluate("coin-2", own, 2).block_efficiency == lv.evaluate("coin-2", "bv", 2).block_efficiency
    result = lv.evaluate("coin-2", always_reject, 2)
    assert (result.algorithm, result.block_efficiency) == ("always_reject", 1)
    assert result.law_error == pytest.approx(0, abs=1e-12)
    frame = lv.compare("coin-2", 2, algorithms=["bv", own, always_reject]).set_index("name")
    assert frame.loc["mine", "block_efficiency"] == pytest.approx(frame.loc["bv", "block_efficiency"], abs=1e-12)
    assert frame.loc["always_reject", "block_efficiency"] == 1
    assert frame.loc["always_reject", "gap"] == pytest.approx(frame.loc["optimum", "block_efficiency"] - 1)


def test_what_is_no_verifier() -> None:
    def program(paths: Any, target: Any, draft: Any, rng: Any) -> Any: ...

    with pytest.raises(
        InputError, match=r"algorithm: got <function .*expected a function of one DraftTree .*audit\(\)"
    ):
        lv.evaluate("coin-2", program)
    with pytest.raises(InputError, match="algorithm <lambda>: got 3, expected a StopDistribution"):
        lv.evaluate("coin-2", lambda tree: 3)  # type: ignore[arg-type,return-value]
    with pytest.raises(InputError, match="algorithm: got 3, expected one of token, bv"):
        lv.evaluate("coin-2", 3)  # type: ignore[arg-type]
