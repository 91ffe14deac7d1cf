"""Progress bars on the standard error, or below a notebook's cell.

In a notebook they are HTML that is replaced as the work goes on, as results are shown:
Rich's own way needs widgets, and leaves none of them in a saved notebook.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from neuronjax.report.quantities import seconds as in_words
from neuronjax.report.tables import as_html

_REDRAW_SECONDS = 0.2  # at most so often in a notebook


def _between(before: str, after: str) -> tuple[ProgressColumn, ...]:
    """A bar between two texts."""
    return (
        TextColumn(before),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn(after),
        TimeElapsedColumn(),
    )


class ProgressBars:
    """Rich's columns, drawn where the user looks while it is entered."""

    def __init__(
        self, *columns: ProgressColumn, shown: bool, transient: bool = False
    ) -> None:
        console = Console(stderr=True)
        self._page = _Page() if shown and console.is_jupyter else None
        self._bars = Progress(
            *columns,
            console=console,
            transient=transient,
            disable=not shown or self._page is not None,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        self._draw()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()
        self._draw(last=True)

    def _draw(self, *, last: bool = False) -> None:
        """Once more in a notebook; a terminal is drawn by a thread of Rich."""
        if self._page is not None:
            self._page.draw(self._bars, last=last)


class StudyProgress(ProgressBars):
    """Two bars for a study: runs, and steps of the run at hand.

    How many steps a run has is known from the run before it.
    """

    def __init__(self, runs: int, *, done: int, shown: bool) -> None:
        columns = _between("{task.description:<22}", "{task.fields[status]:<12}")
        super().__init__(*columns, shown=shown and done < runs)
        stored = f"{done} stored" if done else ""
        self._runs = self._bars.add_task(
            "runs", total=runs, completed=done, status=stored
        )
        self._run = self._bars.add_task("", total=None, status="", visible=False)
        self._steps: int | None = None
        self._count = 0
        self._started = False

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

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is None:
            self._end()
        super().__exit__(kind, error, traceback)


class SearchProgress(ProgressBars):
    """A bar for a precision search: programs run of its budget, and the last error."""

    def __init__(self, most: int, *, shown: bool) -> None:
        columns = _between("programs run", "{task.fields[status]}")
        super().__init__(*columns, shown=shown)
        self._runs = self._bars.add_task("", total=most, status="compiling")

    def heard(self, runs: int, error: float, seconds: float) -> None:
        """A program was run."""
        status = f"error {error:.2g} at {in_words(seconds)}"
        self._bars.update(self._runs, completed=runs, status=status)
        self._draw()


class CaseProgress(ProgressBars):
    """A bar for a row of cases, with the name of the one at hand."""

    def __init__(self, cases: int, *, shown: bool) -> None:
        columns = _between("cases", "{task.fields[status]:<32.32}")
        super().__init__(*columns, shown=shown, transient=True)
        self._cases = self._bars.add_task("", total=cases, status="")
        self._begun = -1

    def begin(self, name: str) -> None:
        """A case begins, and the one before it has ended."""
        self._begun += 1
        self._bars.update(self._cases, completed=self._begun, status=name)
        self._draw()


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
