"""What a golden says: the report of one that holds, the error of one that does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neuronjax.testing.bits import LeafDifference
from neuronjax.testing.program_change import ProgramChange


class GoldenMismatch(AssertionError):
    """A golden does not hold.

    Attributes:
        kind: "missing", "arguments", "bits" of the stored program, or "program" for
            today's.
        leaves: what differs, leaf by leaf, the largest difference first.
        change: of "program": who changed the program, and the edits.
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
    """A golden that holds.

    Attributes:
        name: of the golden.
        path: of its files, without the ending.
        written: whether this run wrote them.
        program: "same" or "changed", today's against the stored one.
        today: "same bits" or "other bits" of today's program, "" where it is the
            stored one.
        leaves: what differs in the results of today's program on the stored arguments,
            the largest difference first; of an update, from what was stored before.
        drift: what differs in the arguments, which does not count for the results.
        renamed: arguments and results that have another name today.
        change: who changed the program, and the edits; None where it is the same.
        provenance: of the golden.
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
        today = f", {self.today}" if self.today else ""
        state = f"bits hold; program {self.program}{today}"
        if self.written:
            state = f"written to {self.path}"
            if self.leaves:
                state += f"; {len(self.leaves)} results changed, first {self.leaves[0]}"
            if self.change is not None:
                state += f"; {self.change.because}"
        names = f"; renamed: {', '.join(self.renamed)}" if self.renamed else ""
        return f"golden {self.name}: {state}{names}"
