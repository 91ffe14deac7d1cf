"""The renderer of tables: from rows to text of 80 columns, colours, or HTML.

A class of results defines its display once, in `__rich__`. `print` shows the display as
text of 80 columns, Rich in a terminal in colours, and Jupyter as HTML.
"""

from __future__ import annotations

import abc
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.style import Style
from rich.table import Table
from rich.text import Text

from neuronjax.report.html import WIDTH, as_html
from neuronjax.report.summaries import Summarised

Look = dict[str, Any]
PLAIN: Look = {}
WORD: Look = {"no_wrap": True}
NAME: Look = {"style": "bold", "no_wrap": True}
RIGHT: Look = {"justify": "right"}
NUMBER: Look = {"justify": "right", "no_wrap": True}
TEXT: Look = {"overflow": "fold", "ratio": 1}
"""Options of a table's column: `PLAIN` has none, `RIGHT` aligns to the right, and the
others are for words, names, numbers, and long texts, which are folded."""


class PlainTable(Table):
    """A table whose strings are shown as they are; styled cells are `Text`."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row, without reading `[b]` in a string as markup."""
        plain = (Text(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*plain, **options)


def new_table(
    title: str,
    columns: Mapping[str, Look] | None = None,
    rows: Iterable[Sequence[RenderableType]] = (),
    caption: str | None = None,
    **style: Any,
) -> Table:
    """Return a table in the style of all reports, which ends with a blank line.

    `columns` is the look of each column by heading; `style` has arguments of
    `rich.table.Table` that differ from the usual ones."""
    usual = {
        "title_justify": "left",
        "caption_justify": "left",
        "box": box.SIMPLE_HEAD,
        "collapse_padding": True,
        "min_width": min(WIDTH, len(title)),
        "pad_edge": False,
    }
    # Without a caption, the table's box ends with a blank line.
    caption = f"{escape(caption)}\n" if caption else None
    table = PlainTable(title=escape(title), caption=caption, **(usual | style))
    for heading, look in (columns or {}).items():
        table.add_column(escape(heading), **look)
    for row in rows:
        table.add_row(*row)
    return table


def one_line(*parts: str | tuple[str, str], style: str | Style = "") -> Text:
    """Return one line of text, which is truncated if too long; HTML wraps it."""
    return Text.assemble(*parts, style=style, no_wrap=True, overflow="ellipsis")


def as_text(drawn: RenderableType) -> str:
    """Return plain text, with lines of at most `WIDTH` and no trailing blanks."""
    out = io.StringIO()
    # In a notebook Rich would also display the text.
    Console(file=out, width=WIDTH, color_system=None, force_jupyter=False).print(drawn)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


class Displayed(Summarised, abc.ABC):
    """A mix-in for classes of results, which define `__rich__`."""

    @abc.abstractmethod
    def __rich__(self) -> RenderableType:
        """Return what Rich draws."""

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def _repr_html_(self) -> str:
        return as_html(self.__rich__())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._repr_html_()}

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # otherwise IPython prints the parts of a tuple


@dataclass(frozen=True)
class Drawing(Displayed):
    """A drawing that is displayed in place of a value."""

    drawn: RenderableType

    def __rich__(self) -> RenderableType:
        return self.drawn


#: The display of a value that Rich can draw, for `numerics.shown`.
display_of = Drawing

_SHOWN_ROWS = 20


class Records(Displayed, list[dict[str, Any]]):
    """Flat dicts, as `pandas.DataFrame` takes them, displayed as a table."""

    def __init__(
        self,
        rows: Iterable[dict[str, Any]] = (),
        drawn: Callable[[], RenderableType] | None = None,
    ) -> None:
        super().__init__(rows)
        self._drawn = drawn

    def __rich__(self) -> RenderableType:
        return self._drawn() if self._drawn else self._table(WIDTH)

    def _repr_html_(self) -> str:
        return as_html(self._drawn() if self._drawn else self._table(math.inf))

    def _table(self, room: float) -> Table:
        shown, looks, columns, left = self[:_SHOWN_ROWS], {}, [], []
        if len(self) > len(shown):
            left.append(f"{len(self) - len(shown)} more rows")
        for name in dict.fromkeys(name for row in shown for name in row):
            values = [row.get(name) for row in shown]
            cells = [*map(_cell, values)]
            room -= max(map(len, [name, *cells])) + 2
            if room < 0:
                left.append(name)
                continue
            is_number = all(isinstance(v, int | float | None) for v in values)
            looks[name] = NUMBER if is_number else WORD
            columns.append(cells)
        title = f"{len(self)} row{'s' * (len(self) != 1)}"
        caption = f"not shown: {', '.join(left)}" if left else None
        return new_table(
            title, looks or {"": WORD}, zip(*columns, strict=True), caption
        )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)
