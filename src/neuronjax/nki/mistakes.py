"""Better errors for Python that fails on tiles: branches, NumPy, unknown keywords.

A kernel's Python runs while it is traced, when tiles have no values yet. Python's own
errors name neither the line of the kernel nor what to write instead.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from neuronjax.errors import InvalidProgramError, raising_line
from neuronjax.nki.refusing import refuse


class MistypedKernelError(InvalidProgramError, TypeError):
    """A TypeError of Python, with the kernel's line and a remedy."""


BRANCH = (
    "a tile has no value while the kernel is traced: select elements with nl.where or "
    "masks, or branch on numbers and shapes; nisa.register_load and nl.while_loop "
    "decide on the device"
)
NUMPY = (
    "use the function of that name in nki.language or nki.isa; NumPy's functions take "
    "numbers and shapes, but no tiles"
)

# A pattern of Python's message, and the remedy.
_REMEDIES = (
    (r"unexpected keyword argument|multiple values for argument", "{help}"),
    (r"missing \d+ required", "{help}"),
    (r"not supported between instances of .*'(NkiTensor|Tile)'", BRANCH),
    (r"argument \d+ of type (NkiTensor|Tile)|support ufuncs", NUMPY),
)
_HELP = "help(nl.{name}) or help(nisa.{name}) lists its arguments"


@contextlib.contextmanager
def named_mistakes() -> Iterator[None]:
    """Add the kernel's line and a remedy to TypeErrors that `_REMEDIES` recognizes."""
    try:
        yield
    except InvalidProgramError:
        raise
    except TypeError as error:
        text = str(error)
        remedy = next((r for p, r in _REMEDIES if re.search(p, text)), None)
        if remedy is None:
            raise
        name = text.split("(")[0].split(".")[-1]
        raise MistypedKernelError(
            text,
            location=raising_line(error),
            remedy=remedy.replace("{help}", _HELP.format(name=name)),
        ) from error


class WithoutValue:
    """Mix-in of tiles, which have no truth value and are not NumPy arrays."""

    __slots__ = ()

    def __bool__(self: Any) -> bool:
        refuse(None, f"a Python branch on a tile of shape {self.shape}", BRANCH)

    def __array__(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(None, f"NumPy on a tile of shape {self.shape}", NUMPY)
