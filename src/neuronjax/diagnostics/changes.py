"""`Changes`: what `Profile.limits` returns, a tuple that prints as a table."""

from __future__ import annotations

from rich.table import Table

from neuronjax.diagnostics.limits import Change
from neuronjax.report.profile_tables import changes_table
from neuronjax.report.tables import Displayed


class Changes(Displayed, tuple[Change, ...]):
    """Changes, the largest gain first."""

    __slots__ = ()

    def __rich__(self) -> Table:
        return changes_table(
            (change.what, change.seconds, change.speedup, change.basis == "bound")
            for change in self
        )

    def __repr__(self) -> str:
        told = (f"{change.what}: {change.speedup:.3g}x" for change in self)
        return f"<neuronjax.Changes ({'; '.join(told)})>"
