"""The errors of neuronjax, one base class and four categories; a warning.

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
    """Base class. Holds what the message was composed of.

    Attributes:
        what: the problem, naming the op or argument and the value found.
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
        """An error of the same kind, with other values of some attributes."""
        known = {name: getattr(self, name) for name in ("op", "location", "remedy")}
        return type(self)(**{"what": self.what, **known, **fields})


class UnsupportedError(NeuronJaxError):
    """Out of scope by decision: the chip or the emulator will not do this."""


class UnimplementedError(NeuronJaxError):
    """No rule yet. Please report it."""


class InvalidProgramError(NeuronJaxError, ValueError):
    """A limit is broken: the message names it, the value, and the nearest legal one."""


class InternalError(NeuronJaxError):
    """neuronjax itself is wrong. Please report it."""


class IntegersInFP32Warning(UserWarning):
    """The chip computes integers in float32, exact to 2^24, where JAX's are exact.

    So are reductions of integers over devices and, on a chip without GpSimdE, signed
    integers of 32 bits. Once for a line; `Policy(integer_path=...)` says which of the
    two is meant.
    """


class PrecisionIgnoredWarning(UserWarning):
    """A dot or convolution that asks for `precision=HIGH` or `HIGHEST`, whose operands
    the policy casts all the same. Once for a line; `Policy(dot_precision=...)` says
    which of the two is meant."""


class NotEmulatedWarning(UserWarning):
    """Something inside a scope of ours was JAX's own, with the host's numbers."""


_PACKAGE = str(Path(__file__).parent) + "/"
_NUMPY = str(Path(np.__file__).parent) + "/"


@functools.cache
def _is_internal(filename: str) -> bool:
    return filename.startswith((_PACKAGE, _NUMPY, "<frozen"))


def user_line() -> str:
    """The "file:line" of the innermost frame outside neuronjax and NumPy, or ""."""
    return _frame_line(_outer_frame(_is_internal)[0])


@functools.lru_cache(maxsize=4096)
def _line(filename: str, number: int) -> str:
    """One string for all that a line of the program makes."""
    return f"{filename}:{number}"


def code_at(source: str) -> str:
    """Return what is written on the line `file:line`; "" where no file holds it."""
    path, _, line = source.rpartition(":")
    return linecache.getline(path, int(line) if line.isdigit() else 0).strip()


def cell_place(source: str) -> str:
    """Return `In[3]:12`; "" for a line that is not in a cell of a running IPython."""
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    if shell is None:
        return ""
    file, _, line = source.rpartition(":")
    found = shell.compile.format_code_name(file)  # ("Cell", "In[3]") or None
    return "" if found is None else f"{found[1]}:{line}"


def program_line() -> str:
    """The "file:line" of the innermost frame of the user's program, or ""."""
    return _frame_line(_outer_frame(is_library)[0])


def warn_user(text: str, category: type[Warning]) -> None:
    """Warns, at the innermost line that is the user's and no library's."""
    _, level = _outer_frame(is_library)
    warnings.warn(text, category, stacklevel=level)


_warned: set[tuple[type[Warning], str]] = set()


def warn_once(source: str, text: str, category: type[Warning]) -> None:
    """Warn once for a line "file:number", whose program is lowered for every shape."""
    if (category, source) in _warned:
        return
    file, _, line = source.rpartition(":")
    warnings.warn_explicit(text, category, file or "<unknown>", int(line or 0))
    _warned.add((category, source))


def _outer_frame(is_inside: Callable[[str], bool]) -> tuple[FrameType | None, int]:
    """The innermost frame of another file, and how far up from the caller's."""
    frame, level = sys._getframe(2), 2
    while frame is not None and is_inside(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return frame, level


def _frame_line(frame: FrameType | None) -> str:
    return _line(frame.f_code.co_filename, frame.f_lineno) if frame else ""


def is_library(filename: str) -> bool:
    """Whether a file, or a line in it, is none of the user's program."""
    ends = ("/contextlib.py", "/runpy.py", "/importlib/__init__.py")
    folders = ("site-packages", "dist-packages")
    is_python = filename.endswith(ends) or _is_internal(filename)
    return is_python or any(folder in filename for folder in folders)


def raising_line(error: BaseException) -> str | None:
    """The "file:line" outside neuronjax that led to an error, the innermost one."""
    found, trace = None, error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not _is_internal(name):
            found = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def line_in(file: str, error: BaseException) -> str | None:
    """The "file:line" of the innermost frame of a file that led to an error; of a
    SyntaxError of that very file, where it is."""
    if isinstance(error, SyntaxError) and error.filename == file and error.lineno:
        return _line(file, error.lineno)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if f.filename == file and f.lineno]
    return _line(file, lines[-1]) if lines else None
