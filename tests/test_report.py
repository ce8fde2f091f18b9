"""Tables and pictures of results."""

from __future__ import annotations

import math
import sys
from fractions import Fraction

import pandas as pd
import pytest

from lpverify.core.results import LpSolution
from lpverify.errors import InputError
from lpverify.exact.compare import COLUMNS, OPTIMUM, RANKING, RELAXATION
from lpverify.report import tables


def frame(values: dict[int, dict[str, float]], optimum: dict[int, float]) -> pd.DataFrame:
    rows = []
    for paths, best in optimum.items():
        rows.append((paths, RELAXATION, best + 0.1, -0.1, -0.1 / best, math.nan, "closed form"))
        rows.append((paths, OPTIMUM, best, 0.0, 0.0, math.nan, "quantile"))
        rows += [(paths, n, v, best - v, (best - v) / best, 0.0, "exact") for n, v in values[paths].items()]
    return pd.DataFrame(rows, columns=list(COLUMNS))


ONE = frame({2: {"token": 2.3, "bv": 2.4, "gbv": 2.6, RANKING: 2.65, "policy": 2.65, "ot": math.nan}}, {2: 2.65})
MANY = frame(
    {k: {"bv": 2.4, "gbv": 2.4 + 0.1 * (k == 2), "pbv": 2.3 + 0.1 * k} for k in (1, 2, 3)}, {1: 2.4, 2: 2.5, 3: 2.7}
)


def test_cells() -> None:
    assert tables.cell("block_efficiency", 2.6501750137) == "2.650175"
    assert tables.cell("relative_gap", 0.0123456) == "1.235"
    assert tables.cell("relative_gap", -1e-17) == "0.000"
    assert tables.cell("law_error", 0.0) == "0"
    assert tables.cell("law_error", 3.2e-17) == "3e-17"
    assert tables.cell("gap", 1e-9) == "1e-09"
    assert tables.cell("gap", math.nan) == tables.cell("law_error", None) == "-"
    assert tables.number(Fraction(2, 5)) == "2/5"


def test_markdown_has_every_row_and_equal_widths() -> None:
    lines = tables.markdown(ONE).splitlines()
    assert len(lines) == 2 + len(ONE)
    assert len({len(line) for line in lines}) == 1
    assert lines[1].startswith("|----:|:---")
    assert any("| ot " in line and "|        - |" in line for line in lines)
    assert "\\|" in tables.markdown(ONE.assign(method="a|b"))


def test_tables_fit_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    solution = LpSolution(2.65, 2.65, 2.6500000001, "optimal", "quantile", 0.123)
    optima = tables.solutions({"single-path": solution, "multi-path": solution})
    tables.show(tables.frame_table(optima), tables.frame_table(ONE.drop(columns="paths")))
    output = capsys.readouterr().out
    assert max(len(line) for line in output.splitlines()) <= 80
    for name in [*ONE["name"], "single-path", "2.650000000", "quantile", "0.12"]:
        assert name in output


class TestPlots:
    @pytest.fixture(autouse=True)
    def _matplotlib(self) -> None:
        pytest.importorskip("matplotlib")

    def test_nothing_crosses_the_optimum(self) -> None:
        from lpverify.report import plots

        fig, ax = plots.figure(len(ONE))
        assert plots.gaps(ONE, ax) is ax
        fig.draw_without_rendering()
        line = next(item for item in ax.lines if list(item.get_xdata()) == [2.65, 2.65])
        dots = next(item for item in ax.lines if item.get_marker() == "o")
        assert max(dots.get_xdata()) <= 2.65
        assert list(dots.get_xdata()) == sorted(dots.get_xdata())
        assert line.get_zorder() > dots.get_zorder()
        (bars,) = ax.collections
        assert all(segment[:, 0].max() <= 2.65 for segment in bars.get_segments())
        edge = line.get_window_extent().x0
        assert dots.get_clip_box().x1 <= line.get_window_extent().x1 + 1
        assert all(text.get_window_extent().x1 < edge for text in ax.texts)
        names = [label.get_text() for label in ax.get_yticklabels()]
        assert names == ["token rule", "BV", "GBV", "best ranking", "optimal policy"]
        assert [text.get_text() for text in ax.texts][-1] == "optimum 2.6500"

    def test_wide_bounds_are_a_band(self) -> None:
        from lpverify.report import plots

        _, ax = plots.figure(len(ONE))
        plots.gaps(ONE, ax, bounds=(2.65, 2.70))
        assert [text.get_text() for text in ax.texts][-1] == "optimum between 2.6500 and 2.7000"
        assert len(ax.patches) == 1

    def test_against_paths_labels_every_line_once_and_apart(self) -> None:
        from lpverify.report import plots

        fig, ax = plots.figure(8)
        assert plots.comparison(MANY, ax) is ax
        assert sorted(text.get_text().strip() for text in ax.texts) == ["BV", "GBV", "PBV", "optimum"]
        fig.draw_without_rendering()
        boxes = sorted((text.get_window_extent() for text in ax.texts), key=lambda box: box.y0)
        assert all(low.y1 <= high.y0 + 2 for low, high in zip(boxes, boxes[1:], strict=False))
        fig, ax = plots.figure(8)
        assert plots.comparison(ONE, ax).get_xlabel() == plots.UNIT

    def test_pictures_are_files_of_their_kind(self) -> None:
        from lpverify.report import plots

        fig, ax = plots.figure(len(ONE))
        plots.gaps(ONE, ax, title="A & B")
        assert plots.render(fig, "png").startswith(b"\x89PNG")
        assert plots.render(fig, "pdf").startswith(b"%PDF")
        svg = plots.render(fig, "svg")
        assert b"<svg" in svg
        assert b"A &amp; B" in svg  # text stays text

    def test_several_numbers_of_paths_are_not_mixed(self) -> None:
        from lpverify.report import plots

        _, ax = plots.figure(8)
        with pytest.raises(InputError, match="gaps: got rows of K = 1, 2, 3, expected rows of one K"):
            plots.gaps(MANY, ax)
        assert plots.gaps(MANY[MANY["paths"] == 2], ax) is ax

    def test_every_algorithm_keeps_its_look(self) -> None:
        from lpverify.report import plots

        every = plots.looks(["mine", "yours"])
        assert len(set(every.values())) == len(every)
        assert plots.looks(["ebv"])["ebv"] == every["ebv"]

    def test_throughput(self) -> None:
        """Every cell is written into the map, the best of all framed once."""
        from lpverify.report import plots

        cells = [
            {"algorithm": a, "paths": k, "depth": depth, "tokens_per_second": 10.0 * k + depth}
            for a in ("gbv", "pbv") for k in (1, 2) for depth in (4, 8)
        ]  # fmt: skip
        fig = plots.throughput(cells)
        for ax in fig.axes:
            assert sorted(text.get_text() for text in ax.texts) == ["14", "18", "24", "28"]
        assert [[patch.get_linewidth() for patch in ax.patches] for ax in fig.axes] == [[3.0], [1.2]]

    def test_nothing_to_draw_is_refused(self) -> None:
        from lpverify.report import plots

        _, ax = plots.figure(1)
        with pytest.raises(InputError, match="no evaluated algorithm"):
            plots.gaps(ONE[ONE["name"] == OPTIMUM], ax)


def test_long_fractions_leave_the_limit_on_digits_alone() -> None:
    before = sys.get_int_max_str_digits()
    assert len(tables.quotient(Fraction(10**5000, 3))) == 5003
    assert sys.get_int_max_str_digits() == before
