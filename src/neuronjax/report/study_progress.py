"""Two bars for a study: runs, and steps of the run at hand.

In a notebook they are HTML that is replaced as the study goes on, as results are shown:
Rich's own way needs widgets, and leaves none of them in a saved notebook.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from neuronjax.report.rendering import as_html

_REDRAW_SECONDS = 0.2  # at most so often in a notebook


class StudyProgress:
    """Shows how far a study is, on the standard error or in a notebook.

    How many steps a run has is known from the run before it.
    """

    def __init__(self, runs: int, *, done: int, shown: bool) -> None:
        console = Console(stderr=True)
        wanted = shown and done < runs
        self._page = _Page() if wanted and console.is_jupyter else None
        self._bars = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]:<12}"),
            TimeElapsedColumn(),
            console=console,
            disable=not wanted or self._page is not None,
        )
        self._runs = self._bars.add_task(
            "runs", total=runs, completed=done, status=f"{done} stored" if done else ""
        )
        self._run = self._bars.add_task("", total=None, status="", visible=False)
        self._steps: int | None = None
        self._count = 0
        self._started = False

    def __enter__(self) -> StudyProgress:
        self._bars.start()
        self._draw()
        return self

    def begin(self, what: str) -> None:
        """A run begins, and the one before it has ended."""
        self._end()
        self._started, self._count = True, 0
        self._bars.reset(
            self._run,
            total=self._steps,
            description=what,
            status="compiling",
            visible=True,
        )
        self._draw()

    def advance(self, record: Mapping[str, Any]) -> None:
        """A step of the run ended."""
        self._count += 1
        status = f"loss {record['loss']:.4g}" if "loss" in record else ""
        self._bars.update(self._run, advance=1, status=status)
        self._draw()

    def _end(self) -> None:
        if self._started:
            self._steps = self._count
            self._bars.update(self._runs, advance=1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._end()
        self._bars.stop()
        self._draw(last=True)

    def _draw(self, *, last: bool = False) -> None:
        """Once more in a notebook; a terminal is drawn by a thread of Rich."""
        if self._page is not None:
            self._page.draw(self._bars, last=last)


class _Page:
    """A place below a notebook's cell."""

    def __init__(self) -> None:
        from IPython.display import display  # there in every notebook, else not needed

        place: Any = display({"text/plain": ""}, raw=True, display_id=True)
        self._place = place
        self._drawn = 0.0

    def draw(self, bars: Progress, *, last: bool) -> None:
        """Replaces what is there, unless that was done just now."""
        if last or time.monotonic() - self._drawn > _REDRAW_SECONDS:
            html = {"text/html": as_html(bars.get_renderable())}
            self._place.update(html, raw=True)
            self._drawn = time.monotonic()
