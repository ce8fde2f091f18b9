"""The figures about real models: statistics, identities that any measurement obeys, records, prompts, the table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from matplotlib.collections import LineCollection

import lpverify
from experiments.figures import captions, plots_real, real_data, real_jobs, table_real
from experiments.figures.figure_data import Work
from experiments.figures.figures import FIGURES, available, make, rounded, stored
from experiments.figures.real_data import UPPER, quotient
from experiments.figures.real_jobs import Real
from experiments.figures.real_prompts import BUILT_IN, mixed, prompt_sets
from lpverify.cli import app
from lpverify.decode.metrics import ratio
from lpverify.errors import InputError
from lpverify.exact.compare import OPTIMUM, RANKING
from lpverify.report import plots
from lpverify.verifiers import names

PUBLISHED = Path(__file__).parents[1] / "paper_figs"
MODELS = [name for name, figure in FIGURES.items() if figure.models]


@pytest.fixture(params=["tiny", "published"])
def folder(request: pytest.FixtureRequest, tiny: Path) -> Path:
    return tiny if request.param == "tiny" else PUBLISHED


def rows(name: str, folder: Path, key: str = "rows") -> pd.DataFrame:
    return pd.DataFrame(stored(name, folder)["data"][key])


positive = st.lists(st.tuples(*[st.floats(0.5, 50)] * 4), min_size=2, max_size=8)


@given(positive)
def test_quotient(values: list[tuple[float, float, float, float]]) -> None:
    """Plain: as in decoding. Double: the derivative of the ratio of totals in each prompt, and 1 +- 0 to itself."""
    a, b, c, d = (np.array(column) for column in zip(*values, strict=True))
    assert quotient(a, b) == pytest.approx(ratio(list(a), list(b)))
    assert quotient(a, b, a, b) == pytest.approx((1, 0), abs=1e-12)
    value, error = quotient(a, b, c, d)
    n = len(values)
    without = [
        (np.delete(a, i).sum() / np.delete(b, i).sum()) / (np.delete(c, i).sum() / np.delete(d, i).sum())
        for i in range(n)
    ]
    assert value == pytest.approx((a.sum() / b.sum()) / (c.sum() / d.sum()))
    step = 1e-6
    moved = []  # infinitesimal jackknife: prompt i counted 1 + step times
    for i in range(n):
        weight = 1 + step * (np.arange(n) == i)
        moved.append(((weight @ a) / (weight @ b)) / ((weight @ c) / (weight @ d)) - value)
    assert error == pytest.approx(np.sqrt(n / (n - 1) * np.sum(np.square(moved))) / step, rel=1e-3, abs=1e-6)
    assert len(without) == n


def test_nothing_is_above_the_bound(folder: Path) -> None:
    """On every text f <= phi(Q), so for any sample; one path: BV is the bound and all that select a path are BV."""
    frame = rows("real_bound", folder)
    keys = ["pair", "axis", "temperature", "paths", "depth"]
    wide = frame.pivot(index=keys, columns="name", values="value")
    closed = [name for name in names(closed_form=True) if name in wide]
    assert set(wide) == {UPPER, *closed}
    assert (wide.drop(columns=UPPER).max(axis=1) <= wide[UPPER] * (1 + 1e-9)).all()
    assert (wide["token"] <= wide["bv"] * (1 + 1e-9)).all()
    one = wide.xs(1, level="paths")
    for name in closed[1:]:
        assert one[name].to_numpy() == pytest.approx(one[UPPER].to_numpy())
    for axis, column in (("paths", UPPER), ("depth", UPPER), ("depth", "gbv"), ("depth", "pbv")):
        line = wide.xs(axis, level="axis")[column].unstack(axis)
        assert (line.diff(axis=1).iloc[:, 1:] > -1e-8).all(axis=None), axis
    plain = frame[frame["name"] != UPPER]
    assert plain["share"].to_numpy() == pytest.approx(1 - (plain["gap"] / _upper(frame, plain)).to_numpy())
    assert (frame["temperature"] == 1)[frame["axis"] != "temperature"].all()


def _upper(frame: pd.DataFrame, of: pd.DataFrame) -> pd.Series:
    keys = ["pair", "axis", "temperature", "paths", "depth"]
    bound = frame[frame["name"] == UPPER].set_index(keys)["value"].rename("bound")
    return of.join(bound, on=keys)["bound"]


def test_no_bar_crosses_the_bound(folder: Path) -> None:
    for (_, axis), part in rows("real_bound", folder).groupby(["pair", "axis"], sort=False):
        fig, axes = plots.canvas(4, 3)
        ax = plots_real.bounded_lines(axes[0, 0], part, str(axis))
        fig.draw_without_rendering()
        best = part[part["name"] == UPPER].sort_values(str(axis))["value"].to_numpy()
        lines = [item.get_segments() for item in ax.collections if isinstance(item, LineCollection)]
        assert len(lines) == part["name"].nunique() - 1
        for bars in lines:
            for i, segment in enumerate(bars):
                assert segment[:, 1].max() <= best[i] + 1e-8


def test_drafted_block_efficiency(folder: Path) -> None:
    """With one path most are BV on every tree, SpecInfer and SpecTr the token rule; BV does not depend on K."""
    frame = rows("real_paths", folder)
    assert set(frame.loc[frame["estimate"] == "on-path", "name"]) <= set(names(closed_form=True))
    frame = frame[frame["estimate"] == "drafted"]
    keys = ["pair", "temperature", "paths"]
    wide = frame.pivot(index=keys, columns="name", values="value")
    one = wide.xs(1, level="paths")
    for name in {"traversal", "gbv", "tgbv", "pbv", "ebv"} & set(one):
        assert one[name].to_numpy() == pytest.approx(one["bv"].to_numpy())
    for name in {"specinfer", "spectr"} & set(one) if "token" in one else ():
        assert one[name].to_numpy() == pytest.approx(one["token"].to_numpy())
    assert (wide["bv"].unstack().std(axis=1) < 1e-8).all()
    assert wide.stack().between(1, frame["depth"].iloc[0] + 1).all()
    for row in frame[frame["name"] != "bv"].itertuples():
        bv = wide.loc[(row.pair, row.temperature, row.paths), "bv"]
        assert row.over["bv"][0] == pytest.approx(row.value / bv)
    deep = rows("real_depth", folder)
    assert (deep["value"] <= deep["depth"] + 1).all()
    assert set(rows("real_temperature", folder)["paths"]) == {frame["paths"].max()}


def test_figures_share_their_measurements(folder: Path) -> None:
    """Cells that several figures show are the same numbers, so they come from the same records."""
    parts = [rows(name, folder) for name in ("real_paths", "real_temperature", "real_depth")]
    keys = ["pair", "temperature", "paths", "depth", "name"]
    together = pd.concat(parts).query("estimate == 'drafted'")[[*keys, "value"]]
    assert (together.groupby(keys)["value"].nunique() == 1).all()
    assert together.duplicated(keys).any()


def test_decoded(folder: Path) -> None:
    frame = pd.concat([rows("real_time", folder), rows("table_real", folder), rows("real_depth", folder, "points")])
    per_token = np.array([sum(entry.values()) for entry in frame["milliseconds"]])
    assert per_token * frame["tokens_per_second"].to_numpy() == pytest.approx(np.full(len(frame), 1000.0))
    assert frame["block_efficiency"].to_numpy() == pytest.approx((frame["tokens"] / frame["rounds"]).to_numpy())
    alone = frame[frame["name"] == "autoregressive"]
    assert (alone["block_efficiency"] == 1).all()
    bv = frame[frame["name"] == "bv"]
    assert (bv["speed_over_bv"] == 1).all()
    time = rows("real_time", folder)
    same = time[time["name"] == "bv"].groupby("pair")["tokens"].nunique()
    assert (same == 1).all()  # one path, the same random numbers: only its time is measured again


def test_table(folder: Path) -> None:
    data = stored("table_real", folder)["data"]
    lines = table_real.lines(data)
    latex = table_real.latex(data)
    assert latex.count(r"\\") == len(lines) + 1
    assert {line.count("&") for line in latex.splitlines() if line.endswith(r"\\")} == {len(table_real.HEADINGS) - 1}
    assert [latex.count(rf"\{rule}") for rule in ("toprule", "midrule", "bottomrule")] == [1, 1, 1]
    groups = sum(line[1] != "" for line in lines)
    assert latex.count(r"\textbf{") == sum(cell.startswith("**") for line in lines for cell in line) == 2 * groups
    assert "%" in latex.replace(r"\%", "%")
    assert re.search(r"(?<!\\)[%_]|\*", latex) is None
    assert table_real.fields(data)["table"].count("\n") == len(lines) + 1


def test_finished_prompts_are_not_measured_again(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lpverify.decode import run
    from lpverify.studies import bound

    def refuse(*arguments: object) -> None:
        raise AssertionError("measured again")

    before = {name: stored(name, tiny)["data"] for name in MODELS}
    monkeypatch.setattr(run.engine, "generate", refuse)
    monkeypatch.setattr(bound, "measure", refuse)
    for name in MODELS:
        again = FIGURES[name].compute(Work("tiny", real=Real(tiny)))
        assert json.loads(json.dumps(rounded(again))) == before[name]


def test_interrupted_runs_resume(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the records of a run that stopped inside a line: only what is missing is measured, to the same numbers."""
    name = "tiny-bound-T1.jsonl"
    kept = (tiny / real_jobs.RECORDS / "tiny" / name).read_bytes()
    folder = tmp_path / real_jobs.RECORDS / "tiny"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(kept[: kept.index(b"\n") + 100])
    seen: list[str] = []
    [job] = real_jobs.measured("tiny", Real(tmp_path), seen.append)
    resumed = real_data.bound_rows(job, 1.0)
    [whole] = real_jobs.measured("tiny", Real(tiny), seen.append)
    assert resumed == real_data.bound_rows(whole, 1.0)
    assert len((folder / name).read_bytes().splitlines()) == 2


def test_prompts() -> None:
    sets = {"a": ["1", "2", "3"], "b": ["4"]}
    assert [(label, prompt.text) for label, prompt in mixed(sets, 9)] == [
        ("a", "1"),
        ("b", "4"),
        ("a", "2"),
        ("a", "3"),
    ]
    assert mixed(sets, 2) == mixed(sets, 9)[:2]
    assert all(len(set(texts)) == len(texts) >= 24 for texts in BUILT_IN.values())


def test_prompt_files(tmp_path: Path) -> None:
    path = tmp_path / "gsm8k-50.jsonl"
    path.write_text('{"question": "one"}\n{"question": "two"}\n')
    assert prompt_sets([str(path), f"mine={path}"]) == {"gsm8k": ["one", "two"], "mine": ["one", "two"]}
    for sources, match in (
        (["nowhere.jsonl"], "--prompts: got nowhere.jsonl, expected a file, or one of code, questions, gsm8k"),
        (["code", "code"], "the label code twice"),
    ):
        with pytest.raises(InputError, match=match):
            prompt_sets(sources)


def test_gap_on_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built-in problems as if extracted: two prompts, one of them with two contexts."""
    from experiments import real_trees

    monkeypatch.setattr(real_trees, "FOLDER", tmp_path)
    rows_of = []
    for file, problem in (("a-0", "tree-v3-l2-a"), ("a-1", "coin-2"), ("b-0", "skewed-3")):
        frame = lpverify.compare(lpverify.load_problem(problem), [1, 2], algorithms=["bv", "gbv", "ebv"], max_drafts=1)
        frame = frame[frame["name"] != RANKING][["paths", "name", "block_efficiency"]]
        frame = frame.assign(lower_bound=frame["block_efficiency"], upper_bound=frame["block_efficiency"])
        rows_of += [r | {"parameters": {"file": f"x/{file}.json"}} for r in frame.to_dict("records")]
    real_trees.store("tiny", {"temperature": 1.0, "top_k": 4, "depth": 2, "prompts": "code"}, rows_of)
    assert "real_gap" in available(tmp_path)
    table = rows("real_gap", tmp_path).set_index(["name", "paths"])
    assert (table.loc[OPTIMUM, "gap"] == 0).all()
    assert table.loc[("bv", 1), "gap"] == pytest.approx(0, abs=1e-6)
    frame = pd.DataFrame(rows_of).assign(file=[row["parameters"]["file"] for row in rows_of])
    wide = frame.pivot(index=["file", "paths"], columns="name", values="block_efficiency")
    gaps = 100 * (1 - wide["gbv"] / wide[OPTIMUM]).xs(2, level="paths")
    assert table.loc[("gbv", 2), "gap"] == pytest.approx(gaps.mean())  # over contexts, not over prompts
    caption = (tmp_path / "real_gap.md").read_text()
    assert "python experiments/real_trees.py" in caption
    assert "3 of 2 prompts (code)" in caption
    before = rows("real_gap", tmp_path)
    real_trees.store("other", {"temperature": 1.0, "top_k": 4, "depth": 2, "prompts": "code"}, rows_of)
    again = rows("real_gap", tmp_path)
    assert again[again["pair"] == "tiny"].equals(before)
    assert set(again["pair"]) == {"tiny", "other"}


def test_predicted_and_measured(tmp_path: Path) -> None:
    row = {"paths": 2, "depth": 4, "predicted_se": 0.5, "measured_se": None}
    cells = [
        row | {"algorithm": name, "predicted": 10.0 + i, "measured": 10.0 - i, "relative_error": 0.1 * i}
        for i, name in enumerate(("bv", "gbv", "pbv"))
    ]
    advice = {"among": "all", "predicted_best": ["pbv", 2, 4], "measured_best": ["bv", 1, 4], "loss": 0.04}
    pair = {"pair": "tiny", "prompts": 8, "rows": cells, "recommended": [advice]}
    document = {"schema": "lpverify/figure@2", "figure": "advise", "size": "full", "seconds": 1.0, "provenance": {}}
    (tmp_path / "advise.json").write_text(json.dumps(document | {"data": {"pairs": [pair]}}))
    before = (tmp_path / "advise.json").read_bytes()
    [_] = make(["advise"], tmp_path, work=Work(real=Real(tmp_path)))
    assert (tmp_path / "advise.json").read_bytes() == before
    lines = [re.sub(" +", " ", line) for line in (tmp_path / "advise.md").read_text().splitlines()]
    assert "| median error of prediction | 10.0 % |" in lines
    assert "| largest error of prediction | 20.0 % |" in lines
    assert "| tiny | all | PBV, K = 2, L = 4 | BV, K = 1, L = 4 | 4.0 % |" in lines
    _, ax = plots.figure(5)
    assert plots_real.plot_predicted(pair, ax) is ax
    points = [tuple(container.lines[0].get_xydata().ravel()) for container in ax.containers]
    assert points == [(10.0, 10.0), (11.0, 9.0), (12.0, 8.0)]
    assert [text.get_text() for text in ax.get_legend().get_texts()][0] == "BV, best K = 2, L = 4"


def test_experiments_that_were_not_run(tmp_path: Path) -> None:
    for name, script in (("real_gap", "real_trees"), ("advise", "advise_check")):
        assert name not in available(tmp_path)
        with pytest.raises(InputError, match=rf"no such file, expected .*python experiments/{script}\.py"):
            list(make([name], tmp_path, work=Work(real=Real(tmp_path))))


def test_several_pairs(tiny: Path) -> None:
    """A second pair that was measured in fewer places: every panel is drawn, every caption names both."""
    for name in MODELS:
        data = stored(name, tiny)["data"]
        fewer = [row for row in data["rows"] if row["depth"] == real_jobs.DEPTH]
        points = {"points": [*data["points"], *more(data["points"])]} if "points" in data else {}
        both = dict.fromkeys(("tiny", "smollm2"), data["settings"]["pairs"]["tiny"])
        data = {"settings": {"pairs": both}, "rows": [*data["rows"], *more(fewer)], **points}
        drawn = FIGURES[name].draw(data)
        assert FIGURES[name].table or len(drawn.axes) >= 2
        text = captions.caption(name, data, FIGURES[name].fields(data))
        assert all(label in text or real_jobs.SHOWN_PAIR[label] in text for label in both)
        assert re.search("nan|[{}]", text) is None


def more(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [row | {"pair": "smollm2"} for row in rows]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("--prompts", "nowhere.jsonl"), "--prompts: got nowhere.jsonl"),
        (("--pairs", "smollm2-far"), "--pairs: got smollm2-far at size quick, expected one of tiny"),
    ],
)
def test_bad_options(tmp_path: Path, arguments: tuple[str, ...], match: str) -> None:
    result = CliRunner().invoke(app, ["figures", "--quick", "--only", "real_time", "--out", str(tmp_path), *arguments])
    assert result.exit_code == 2
    assert match in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.glob("*.*"))


def test_one_prompt_has_no_standard_error(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("def f():")
    with pytest.raises(InputError, match="got 1 prompt, expected at least 2"):
        real_jobs.measured("tiny", Real(tmp_path, (str(path),)), print)


def test_pairs_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lpverify.decode.smollm2.PACKAGE", "no-such-package")
    assert set(real_jobs.left_out("full")) == {"smollm2", "smollm2-distilled"}
    assert [job.pair for job in real_jobs.measured("full", Real(tmp_path), print)] == ["tiny"]
    asked = real_jobs.measured("full", Real(tmp_path, ("gsm=questions", "humaneval=code"), ("smollm2", "tiny")), print)
    assert [(job.pair, {label for label, _ in job.prompts}) for job in asked] == [
        ("smollm2", {"gsm", "humaneval"}),
        ("tiny", {"humaneval"}),
    ]


def test_captions_say_which_prompts_to_name(tiny: Path, tmp_path: Path) -> None:
    document = json.loads((tiny / "real_time.json").read_text())
    document["data"]["settings"]["pairs"]["tiny"]["sets"] = ["code", "gsm8k", "mine"]
    (tmp_path / "real_time.json").write_text(json.dumps(document))
    [_] = make(["real_time"], tmp_path)
    caption = (tmp_path / "real_time.md").read_text()
    assert "`lpverify figures --only real_time --prompts gsm8k --prompts mine=FILE`" in caption
    assert "code, gsm8k, mine" in caption


def test_published_table_compares_the_speed_of_every_algorithm() -> None:
    """At both temperatures and on both pairs, from runs on the same prompts."""
    rows = json.loads((PUBLISHED / "table_real.json").read_text())["data"]["rows"]
    groups: dict[Any, dict[str, Any]] = {}
    for row in rows:
        groups.setdefault((row["pair"], row["temperature"], row["set"]), {})[row["name"]] = row
    assert {key[:2] for key in groups} == {(pair, t) for pair in ("tiny", "smollm2") for t in (1.0, 0.6)}
    for group in groups.values():
        assert tuple(group) == real_jobs.TABLE
        assert len({row["prompts"] for row in group.values()}) == 1
        assert all(row["tokens_per_second"] > 0 for row in group.values())
