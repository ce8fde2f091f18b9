"""The figures: tiny ones are computed and drawn here, published ones checked against theorems and their captions."""

from __future__ import annotations

import gzip
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from experiments.figures import figure_data
from experiments.figures.figure_data import Work
from lpverify.cli import app
from lpverify.errors import InputError
from lpverify.exact.compare import OPTIMUM

pytest.importorskip("matplotlib")

from matplotlib.collections import LineCollection

from experiments.figures import plots_paper
from experiments.figures.figures import FIGURES, available, caption, draw, make, stored
from experiments.figures.real_jobs import RECORDS
from lpverify.report import plots

PUBLISHED = Path(__file__).parents[1] / "paper_figs"
TOLERANCE = 2e-8
"""Of the optimum in the multi-path data."""


def cli(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["figures", *arguments])


THEORY = [name for name, figure in FIGURES.items() if not figure.models]
MADE = [name for name in available("nowhere") if name in THEORY or find_spec("torch")]


@pytest.mark.parametrize("name", MADE)
def test_files_of_a_figure(tiny: Path, name: str) -> None:
    document = json.loads((tiny / f"{name}.json").read_text())
    assert (document["figure"], document["size"]) == (name, "tiny")
    assert {"python", "numpy", "highspy", "git"} <= document["provenance"].keys()
    assert set(document["provenance"]["git"] or {"commit"}) == {"commit"}
    assert ("torch" in document["provenance"]) == FIGURES[name].models
    if FIGURES[name].table:
        assert "\\bottomrule" in (tiny / f"{name}.tex").read_text()
    else:
        assert (tiny / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"</svg>" in (tiny / f"{name}.svg").read_bytes()
    text = (tiny / f"{name}.md").read_text()
    assert text.startswith(f"# {FIGURES[name].title}\n\n*Size tiny")
    assert [text.count(f"**{part}.**") for part in ("Figure", "Method", "Prior claim", "Result")] == [1, 1, 1, 1]
    assert f"lpverify figures --only {name}" in text
    assert re.search(r"nan|[{}]", text) is None


def test_drawing_again_gives_the_same_files(tiny: Path) -> None:
    name = "single_path"
    before = {kind: (tiny / f"{name}.{kind}").read_bytes() for kind in ("svg", "md", "json")}
    [(done, _)] = make([name], tiny)
    assert done == name
    assert before == {kind: (tiny / f"{name}.{kind}").read_bytes() for kind in before}


def rows(name: str, folder: Path) -> pd.DataFrame:
    return pd.DataFrame(stored(name, folder)["data"]["rows"])


@pytest.fixture(params=["tiny", "published"])
def folder(request: pytest.FixtureRequest, tiny: Path) -> Path:
    return tiny if request.param == "tiny" else PUBLISHED


def facts(name: str, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = stored(name, folder)["data"]["facts"]
    return found


def instances(name: str, folder: Path) -> pd.DataFrame:
    return pd.DataFrame(json.loads(gzip.decompress((folder / RECORDS / f"{name}.json.gz").read_bytes())))


def test_bv_is_the_single_path_optimum(folder: Path) -> None:
    frame = rows("single_path", folder)
    assert frame["bv"].to_numpy() == pytest.approx(frame["optimum"].to_numpy(), abs=1e-8)
    assert (frame["token"] <= frame["bv"] + 1e-8).all()
    found = facts("single_path", folder)
    assert found["problems"] > 5
    assert found["largest_difference"] < 1e-9
    assert found["smallest_gain"] >= -1e-12
    assert found["perfect_draft_error"] < 1e-9


def test_nothing_is_above_the_multi_path_optimum(folder: Path) -> None:
    for name in ("multi_path", "decomposition"):
        assert set(rows(name, folder)["family"]) == set(figure_data.FAMILIES)
        assert 0 <= facts(name, folder)["largest_excess"] < TOLERANCE
    assert facts("decomposition", folder)["smallest_relaxation"] > -TOLERANCE
    found = facts("multi_path", folder)
    assert found["optimum_falls"] == 0
    assert found["one_path_difference"] < TOLERANCE


def test_a_perfect_draft_costs_gbv_tokens_and_bv_none(folder: Path) -> None:
    found = facts("where_gbv_loses", folder)
    assert found["perfect_draft_error"] < 1e-9
    assert found["perfect_draft_gbv"] < 0


def test_summaries_are_those_of_the_instances(tiny: Path) -> None:
    """Means, standard errors and counts again from the rows of single problems, which are stored apart."""
    frame = instances("multi_path", tiny)
    wide = frame.pivot(index=["family", "paths", "seed"], columns="name", values="block_efficiency")
    table = rows("multi_path", tiny).set_index(["family", "paths", "name"])
    gap = (100 * wide.rsub(wide[OPTIMUM], axis=0).div(wide[OPTIMUM], axis=0)).clip(lower=0)
    groups = gap.groupby(["family", "paths"])
    for (family, paths, name), row in table.iterrows():
        assert row["gap"] == pytest.approx(groups[name].mean()[family, paths], rel=1e-8, abs=1e-9)
        assert row["gap_se"] == pytest.approx(groups[name].sem()[family, paths], rel=1e-8, abs=1e-9)
        assert row["gap_max"] == pytest.approx(groups[name].max()[family, paths], rel=1e-8, abs=1e-9)
    assert facts("multi_path", tiny)["problems"] == len(wide)
    excess = (wide.drop(columns=OPTIMUM).max(axis=1) - wide[OPTIMUM]).max()
    assert facts("multi_path", tiny)["largest_excess"] == pytest.approx(max(excess, 0), abs=1e-12)
    cells = instances("where_gbv_loses", tiny).groupby(["temperature", "draft_noise"])
    off = cells.apply(lambda part: (part["gbv"] - part["bv"]).agg(["mean", "sem"]))
    table = rows("where_gbv_loses", tiny).set_index(["temperature", "draft_noise"])
    assert table["gbv_bv"].to_numpy() == pytest.approx(off["mean"].to_numpy())
    assert table["gbv_bv_se"].to_numpy() == pytest.approx(off["sem"].to_numpy())
    below = (off["mean"] < -2 * off["sem"]).sum()
    assert facts("where_gbv_loses", tiny)["gbv_bv_below"] == below
    wide = instances("decomposition", tiny).pivot(index=["family", "seed"], columns="name", values="block_efficiency")
    change = (100 * (wide["pbv"] - wide["tgbv"]) / wide[OPTIMUM]).groupby("family").mean()
    table = rows("decomposition", tiny).set_index(["family", "name"])
    for family, value in change.items():
        assert table.loc[(family, "pbv"), "change"] == pytest.approx(value, abs=1e-8)


def test_summary_of_numbers_made_by_hand() -> None:
    """GBV is above BV by 1 and 3 in one cell (2 +- 1), below by 1 in another, where PBV gains 1."""
    cell = {"temperature": 1.0, "bv": 2.0}
    data = figure_data.grid_summary(
        {"depth": 4},
        [
            cell | {"draft_noise": 0.0, "seed": 0, "bv": 5.0, "gbv": 5.0, "pbv": 5.0},
            cell | {"draft_noise": 1.0, "seed": 0, "gbv": 3.0, "pbv": 3.0},
            cell | {"draft_noise": 1.0, "seed": 1, "gbv": 5.0, "pbv": 5.0},
            cell | {"draft_noise": 2.0, "seed": 0, "gbv": 1.0, "pbv": 2.0},
        ],
    )
    assert [(row["gbv_bv"], row["gbv_bv_se"]) for row in data["rows"]] == [(0.0, 0.0), (2.0, 1.0), (-1.0, 0.0)]
    counts = ("gbv_bv_above", "gbv_bv_below", "pbv_gbv_above", "pbv_gbv_below")
    assert [data["facts"][name] for name in counts] == [0, 1, 1, 0]


def test_published_files_are_small() -> None:
    """Pictures and data below 150 KiB each, 2.5 MB in all; nothing is stored of a checkout but its commit."""
    files = [path for path in PUBLISHED.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2.5e6
    assert [path.name for path in files if path.stat().st_size > 150 * 2**10] == []
    assert [path.name for path in files if path.suffix in (".json", ".md") and "dirty" in path.read_text()] == []


def test_published_captions_are_those_of_the_published_data() -> None:
    for name in available(PUBLISHED):
        for kind in () if FIGURES[name].table else ("svg", "png"):
            assert (PUBLISHED / f"{name}.{kind}").stat().st_size > 5_000
        document = stored(name, PUBLISHED)
        assert (PUBLISHED / f"{name}.md").read_text() == caption(document)
        if FIGURES[name].table:
            assert (PUBLISHED / f"{name}.tex").read_text() == FIGURES[name].draw(document["data"])


def test_no_bar_crosses_the_optimum() -> None:
    """The mean of gaps >= 0 is at least its standard error, so a bar of the gap ends below the optimum's mean."""
    rng = np.random.default_rng(0)
    gaps = rng.exponential(1, size=(2, 6)) * (rng.random((2, 6)) < 0.4)
    gaps[0] = [0, 0, 0, 0, 0, 1]
    best = rng.normal(3, 1, size=(2, 6))
    frame = pd.DataFrame({"paths": np.repeat([1, 2], 6), "best": best.ravel(), "off": -gaps.ravel()})
    frame["value"] = frame["best"] + frame["off"]
    table = pd.DataFrame(figure_data.summary(frame, ["paths"], ["best", "value", "off"]))
    x, y, error = plots_paper.curve(table, "paths", "value", "off_se")
    assert (y + error <= best.mean(axis=1) + 1e-12).all()
    fig, axes = plots.canvas(4, 3)
    optimum = plots_paper.curve(table, "paths", "best")
    ax = plots_paper.labelled_lines(axes[0, 0], {"gbv": (x, y, error)}, optimum)
    fig.draw_without_rendering()
    [bars] = [item.get_segments() for item in ax.collections if isinstance(item, LineCollection)]
    assert len(bars) == 2
    for i, segment in enumerate(bars):
        assert segment[:, 1].max() <= optimum[1][i] + 1e-12


def test_gaps_below_the_floor_lie_on_it() -> None:
    _, axes = plots.canvas(4, 3)
    curve: Any = (np.array([1.0, 2.0]), np.array([0.0, 5.0]), np.array([0.0, 6.0]))
    ax = plots_paper.gap_lines(axes[0, 0], {"gbv": curve})
    line = next(item for item in ax.lines if item.get_marker() == plots_paper.STYLE["gbv"][1])
    assert list(line.get_ydata()) == [plots_paper.LEAST_GAP, 5.0]
    lowest = min(segment[:, 1].min() for bars in ax.collections for segment in bars.get_segments())
    assert lowest == pytest.approx(plots_paper.LEAST_GAP)


def test_a_failed_problem_stops_the_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = figure_data.MULTI_PATH | {"tiny": figure_data.MULTI_PATH["tiny"] | {"depth": 40}}
    monkeypatch.setattr(figure_data, "MULTI_PATH", settings)
    with pytest.raises(InputError, match="of a figure's problem failed: .* expected at most"):
        list(make(["multi_path"], tmp_path, work=Work("tiny")))
    assert not (tmp_path / "multi_path.json").exists()


def test_command(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    result = cli("--quick", "--only", "balance", "--out", out)
    assert (result.exit_code, result.stderr) == (0, "")
    assert (tmp_path / "out" / "balance.svg").exists()
    assert cli("--draw", "--only", "balance", "--out", out).exit_code == 0
    assert [line.split()[0] for line in cli("--list").stdout.splitlines()] == list(FIGURES)


def test_files_that_are_no_figure_stay(tmp_path: Path) -> None:
    for kind in ("json", "md", "png"):
        mine = tmp_path / f"balance.{kind}"
        mine.write_bytes(b"mine")
        result = cli("--quick", "--only", "balance", "--out", str(tmp_path))
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert "balance.json: got no" in result.stderr
        assert mine.read_bytes() == b"mine"
        mine.unlink()
        assert list(tmp_path.iterdir()) == []
    result = cli("--quick", "--only", "balance", "--out", str(tmp_path), "--prompts", f"{tmp_path}/balance.md")
    assert result.exit_code == 0  # there is no such file, and no model is asked
    result = cli("--quick", "--only", "balance", "--out", str(tmp_path), "--prompts", f"x={tmp_path}/./balance.md")
    assert f"--out, balance.md: got {tmp_path}/balance.md, the same file as --prompts" in result.stderr


def test_failed_runs_leave_no_folders(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    assert cli("--draw", "--only", "balance", "--out", str(out)).exit_code == 2
    if find_spec("torch"):
        result = cli("--quick", "--only", "real_time", "--prompts", "nowhere.jsonl", "--out", str(out))
        assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_quick(tmp_path: Path) -> None:
    result = cli("--quick", "--out", str(tmp_path))
    assert (result.exit_code, result.stderr) == (0, "")
    made = [FIGURES[name] for name in available(tmp_path)]
    assert len(list(tmp_path.glob("[!.]*"))) == sum(3 if figure.table else 4 for figure in made)
    assert len(made) + result.stdout.count("left out") == len(FIGURES)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("--only", "balanse"), "--only: got 'balanse', expected one of balance"),
        (("--draw",), "balance.json: got no such file"),
        (("--draw", "--quick"), "--draw: got --quick as well"),
        (("--draw", "--full"), "--draw: got --full as well"),
        (("--quick", "--full"), "--full: got --quick as well"),
        (("--pairs", "big"), "--pairs: got 'big', expected one of tiny, smollm2"),
        (("--jobs", "0"), "--jobs"),
    ],
)
def test_bad_options(tmp_path: Path, arguments: tuple[str, ...], match: str) -> None:
    result = cli(*arguments, "--out", str(tmp_path))
    assert result.exit_code == 2
    assert match in result.stderr
    assert result.stderr.count("\n") == 1


def test_other_data_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "balance.json"
    for text, match in (("{", "no JSON"), ("[]", "another document"), ('{"figure": "balance"}', "another document")):
        path.write_text(text)
        with pytest.raises(InputError, match=match):
            draw("balance", tmp_path)
    result = cli("--out", str(path), "--draw")
    assert result.exit_code == 2
    assert "expected a folder" in result.stderr
