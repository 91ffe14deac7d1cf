"""`Shown`: a value that a notebook shows as a table.

Classes in layers below the reports cannot draw tables, so they name a module of a
higher layer, which is imported when a value is first shown.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar


class Shown:
    """A mix-in for values that another module draws. That module's `display_of(value,
    **options)` returns the display for Rich and notebooks; `str` gives text."""

    shown_by: ClassVar[str] = "neuronjax.report.number_display"

    def display(self, **options: Any) -> Any:
        """Return the display of the value."""
        return importlib.import_module(self.shown_by).display_of(self, **options)

    def _repr_html_(self) -> str:
        return self.display()._repr_html_()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self.display()._repr_mimebundle_()
