"""The "file:line" of the kernel's own code: the innermost frame outside neuronjax."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

_PACKAGE = str(Path(__file__).parent.parent) + "/"


@functools.cache
def _is_internal(filename: str) -> bool:
    return filename.startswith((_PACKAGE, "<frozen"))


def user_line() -> str:
    """Where the kernel called neuronjax from, "" if from nowhere."""
    frame = sys._getframe(1)
    while frame is not None and _is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
