"""Problem files: what comes in is what was written, and everything else is one line that names the place."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lpverify.core import families as make
from lpverify.core.model_pair import ModelPair
from lpverify.core.prefix_tree import prefixes
from lpverify.core.problem import VerifyProblem, example_names, load_problem, save_problem
from lpverify.core.problem import load_problem as load_with_paths
from lpverify.core.problem_file import FORMAT, parse_problem, problem_document
from lpverify.errors import InputError, SizeError
from lpverify.files import MAX_BYTES

REFERENCE = sorted((Path(__file__).parent / "data" / "reference").glob("*.json"))


def iid(*probs: Any) -> dict[str, Any]:
    return {"kind": "iid", "probs": list(probs)}


def document(**changes: Any) -> dict[str, Any]:
    base = {
        "format": FORMAT,
        "name": "x",
        "description": "d",
        "vocab": ["A", "B"],
        "depth": 2,
        "target": {"kind": "tree", "levels": [[[0.5, 0.5]], [[0.25, 0.75], [1, 0]]]},
        "draft": {"kind": "markov", "initial": ["1/3", "2/3"], "transition": [[0.1, 0.9], ["0.2", "0.8"]]},
    }
    return {key: value for key, value in (base | changes).items() if value is not ...}


def write(directory: Path, content: Any) -> Path:
    path = directory / "file.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


# ---- what is read ----


def test_iid_and_markov_say_what_the_full_tree_says() -> None:
    """Row of a prefix = f(last token): compared on every prefix with a tree table written out."""
    initial, transition = ["1/2", "1/3", "1/6"], [["1/7", "2/7", "4/7"], ["1", "0", "0"], ["1/3", "1/3", "1/3"]]
    rows = {(): initial} | {p: transition[p[-1]] for i in (1, 2, 3) for p in prefixes(3, i)}
    tree = {"kind": "tree", "levels": [[rows[p] for p in prefixes(3, i)] for i in range(3)]}
    markov = {"kind": "markov", "initial": initial, "transition": transition}
    pair = parse_problem({"format": FORMAT, "vocab": 3, "depth": 3, "target": markov, "draft": tree}, "x").pair
    assert all((a == b).all() for a, b in zip(pair.target, pair.draft, strict=True))
    assert pair.rational
    bonus = dict(zip(prefixes(3, 3), pair.bonus_rows.tolist(), strict=True))
    assert bonus == {p: [Fraction(x) for x in rows[p]] for p in prefixes(3, 3)}

    same = iid("1/2", "1/3", "1/6")
    pair = parse_problem({"format": FORMAT, "vocab": 3, "depth": 3, "target": same, "draft": same}, "x").pair
    assert all((level == pair.target[0]).all() for level in (*pair.target, *pair.draft, pair.bonus_rows))
    assert [level.shape for level in pair.draft] == [(1, 3), (3, 3), (9, 3)]


def test_target_and_draft_of_different_kinds(tmp_path: Path) -> None:
    pair = load_problem(write(tmp_path, document())).pair
    assert not pair.rational  # one float entry makes the whole problem float64
    assert pair.target[1].tolist() == [[0.25, 0.75], [1.0, 0.0]]
    assert pair.draft[0].tolist() == [[1 / 3, 2 / 3]]
    assert pair.tokens == ("A", "B")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1/3", Fraction(1, 3)), ("0.2", Fraction(1, 5)), (".25", Fraction(1, 4)), ("1e-3", Fraction(1, 1000)), ("0.", 0)],
)
def test_strings_are_exact(text: str, value: Fraction) -> None:
    rest = str(1 - Fraction(value))
    pair = parse_problem(document(depth=1, target=iid(text, rest), draft=iid(1, 0)), "x").pair
    assert pair.target[0][0].tolist() == [value, 1 - value]
    assert all(type(x) is Fraction for x in pair.draft[0][0])


def test_defaults(tmp_path: Path) -> None:
    loaded = load_problem(write(tmp_path, document(name=..., description=...)))
    assert (loaded.name, loaded.description) == ("file", "")


def test_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    assert load_problem(write(tmp_path, b"\xef\xbb\xbf" + json.dumps(document()).encode())).name == "x"


def test_negative_zero_becomes_zero() -> None:
    pair = parse_problem(document(depth=1, target=iid(-0.0, 1.0), draft=iid(0.5, 0.5)), "x").pair
    assert not np.signbit(pair.target[0]).any()


def test_load_with_paths() -> None:
    problem = load_with_paths("skewed-3", num_paths=3)
    assert (problem.num_paths, problem.name, problem.pair.depth) == (3, "skewed-3", 2)


def test_a_file_is_told_from_an_example_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("coin-2").write_text(json.dumps(document(name="mine")))
    assert load_problem("coin-2").name == "coin-2"
    assert load_problem("./coin-2").name == "mine"
    assert load_problem(Path("coin-2")).name == "mine"


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.stem)
def test_reference_tables_of_six_digits_load(path: Path) -> None:
    raw = json.loads(path.read_text())["problem"]
    pair = parse_problem(raw, path.name).pair
    assert (pair.vocab_size, pair.depth) == (raw["vocab"], raw["depth"])
    if raw["target"]["kind"] == "tree":  # kept as written
        assert [level.tolist() for level in pair.target] == raw["target"]["levels"]


# ---- row sums ----


def test_rows_within_tolerance_are_kept_as_written() -> None:
    row = [0.3333333333, 0.3333333333, 0.3333333333]
    pair = parse_problem(document(vocab=3, depth=1, target=iid(*row), draft=iid(*row)), "x").pair
    assert pair.target[0][0].tolist() == row


def test_normalize_divides_by_the_sum() -> None:
    row = [0.333333, 0.333333, 0.333333]
    bad = document(vocab=3, depth=1, target=iid(*row), draft=iid(3, 2, 5))
    with pytest.raises(InputError, match=r"target\.probs: got a sum of 0\.999999, expected a sum of 1 \(--normalize"):
        parse_problem(bad, "x")
    pair = parse_problem(bad, "x", normalize=True).pair
    assert pair.target[0][0].tolist() == pytest.approx([1 / 3] * 3, abs=1e-16)
    assert pair.draft[0][0].tolist() == [0.3, 0.2, 0.5]


def test_normalize_is_exact_on_fractions() -> None:
    pair = parse_problem(document(depth=1, target=iid("1/3", "1/6"), draft=iid(2, "1e-400")), "x", normalize=True).pair
    assert pair.target[0][0].tolist() == [Fraction(2, 3), Fraction(1, 3)]
    assert pair.draft[0].sum() == 1
    assert 0 < pair.draft[0][0, 1] < Fraction(1, 10**399)


# ---- what is refused ----

TREE_ROWS: Callable[..., Any] = lambda *rows: {"kind": "tree", "levels": [[[0.5, 0.5]], list(rows)]}  # noqa: E731
LAW = iid(0.5, 0.5)

BAD_DOCUMENTS: dict[str, tuple[Any, str]] = {
    "not an object": ([1], r"json: got \[1\], expected an object"),
    "null": (None, r"json: got nothing, expected an object"),
    "no format": (document(format=...), r": format: got nothing, expected \"lpverify/problem@1\""),
    "unknown format": (document(format="lpverify/problem@2"), r": format: got 'lpverify/problem@2', expected \"lpv"),
    "format is no string": (document(format=[1]), r": format: got \[1\]"),
    "missing key": (document(draft=...), r"json: got no key 'draft', expected format, .*vocab"),
    "unknown key": (document(drafts=1), r"got the unknown key 'drafts', expected format, .*vocab"),
    "name is no string": (document(name=3), r": name: got 3, expected a text"),
    "description is null": (document(description=None), r": description: got nothing, expected a text"),
    "vocab 0": (document(vocab=0), r": vocab: got 0, expected a number of tokens >= 1 or a list of labels"),
    "vocab a float": (document(vocab=2.0), r": vocab: got 2\.0"),
    "vocab true": (document(vocab=True), r": vocab: got True"),
    "vocab an object": (document(vocab={}), r": vocab: got \{\}, expected a number of tokens"),
    "vocab empty": (document(vocab=[]), r": vocab: got an empty list"),
    "vocab not unique": (
        document(vocab=["A", "A"]),
        r": vocab\[1\]: got 'A' again, expected another label than vocab\[0\]",
    ),
    "label no string": (document(vocab=["A", 2]), r": vocab\[1\]: got 2, expected a string"),
    "label half a surrogate": (document(vocab=["A", "\ud800"]), r": vocab\[1\]: got '\\ud800', half of a surr"),
    "depth 0": (document(depth=0), r": depth: got 0, expected an integer >= 1"),
    "depth -1": (document(depth=-1), r": depth: got -1"),
    "depth a string": (document(depth="2"), r": depth: got '2', expected an integer >= 1"),
    "depth false": (document(depth=False), r": depth: got False"),
    "depth NaN": (document(depth=float("nan")), r": depth: got nan"),
    "table no object": (document(target=[0.5, 0.5]), r": target: got \[0\.5, 0\.5\], expected an object"),
    "no kind": (document(draft={"probs": [1, 0]}), r": draft\.kind: got nothing, expected one of iid, markov, tree"),
    "unknown kind": (document(draft={"kind": "ngram"}), r": draft\.kind: got 'ngram', expected one of iid"),
    "kind no string": (document(draft={"kind": {}}), r": draft\.kind: got \{\}"),
    "key of another kind": (
        document(draft=LAW | {"levels": []}),
        r": draft: got the unknown key 'levels', expected kind, probs",
    ),
    "table key missing": (
        document(target={"kind": "markov", "initial": [1, 0]}),
        r": target: got no key 'transition', expected kind, initial, transition",
    ),
    "probs no list": (document(target={"kind": "iid", "probs": 1}), r": target\.probs: got 1, expected a list"),
    "probs too long": (document(draft=iid(0.5, 0.3, 0.2)), r": draft\.probs: got a list of 3, expected 2 prob"),
    "probs too short": (document(draft=iid(1)), r": draft\.probs: got a list of 1, expected 2 probabilities"),
    "too few transitions": (
        document(draft={"kind": "markov", "initial": [1, 0], "transition": [[1, 0]]}),
        r": draft\.transition: got a list of 1, expected 2 rows, one for each last token",
    ),
    "transition row too long": (
        document(draft={"kind": "markov", "initial": [1, 0], "transition": [[1, 0], [1, 0, 0]]}),
        r": draft\.transition row 1 \(after 'B'\): got a list of 3, expected 2",
    ),
    "too few levels": (
        document(target={"kind": "tree", "levels": [[[1, 0]]]}),
        r": target\.levels: got a list of 1, expected 2 levels, one for each drafted position",
    ),
    "level no list": (
        document(target={"kind": "tree", "levels": [[[1, 0]], 7]}),
        r": target\.levels\[1\]: got 7, expected a list",
    ),
    "too few rows": (document(target=TREE_ROWS([1, 0])), r": target\.levels\[1\]: got a list of 1, expected 2 rows"),
    "row no list": (document(target=TREE_ROWS([1, 0], 1)), r": target\.levels\[1\]\[1\]: got 1, expected a list"),
    "row too short": (
        document(target=TREE_ROWS([1, 0], [1])),
        r": target\.levels\[1\] row 1 \(prefix 'B'\): got a list of 1, expected 2 probabilities",
    ),
    "negative": (
        document(target=TREE_ROWS([1, 0], [1.5, -0.5])),
        r"target\.levels\[1\] row 1 \(prefix 'B'\) entry 1 \(token 'B'\): got a negative number, -0\.5, expected",
    ),
    "negative string": (document(target=iid("4/3", "-1/3")), r"target\.probs entry 1 .*a negative number, -0\.333"),
    "NaN": (document(target=iid(float("nan"), 1)), r"target\.probs entry 0 \(token 'A'\): got nan, expected a prob"),
    "Infinity": (document(draft=iid(0, float("inf"))), r"draft\.probs entry 1 .*got a number too large, inf"),
    "string of letters": (document(target=iid("abc", 1)), r"target\.probs entry 0 .*got 'abc', which is no number"),
    "string NaN": (document(target=iid("nan", 1)), r"got 'nan', which is no number"),
    "string with space": (document(target=iid(" 1", 0)), r"got ' 1', which is no number"),
    "string of other digits": (document(target=iid("\u0661", 0)), r"which is no number"),
    "underscore": (document(target=iid("1_0", 0)), r"got '1_0', which is no number"),
    "empty string": (document(target=iid("", 1)), r"got '', which is no number"),
    "1/0": (document(target=iid("1/0", 1)), r"target\.probs entry 0 .*got '1/0', a division by zero"),
    "1e400": (document(target=iid("1e400", 0)), r"target\.probs entry 0 .*got '1e400', a number too large"),
    "1e999999999": (document(target=iid("1e999999999", 0)), r"got '1e999999999', which is no number"),
    "huge integer": (document(target=iid(10**400, 0)), r"got 1000.*\.\.\. \(401 characters\), a number too large"),
    "boolean": (document(target=iid(True, 0)), r"target\.probs entry 0 \(token 'A'\): got True, expected a prob"),
    "null entry": (document(target=iid(None, 1)), r"target\.probs entry 0 .*got None"),
    "list entry": (document(target=iid([1], 0)), r"target\.probs entry 0 .*got \[1\]"),
    "float sum": (
        document(target=TREE_ROWS([0.5, 0.5], [0.5, 0.4])),
        r"target\.levels\[1\] row 1 \(prefix 'B'\): got a sum of 0\.9, expected a sum of 1 \(--normalize",
    ),
    "rational sum": (
        document(target=iid("1/3", "1/3"), draft=iid(1, 0)),
        r"target\.probs: got a sum of 2/3, expected a sum of 1",
    ),
    "rational sum nearly 1": (
        document(target=iid("0.5", "0.4999999999999"), draft=iid(1, 0)),
        r"target\.probs: got a sum of 9999999999999/10000000000000, expected",
    ),
    "transition sum": (
        document(draft={"kind": "markov", "initial": [1, 0], "transition": [[0.5, 0.4], [1, 0]]}),
        r"draft\.transition row 0 \(after 'A'\): got a sum of 0\.9",
    ),
    "initial sum": (
        document(draft={"kind": "markov", "initial": [1, 0.5], "transition": [[1, 0], [1, 0]]}),
        r"draft\.initial: got a sum of 1\.5",
    ),
    "zero row": (document(target=iid(0, 0.0)), r"target\.probs: got a sum of 0, expected a sum of 1"),
    "sum overflows": (document(target=iid(1e299, 1e299)), r"target\.probs: got a sum of 2e\+299"),
}


@pytest.mark.parametrize("case", BAD_DOCUMENTS)
def test_bad_documents(case: str, tmp_path: Path) -> None:
    content, match = BAD_DOCUMENTS[case]
    path = write(tmp_path, content)
    with pytest.raises(InputError, match=match) as caught:
        load_problem(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert len(message) < 400 + len(str(path))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"{", r"file\.json: line 1 column 2: got Expecting property name"),
        (b"", r"file\.json: line 1 column 1: got Expecting value, expected JSON"),
        (b'{\n "format": 1,,', r"file\.json: line 2 column 14: got"),
        (b'{"a": "\xff"}', r"file\.json: byte 7: got invalid start byte, expected UTF-8"),
        (b"\xff\xfe{\x00}\x00", r"file\.json: byte 0: got invalid start byte, expected UTF-8"),
        (b"[" * 200_000, r"file\.json: got JSON nested too deep"),
        (b"[" + b"1" * 5000 + b"]", r"file\.json: got an integer with too many digits"),
        (b'{"depth": 1, "depth": 2}', r'file\.json: key "depth": got two values, expected one'),
        (b'{"format": "lpverify/problem@1"} x', r"line 1 column 34: got Extra data"),
    ],
)
def test_bad_bytes(content: bytes, match: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=match):
        load_problem(write(tmp_path, content))


def test_bad_paths(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.json: got no such file, expected a problem file or an example"):
        load_problem(tmp_path / "nowhere.json")
    with pytest.raises(InputError, match=r"skewed: got no such file.*did you mean skewed-3\?"):
        load_problem("skewed")
    with pytest.raises(InputError, match="got Is a directory, expected a readable problem file"):
        load_problem(tmp_path)
    with pytest.raises(InputError, match="got Not a directory"):
        load_problem(write(tmp_path, b"") / "x")
    with pytest.raises(InputError, match="null byte"):
        load_problem("a\0b")
    with pytest.raises(InputError, match="got File name too long"):
        load_problem("x" * 5000)
    with pytest.raises(InputError, match="got no such file"):
        load_problem("")


def test_huge_files_are_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)  # sparse
    with pytest.raises(
        SizeError, match=r"huge\.json: got a file of more than 536870912 bytes, expected at most 536870912"
    ):
        load_problem(path)


@pytest.mark.parametrize(
    ("vocab", "depth", "match"),
    [
        (2, 10**9, r": depth: got 1000000000, expected at most 50000000"),
        (2, 10**30, r": depth: got 10+.*expected at most 50000000"),
        (2, 10**7, r"file\.json: got a depth of 10000000, expected at most 1000"),
        (1, 10**7, r"file\.json: got a depth of 10000000, expected at most 1000"),
        (2, 30, r"file\.json: got a table of at least 67108862 entries, expected at most 50000000; use a smaller"),
        (10**12, 1, r": vocab: got 1000000000000, expected at most 50000000"),
        (10**5, 2, r"file\.json: got a table of at least 10000100000 entries"),
    ],
)
def test_sizes_are_refused_before_memory_is_spent(vocab: int, depth: int, match: str, tmp_path: Path) -> None:
    with pytest.raises(SizeError, match=match):
        load_problem(write(tmp_path, document(vocab=vocab, depth=depth)))


def test_zero_and_infinite_rows_cannot_be_normalized() -> None:
    for row, shown in [((0, 0), "0"), ((8e299, 8e299), r"1\.6e\+300")]:
        with pytest.raises(InputError, match=rf"target\.probs: got a sum of {shown}, expected a positive finite sum"):
            parse_problem(document(target=iid(*row)), "x", normalize=True)


def test_normalize_still_refuses_what_is_no_probability() -> None:
    with pytest.raises(InputError, match="negative number, -1"):
        parse_problem(document(target=iid(3, -1)), "x", normalize=True)


def test_exact_arithmetic_asked_for_and_not_to_be_had(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"target\.levels\[0\] row 0 \(prefix ''\) entry 0: got 0\.5, expected only"):
        load_problem(write(tmp_path, document()), rational=True)


# ---- what is written ----


def assert_same(first: ModelPair, second: ModelPair) -> None:
    assert first.tokens == second.tokens
    assert first.rational == second.rational
    for a, b in zip((*first.target, *first.draft), (*second.target, *second.draft), strict=True):
        assert a.dtype == b.dtype
        assert (a == b).all()


@pytest.mark.parametrize("name", example_names())
def test_round_trip_of_every_example(name: str, tmp_path: Path) -> None:
    problem = load_problem(name)
    for pair in (problem.pair, problem.pair.floats):
        save_problem(VerifyProblem(pair, 1, problem.name, problem.description), tmp_path / "x.json")
        again = load_problem(tmp_path / "x.json")
        assert_same(again.pair, pair)
        assert (again.pair.bonus_rows == pair.bonus_rows).all()
        assert (again.name, again.description) == (problem.name, problem.description)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    vocab=st.integers(1, 4),
    depth=st.integers(1, 3),
    seed=st.integers(0, 2**32),
    family=st.sampled_from([make.dirichlet, make.markov, make.softmax, make.rational]),
)
@example(vocab=2, depth=1, seed=0, family=make.markov)  # a draft that looks iid, a law after a leaf that does not
@example(vocab=2, depth=1, seed=0, family=make.dirichlet)
def test_round_trip_is_bit_exact(vocab: int, depth: int, seed: int, family: Any, tmp_path: Path) -> None:
    pair = family(vocab, depth, seed)
    save_problem(VerifyProblem(pair, 3, "name", "text"), tmp_path / "x.json")
    again = load_problem(tmp_path / "x.json").pair
    assert_same(again, pair)
    assert (again.bonus_rows == pair.bonus_rows).all()


def test_saved_tables_use_the_shortest_kind() -> None:
    kinds = {name: problem_document(load_problem(name))["target"]["kind"] for name in example_names()}
    assert (kinds["coin-2"], kinds["markov-3"], kinds["near-draft"]) == ("iid", "markov", "tree")


def test_awkward_labels_survive(tmp_path: Path) -> None:
    labels = [' "quoted"', "[ a, b ]", "\n", "\\", "\u00e9\U0001f600"]
    pair = ModelPair.from_levels([np.full((1, 5), 0.2)], [np.full((1, 5), 0.2)], tokens=labels)
    save_problem(VerifyProblem(pair, 1, "[ 1,\n 2 ]", "{ }"), tmp_path / "x.json")
    again = load_problem(tmp_path / "x.json")
    assert list(again.pair.tokens) == labels
    assert (again.name, again.description) == ("[ 1,\n 2 ]", "{ }")


def test_saving_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, path = load_problem("coin-2"), tmp_path / "x.json"
    path.write_text("before")
    path.chmod(0o640)

    def fails(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails)
        with pytest.raises(InputError, match=r"x\.json: got No space left on device, expected a path"):
            save_problem(problem, path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    save_problem(problem, path)
    assert load_problem(path).name == "coin-2"
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["missing/x.json", ".", "a\0b"])
def test_paths_that_cannot_be_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a path that can be written"):
        save_problem(load_problem("coin-2"), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_saving_to_a_link_and_to_a_device(tmp_path: Path) -> None:
    link, real = tmp_path / "link.json", tmp_path / "real.json"
    link.symlink_to(real)
    save_problem(load_problem("coin-2"), link)
    assert link.is_symlink()
    assert load_problem(real).name == "coin-2"
    save_problem(load_problem("coin-2"), os.devnull)
    assert not Path(os.devnull).is_file()


# ---- anything at all ----

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["1/3", "iid", "tree", "markov", "1e400", 10**400, -0.0, 1e308, 10**9]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, entry in inside for place in places(entry, (*path, key)))]


def attempt(path: Path, normalize: bool) -> ModelPair | str:
    """The problem's pair, or the message of the InputError; anything else is a failure."""
    try:
        return load_problem(path, normalize=normalize).pair
    except InputError as error:
        return str(error)


VALID = [problem_document(load_problem(name)) for name in ("coin-2", "markov-3", "tree-v3-l2-a")] + [document()]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), normalize=st.booleans())
def test_mutated_documents_never_raise_anything_else(data: st.DataObject, normalize: bool, tmp_path: Path) -> None:
    mutant = copy.deepcopy(data.draw(st.sampled_from(VALID)))
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(places(mutant)))
        if not place:
            mutant = data.draw(JSON_VALUES)
            continue
        parent = mutant
        for key in place[:-1]:
            parent = parent[key]
        if data.draw(st.booleans()):
            parent[place[-1]] = data.draw(JSON_VALUES)
        else:
            del parent[place[-1]]
    path = write(tmp_path, mutant)
    outcome = attempt(path, normalize)
    if isinstance(outcome, str):
        assert outcome.startswith(str(path))
        assert "\n" not in outcome
        outcome.encode()
    else:
        for level in (*outcome.target, *outcome.draft):
            assert (level >= 0).all()
            np.testing.assert_allclose(level.sum(axis=1).astype(float), 1, rtol=0, atol=1e-9)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 400), insert=st.binary(max_size=4))
def test_damaged_bytes_never_raise_anything_else(cut: int, insert: bytes, tmp_path: Path) -> None:
    content = json.dumps(document()).encode()
    path = write(tmp_path, content[:cut] + insert + content[cut + 1 :])
    outcome = attempt(path, False)
    assert isinstance(outcome, ModelPair) or outcome.startswith(str(path))
