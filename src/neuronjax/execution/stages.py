"""Progress stages (capturing, lowering, compiling) while the user waits.

`report` injects the display through `watched_by`, because this layer does not know it.
One task is shown at a time. A task that starts while another is shown (a program made
by a transformation, or one compiled below a progress bar) adds its stages, followed by
its name if that differs; at its end the interrupted stage is shown again.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Protocol


class Watch(Protocol):
    """A display of stages, from its creation until `end`."""

    def stage(self, name: str) -> None: ...
    def end(self) -> None: ...


def _unseen(name: str) -> Watch | None:
    return None


#: (name of the program) -> the display of its stages, or None if nobody would see it.
watch: Callable[[str], Watch | None] = _unseen
#: Any of these environment variables may ask for the output that a terminal gets.
ASKING = ("NEURONJAX_PROGRESS", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
_lock = threading.Lock()
_current: Watch | None = None
_owner: object = None
_name = ""
_stage = ""
# For a task inside the shown one: its owner, the name that it adds to the display, and
# the stage of the shown task that it interrupts.
_inner: object = None
_within = ""
_outside = ""


def watched_by(make: Callable[[str], Watch | None]) -> None:
    """Show stages with the displays that `make` returns, if somebody can see them."""
    global watch

    def asked(name: str) -> Watch | None:
        in_terminal = sys.stderr is not None and sys.stderr.isatty()
        may_look = in_terminal or "IPython" in sys.modules or {*ASKING} & {*os.environ}
        return make(name) if may_look else None

    watch = asked


def start(name: str, owner: object) -> None:
    """Begin a task of this name and owner, or add it to the task that is shown."""
    global _inner, _name, _outside, _within
    with _lock:
        if _owner is None:
            _set_current(watch(name), owner)
            _name = name
        elif _inner is None and owner is not _owner:
            _inner, _outside = owner, _stage
            _within = "" if name == _name else f", {name}"


def show(display: Watch, owner: object) -> bool:
    """Show stages by `display` until `owner` ends, and return True; return False if
    another task is shown."""
    with _lock:
        if _owner is not None:
            return False
        _set_current(display, owner)
    return True


def _set_current(display: Watch | None, owner: object) -> None:
    global _current, _owner
    _current, _owner = display, owner if display is not None else None


def stage(name: str) -> None:
    """Show that the next stage begins ("lowering"); text after a comma is a detail."""
    global _stage
    current = _current
    if current is not None:
        name = name if "," in name else name + _within
        _stage = name
        current.stage(name)


def end(owner: object) -> None:
    """End the task of this owner, if it has one."""
    global _current, _owner, _inner, _name, _stage, _within
    # This check takes no lock, because every call makes it.
    if owner is not _owner and owner is not _inner:
        return
    with _lock:
        if owner is _inner:
            _inner, ended = None, None
        else:
            ended, _current, _owner, _inner = _current, None, None, None
            _name = _stage = ""
        _within = ""
    if ended is not None:
        ended.end()
    else:
        stage(_outside)


@contextlib.contextmanager
def watching(name: str, first: str = "starting") -> Iterator[None]:
    """Treat everything inside the block as one task of this name."""
    owner = object()
    start(name, owner)
    stage(first)
    try:
        yield
    finally:
        end(owner)
