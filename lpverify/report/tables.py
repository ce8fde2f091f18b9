"""Results as tables: for a terminal (rich) and for documents (Markdown), from the same cells."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lpverify import errors
from lpverify.core.results import LpSolution

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["frame_table", "markdown", "show", "solutions", "table"]


LONGEST_FRACTION = 7  # characters; longer ones are shown as decimals
HEADINGS = {  # of columns that are not shown under their own name
    "paths": "K", "name": "algorithm", "block_efficiency": "tokens", "relative_gap": "gap %",
    "law_error": "law error", "lower_bound": "lower bound", "upper_bound": "upper bound",
}  # fmt: skip
TEXT_COLUMNS = ("name", "optimum", "status", "method")


def number(value: Any) -> str:
    """A probability or mass in at most six decimals; a short fraction stays one.

    >>> number(Fraction(1, 5)), number(Fraction(123456, 1000001)), number(0.25), number(0.0), number(3e-17)
    ('1/5', '0.123456', '0.25', '0', '3.0e-17')
    """
    if isinstance(value, Fraction) and len(str(value)) <= LONGEST_FRACTION:
        return str(value)
    value = float(value)
    if value != 0 and abs(value) < 1e-4:
        return f"{value:.1e}"
    return f"{value:.6f}".rstrip("0").rstrip(".")


def fraction(value: Fraction | None) -> str:
    """A fraction in at most 45 characters; of a long one the leading digits.

    >>> fraction(Fraction(46, 25)), fraction(Fraction(4 * 10**30 + 1, 3 * 10**30)), fraction(None)
    ('46/25', '400000000000.../300000000000... (31 and 31 digits)', 'irrational')
    """
    if value is None:
        return "irrational"
    text = quotient(value)
    if len(text) <= 45:
        return text
    top, bottom = text.split("/")
    return f"{top[:12]}.../{bottom[:12]}... ({len(top)} and {len(bottom)} digits)"


def quotient(value: Fraction) -> str:
    """A fraction with all its digits, as "numerator/denominator".

    >>> quotient(Fraction(3))
    '3/1'
    """
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)  # the limit guards against hostile input; this is a result
    try:
        return f"{value.numerator}/{value.denominator}"
    finally:
        sys.set_int_max_str_digits(limit)


def cell(column: str, value: Any) -> str:
    """One entry of a result frame, formatted as its column is; "-" where there is no value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, str):
        return value
    if column == "relative_gap":
        return f"{round(100 * float(value), 3) + 0.0:.3f}"  # + 0.0: no negative zero
    if column == "law_error":
        return "0" if value == 0 else f"{float(value):.0e}"
    if column == "gap":
        return f"{float(value):.6f}" if value == 0 or abs(value) >= 1e-6 else f"{float(value):.0e}"
    digits = {"block_efficiency": 6, "lower_bound": 9, "upper_bound": 9, "seconds": 2}
    return f"{float(value):.{digits[column]}f}" if column in digits else str(value)


def cells(frame: pd.DataFrame) -> pd.DataFrame:
    """A result frame with every entry formatted by `cell` and the headings of tables."""
    import pandas as pd

    columns = {HEADINGS.get(str(name), str(name)): [cell(str(name), x) for x in frame[name]] for name in frame.columns}
    return pd.DataFrame(columns, dtype=object)


def markdown(frame: pd.DataFrame) -> str:
    """A result frame as a Markdown table, numbers right-aligned."""
    shown = cells(frame).map(lambda entry: entry.replace("|", "\\|"))
    align = ["left" if column in TEXT_COLUMNS else "right" for column in frame.columns]
    return str(shown.to_markdown(index=False, colalign=align, disable_numparse=True)) + "\n"


def frame_table(frame: pd.DataFrame, *, title: str = "", caption: str = "") -> Table:
    """A result frame (`lpverify.compare`, `solutions`) as a rich table."""
    shown = cells(frame)
    right = tuple(i for i, column in enumerate(frame.columns) if column not in TEXT_COLUMNS)
    return table(list(shown.columns), shown.values.tolist(), right=right, title=title, caption=caption)


def solutions(named: Mapping[str, LpSolution]) -> pd.DataFrame:
    """Solutions of linear programs, one in a row; the keys say what each is the optimum of."""
    import pandas as pd

    columns = ("block_efficiency", "lower_bound", "upper_bound", "status", "method", "seconds")
    rows = [(name, s.value, *(getattr(s, column) for column in columns[1:])) for name, s in named.items()]
    return pd.DataFrame(rows, columns=["optimum", *columns])


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    right: Sequence[int] = (),
    title: str = "",
    caption: str = "",
    footer: Sequence[str] | None = None,
) -> Table:
    """A rich table without ornaments. ``right``: indices of the right-aligned columns."""
    texts: Any = {"title": Text(errors.printable(title), style="bold") if title else None, "title_justify": "left"}
    texts |= {"caption": Text(caption, style="dim") if caption else None, "caption_justify": "left"}
    lines: Any = {"box": box.SIMPLE_HEAD, "pad_edge": False, "padding": (0, 0, 0, 1)}
    result = Table(show_footer=footer is not None, **texts, **lines)
    for i, heading in enumerate(headings):
        total = Text(footer[i]) if footer else ""
        result.add_column(Text(heading), footer=total, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        result.add_row(*(entry if isinstance(entry, Text) else Text(errors.printable(entry)) for entry in row))
    return result


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave a broken pipe to the caller; rich would exit with 1."""
        raise


def show(*tables: Table, console: Console | None = None) -> None:
    """Print tables, to standard output unless another console is given."""
    console = console or _Console()
    for item in tables:
        console.print(item)


def __dir__() -> list[str]:
    return __all__
