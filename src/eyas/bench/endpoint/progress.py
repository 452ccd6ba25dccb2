"""Shows a run as it goes on: a bar in a terminal, else a line for each window."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from eyas.bench.endpoint.figures import figures_of
from eyas.bench.endpoint.load.pace import Pace
from eyas.bench.endpoint.load.session import Step
from eyas.bench.endpoint.records import Window
from eyas.bench.stats import percentile

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Shown", "window_text"]

STEADY = {"warm-up": "warms up", "steady": "measures", "run-out": "lets the last ones end"}


def window_text(window: Window) -> str:
    """Format a window in one line."""
    figures = figures_of(window)
    parts = [f"{window.arm}, {window.load.text()}, turn {window.turn + 1}: {figures.num_measured} requests"]
    if figures.num_failed:
        error = next((record.error for record in window.records if record.error), "")
        parts.append(f"{figures.num_failed} failed ({error})")
    if figures.tokens_per_s is not None:
        parts.append(f"{figures.tokens_per_s:,.1f} tok/s")
    if figures.first_text_s:
        parts.append(f"TTFT {1e3 * percentile(figures.first_text_s, 50):,.1f} ms")
    if figures.tpot_s:
        parts.append(f"TPOT {1e3 * percentile(figures.tpot_s, 50):,.2f} ms")
    if not window.is_warm and window.warm_up_s:
        parts.append(f"no steady speed within {window.warm_up_s:.0f} s of warm-up")
    if window.void:
        parts.append(f"VOID: {window.void}")
    return ", ".join(parts)


class Shown:
    """Context manager that watches a run."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._step: Step | None = None

    def __enter__(self) -> Shown:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4)
            self._progress.start()
            self._task = self._progress.add_task("")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def begins(self, step: Step, number: int, total: int) -> None:
        """Take note of the next window."""
        self._step = step
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=total, completed=number)

    def goes(self, pace: Pace) -> None:
        """Show how far a window is."""
        if self._progress is not None and self._task is not None and self._step is not None:
            step = self._step
            text = (
                f"{step.arm}, {step.load.text()}, turn {step.turn + 1}: {STEADY[pace.phase]}, "
                f"{pace.num_measured} measured, {pace.num_running} running"
            )
            self._progress.update(self._task, description=text)

    def ends(self, window: Window) -> None:
        """Show a window that is over."""
        if self._progress is not None:
            self._progress.console.print(window_text(window), highlight=False, markup=False)
        else:
            print(window_text(window), file=sys.stderr, flush=True)
