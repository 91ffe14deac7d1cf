"""Progress bars on the standard error, or below a notebook's cell.

In a notebook they are HTML that is replaced as the work goes on, as results are shown:
Rich's own way needs widgets, and leaves none of them in a saved notebook.
"""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn

from neuronjax.report.tables import as_html

_REDRAW_SECONDS = 0.2  # at most so often in a notebook


class ProgressBars:
    """Rich's bars, drawn where the user looks.

    Attributes:
        bars: what tasks are added to and advanced.
    """

    def __init__(self, *columns: ProgressColumn, shown: bool) -> None:
        console = Console(stderr=True)
        self._page = _Page() if shown and console.is_jupyter else None
        self.bars = Progress(
            *columns, console=console, disable=not shown or self._page is not None
        )

    def start(self) -> None:
        """Draws them for the first time."""
        self.bars.start()
        self.draw()

    def draw(self, *, last: bool = False) -> None:
        """Once more in a notebook; a terminal is drawn by a thread of Rich."""
        if self._page is not None:
            self._page.draw(self.bars, last=last)

    def stop(self) -> None:
        """Draws them as they stay."""
        self.bars.stop()
        self.draw(last=True)


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
