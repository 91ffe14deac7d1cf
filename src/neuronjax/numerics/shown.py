"""`Shown`: a value that a notebook shows as a table.

Numbers, and what else lies below the reports, know nothing of tables: for every such
class a module above registers what is drawn. These modules are imported when a value
is first shown. A class without a rule shows its text.
"""

from __future__ import annotations

import functools
import html
import importlib
from collections.abc import Callable
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


#: The modules above that register rules, by name: who shows nothing needs none of them.
_RULES_IN = ("neuronjax.report.number_display", "neuronjax.diagnostics.statistics")


def _rule(rules: Any, value: Any) -> Callable[..., Any] | None:
    """Return the rule of a value's class, None if no module has one."""
    for name in _RULES_IN:
        importlib.import_module(name)
    found = rules.dispatch(type(value))
    return None if found is rules.dispatch(object) else found


@functools.singledispatch
def picture_of(value: Any) -> Any:
    """Return a Matplotlib figure of a value, drawn by the rule of its class."""
    draw = _rule(picture_of, value)
    if draw is None:
        raise TypeError(f"no picture of a {type(value).__name__}")
    return draw(value)


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
    """Return what is shown of a value; the options are those of its class' rule."""
    show = _rule(display_of, value)
    return _PlainText(value) if show is None else show(value, **options)


class Shown:
    """Mix-in of values that a notebook shows by `display_of`."""

    def _repr_html_(self) -> str:
        return display_of(self)._repr_html_()
