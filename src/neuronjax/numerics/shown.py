"""`Shown`: a value that a notebook shows as a table.

Numbers, and what else lies below the reports, know nothing of tables: for every such
class `report.number_display` registers what is drawn. A class without a rule shows its
text.
"""

from __future__ import annotations

import functools
import html
from typing import Any

_PRE = (
    "<pre style=\"font-family:Menlo,'DejaVu Sans Mono',consolas,monospace;"
    'line-height:1.15">{text}</pre>'
)


@functools.singledispatch
def html_of(value: Any) -> str:
    """What a notebook shows of a value, as HTML."""
    return _PRE.format(text=html.escape(str(value)))


class Shown:
    """Mix-in of values that a notebook shows by `html_of`."""

    def _repr_html_(self) -> str:
        return html_of(self)
