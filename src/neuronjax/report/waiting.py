"""The display of slow work, such as a compilation, in a terminal or a notebook.

Work is shown after two seconds in a terminal or a notebook, and in a log (a file, a
pipe, CI) if NEURONJAX_PROGRESS is 1; 0 shows nothing anywhere. A log gets a line for
each type of stage, a terminal and a notebook one line that is replaced. The last line
says how long the work took, or when it stopped.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from neuronjax.report.progress import Page, kind_of, way
from neuronjax.report.quantities import seconds as in_words

#: The time before anything is shown.
PATIENCE_SECONDS = 2.0
WORTH_SAYING_SECONDS = 0.1


class Waiting:
    """The stages of one program, shown from another thread.

    The thread only writes to the standard error and does not affect the compilation."""

    def __init__(self, name: str, console: Console) -> None:
        self._name, self._console = name, console
        self._stages = [("starting", time.perf_counter())]
        self._changed = threading.Condition()
        self._ended, self._error = False, None
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, name: str) -> Waiting | None:
        """Return the display of a program; None if it would not be visible."""
        console = Console(stderr=True)
        return None if way(console) == "none" else cls(name, console)

    def stage(self, name: str) -> None:
        """Begin a stage, or change the details of the current one."""
        with self._changed:
            before, begin = self._stages[-1]
            if kind_of(before) == kind_of(name):  # only details, such as the op
                self._stages[-1] = (name, begin)
                return
            self._stages.append((name, time.perf_counter()))
            self._changed.notify()

    def end(self) -> None:
        """End the display, after the program is complete or has failed."""
        with self._changed:
            self._ended, self._error = True, sys.exc_info()[0]
            self._changed.notify()
        self._thread.join()

    # -- in the other thread -----------------------------------------------------------

    def _show(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended, PATIENCE_SECONDS)
            if self._ended:
                return
        page = Page() if self._console.is_jupyter else None
        if page is not None or self._console.is_terminal:
            status = self._console.status("")
            show = page.draw if page else status.update
            with contextlib.nullcontext() if page else status:
                while not self._ended:
                    taken = in_words(time.perf_counter() - self._stages[0][1])
                    show(escape(f"{self._name}: {self._stages[-1][0]} {taken}"))
                    with self._changed:
                        self._changed.wait_for(lambda: self._ended, 0.1)
        else:
            self._print()
        last = summary(self._name, self._stages, time.perf_counter(), self._error)
        if page is not None:
            page.draw(escape(last), last=True)
        else:
            self._console.print(last, highlight=False, markup=False, soft_wrap=True)

    def _print(self) -> None:
        printed: list[str] = []
        while not self._ended:
            printed.append(kind_of(self._stages[-1][0]))
            self._console.print(f"{self._name}: {printed[-1]}", highlight=False)
            with self._changed:
                self._changed.wait_for(
                    lambda: self._ended or kind_of(self._stages[-1][0]) not in printed
                )


def summary(
    name: str,
    stages: Sequence[tuple[str, float]],
    end: float,
    error: type[BaseException] | None = None,
) -> str:
    """Return, as text, the total time, the time of each stage, and the stage in which
    an error stopped the work. `stages` has (name, start time) pairs."""
    ends = [*[begin for _, begin in stages[1:]], end]
    spent: dict[str, float] = {}
    for (stage, begin), until in zip(stages, ends, strict=True):
        spent[kind_of(stage)] = spent.get(kind_of(stage), 0.0) + until - begin
    stopped = "" if error is None else f"stopped in {kind_of(stages[-1][0])} after "
    whole = f"{name}: {stopped}{in_words(end - stages[0][1])}"
    times = [f"{k} {in_words(s)}" for k, s in spent.items() if s > WORTH_SAYING_SECONDS]
    parts = f" ({', '.join(times)})" if times else ""
    goes_on = stopped and kind_of(stages[-1][0]) == "compiling"
    more = "; XLA may go on compiling in the background" if goes_on else ""
    return whole + parts + more
