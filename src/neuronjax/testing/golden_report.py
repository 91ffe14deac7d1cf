"""The report of a golden that passes, and the error of one that fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neuronjax.testing.bits import LeafDifference
from neuronjax.testing.program_change import ProgramChange


class GoldenMismatch(AssertionError):
    """The error of a golden that fails.

    Attributes:
        kind: "missing", "arguments", "bits" if the stored program's bits differ, or
            "program" if today's program fails.
        leaves: the leaves that differ, the largest difference first.
        change: for "program": the cause of the change, and the edits.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        leaves: Sequence[LeafDifference] = (),
        change: ProgramChange | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.leaves = kind, tuple(leaves)
        self.change = change


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoldenReport:
    """The report of a golden that passes.

    Attributes:
        name: the golden's name.
        path: the path of its files, without the ending.
        written: whether this run wrote them.
        program: "same" or "changed": today's program compared with the stored one.
        today: "same bits" or "other bits", if the results are of a changed program;
            otherwise "".
        leaves: differences in the results of today's program on the stored arguments,
            the largest first; for an update, differences from the results stored
            before.
        drift: differences of today's arguments from the stored ones; all results here
            are those of the stored arguments.
        renamed: arguments and results that have another name now.
        change: the cause of the program's change, and the edits; None if the program is
            the same.
        provenance: the golden's provenance.
    """

    name: str
    path: Path
    written: bool = False
    program: str = "same"
    today: str = ""
    leaves: tuple[LeafDifference, ...] = ()
    drift: tuple[LeafDifference, ...] = ()
    renamed: tuple[str, ...] = ()
    change: ProgramChange | None = None
    provenance: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def records(self) -> list[dict[str, Any]]:
        """One dictionary per leaf that differs."""
        return [leaf.record() for leaf in self.leaves]

    def __str__(self) -> str:
        today = f"changed, with {self.today}" if self.today else "the same"
        state = f"the stored program gives the stored bits; today's program is {today}"
        if self.written:
            state = f"written to {self.path}"
            if self.leaves:
                state += f"; {len(self.leaves)} results changed, first {self.leaves[0]}"
            if self.change is not None:
                state += f"; {self.change.because}"
        names = f"; renamed: {', '.join(self.renamed)}" if self.renamed else ""
        return f"golden {self.name}: {state}{names}"
