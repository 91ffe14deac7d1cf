"""What Rich draws, as text of 80 columns and as HTML for a notebook."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType

WIDTH = 80

_HTML = (
    "<pre style=\"font-family:Menlo,'DejaVu Sans Mono',consolas,monospace;"
    'line-height:1.15">{code}</pre>'
)


def as_text(drawn: RenderableType) -> str:
    """Plain text, no line longer than `WIDTH`, no blanks at the end of one."""
    out = io.StringIO()
    _console(out).print(drawn)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def as_html(drawn: RenderableType) -> str:
    """Coloured text in a <pre>, without a style sheet."""
    console = _console(io.StringIO(), record=True)
    console.print(drawn)
    return console.export_html(inline_styles=True, code_format=_HTML)


def _console(out: io.StringIO, *, record: bool = False) -> Console:
    """One that writes to `out` in a notebook too, where Rich would show by itself."""
    return Console(
        file=out, width=WIDTH, color_system=None, record=record, force_jupyter=False
    )
