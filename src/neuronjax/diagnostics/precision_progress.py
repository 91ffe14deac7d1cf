"""A bar for a precision search: programs run, and the latest error."""

from __future__ import annotations

from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from neuronjax.report.progress_bars import ProgressBars
from neuronjax.report.quantities import seconds as in_words


class SearchProgress:
    """Shows how much of its budget a search has used, on the standard error or in a
    notebook."""

    def __init__(self, most: int, *, shown: bool) -> None:
        self._shown = ProgressBars(
            TextColumn("programs run"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            shown=shown,
        )
        self._bars = self._shown.bars
        self._runs = self._bars.add_task("", total=most, status="compiling")

    def __enter__(self) -> SearchProgress:
        self._shown.start()
        return self

    def heard(self, runs: int, error: float, seconds: float) -> None:
        """A program was run."""
        status = f"error {error:.2g} at {in_words(seconds)}"
        self._bars.update(self._runs, completed=runs, status=status)
        self._shown.draw()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._shown.stop()
