"""Two bars for a study: runs, and steps of the run at hand."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from neuronjax.report.progress_bars import ProgressBars


class StudyProgress:
    """Shows how far a study is, on the standard error or in a notebook.

    How many steps a run has is known from the run before it.
    """

    def __init__(self, runs: int, *, done: int, shown: bool) -> None:
        self._shown = ProgressBars(
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]:<12}"),
            TimeElapsedColumn(),
            shown=shown and done < runs,
        )
        self._bars = self._shown.bars
        self._runs = self._bars.add_task(
            "runs", total=runs, completed=done, status=f"{done} stored" if done else ""
        )
        self._run = self._bars.add_task("", total=None, status="", visible=False)
        self._steps: int | None = None
        self._count = 0
        self._started = False

    def __enter__(self) -> StudyProgress:
        self._shown.start()
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
        self._shown.draw()

    def advance(self, record: Mapping[str, Any]) -> None:
        """A step of the run ended."""
        self._count += 1
        status = f"loss {record['loss']:.4g}" if "loss" in record else ""
        self._bars.update(self._run, advance=1, status=status)
        self._shown.draw()

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
        self._shown.stop()
