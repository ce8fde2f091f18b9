"""What is shown while work lasts, on standard error and only where that is a terminal.

A solve shows itself after one second; work of known size has a bar with the time left.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich import progress
from rich.console import Console
from rich.live import Live
from rich.text import Text

from lpverify.core.results import RefinementStep

DELAY = 1.0
"""Seconds before anything is shown."""


class SolveProgress:
    """Context manager; give `round` and `stage` to what does the work."""

    def __init__(self, title: str, console: Console | None = None, delay: float = DELAY) -> None:
        self._title, self._delay = title, delay
        self._console = console or Console(stderr=True)
        self._start = time.perf_counter()
        self._rounds, self._stage = 0, "starting"
        self._last: RefinementStep | None = None
        self._live: Live | None = None
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._done = False

    def __enter__(self) -> SolveProgress:
        if self._console.is_terminal:
            self._timer = threading.Timer(self._delay, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._done = True
            if self._live is not None:
                self._live.stop()

    def round(self, latest: RefinementStep) -> None:
        """A round of the solver ended."""
        self._rounds, self._last = self._rounds + 1, latest

    def stage(self, name: str) -> None:
        """Another part of the work begins."""
        self._stage = name

    def __rich__(self) -> Text:
        elapsed = time.perf_counter() - self._start
        text = f"{self._title}: {self._stage}, {elapsed:.0f} s"
        if self._last is not None:
            last = self._last
            text += (
                f"\nround {self._rounds}, {last.bins} bins, between {last.lower_bound:.9f} and {last.upper_bound:.9f},"
                f" gap {last.upper_bound - last.lower_bound:.1e}"
            )
        return Text(text)

    def _show(self) -> None:
        with self._lock:
            if not self._done:
                self._live = Live(self, console=self._console, transient=True, refresh_per_second=4)
                self._live.start()


def time_left() -> progress.Progress:
    """A bar with the number done and the time left; a context manager."""
    console = Console(stderr=True)
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
