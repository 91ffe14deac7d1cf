"""What a program that takes long to compile is at, in a terminal or a notebook.

Nothing is shown in the first two seconds, nor where the standard error is no terminal
(a log, a pipe, CI), unless NEURONJAX_PROGRESS is 1; 0 shows nothing anywhere. A log
gets a line for each kind of stage, a terminal and a notebook one line that is replaced.
At the end there is one that says how long it took.
"""

from __future__ import annotations

import os
import threading
import time

from rich.console import Console
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from neuronjax.report.progress import ProgressBars
from neuronjax.report.quantities import seconds as in_words

#: From when on somebody may wonder.
PATIENCE_SECONDS = 2.0
WORTH_SAYING_SECONDS = 0.1
VARIABLE = "NEURONJAX_PROGRESS"


class Waiting:
    """The stages of one program, shown from another thread.

    Raises nothing that the compilation would see: it draws on the standard error alone.
    """

    def __init__(self, name: str, console: Console) -> None:
        self._name, self._console = name, console
        self._begin = time.perf_counter()
        self._stages = [("starting", self._begin)]
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, name: str) -> Waiting | None:
        """The display of a program, None where nobody would see it."""
        wanted = os.environ.get(VARIABLE, "")
        console = Console(stderr=True)
        seen = console.is_terminal or console.is_jupyter
        if wanted == "0" or not (seen or wanted == "1"):
            return None
        return cls(name, console)

    def stage(self, name: str) -> None:
        """The next stage begins."""
        with self._changed:
            self._stages.append((name, time.perf_counter()))
            self._changed.notify()

    def end(self) -> None:
        """The program is made, or is not to be."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    # -- in the other thread -----------------------------------------------------------

    def _show(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended, PATIENCE_SECONDS)
            if self._ended:
                return
        if self._console.is_terminal or self._console.is_jupyter:
            self._draw()
        else:
            self._print()
        self._console.print(self._summary(), highlight=False, soft_wrap=True)

    def _now(self) -> str:
        return self._stages[-1][0]

    def _draw(self) -> None:
        with StageLine(self._name) as line:
            while not self._ended:
                line.say(self._now())
                with self._changed:
                    self._changed.wait_for(lambda: self._ended, 0.1)

    def _print(self) -> None:
        said: list[str] = []

        def is_new() -> bool:
            return self._ended or _kind(self._now()) not in said

        while not self._ended:
            said.append(_kind(self._now()))
            self._console.print(f"{self._name}: {said[-1]}", highlight=False)
            with self._changed:
                self._changed.wait_for(is_new)

    def _summary(self) -> str:
        end = time.perf_counter()
        ends = [*[begin for _, begin in self._stages[1:]], end]
        spent: dict[str, float] = {}
        for (name, begin), until in zip(self._stages, ends, strict=True):
            spent[_kind(name)] = spent.get(_kind(name), 0.0) + until - begin
        long = {kind: s for kind, s in spent.items() if s > WORTH_SAYING_SECONDS}
        parts = ", ".join(f"{kind} {in_words(s)}" for kind, s in long.items())
        return f"{self._name}: {in_words(end - self._begin)} ({parts})"


def _kind(stage: str) -> str:
    """A stage without what it is at."""
    return stage.partition(",")[0]


class StageLine(ProgressBars):
    """One line: a spinner, what is being done, and for how long; gone at the end."""

    def __init__(self, name: str) -> None:
        columns = (
            SpinnerColumn(),
            TextColumn(f"{name}: {{task.description}}", markup=False),
            TimeElapsedColumn(),
        )
        super().__init__(*columns, shown=True, transient=True)
        self._task = self._bars.add_task("starting", total=None)

    def say(self, stage: str) -> None:
        """The stage at hand."""
        self._bars.update(self._task, description=stage)
        self._draw()
