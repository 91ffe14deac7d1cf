"""The errors and warnings of neuronjax: one base class of errors with four categories.

Every message answers three questions, in this order: which op (or argument), which line
of the user's program, and what to do about it.
"""

from __future__ import annotations

import functools
import linecache
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Self

import numpy as np


class NeuronJaxError(Exception):
    """The base class of all errors. It keeps the parts of the message.

    Attributes:
        what: the problem, with the op or argument and its value.
        op: the StableHLO op or instruction concerned, or None.
        location: the user's source line, "file:line", or None.
        remedy: what the user can do.
    """

    def __init__(
        self,
        what: str,
        *,
        op: str | None = None,
        location: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.what = what
        self.op = op
        self.location = location
        self.remedy = remedy
        lines = [f"{op}: {what}" if op else what]
        if location:
            lines.append(f"  at: {cell_place(location) or location}")
            lines += [f"      {code}" for code in [code_at(location)] if code]
        if remedy:
            lines.append(f"  remedy: {remedy}")
        super().__init__("\n".join(lines))

    def changed(self, **fields: str | None) -> Self:
        """Return an error of the same kind with other values of some attributes."""
        known = {name: getattr(self, name) for name in ("op", "location", "remedy")}
        return type(self)(**{"what": self.what, **known, **fields})


class UnsupportedError(NeuronJaxError):
    """An error for a feature that the chip or the emulator will not support."""


class UnimplementedError(NeuronJaxError):
    """An error for a feature without a rule in the emulator. Please report it."""


class InvalidProgramError(NeuronJaxError, ValueError):
    """An error for a violated limit. The message names the nearest legal value."""


class InternalError(NeuronJaxError):
    """An error in neuronjax itself. Please report it."""


class IntegersInFP32Warning(UserWarning):
    """A warning that the chip computes integers in float32, exactly only up to 2^24.

    JAX's integers are exact. The warning concerns reductions of integers over devices
    and, on chips without GpSimdE, signed integers of 32 bits. It is given once for a
    line; `Policy(integer_path=...)` selects exact arithmetic or FP32."""


class PrecisionIgnoredWarning(UserWarning):
    """A warning that the policy casts the operands of a dot or convolution that asks
    for `precision=HIGH` or `HIGHEST`. It is given once for a line;
    `Policy(dot_precision=...)` selects the precision or the cast."""


class NotEmulatedWarning(UserWarning):
    """A warning that something inside an emulated scope ran in JAX itself."""


_PACKAGE = str(Path(__file__).parent) + "/"
_NUMPY = str(Path(np.__file__).parent) + "/"


@functools.cache
def _is_internal(filename: str) -> bool:
    return filename.startswith((_PACKAGE, _NUMPY, "<frozen"))


def user_line() -> str:
    """Return "file:line" of the innermost frame outside neuronjax and NumPy, or ""."""
    return _frame_line(_outer_frame(_is_internal)[0])


@functools.lru_cache(maxsize=4096)
def _line(filename: str, number: int) -> str:
    """Return "file:number"; the cache keeps one string for each line."""
    return f"{filename}:{number}"


def code_at(source: str) -> str:
    """Return the source code at `file:line`, or "" if no file contains it."""
    path, _, line = source.rpartition(":")
    return linecache.getline(path, int(line) if line.isdigit() else 0).strip()


def cell_place(source: str) -> str:
    """Return `In[3]:12` for a line in a cell of the running IPython, else ""."""
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    if shell is None:
        return ""
    file, _, line = source.rpartition(":")
    found = shell.compile.format_code_name(file)  # ("Cell", "In[3]") or None
    return "" if found is None else f"{found[1]}:{line}"


def program_line() -> str:
    """Return "file:line" of the innermost frame of the user's program, or ""."""
    return _frame_line(_outer_frame(is_library)[0])


def warn_user(text: str, category: type[Warning]) -> None:
    """Warn at the innermost line of the user's program."""
    _, level = _outer_frame(is_library)
    warnings.warn(text, category, stacklevel=level)


_warned: set[tuple[type[Warning], str]] = set()


def warn_once(source: str, text: str, category: type[Warning]) -> None:
    """Warn once for a line "file:number", even if it is lowered for several shapes."""
    if (category, source) in _warned:
        return
    file, _, line = source.rpartition(":")
    warnings.warn_explicit(text, category, file or "<unknown>", int(line or 0))
    _warned.add((category, source))


def _outer_frame(is_inside: Callable[[str], bool]) -> tuple[FrameType | None, int]:
    """Return the innermost frame for whose file `is_inside` is False, and its level."""
    frame, level = sys._getframe(2), 2
    while frame is not None and is_inside(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return frame, level


def _frame_line(frame: FrameType | None) -> str:
    return _line(frame.f_code.co_filename, frame.f_lineno) if frame else ""


def is_library(filename: str) -> bool:
    """Return whether a file, or a line in it, is not part of the user's program."""
    ends = ("/contextlib.py", "/runpy.py", "/importlib/__init__.py")
    folders = ("site-packages", "dist-packages")
    is_python = filename.endswith(ends) or _is_internal(filename)
    return is_python or any(folder in filename for folder in folders)


def raising_line(error: BaseException) -> str | None:
    """Return "file:line" of the innermost frame of an error's traceback that is outside
    neuronjax and NumPy, or None."""
    return _last_line(error, lambda name: not _is_internal(name))


def line_in(file: str, error: BaseException) -> str | None:
    """Return "file:line" of the innermost frame of an error's traceback that is in
    `file`, or of a SyntaxError in `file`; else None."""
    if isinstance(error, SyntaxError) and error.filename == file and error.lineno:
        return _line(file, error.lineno)
    return _last_line(error, lambda name: name == file)


def _last_line(error: BaseException, counts: Callable[[str], bool]) -> str | None:
    frames = traceback.walk_tb(error.__traceback__)
    lines = [(f.f_code.co_filename, n) for f, n in frames if n]
    return next((_line(f, n) for f, n in reversed(lines) if counts(f)), None)
