"""The figures: tiny ones computed and drawn here, the published ones checked against theorems and their captions."""

from __future__ import annotations

import json
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
from lpverify.exact.compare import OPTIMUM, RELAXATION

pytest.importorskip("matplotlib")

from matplotlib.collections import LineCollection

from experiments.figures import plots_paper
from experiments.figures.figures import FIGURES, available, draw, make, stored
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
    assert ("torch" in document["provenance"]) == FIGURES[name].models
    if FIGURES[name].table:
        assert "\\bottomrule" in (tiny / f"{name}.tex").read_text()
    else:
        assert (tiny / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"</svg>" in (tiny / f"{name}.svg").read_bytes()
    text = (tiny / f"{name}.md").read_text()
    assert text.startswith(f"# {FIGURES[name].title}\n\n*Size tiny")
    assert [text.count(f"**{part}.**") for part in ("Shows", "Computed", "Claimed", "Came out")] == [1, 1, 1, 1]
    assert f"lpverify figures --only {name}" in text
    assert "nan" not in text


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


def test_bv_is_the_single_path_optimum(folder: Path) -> None:
    frame = rows("single_path", folder)
    assert len(frame) > 5
    assert (frame["bv"] - frame["optimum"]).abs().max() < 1e-9
    assert (frame["token"] <= frame["bv"] + 1e-12).all()
    perfect = frame[frame["draft_noise"] == 0]
    assert perfect["bv"].to_numpy() == pytest.approx(perfect["depth"].to_numpy() + 1)


def test_nothing_is_above_the_multi_path_optimum(folder: Path) -> None:
    keys = ["family", "seed", "paths"]
    for name in ("multi_path", "decomposition"):
        frame = rows(name, folder)
        assert set(frame["family"]) == set(figure_data.FAMILIES)
        wide = frame.pivot(index=keys, columns="name", values="block_efficiency")
        others = wide.drop(columns=[OPTIMUM, *([RELAXATION] if RELAXATION in wide else [])])
        assert (others.max(axis=1) <= wide[OPTIMUM] + TOLERANCE).all()
        if RELAXATION in wide:
            assert (wide[RELAXATION] >= wide[OPTIMUM] - TOLERANCE).all()
    wide = rows("multi_path", folder).pivot(index=keys, columns="name", values="block_efficiency")
    assert (wide[OPTIMUM].unstack().diff(axis=1).iloc[:, 1:] >= -TOLERANCE).all(axis=None)
    one = wide.xs(1, level="paths")
    for name in ("bv", "gbv", "tgbv", "pbv", "traversal"):
        assert one[name].to_numpy() == pytest.approx(one[OPTIMUM].to_numpy(), abs=TOLERANCE)


def test_a_perfect_draft_costs_gbv_tokens_and_bv_none(folder: Path) -> None:
    data = stored("where_gbv_loses", folder)["data"]
    frame = pd.DataFrame(data["rows"])
    perfect = frame[frame["draft_noise"] == 0]
    for name in ("bv", "pbv"):
        assert perfect[name].to_numpy() == pytest.approx(data["settings"]["depth"] + 1)
    assert (perfect["gbv"] < perfect["bv"]).all()


def test_published_captions_are_those_of_the_published_data(tmp_path: Path) -> None:
    for name in available(PUBLISHED):
        for kind in () if FIGURES[name].table else ("svg", "png"):
            assert (PUBLISHED / f"{name}.{kind}").stat().st_size > 5_000
        (tmp_path / f"{name}.json").write_bytes((PUBLISHED / f"{name}.json").read_bytes())
        draw(name, tmp_path)
        for kind in ("md", "tex") if FIGURES[name].table else ("md",):
            assert (tmp_path / f"{name}.{kind}").read_text() == (PUBLISHED / f"{name}.{kind}").read_text()


def test_no_bar_crosses_the_optimum() -> None:
    """The mean of gaps >= 0 is at least its standard error, so a bar of the gap ends below the optimum's mean."""
    rng = np.random.default_rng(0)
    gaps = rng.exponential(1, size=(2, 6)) * (rng.random((2, 6)) < 0.4)
    gaps[0] = [0, 0, 0, 0, 0, 1]
    best = rng.normal(3, 1, size=(2, 6))
    frame = pd.DataFrame({"paths": np.repeat([1, 2], 6), "best": best.ravel(), "value": (best - gaps).ravel()})
    x, y, error = plots_paper._curve(frame, "paths", "value", "best")
    assert (y + error <= best.mean(axis=1) + 1e-12).all()
    fig, axes = plots.canvas(4, 3)
    optimum = plots_paper._curve(frame, "paths", "best")
    ax = plots_paper.labelled_lines(axes[0, 0], {"gbv": (x, y, error)}, optimum)
    fig.draw_without_rendering()
    [bars] = [found.get_segments() for found in ax.collections if isinstance(found, LineCollection)]
    assert len(bars) == 2
    for place, segment in enumerate(bars):
        assert segment[:, 1].max() <= optimum[1][place] + 1e-12


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
