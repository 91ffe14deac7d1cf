"""The active trace of a thread, as tensors and registers use it.

Tensors and registers are in a lower layer than the trace, so a protocol declares the
three operations that they call: assigning to a tensor, printing its elements and
testing a register.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Protocol

from neuronjax.nki.refusing import refuse


class ActiveTrace(Protocol):
    """The operations of the active trace that tensors and registers use."""

    def assign(self, dst: Any, value: Any) -> None:
        """Copy a tensor or a number into a view."""
        ...

    def value_text(self, view: Any) -> str | None:
        """Return a view's elements as text if the kernel runs op by op, else None."""
        ...

    def condition(self, register: Any) -> bool:
        """Return whether a register is nonzero, for `while register:`."""
        ...


_LOCAL = threading.local()


def current_or_none() -> ActiveTrace | None:
    return getattr(_LOCAL, "trace", None)


def current() -> ActiveTrace:
    """Return the active trace."""
    trace = current_or_none()
    if trace is None:
        refuse(
            None,
            "called outside a kernel",
            "decorate the function with @nki.jit, and call the result",
        )
    return trace


def in_kernel() -> bool:
    return current_or_none() is not None


@contextlib.contextmanager
def tracing(trace: ActiveTrace) -> Iterator[None]:
    """Make a trace the active one within the block."""
    before = current_or_none()
    _LOCAL.trace = trace
    try:
        yield
    finally:
        _LOCAL.trace = before
