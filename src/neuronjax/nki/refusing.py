"""The errors of a kernel's line: what is wrong there, and what to write instead."""

from __future__ import annotations

from typing import NoReturn

from neuronjax.errors import InvalidProgramError, UnsupportedError, user_line


def refuse(op: str | None, what: str, remedy: str) -> NoReturn:
    """Raises the error of what no kernel may say."""
    raise InvalidProgramError(what, op=op, location=user_line(), remedy=remedy)


def unsupported(op: str | None, what: str, remedy: str) -> NoReturn:
    """Raises the error of what the emulator does not do."""
    raise UnsupportedError(what, op=op, location=user_line(), remedy=remedy)
