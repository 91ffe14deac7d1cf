"""What is being done while a program is made, for who shows it to who waits.

`watch` is replaced by the reports, which this layer does not know. A program that is
made while another one is (by a transformation of it, in another thread) is part of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
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
_lock = threading.Lock()
_current: Watch | None = None
_owner: object = None


def start(name: str, owner: object) -> None:
    """A program of this name is made by this object, unless one is made already."""
    global _current, _owner
    with _lock:
        if _owner is None:
            _current = watch(name)
            _owner = owner if _current is not None else None


def stage(name: str) -> None:
    """The next stage begins."""
    current = _current
    if current is not None:
        current.stage(name)


def end(owner: object) -> None:
    """What this object made is made, or failed; does nothing if it made nothing."""
    global _current, _owner
    if _owner is not owner:  # which every call asks: no lock
        return
    with _lock:
        current, _current, _owner = _current, None, None
    if current is not None:
        current.end()
