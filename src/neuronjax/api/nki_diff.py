"""`nki_diff`: what a kernel loses and gains from one NKI release to another."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Group
from rich.text import Text

from neuronjax.errors import InvalidProgramError
from neuronjax.nki.releases.meeting import ReleaseMeeting, met_by_uses
from neuronjax.nki.releases.release import (
    LAST_BETA,
    NEWEST,
    OLDER,
    RELEASES,
    Release,
    resolve_release,
)
from neuronjax.nki.releases.uses import NkiUse, uses_of_file
from neuronjax.report.places import place
from neuronjax.report.tables import TEXT, WORD, Displayed, new_table

SCHEMA = "neuronjax.nki-diff/1"
#: The first of general availability: where a kernel of the newer style starts.
_FIRST = resolve_release("0.3")
_STYLES = {"lost": "bold red", "changed": "yellow", "gained": "green"}

How = Literal["lost", "changed", "gained"]


@dataclass(frozen=True, kw_only=True)
class NkiChange:
    """One use of something that differs between the two releases.

    Attributes:
        location: "file:line".
        name: what is used.
        how: "lost" does not work in the new release, or gives zeros; "changed" means or
            computes something else, or is deprecated; "gained" was lost, changed or
            restricted in the old one.
        what: what is so, in the new release, or if gained in the old one.
        remedy: what to write instead.
        source: the documents.
    """

    location: str
    name: str
    how: How
    what: str
    remedy: str
    source: str


@dataclass(frozen=True, kw_only=True, repr=False)
class NkiDiff(Displayed):
    """What a kernel loses and gains by moving.

    Attributes:
        candidate: its file.
        old, new: names of the releases.
        changes: by line; what is lost first within one.
        lost: whether something is.
        schema: the version of this form.
    """

    candidate: str
    old: str
    new: str
    changes: tuple[NkiChange, ...]
    lost: bool
    schema: str = SCHEMA

    def as_dict(self) -> dict[str, Any]:
        """Return the same as plain data."""
        return dataclasses.asdict(self)

    def __rich__(self) -> Group:
        title = f"{place(self.candidate)} from NKI {self.old} to {self.new}"
        columns = {"line": WORD, "": WORD, "what, and what to do": TEXT}
        rows = []
        for c in self.changes:
            told = Text(f"{c.name} ", style="bold")
            told.append(f"{c.what} ({c.source})", style="not bold")
            if c.how != "gained":
                told.append(f"\n{c.remedy}", style="not bold dim")
            rows.append((place(c.location), Text(c.how, style=_STYLES[c.how]), told))
        count = sum(c.how == "lost" for c in self.changes)
        words = (
            f"{count} lost of {len(rows)}" if rows else "nothing that it uses differs"
        )
        return Group(new_table(title, columns, rows), Text(words))

    def __repr__(self) -> str:
        return f"<neuronjax.NkiDiff {self.old} to {self.new}, {len(self.changes)}>"


def nki_diff(
    candidate: str | Path, *, old: str | None = None, new: str | None = None
) -> NkiDiff:
    """Says what a kernel loses and gains by moving from one NKI release to another.

    It reads the file and executes nothing. It does not see into other files that the
    kernel imports, what `from ... import *` brings, or the shapes of tensors; `judge`
    with `nki=` looks at the traced instructions too.

    Args:
        candidate: A Python file with an NKI kernel, of the newer or the older style.
        old: The release it comes from. None for 0.3, or the last that had the older
            style alone for a kernel in it.
        new: The release it goes to. None for the newest.

    Raises:
        InvalidProgramError: an unknown release, a missing file, no Python, or one that
            imports no NKI.

    Example:
        >>> print(nj.nki_diff("candidate.py", old="neuronxcc-2.26", new="0.6"))
    """
    path = Path(candidate).resolve()
    given = None if old is None else resolve_release(old)
    end = NEWEST if new is None else resolve_release(new)
    found = uses_of_file(path)
    start = given or _start(found, path)
    meetings = met_by_uses(found, str(path))
    changes = dict.fromkeys(c for m in meetings if (c := _change(m, start, end)))
    return NkiDiff(
        candidate=str(path),
        old=start.name,
        new=end.name,
        changes=tuple(changes),
        lost=any(c.how == "lost" for c in changes),
    )


def _start(uses: list[NkiUse], path: Path) -> Release:
    spaces = {use.name for use in uses} & {s for r in RELEASES for s in r.styles}
    if not spaces:
        raise InvalidProgramError(
            "imports no NKI",
            op="nki_diff",
            location=str(path),
            remedy="name a file that imports nki or neuronxcc.nki",
        )
    return LAST_BETA if OLDER in spaces else _FIRST


def _change(m: ReleaseMeeting, start: Release, end: Release) -> NkiChange | None:
    """None where both releases have it alike."""
    before, after = m.holds_in(start), m.holds_in(end)
    if before == after:
        return None
    d = m.difference
    how: How = "gained" if before else "changed"
    if d.effect == "order" or (after and d.effect == "lost"):
        how = "lost"
    return NkiChange(
        location=m.location,
        name=m.name,
        how=how,
        what=d.what,
        remedy=d.remedy,
        source=d.source,
    )
