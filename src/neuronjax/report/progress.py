"""Progress bars on the standard error, or below a notebook's cell.

In a notebook the bars are HTML that is replaced during the work, because the bars of
Rich need widgets, which a saved notebook loses. A process has only one live display. If
a bar is shown during a compilation, the bar shows the stages of the compilation.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal, Self

from rich import progress
from rich.console import Console, RenderableType

from neuronjax.execution import stages
from neuronjax.report.html import as_html
from neuronjax.report.quantities import seconds as in_words
from neuronjax.report.tables import as_text

#: The environment variable: 1 shows progress in logs too, 0 nowhere.
VARIABLE = "NEURONJAX_PROGRESS"
_REDRAW_SECONDS = 0.2  # between two updates in a notebook

#: How progress is shown: as text that is replaced, as lines of a log, or not at all.
Way = Literal["live", "log", "none"]


def way(console: Console) -> Way:
    """Return how progress is shown on a console; in a log only if `VARIABLE` is 1."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "0":
        return "none"
    if console.is_terminal or console.is_jupyter:
        return "live"
    return "log" if wanted == "1" else "none"


def kind_of(stage: str) -> str:
    """Return a stage without the details after its comma."""
    return stage.partition(",")[0]


class WorkBars:
    """Progress bars, with the compilation stages of the current program.

    The bars are shown in their `with` block, unless another display is shown."""

    def __init__(
        self,
        before: str,
        after: str,
        *,
        shown: bool,
        transient: bool = False,
        counted: progress.ProgressColumn | None = None,
    ) -> None:
        self._console = Console(stderr=True)
        self._way: Way = way(self._console) if shown else "none"
        self._page: Page | None = None
        self._bars = progress.Progress(
            progress.TextColumn(before),
            progress.BarColumn(bar_width=None),
            counted or progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[stage]:<10.10}", style="dim"),
            progress.TextColumn(after),
            progress.TimeElapsedColumn(),
            console=self._console,
            transient=transient,
            disable=self._way != "live" or self._console.is_jupyter,
            # With a redirected standard output, Rich would print its text above the
            # bars, on the standard error.
            redirect_stdout=sys.stdout.isatty(),
        )
        self._at = progress.TaskID(0)

    def _add(self, description: str, **options: Any) -> progress.TaskID:
        options = {"stage": "", "status": ""} | options
        self._at = self._bars.add_task(description, **options)
        return self._at

    def stage(self, name: str) -> None:
        """Show a stage of compilation beside the current bar."""
        self._show(self._at, stage=kind_of(name))

    def _show(self, bar: progress.TaskID, **changes: Any) -> None:
        """Change a bar. Draw it if this is a notebook; in a terminal Rich draws it."""
        self._bars.update(bar, **changes)
        if self._page is not None:
            self._page.draw(self._bars.get_renderable())

    def __enter__(self) -> Self:
        if self._way != "none" and not stages.show(self, self):
            self._way = "none"
        if self._way == "live":
            self._page = Page() if self._console.is_jupyter else None
            self._bars.start()
            self.stage("")
        return self

    def __exit__(self, *raised: object) -> None:
        stages.end(self)

    def end(self) -> None:
        """Draw the bars for the last time, if they are shown."""
        if self._way == "live":
            self.stage("" if sys.exc_info()[0] is None else "stopped")
            self._bars.stop()
            if self._page is not None:
                ended = "" if self._bars.live.transient else self._bars.get_renderable()
                self._page.draw(ended, last=True)

    def _line(self, text: str) -> None:
        """Print a line above the bars, or in a log; a notebook shows only the bars."""
        if self._way != "none" and not self._console.is_jupyter:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class StudyProgress(WorkBars):
    """Two bars, for the runs of a study and for the steps of a run; a line per run.

    The expected number of steps is that of the previous run."""

    def __init__(self, runs: int, *, done: int = 0, shown: bool = True) -> None:
        before, after = "{task.description:<22}", "{task.fields[status]:<12}"
        super().__init__(before, after, shown=shown and done < runs)
        stored = f"{done} stored" if done else ""
        self._runs = self._add("runs", total=runs, completed=done, status=stored)
        self._run = self._add("", total=None, visible=False)
        self._steps: int | None = None
        self._what, self._status, self._begun, self._count = "", "", 0.0, 0

    def begin(self, what: str, steps: int | None = None) -> None:
        """End the previous run, and begin a run of `steps` steps. None expects as many
        steps as in the previous run."""
        self._end_run()
        self._steps = steps or self._steps
        self._what, self._count, self._begun = what, 0, time.perf_counter()
        self._bars.reset(self._run, total=self._steps, description=what, visible=True)
        self._show(self._run, status="", stage="compiling")

    def advance(self, record: Mapping[str, Any]) -> None:
        """Count a step of the run."""
        self._count += 1
        self._status = f"loss {record['loss']:.4g}" if "loss" in record else ""
        self._show(self._run, advance=1, status=self._status, stage="")

    def _end_run(self) -> None:
        if self._what:
            self._steps = self._count
            self._bars.update(self._runs, advance=1)
            taken = in_words(time.perf_counter() - self._begun)
            found = self._status or f"{self._count} steps"
            self._line(f"{self._what}: {found} in {taken}")

    def __exit__(self, *raised: object) -> None:
        if raised[0] is None:
            self._end_run()
        super().__exit__(*raised)


class SearchProgress(WorkBars):
    """A bar for a precision search: programs run, and the last error.

    The bar has no total, since a search seldom uses its budget."""

    def __init__(self, *, shown: bool) -> None:
        runs = progress.TextColumn("{task.completed:.0f}")
        after = "{task.fields[status]}"
        super().__init__("programs run", after, shown=shown, counted=runs)
        self._runs = self._add("", total=None)

    def heard(self, runs: int, error: float, seconds: float) -> None:
        """Count a program that was run, and show its error."""
        status = f"error {error:.2g}, predicted {in_words(seconds)}"
        self._show(self._runs, completed=runs, status=status, stage="")
        if self._way == "log":
            self._line(f"program {runs}: {status}")

    def end(self) -> None:
        """Draw a full bar."""
        self._bars.update(self._runs, total=self._bars.tasks[self._runs].completed)
        super().end()


class CaseProgress(WorkBars):
    """A bar for a series of cases, with the name of the current one."""

    def __init__(self, cases: int, *, shown: bool) -> None:
        after = "{task.fields[status]:<32.32}"
        super().__init__("cases", after, shown=shown, transient=True)
        self._cases = self._add("", total=cases)
        self._begun = -1

    def begin(self, name: str) -> None:
        """End the previous case, and begin one."""
        self._begun += 1
        self._show(self._cases, completed=self._begun, status=name)


class Page:
    """A display below a notebook's cell, whose content can be replaced."""

    def __init__(self) -> None:
        from IPython.display import display  # only notebooks need IPython

        self._place: Any = display({"text/plain": ""}, raw=True, display_id=True)
        self._drawn = 0.0

    def draw(self, drawn: RenderableType, *, last: bool = False) -> None:
        """Replace the display, unless it was replaced just before."""
        if last or time.monotonic() - self._drawn > _REDRAW_SECONDS:
            found = {"text/plain": as_text(drawn), "text/html": as_html(drawn)}
            self._place.update(found, raw=True)
            self._drawn = time.monotonic()
