"""`Shown`: a value that a notebook shows as a table.

Numbers, and what else lies below the reports, know nothing of tables: their class names
a module above, which is imported when a value is first shown.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar


class Shown:
    """Mix-in of values that another module draws: its `display_of(value, **options)`
    returns what Rich and a notebook show, text of 80 columns to `str`."""

    shown_by: ClassVar[str] = "neuronjax.report.number_display"

    def display(self, **options: Any) -> Any:
        """Return what is shown of the value."""
        return importlib.import_module(self.shown_by).display_of(self, **options)

    def _repr_html_(self) -> str:
        return self.display()._repr_html_()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self.display()._repr_mimebundle_()
