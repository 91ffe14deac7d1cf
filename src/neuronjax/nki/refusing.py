"""Errors about a line of a kernel: what is wrong, and what to write instead."""

from __future__ import annotations

from typing import NoReturn

from neuronjax.errors import InvalidProgramError, UnsupportedError, user_line


def refuse(op: str | None, what: str, remedy: str) -> NoReturn:
    """Raise the error of something that is illegal in every kernel."""
    raise InvalidProgramError(what, op=op, location=user_line(), remedy=remedy)


def unsupported(op: str | None, what: str, remedy: str) -> NoReturn:
    """Raise the error of something that the emulator does not support."""
    raise UnsupportedError(what, op=op, location=user_line(), remedy=remedy)
