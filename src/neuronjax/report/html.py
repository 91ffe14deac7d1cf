"""`Displayed`: a result that prints in a terminal and shows itself in a notebook.

A class says once what it looks like, in `__rich__`; `print` shows that as text of 80
columns, a terminal that knows Rich in colours, and Jupyter as HTML.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

from rich.console import RenderableType

from neuronjax.report.rendering import as_html, as_text


class Displayed(abc.ABC):
    """Mix-in of result objects: define `__rich__`."""

    @abc.abstractmethod
    def __rich__(self) -> RenderableType:
        """What Rich draws."""

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def _repr_html_(self) -> str:
        return as_html(self.__rich__())


@dataclass(frozen=True)
class Drawing(Displayed):
    """Something drawn, to be shown in place of a value."""

    drawn: RenderableType

    def __rich__(self) -> RenderableType:
        return self.drawn
