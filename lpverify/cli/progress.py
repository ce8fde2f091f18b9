"""Progress on standard error, only where that is a terminal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

TITLE = TextColumn("{task.description}", markup=False)


@contextmanager
def waiting(title: str, console: Console | None = None, delay: float = 1.0) -> Iterator[Callable[[str], None]]:
    """Show ``title``, the elapsed time and the latest message that the function took which this yields.

    Nothing is shown for work that takes less than ``delay`` seconds.
    """
    console = console or Console(stderr=True)
    shown = Progress(TITLE, TimeElapsedColumn(), console=console, transient=True)
    task = shown.add_task(title, total=None)
    timer = threading.Timer(delay, shown.start)
    timer.daemon = True
    if console.is_terminal:
        timer.start()
    try:
        yield lambda message: shown.update(task, description=f"{title}: {message}")
    finally:
        timer.cancel()
        if timer.is_alive():
            timer.join()  # it may be starting the display
        if shown.live.is_started:
            shown.stop()


@contextmanager
def bar(title: str, total: int | None) -> Iterator[Callable[..., None]]:
    """Show a bar; yields its update function: keywords ``advance``, ``completed``, ``total`` and ``description``."""
    console = Console(stderr=True)
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    columns = (TITLE, BarColumn(), MofNCompleteColumn(), *times)
    with Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        yield partial(shown.update, shown.add_task(title, total=total))
