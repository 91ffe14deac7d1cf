"""The trace that is active in this thread, as tensors and registers know it.

They are its vocabulary and lie below it; assigning to a tensor, its text and the truth
of a register are instructions or values that only the trace has.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Protocol

from neuronjax.nki.refusing import refuse


class ActiveTrace(Protocol):
    """What a tensor or a register asks of the trace of the kernel that uses it."""

    def assign(self, view: Any, value: Any) -> None:
        """Copies a tensor or a number into a view."""
        ...

    def value_text(self, view: Any) -> str | None:
        """The elements of a view as text under op by op execution, else None."""
        ...

    def condition(self, register: Any) -> bool:
        """What a register answers to `while register:`."""
        ...


_LOCAL = threading.local()


def found() -> ActiveTrace | None:
    """The trace that is active, or None outside kernels."""
    return getattr(_LOCAL, "trace", None)


def current() -> ActiveTrace:
    """The trace that is active.

    Raises:
        InvalidProgramError: no kernel is running.
    """
    trace = getattr(_LOCAL, "trace", None)
    if trace is None:
        refuse(
            None,
            "called outside a kernel",
            "decorate the function with @nki.jit and call that",
        )
    return trace


def in_kernel() -> bool:
    """Whether a kernel is being traced in this thread."""
    return found() is not None


@contextlib.contextmanager
def tracing(trace: ActiveTrace) -> Iterator[None]:
    """Makes a trace the active one."""
    before = found()
    _LOCAL.trace = trace
    try:
        yield
    finally:
        _LOCAL.trace = before
