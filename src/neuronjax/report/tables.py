"""The renderer of tables: rows in; text of 80 columns, colours, or HTML out.

A class of results says once what it looks like, in `__rich__`; `print` shows that as
text of 80 columns, a terminal that knows Rich in colours, and Jupyter as HTML.
"""

from __future__ import annotations

import abc
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from neuronjax.report.html import WIDTH, as_html
from neuronjax.report.summaries import Summarised

Look = dict[str, Any]
PLAIN: Look = {}
WORD: Look = {"no_wrap": True}
NAME: Look = {"style": "bold", "no_wrap": True}
RIGHT: Look = {"justify": "right"}
NUMBER: Look = {"justify": "right", "no_wrap": True}
TEXT: Look = {"overflow": "fold", "ratio": 1}
"""How a column looks: as it comes, a word, a name, right-aligned, a number, a text
that is folded."""


def new_table(
    title: str,
    columns: Mapping[str, Look] | None = None,
    rows: Iterable[Sequence[RenderableType]] = (),
    caption: str | None = None,
    **style: Any,
) -> Table:
    """A table in the style of all reports, which ends with a blank line.

    `columns` says by heading how each looks; `style` is what is different from other
    tables, as `rich.table.Table` takes it."""
    usual = {
        "title_justify": "left",
        "caption_justify": "left",
        "box": box.SIMPLE_HEAD,
        "collapse_padding": True,
        "min_width": min(WIDTH, len(title)),
        "pad_edge": False,
    }
    caption = f"{caption}\n" if caption else None  # without one the box has the line
    table = Table(title=title, caption=caption, **(usual | style))
    for heading, look in (columns or {}).items():
        table.add_column(heading, **look)
    for row in rows:
        table.add_row(*row)
    return table


def aligned(rows: Sequence[tuple[str, ...]], gap: str, left: int = -1) -> list[str]:
    """Return lines whose cells end below each other, or begin so at place `left`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(
            cell.ljust(width) if place == left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def cut(text: str, width: int = WIDTH) -> str:
    """Return a text of at most so many characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


def as_text(drawn: RenderableType) -> str:
    """Plain text, no line longer than `WIDTH`, no blanks at the end of one."""
    out = io.StringIO()
    # Rich would show by itself in a notebook.
    console = Console(file=out, width=WIDTH, color_system=None, force_jupyter=False)
    console.print(drawn)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


class Displayed(Summarised, abc.ABC):
    """Mix-in of result objects: define `__rich__`."""

    @abc.abstractmethod
    def __rich__(self) -> RenderableType:
        """What Rich draws."""

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def _repr_html_(self) -> str:
        return as_html(self.__rich__())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Return what front ends choose from: HTML, and text for terminals."""
        return {"text/plain": str(self), "text/html": self._repr_html_()}


@dataclass(frozen=True)
class Drawing(Displayed):
    """Something drawn, to be shown in place of a value."""

    drawn: RenderableType

    def __rich__(self) -> RenderableType:
        return self.drawn
