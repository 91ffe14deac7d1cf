"""The turns that the programs of a launch grid take while they are traced.

One program runs until it meets the others (`core_barrier`, `sendrecv`), then the next
one runs; when all have arrived the first continues. So everything before a meeting
precedes everything after it in the order of execution, and the order is always the
same. Program 0 stays in the caller's thread, for debuggers.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from neuronjax.errors import InvalidProgramError


class Meeting(NamedTuple):
    """The point at which a program waits for the others."""

    #: "nisa.core_barrier", "nisa.sendrecv(pipe_id=0)" and so on; all programs must wait
    #: at the same one.
    what: str
    line: str  # "file:line" of the user's call
    payload: Any = None  # what the program passes to the others


class _AbandonedError(Exception):
    """An error raised in a program because another program has failed."""


class Lockstep:
    """The order in which `count` programs run, one at a time."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._turns = [threading.Semaphore(0) for _ in range(count)]
        self._waits: list[Meeting | None] = [None] * count
        self._done = [False] * count
        self._met: list[Meeting] = []
        self._fault: BaseException | None = None

    def run(self, programs: Sequence[Callable[[], Any]]) -> None:
        """Run all programs to their ends; raise the first error of any."""
        threads = [self._thread(n, programs[n]) for n in range(1, self.count)]
        for thread in threads:
            thread.start()
        self._guarded(0, programs[0])
        for thread in threads:
            thread.join()
        if self._fault is not None:
            raise self._fault

    def _thread(self, number: int, program: Callable[[], Any]) -> threading.Thread:
        # The thread gets the caller's context variables, such as NumPy's error state.
        context = contextvars.copy_context()

        def started() -> None:
            self._turns[number].acquire()
            if self._fault is None:
                context.run(self._guarded, number, program)

        return threading.Thread(target=started, name=f"program {number}", daemon=True)

    def _guarded(self, number: int, program: Callable[[], Any]) -> None:
        try:
            program()
        except _AbandonedError:
            return
        except BaseException as error:  # raised by the user's code, and again by `run`
            self._fail(error)
            return
        self._done[number] = True
        self._pass_on(number)

    def meet(self, number: int, meeting: Meeting) -> list[Meeting]:
        """Wait for all programs; return the meetings at which they waited. It is an
        error if another program waits at a different meeting, or has ended."""
        self._waits[number] = meeting
        self._pass_on(number)
        self._turns[number].acquire()
        if self._fault is not None:
            raise _AbandonedError
        return self._met

    def _pass_on(self, number: int) -> None:
        if self._fault is not None:
            return
        if number + 1 < self.count:
            self._turns[number + 1].release()
            return
        if all(self._done):
            return
        fault = self._disagreement()
        if fault is not None:
            self._fail(fault)
            return
        self._met = [w for w in self._waits if w is not None]
        self._waits = [None] * self.count
        self._turns[0].release()

    def _disagreement(self) -> InvalidProgramError | None:
        first = next(w for w in self._waits if w is not None)
        states = [w.what if w else "its end" for w in self._waits]
        if len(set(states)) == 1:
            return None
        lines = [f" ({w.line})" if w else "" for w in self._waits]
        programs = zip(range(self.count), states, lines, strict=True)
        places = "; ".join(f"program {n} is at {s}{line}" for n, s, line in programs)
        return InvalidProgramError(
            f"the programs of the grid wait for different things: {places}",
            op=first.what,
            location=first.line,
            remedy="let every program call the same core_barrier, sendrecv (with the "
            "same pipe_id) and collectives, in the same order",
        )

    def _fail(self, error: BaseException) -> None:
        if self._fault is None:
            self._fault = error
        for turn in self._turns:
            turn.release()
