"""What is being done while somebody waits, for who shows it.

`watch` is given by the reports, which this layer does not know. One thing is shown
at a time: what begins while another is shown (a program that a transformation makes, or
one that is compiled below a bar) is part of that, which then goes on where it was; its
name stands behind its stages, where it has another one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Protocol


class Watch(Protocol):
    """Shows stages, from its making until it is told of the end."""

    def stage(self, name: str) -> None: ...
    def end(self) -> None: ...


def _unseen(name: str) -> Watch | None:
    del name
    return None


#: (name of the program) -> who shows its stages, or None where nobody would see them.
watch: Callable[[str], Watch | None] = _unseen
#: Any of these may ask for what a terminal would show.
ASKING = ("NEURONJAX_PROGRESS", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
_lock = threading.Lock()
_current: Watch | None = None
_owner: object = None
_name = ""
_stage = ""
# Who makes something inside what is shown, what of it is said, and the stage that this
# interrupts.
_inner: object = None
_within = ""
_outside = ""


def watched_by(make: Callable[[str], Watch | None]) -> None:
    """Let this show what is done, and ask it only where somebody may look."""
    global watch

    def asked(name: str) -> Watch | None:
        in_terminal = sys.stderr is not None and sys.stderr.isatty()
        may_look = in_terminal or "IPython" in sys.modules or {*ASKING} & {*os.environ}
        return make(name) if may_look else None

    watch = asked


def start(name: str, owner: object) -> None:
    """Something of this name is made by this object, unless something is already."""
    global _inner, _name, _outside, _within
    with _lock:
        if _owner is None:
            _hold(watch(name), owner)
            _name = name
        elif _inner is None and owner is not _owner:
            _inner, _outside = owner, _stage
            _within = "" if name == _name else f", {name}"


def show(display: Watch, owner: object) -> bool:
    """Whether this display is the one that shows what is done, until the owner ends."""
    with _lock:
        if _owner is not None:
            return False
        _hold(display, owner)
    return True


def _hold(display: Watch | None, owner: object) -> None:
    global _current, _owner
    _current, _owner = display, owner if display is not None else None


def stage(name: str) -> None:
    """The next stage begins: "lowering"; what follows a comma is where in it."""
    global _stage
    current = _current
    if current is not None:
        name = name if "," in name else name + _within
        _stage = name
        current.stage(name)


def end(owner: object) -> None:
    """What this object made is made, or failed; does nothing if it made nothing."""
    global _current, _owner, _inner, _name, _stage, _within
    if owner is not _owner and owner is not _inner:  # which every call asks: no lock
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
    """What is done inside is one thing to wait for, of this name."""
    owner = object()
    start(name, owner)
    stage(first)
    try:
        yield
    finally:
        end(owner)
