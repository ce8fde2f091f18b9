"""Throughput from costs and block efficiency: the model, the documents, ``lpverify advise``."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lpverify as lv
from lpverify import InputError
from lpverify.cli import app
from lpverify.core.model_pair import ModelPair
from lpverify.core.problem import load_problem, save_problem
from lpverify.studies import throughput
from lpverify.studies.cost_files import load_cells, parse_costs
from lpverify.studies.throughput import Cell, by_speed, predict, with_full_acceptance, within
from lpverify.verifiers import VERIFIERS

EXPERIMENT = Path(__file__).parents[1] / "experiments" / "advise_check.py"
COSTS: dict[str, Any] = {
    "schema": "lpverify/costs@1",
    "draft_step": {"1": 2.0, "4": 5.0},
    "target_pass": {"1": 10.0, "33": 26.0},
    "verify": {"bv": 0.5, "pbv": {"1": 1.0, "4": {"4": 2.0, "8": 4.0}}},
    "round": {"1": 1.0, "4": 2.0},
    "catch_up": 3.0,
    "target_step": 10.0,
}
BOUND: dict[str, Any] = {
    "schema": "lpverify/bound@1",
    "settings": {"target": "tiny", "draft": "tiny", "temperature": 1.0, "top_k": None, "top_p": None},
    "cells": [
        {"paths": paths, "depth": depth, "nodes": paths * depth * 0.75, "algorithms": {
            "bv": {"block_efficiency": 2.0 + 0.1 * depth, "se": 0.1},
            "pbv": {"block_efficiency": 2.0 + 0.1 * depth + 0.2 * paths, "se": 0.2},
        }}
        for paths in (1, 2, 4) for depth in (4, 8)
    ],
}  # fmt: skip


def written(path: Path, document: Any) -> str:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def test_a_round_by_hand() -> None:
    """K = 4, L = 6, 15 nodes: draft 2 + 5*5, target 10 + 15*0.5, verify halfway 2 and 4, cache 2 + 3/4."""
    costs = parse_costs(COSTS, "costs")
    [found] = predict(costs, [Cell("pbv", 4, 6, 15.0, 4.0, 0.2, 0.25)])
    assert found.seconds == {"draft": 27.0, "target": 17.5, "verify": 3.0, "cache": 2.75}
    assert found.tokens_per_second == pytest.approx(4.0 / 50.25, rel=1e-15)
    assert found.se == pytest.approx(0.2 / 50.25, rel=1e-15)
    assert found.speed_up == pytest.approx(10 * 4.0 / 50.25, rel=1e-15)
    [single] = predict(costs, [Cell("bv", 1, 3, 3.0, 2.0, None, 0.0)])
    assert single.seconds == {"draft": 6.0, "target": 11.5, "verify": 0.5, "cache": 1.0}
    assert single.se is None


def test_between_paths_as_between_depths() -> None:
    """K = 2 lies a third of the way from K = 1, where verification takes 1 s, to K = 4, where it takes 3 s at L = 6."""
    costs = parse_costs(COSTS, "costs")
    assert costs.verify["pbv"](2, 6) == pytest.approx(1 + 2 / 3)
    assert costs.draft_step(2) == 3.0


def test_without_optional_costs() -> None:
    """The last drafted token is fed by one more draft step; a speed-up over an unknown time is not known."""
    document = {key: value for key, value in COSTS.items() if key not in ("catch_up", "target_step")}
    costs = parse_costs(document, "costs")
    assert costs.catch_up == 2.0
    [found] = predict(costs, [Cell("bv", 1, 3, 3.0, 2.0, None, 0.5)])
    assert (found.seconds["cache"], found.speed_up) == (2.0, None)


@pytest.mark.parametrize("name", [name for name in VERIFIERS if name != "policy"])
def test_all_is_accepted_as_often_as_the_last_token_adds(name: str) -> None:
    """Pr(tau = L) = BE(L) - BE(L - 1), exactly enumerated: what `with_full_acceptance` relies on."""
    pair = lv.make.softmax(2, 3, seed=1, temperature=0.8, draft_noise=0.7)
    short = ModelPair.from_levels(pair.target[:2], pair.draft[:2], bonus=pair.target[2])
    whole, part = (lv.evaluate(lv.VerifyProblem(p, 2), name) for p in (pair, short))
    assert whole.accepted[-1] == pytest.approx(whole.block_efficiency - part.block_efficiency, abs=1e-12)


def test_full_acceptance_and_interpolation() -> None:
    """Values 1 + (1 - 2^-L): measured at every L the increments are exact, at 1, 2 and 4 those at 1 and 2."""
    every = [Cell("bv", 1, depth, depth, 2 - 0.5**depth, 0.1 * depth) for depth in (1, 2, 3, 4)]
    assert [cell.full for cell in with_full_acceptance(every)] == pytest.approx([0.5, 0.25, 0.125, 0.0625])
    some = [every[3], every[0], every[1]]
    found = with_full_acceptance(some, interpolate=True)
    assert [cell.depth for cell in found] == [1, 2, 3, 4]
    assert [cell.interpolated for cell in found] == [False, False, True, False]
    assert [cell.block_efficiency for cell in found if not cell.interpolated] == [1.5, 1.75, 1.9375]
    assert 1.75 < found[2].block_efficiency < 1.9375
    assert (found[2].nodes, found[2].se) == (pytest.approx(3.0), pytest.approx(0.3))  # type: ignore[comparison-overlap]
    assert found[:2] == with_full_acceptance(some)[:2]
    assert with_full_acceptance([Cell("x", 2, 2, 3, 2.0, None, 0.125)])[0].full == 0.125  # what was counted is kept
    assert with_full_acceptance([Cell("x", 2, 2, 3, 2.0)], interpolate=True)[0].se is None


cells = st.builds(
    Cell,
    st.sampled_from(["bv", "pbv"]),
    st.integers(1, 4),
    st.integers(4, 8),
    st.floats(1, 32),
    st.floats(1, 9),
    st.floats(0, 1),
    st.floats(0, 1),
)


@settings(max_examples=60, deadline=None)
@given(
    found=st.lists(cells, min_size=1, max_size=8),
    part=st.sampled_from([("draft_step", "1"), ("target_pass", "33"), ("verify", "bv"), ("round", "4"), ("catch_up",)]),
    share=st.sampled_from([0.0, 0.02, 0.05, 0.5]),
)
def test_properties(found: list[Cell], part: tuple[str, ...], share: float) -> None:
    """Nothing gets faster when a cost rises; the recommendation is the brute-force maximum."""
    before = predict(parse_costs(COSTS, "costs"), found)
    dearer = copy.deepcopy(COSTS)
    place = dearer
    for key in part[:-1]:
        place = place[key]
    place[part[-1]] *= 1.5
    after = predict(parse_costs(dearer, "costs"), found)
    assert all(b.tokens_per_second <= a.tokens_per_second for a, b in zip(before, after, strict=True))
    if part == ("verify", "bv"):
        changed = [a.tokens_per_second > b.tokens_per_second for a, b in zip(before, after, strict=True)]
        assert changed == [cell.algorithm == "bv" for cell in found]
    most = max(cell.block_efficiency / sum(p.seconds.values()) for cell, p in zip(found, before, strict=True))
    assert by_speed(before)[0].tokens_per_second == most
    near = within(before, share)
    assert near[0].tokens_per_second == most
    assert len(near) == sum(p.tokens_per_second >= (1 - share) * most for p in before)


def test_cells_of_a_bound_document(tmp_path: Path) -> None:
    """What looks at one path only is drafted one, and charged for one, whatever K it stands under."""
    found, shared = load_cells([written(tmp_path / "b.json", BOUND)])
    assert shared["target"] == "tiny"
    assert {(c.num_paths, c.depth, c.nodes) for c in found if c.algorithm == "bv"} == {(1, 4, 4.0), (1, 8, 8.0)}
    assert {(c.num_paths, c.depth, c.nodes, c.block_efficiency) for c in found if c.algorithm == "pbv"} == {
        (k, depth, 0.75 * k * depth, 2.0 + 0.1 * depth + 0.2 * k) for k in (1, 2, 4) for depth in (4, 8)
    }


def decoded(paths: int, depth: int, temperature: float = 1.0) -> dict[str, Any]:
    runs = [
        {"algorithm": name, "block_efficiency": 2.5, "block_efficiency_se": 0.2, "rao_blackwell": smooth,
         "rao_blackwell_se": None, "nodes_per_round": 5.0, "accepted_histogram": [4, 3, 2, 1], "tokens_per_second": 9.0}
        for name, smooth in (("pbv", 2.25), ("autoregressive", 1.0))
    ]  # fmt: skip
    settings = BOUND["settings"] | {"paths": paths, "depth": depth, "temperature": temperature}
    return {"schema": "lpverify/decode@1", "settings": settings, "runs": runs}


def test_cells_of_decode_documents(tmp_path: Path) -> None:
    """The smooth estimate, and how often all was accepted, as counted; baselines are no candidates."""
    files = [written(tmp_path / f"{k}.json", decoded(k, 3)) for k in (2, 3)]
    found, _ = load_cells(files)
    assert found == [Cell("pbv", k, 3, 5.0, 2.25, None, 0.1) for k in (2, 3)]
    with pytest.raises(InputError, match=r"2\.json: got pbv at K = 2, L = 3 a second time"):
        load_cells([files[0], files[0]])
    other = written(tmp_path / "other.json", decoded(4, 3, temperature=0.6))
    with pytest.raises(InputError, match=r"other\.json: settings: got temperature = 0\.6, expected 1\.0 as in"):
        load_cells([files[0], other])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "x"}, "costs: got schema 'x', expected a document lpverify/costs@1"),
        ({"verify": None}, "costs: verify: got nothing, expected an object"),
        ({"round": {}}, "costs: round: got no entry, expected seconds by paths"),
        ({"round": -1}, "costs: round: got -1, expected a finite number >= 0"),
        ({"draft_step": {"1": 0}}, "costs: draft_step.1: got 0, expected a finite number > 0"),
        ({"draft_step": {"one": 1}}, "costs: draft_step: key: got 'one', expected a number of paths"),
        ({"draft_step": {"1": 1, "01": 2}}, "costs: draft_step: got the key 1 twice"),
        ({"target_pass": {"1": "fast"}}, "costs: target_pass.1: got 'fast', expected a finite number > 0"),
        ({"target_pass": {"1": True}}, "costs: target_pass.1: got True"),
        ({"target_pass": float("nan")}, "costs: target_pass: got nan"),
        ({"verify": {"pbv": {"4": {"0": 1}}}}, "costs: verify.pbv.4: key: got '0', expected a number of depth"),
        ({"target_step": [1]}, "costs: target_step: got [1], expected a finite number > 0"),
        ({"drfat_step": 1}, "costs: key: got 'drfat_step', expected one of schema, draft_step"),
    ],
)
def test_cost_documents_are_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_costs(COSTS | change, "costs")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_costs_are_named() -> None:
    short = {key: value for key, value in COSTS.items() if key != "round"}
    with pytest.raises(InputError, match="costs: got no round, expected draft_step"):
        parse_costs(short, "costs")
    costs = parse_costs(COSTS, "costs")
    for cell, message in (
        (Cell("gbv", 4, 6, 15.0, 4.0, 0.2, 0.25), "costs verify: got no gbv, expected its seconds"),
        (Cell("pbv", 5, 6, 15.0, 4.0, 0.2, 0.25), "costs: draft_step: got 5 paths, expected 1 to 4, which the table"),
        (Cell("pbv", 4, 9, 15.0, 4.0, 0.2, 0.25), "costs: verify.pbv.4: got 9 depth, expected 4 to 8"),
        (Cell("pbv", 4, 6, 33.0, 4.0, 0.2, 0.25), "costs: target_pass: got 34 tokens, expected 1 to 33"),
    ):
        with pytest.raises(InputError) as caught:
            predict(costs, [cell])
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("schema",), "lpverify/solve@1", "expected a document lpverify/bound@1 or lpverify/decode@1"),
        (("settings", "temperature"), "hot", "settings.temperature: got 'hot', expected a number or null"),
        (("settings", "target"), 1, "settings.target: got 1, expected a name or null"),
        (("cells",), {}, "cells: got {}, expected a list"),
        (("cells",), [], "got no algorithm, expected at least one"),
        (("cells", 1, "paths"), 0, "cells[1].paths: got 0, expected an integer >= 1"),
        (("cells", 1, "nodes"), 9.5, "cells[1].algorithms.bv: nodes: got 9.5, expected 0..8"),
        (("cells", 0, "algorithms", "bv"), 2.0, "cells[0].algorithms.bv: got 2.0, expected an object"),
        (("cells", 0, "algorithms", "bv", "se"), -1, "bv.se: got -1, expected a standard error"),
        (("cells", 0, "algorithms", "bv", "block_efficiency"), 5.5, "bv: block_efficiency: got 5.5, expected 1..5"),
        (("cells", 0, "algorithms", "bv", "block_efficiency"), None, "efficiency: got nothing, expected a number"),
    ],
)
def test_efficiency_documents_are_refused_in_one_line(
    tmp_path: Path, place: tuple[Any, ...], value: Any, message: str
) -> None:
    document = copy.deepcopy(BOUND)
    spot: Any = document
    for key in place[:-1]:
        spot = spot[key]
    spot[place[-1]] = value
    with pytest.raises(InputError) as caught:
        load_cells([written(tmp_path / "b.json", document)])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_stages_are_those_of_decoding() -> None:
    metrics = pytest.importorskip("lpverify.decode.metrics")
    assert throughput.STAGES == metrics.STAGES


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        app(list(arguments))
    captured = capsys.readouterr()
    return int(exit_.value.code or 0), captured.out, captured.err


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    return written(tmp_path / "bound.json", BOUND), written(tmp_path / "costs.json", COSTS)


def test_advice_from_files(capsys: pytest.CaptureFixture[str], files: tuple[str, str]) -> None:
    """The document says what the model says; its best is the brute-force maximum, its vicinity within its share."""
    bound, costs = files
    code, out, err = call(capsys, "advise", bound, "--costs", costs, "--json", "-")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["schema"] == "lpverify/advise@1"
    assert document["autoregressive_tokens_per_second"] == 0.1
    assert len(document["cells"]) == 2 + 6
    rates = [cell["tokens_per_second"] for cell in document["cells"]]
    assert document["best"] == document["cells"][rates.index(max(rates))]
    for near in document["near_best"]:
        assert len(near["cells"]) == sum(rate >= (1 - near["within"]) * max(rates) for rate in rates)
    one = next(c for c in document["cells"] if (c["algorithm"], c["paths"], c["depth"]) == ("pbv", 4, 8))
    full = one["all_accepted"]  # 3.6 at L = 8 and 3.2 at L = 4
    assert 0 < full <= 0.1 + 1e-12
    seconds = (2 + 7 * 5) + (10 + 24 * 0.5) + 4 + (2 + 3 * full)
    assert one["tokens_per_second"] == pytest.approx(3.6 / seconds)
    assert one["tokens_per_second_se"] == pytest.approx(0.2 / seconds)


def test_table_for_people(capsys: pytest.CaptureFixture[str], files: tuple[str, str]) -> None:
    bound, costs = files
    code, out, err = call(capsys, "advise", bound, "--costs", costs, "--interpolate")
    assert (code, err) == (0, "")
    assert out.startswith("Predicted tokens per second")
    assert "~" in out
    assert out.count(" *") == 1
    assert "times the target alone" in out
    assert "within 5 %: " in out
    code, out, _ = call(capsys, "advise", bound, "--costs", costs, "--algorithms", "bv")
    assert "pbv" not in out
    assert "~" not in out


def test_algorithms_without_costs_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bound = written(tmp_path / "bound.json", BOUND)
    costs = written(tmp_path / "costs.json", COSTS | {"verify": {"bv": 0.5}})
    code, out, _ = call(capsys, "advise", bound, "--costs", costs)
    assert code == 0
    assert out.endswith("left out, as the costs do not have them: pbv\n")
    code, _, err = call(capsys, "advise", bound, "--costs", costs, "--algorithms", "bv,pbv")
    assert (code, err) == (
        2, "lpverify: error: costs verify: got no pbv, expected its seconds (there are bv)\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--costs", "none.json"], "none.json: got No such file"),
        (["--target", "tiny"], "--target: got tiny, expected no such option together with DOCUMENT and --costs"),
        (["--algorithms", "bv,gbv"], "--algorithms: got 'gbv', expected one of bv, pbv"),
        (["--plot", "x.gif"], "--plot: got x.gif, expected a file name that ends in .png"),
        (["--json", "/none/x.json"], "--json: got /none/x.json"),
        (["none.json"], "none.json: got No such file"),
        (["--paths", "2"], "--paths: got 2, expected no such option together with DOCUMENT"),
        (["--save-costs", "c.json"], "--save-costs: got c.json, expected no such option together with --costs"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], files: tuple[str, str], arguments: list[str], message: str
) -> None:
    code, out, err = call(capsys, "advise", files[0], "--costs", files[1], *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


def test_nothing_is_half_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bound, costs = written(tmp_path / "b.json", BOUND), written(tmp_path / "c.json", COSTS | {"target_pass": {"1": 1}})
    kept = set(tmp_path.iterdir())
    code, _, err = call(capsys, "advise", bound, "--costs", costs, "--json", str(tmp_path / "a.json"))
    assert (code, err.count("\n")) == (2, 1)
    assert set(tmp_path.iterdir()) == kept


def test_pictures(capsys: pytest.CaptureFixture[str], files: tuple[str, str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "p.svg"
    code, _, err = call(capsys, "advise", files[0], "--costs", files[1], "--plot", str(picture))
    assert (code, err) == (0, "")
    assert "looks at one path" in picture.read_text()


def test_measured_on_a_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The pair of the document is measured, all its cells covered; what is kept gives the same advice again."""
    pytest.importorskip("torch")
    document = copy.deepcopy(BOUND)
    document["settings"] |= {"target": "markov-3", "draft": "markov-3"}
    bound, costs = written(tmp_path / "bound.json", document), str(tmp_path / "costs.json")
    arguments = ["--prompts", "A B", "--context", "12", "--repeats", "1", "--json", "-"]
    code, out, err = call(capsys, "advise", bound, *arguments, "--save-costs", costs)
    assert (code, err) == (0, "")
    advice = json.loads(out)
    assert all(seconds > 0 for cell in advice["cells"] for seconds in cell["stage_seconds"].values())
    kept = json.loads(Path(costs).read_text())
    assert kept == advice["costs"]
    assert kept["settings"]["target"] == "markov-3"
    assert set(kept["verify"]) == {"bv", "pbv"}
    assert set(kept["verify"]["bv"]) == {"1"}
    assert {(k, depth) for k, row in kept["verify"]["pbv"].items() for depth in row} == {
        (k, depth) for k in "124" for depth in "48"
    }
    code, out, _ = call(capsys, "advise", bound, "--costs", costs, "--json", "-")
    assert json.loads(out)["cells"] == advice["cells"]
    code, _, err = call(capsys, "advise", bound, "--prompts", "A", "--repeats", "0")
    assert (code, err) == (2, "lpverify: error: --repeats: got 0, expected an integer >= 1\n")


def test_documents_and_costs_of_models_that_changed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same names with other content do not go together: documents, costs, and what is measured now."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    pair = ["--target", "m.json", "--draft", "m.json", "--prompts", "A"]
    measure = ["bound", *pair, "-l", "2", "--contexts", "2", "--algorithms", "bv"]
    short = ["--context", "8", "--repeats", "1"]
    save_problem(load_problem("markov-3"), "m.json")
    assert call(capsys, *measure, "-k", "1", "--json", "one.json")[0] == 0
    assert call(capsys, "advise", "one.json", *short, "--prompts", "A", "--save-costs", "costs.json")[0] == 0
    assert call(capsys, "advise", "one.json", "--costs", "costs.json")[0] == 0
    text = Path("m.json").read_text()
    document = json.loads(text)
    document["target"]["initial"].reverse()
    Path("m.json").write_text(json.dumps(document))
    for arguments, where in (
        (["one.json", *short, "--prompts", "A"], "the models: got target m.json with content {'table': '"),
        (["-k", "1", "-l", "2", *measure[1:7], "--costs", "costs.json"], "the models: got target m.json with content"),
    ):
        code, out, err = call(capsys, "advise", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert where in err
        assert "measure one of them again" in err
    measure[-1] = "pbv"
    assert call(capsys, *measure, "-k", "2", "--json", "two.json")[0] == 0
    for arguments, where in (
        (["one.json", "two.json", "--costs", "costs.json"], "two.json: got target m.json with content"),
        (["two.json", "--costs", "costs.json"], "costs.json: got target m.json with content"),
    ):
        code, out, err = call(capsys, "advise", *arguments)
        assert (code, out) == (2, "")
        assert where in err
    Path("m.json").write_text(text)
    assert call(capsys, "advise", "one.json", *short, "--prompts", "A")[0] == 0


def test_without_documents_runs_are_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One command from a pair to advice; with the pair's costs by hand only block efficiency is measured."""
    pytest.importorskip("torch")
    costs = written(tmp_path / "costs.json", COSTS)
    pair = ["advise", "--target", "markov-3", "--draft", "markov-3", "--prompts", "A", "--tokens", "24"]
    shape = ["-k", "1,4", "-l", "4,8", "--algorithms", "bv,pbv"]
    code, out, err = call(capsys, *pair, *shape, "--costs", costs, "--json", "-")
    assert (code, err) == (0, "")
    advice = json.loads(out)
    assert {(c["algorithm"], c["paths"], c["depth"]) for c in advice["cells"]} == {
        *(("bv", 1, depth) for depth in (4, 8)), *(("pbv", k, depth) for k in (1, 4) for depth in (4, 8))
    }  # fmt: skip
    assert advice["efficiency"]["settings"]["tokens"] == 24
    by_place = {(c["algorithm"], c["paths"], c["depth"]): c for c in advice["cells"]}
    assert by_place["pbv", 1, 8]["block_efficiency"] == by_place["bv", 1, 8]["block_efficiency"]
    assert by_place["pbv", 1, 8]["block_efficiency"] <= by_place["pbv", 4, 8]["block_efficiency"]
    code, out, err = call(capsys, *pair, "-k", "2", "-l", "2", "--repeats", "1", "--context", "8")
    assert (code, err) == (0, "")
    assert {line.split()[0] for line in out.splitlines() if line.strip()} >= {"bv", "gbv", "tgbv", "pbv", "ebv"}
    for arguments, message in (
        (["--algorithms", "traversal"], "--algorithms: got 'traversal', expected one of token, bv, gbv"),
        (["-k", "0"], "--paths: got 0, expected an integer >= 1"),
        (["--tokens", "0"], "tokens: got 0, expected an integer >= 1"),
        (["--temperature", "-1"], "temperature: got -1.0"),
    ):
        code, out, err = call(capsys, *pair, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err


def test_measured_times_are_of_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that only models move, 1 a draft step, 10 + n a pass of n tokens, the tables are those numbers."""
    pytest.importorskip("torch")
    from lpverify.decode import metrics, table
    from lpverify.decode.models import Pair
    from lpverify.decode.sampling import Sampling
    from lpverify.studies import costs

    now, speed = [0.0], [7.0]  # the warm-up is slower
    monkeypatch.setattr(metrics.Stopwatch, "clock", staticmethod(lambda: now[0]))

    def ticking(name: str, method: str, cost: Any) -> None:
        plain = getattr(table.TableState, method)

        def counted(self: Any, tokens: Any, *rest: Any) -> Any:
            now[0] += speed[0] * cost(len(tokens))
            return plain(self, tokens, *rest)

        monkeypatch.setattr(table.TableState, method, counted)

    ticking("draft", "append", lambda batch: float(batch))
    ticking("target", "tree", lambda size: 10.0 + size)
    target, _ = table.load("markov-3", "target", costs.torch.device("cpu"))
    draft, _ = table.load("markov-3", "draft", costs.torch.device("cpu"))

    def advance() -> None:
        speed[0] = 1.0

    contexts = [(0, 1, 2)]
    arguments = (["bv", "pbv"], [1, 3], [2, 6], Sampling())
    found = costs.measure(Pair(target, draft), contexts, *arguments, advance=advance)
    assert found["draft_step"] == {"1": 1.0, "3": 3.0}
    assert found["target_pass"] == {n: 10.0 + int(n) for n in found["target_pass"]}
    assert {"2", "19"} <= set(found["target_pass"])
    assert found["round"] == {"1": 0.0, "3": 0.0}
    assert (found["catch_up"], found["target_step"]) == (1.0, 1.0)
    assert found["verify"]["bv"] == {"1": {"2": 0.0, "6": 0.0}}
    with pytest.raises(InputError, match="contexts: got 0, expected an integer >= 1"):
        costs.measure(Pair(target, draft), [], ["bv"], [1], [2], Sampling())


def test_a_context_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from lpverify.decode import table
    from lpverify.decode.engine import Request
    from lpverify.decode.models import Pair
    from lpverify.decode.sampling import Sampling
    from lpverify.studies import costs

    model, _ = table.load("markov-3", "target", costs.torch.device("cpu"))
    monkeypatch.setattr(table.TableModel, "limit", 20, raising=False)
    object.__setattr__(model, "limit", 20)
    with pytest.raises(InputError, match="16 prompt . 1 new . 4 drafted tokens, expected at most 20 in all"):
        costs.typical_contexts(Pair(model, model), [Request((0, 1), "a")], 1, 16, 4, Sampling())
    [short, other] = costs.typical_contexts(Pair(model, model), [Request((0, 1), "a")], 2, 15, 4, Sampling())
    assert len(short) == len(other) == 15
    assert short[:2] == other[:2] == (0, 1)
    assert short != other


def test_the_example_of_the_help_is_a_cost_file() -> None:
    from lpverify.cli import advise

    text = str(advise.run.__doc__).split("\b")[1]
    costs = parse_costs(json.loads(text), "help")
    assert costs.target_step == 0.03
    assert costs.verify["pbv"](4, 6) == pytest.approx(0.0025)


@pytest.mark.heavy
@pytest.mark.skipif(not EXPERIMENT.exists(), reason="an installation without experiments/")
def test_experiment_compares_what_was_predicted_with_what_was_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Toy run: every cell is there, errors are those of the two numbers, a rerun measures nothing again."""
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("advise_check", EXPERIMENT)
    assert spec is not None
    assert spec.loader is not None
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    prompts = written(tmp_path / "p.jsonl", '{"text": "A"}\n{"text": "B C"}\n')
    arguments = ["--pair", "markov-3", "--prompts", prompts, "--paths", "1,2", "--depths", "1,3", "--contexts", "2"]
    arguments += ["--new-tokens", "10", "--records", str(tmp_path / "r.jsonl"), "--out", str(tmp_path / "figures")]
    check.main(arguments)
    document = json.loads((tmp_path / "figures" / "advise.json").read_text())
    [pair] = document["data"]["pairs"]
    assert {(r["algorithm"], r["paths"], r["depth"]) for r in pair["rows"]} == {
        (name, k, depth)
        for name in ("bv", "gbv", "pbv", "ebv")
        for k in (1, 2)
        for depth in (1, 3)
        if name != "bv" or k == 1
    }
    for row in pair["rows"]:
        assert row["relative_error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
        seconds, value = row["round_seconds"]["predicted"], row["block_efficiency"]["predicted"]
        assert row["predicted"] == pytest.approx(value / sum(seconds.values()))
    for entry in pair["recommended"]:
        assert 0 <= entry["loss"] < 1
    capsys.readouterr()
    check.main(arguments)
    assert "prompt 1" not in capsys.readouterr().out
    again = json.loads((tmp_path / "figures" / "advise.json").read_text())
    assert again["data"] == document["data"]
