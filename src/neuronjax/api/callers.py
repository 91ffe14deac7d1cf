"""Who calls `jit` and what it made: a program, one of our rooms, or a verb."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

#: The rooms that know `nj.jit`; "" is the package itself.
_KNOW_IT = ("api", "testing", "cli", "")


def asked_for_jaxs() -> bool:
    """Tell whether one of our rooms that know no `nj.jit` asks for `jax.jit`.

    A program may set `jax.jit = functools.partial(nj.jit, ...)`, or to a function of
    its own that calls `nj.jit`."""
    frame = sys._getframe(2)  # the caller of `jit`, or that function's
    for _ in range(2):
        package, _, rooms = (frame.f_globals.get("__name__") or "").partition(".")
        if package == "neuronjax":
            return rooms.partition(".")[0] not in _KNOW_IT
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


_asked_about: ContextVar[Any] = ContextVar("_asked_about", default=None)


def asked_about(emulated: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function made of an emulated one, such as its gradient, for a verb that
    has a policy for all of it: the emulated one is then no scope inside."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        token = _asked_about.set(emulated)
        try:
            return function(*args, **kwargs)
        finally:
            _asked_about.reset(token)

    return called


def is_asked_about(emulated: Any) -> bool:
    """Tell whether a verb asks about a function that was made of this emulated one."""
    return _asked_about.get() is emulated
