"""HTML of Rich drawings: tables, folded details, and the colours of the page's theme.

There is no style sheet and no script, so that saved notebooks, nbconvert, VS Code and
Colab show it. A colour is a variable of the front end, or else the text's colour.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from rich.console import Console, Group
from rich.segment import Segment
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

#: Width in characters.
WIDTH = 80
#: The colour of errors, and that of less important text. HTML shows no other colours,
#: since the text has the same information.
COLOURS = {
    "red": "var(--jp-mirror-editor-string-color,var(--vscode-errorForeground,inherit))",
    "dim": "var(--jp-content-font-color2,inherit)",
}
_CONSOLE = Console(
    file=io.StringIO(), width=WIDTH, force_jupyter=False, highlight=False
)
_FONT = "Menlo,'DejaVu Sans Mono',consolas,monospace"
#: The style of code and of text aligned by characters.
FIXED = Style(meta={"font": _FONT})
CODE = Style(color="cyan") + FIXED


class Narrowed(Text):
    """A text shortened to `WIDTH` columns; HTML shows the whole text and wraps it."""

    def __init__(self, fitted: str, whole: str) -> None:
        super().__init__(fitted)
        self.whole = Text(whole)


def as_html(drawn: Any) -> str:
    """Return HTML of texts and tables; tables after the first are folded."""
    shown, has_table = [], False
    for part in _parts(drawn):
        is_table = isinstance(part, Table) and part.box is not None
        shown.append(_table(part, has_table) if is_table else _block(part))
        has_table = has_table or is_table
    return "\n".join(shown)


def _parts(drawn: Any) -> Iterator[Any]:
    if isinstance(drawn, str):
        yield _CONSOLE.render_str(drawn, highlight=False)
    elif isinstance(drawn, Narrowed):
        yield drawn.whole
    elif isinstance(drawn, Group):
        for part in drawn.renderables:
            yield from _parts(part)
    elif hasattr(drawn, "__rich__"):
        yield from _parts(drawn.__rich__())
    else:
        yield drawn


def _table(table: Table, is_folded: bool) -> str:
    rows = zip(*(column.cells for column in table.columns), strict=True)
    body = "".join(_row("td", table.columns, row) for row in rows)
    heads = [column.header for column in table.columns]
    head = _row("th", table.columns, heads) if table.show_header and any(heads) else ""
    title = f"<b>{_inlines(table.title or '')}</b>"
    caption = "".join(map(_block, _parts(table.caption))) if table.caption else ""
    found = (
        '<table style="margin:0 0 .5em 0;border-collapse:collapse">'
        f"<thead>{head}</thead><tbody>{body}</tbody></table>{caption}"
    )
    if is_folded and table.title:
        return f"<details><summary>{title}</summary>{found}</details>"
    return f"<div>{title}</div>{found}"


def _row(tag: str, columns: Sequence[Column], cells: Iterable[Any]) -> str:
    row = []
    for column, cell in zip(columns, cells, strict=True):
        side = "right" if column.justify == "right" else "left"
        is_word = column.no_wrap and column.ratio is column.max_width is None
        look = (
            f"text-align:{side};vertical-align:top;"
            f"white-space:pre{'' if is_word else '-wrap'};"
            f"{_css(_CONSOLE.get_style(column.style))}"
        )
        row.append(f'<{tag} style="{look}">{_inlines(cell)}</{tag}>')
    return f"<tr>{''.join(row)}</tr>"


def _block(part: Any) -> str:
    """Return a text as an indented block that wraps, other parts without wrapping."""
    if isinstance(part, Text):
        indent = len(part.plain) - len(part.plain.lstrip(" "))
        # The length is in em, which sanitizers of untrusted notebooks permit.
        look = f"white-space:pre-wrap;margin-left:{indent / 2:g}em"
        return f'<div style="{look}">{_inline(part[indent:])}</div>'
    return f'<pre style="font-family:{_FONT};line-height:1.15">{_inlines(part)}</pre>'


def _inlines(drawn: Any) -> str:
    return "".join(map(_inline, _parts(drawn)))


def _inline(part: Any) -> str:
    if isinstance(part, Text):  # rendered without wrapping
        style = _CONSOLE.get_style(part.style)
        drawn = Segment.apply_style(part.render(_CONSOLE), style)
    else:
        drawn = _CONSOLE.render(part)
    return "".join(
        f'<span style="{css}">{escape(segment.text)}</span>'
        if segment.style is not None and (css := _css(segment.style))
        else escape(segment.text)
        for segment in drawn
    )


def _css(style: Style) -> str:
    colour = "red" if style.color is not None and style.color.name == "red" else ""
    ink = COLOURS.get(colour or ("dim" if style.dim else ""))
    bold = "bold" if style.bold else None
    looks = {"color": ink, "font-weight": bold, "font-family": style.meta.get("font")}
    return ";".join(f"{name}:{value}" for name, value in looks.items() if value)
