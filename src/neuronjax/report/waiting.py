"""What somebody waits for, in a terminal or a notebook: a compilation, a comparison.

Nothing is shown in the first two seconds, nor where the standard error is no terminal
(a log, a pipe, CI), unless NEURONJAX_PROGRESS is 1; 0 shows nothing anywhere. A log
gets a line for each kind of stage, a terminal and a notebook one line that is replaced.
At the end there is one that says how long it took.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence

from rich.console import Console
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from neuronjax.report.progress import ProgressBars, way
from neuronjax.report.quantities import seconds as in_words

#: From when on somebody may wonder.
PATIENCE_SECONDS = 2.0
WORTH_SAYING_SECONDS = 0.1
#: Of the line at the end.
WIDTH = 80


class Waiting:
    """The stages of one program, shown from another thread.

    Raises nothing that the compilation would see: it draws on the standard error alone.
    """

    def __init__(self, name: str, console: Console) -> None:
        self._name, self._console = name, console
        self._stages = [("starting", time.perf_counter())]
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, name: str) -> Waiting | None:
        """The display of a program, None where nobody would see it."""
        console = Console(stderr=True)
        return None if way(console) == "none" else cls(name, console)

    def stage(self, name: str) -> None:
        """The next stage begins, or is at another place."""
        with self._changed:
            before, begin = self._stages[-1]
            if _kind(before) == _kind(name):  # of every op, in a comparison
                self._stages[-1] = (name, begin)
                return
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
        last = summary(self._name, self._stages, time.perf_counter())
        self._console.print(last, highlight=False, soft_wrap=True)

    def _now(self) -> str:
        return self._stages[-1][0]

    def _draw(self) -> None:
        line = StageLine(self._name, self._console)
        line.start()
        while not self._ended:
            line.say(self._now())
            with self._changed:
                self._changed.wait_for(lambda: self._ended, 0.1)
        line.end()

    def _print(self) -> None:
        said: list[str] = []

        def is_new() -> bool:
            return self._ended or _kind(self._now()) not in said

        while not self._ended:
            said.append(_kind(self._now()))
            self._console.print(f"{self._name}: {said[-1]}", highlight=False)
            with self._changed:
                self._changed.wait_for(is_new)


def summary(name: str, stages: Sequence[tuple[str, float]], end: float) -> str:
    """How long it took, and its longest stages, as many as fit.

    Args:
        name: of what took so long.
        stages: their names and beginnings, in seconds.
        end: of the last one.
    """
    ends = [*[begin for _, begin in stages[1:]], end]
    spent: dict[str, float] = {}
    for (stage, begin), until in zip(stages, ends, strict=True):
        spent[_kind(stage)] = spent.get(_kind(stage), 0.0) + until - begin
    whole = f"{name}: {in_words(end - stages[0][1])}"

    def line(kinds: Collection[str]) -> str:
        said = [f"{k} {in_words(s)}" for k, s in spent.items() if k in kinds]
        return f"{whole} ({', '.join(said)})" if said else whole

    longest = sorted(spent, key=lambda kind: spent[kind], reverse=True)
    kept = [kind for kind in longest if spent[kind] > WORTH_SAYING_SECONDS]
    while kept and len(line(kept)) > WIDTH:
        kept.pop()
    return line(kept)


def _kind(stage: str) -> str:
    """A stage without what it is at."""
    return stage.partition(",")[0]


class StageLine(ProgressBars):
    """One line: a spinner, what is being done, and for how long; gone at the end."""

    def __init__(self, name: str, console: Console) -> None:
        columns = (
            SpinnerColumn(),
            TextColumn(f"{name}: {{task.description}}", markup=False),
            TimeElapsedColumn(),
        )
        super().__init__(*columns, console=console, transient=True)
        self._task = self._bars.add_task("starting", total=None)

    def say(self, stage: str) -> None:
        """The stage at hand."""
        self._bars.update(self._task, description=stage)
        self._draw()
