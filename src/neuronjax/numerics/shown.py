"""`Shown`: a value that a notebook shows as a table.

Numbers, and what else lies below the reports, know nothing of tables: for every such
class a module above registers what is drawn. A class without a rule shows its text.
"""

from __future__ import annotations

import functools
import html
from dataclasses import dataclass
from typing import Any, Protocol

_PRE = (
    "<pre style=\"font-family:Menlo,'DejaVu Sans Mono',consolas,monospace;"
    'line-height:1.15">{text}</pre>'
)


class Display(Protocol):
    """What is shown of a value: `str` of it is text of 80 columns."""

    def __rich__(self) -> Any:
        """What Rich draws."""

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        ...


@functools.singledispatch
def picture_of(value: Any) -> Any:
    """A Matplotlib figure of a value; the rule of its class draws it."""
    raise TypeError(f"no picture of a {type(value).__name__}")


@dataclass(frozen=True)
class _PlainText:
    """A value of a class without a rule."""

    value: Any

    def __rich__(self) -> str:
        return str(self.value)

    def _repr_html_(self) -> str:
        return _PRE.format(text=html.escape(str(self.value)))


@functools.singledispatch
def display_of(value: Any, **options: Any) -> Display:
    """What is shown of a value; the options are those of its class' rule."""
    del options
    return _PlainText(value)


class Shown:
    """Mix-in of values that a notebook shows by `display_of`."""

    def _repr_html_(self) -> str:
        return display_of(self)._repr_html_()
