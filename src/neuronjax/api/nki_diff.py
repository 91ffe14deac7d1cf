"""`nki_diff`: the features that a kernel loses and gains between two NKI releases."""

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
#: The first generally available release; the default `old` for the newer style.
_FIRST = resolve_release("0.3")
_STYLES = {"lost": "bold red", "changed": "yellow", "gained": "green"}

How = Literal["lost", "changed", "gained"]


@dataclass(frozen=True, kw_only=True)
class NkiChange:
    """A use of a feature that differs between two releases.

    Attributes:
        location: "file:line".
        name: the feature.
        how: "lost": the feature does not work in the new release, or gives zeros;
            "changed": it means or computes something else, or is deprecated; "gained":
            it was lost, changed or restricted in the old release.
        what: the behaviour in the new release, or for "gained" in the old one.
        remedy: code to write instead.
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
    """The features that a kernel loses and gains by a change of release.

    Attributes:
        candidate: the file of the kernel.
        old, new: names of the releases.
        changes: the changes by line; within a line, losses first.
        lost: whether any feature is lost.
        schema: the version of this format.
    """

    candidate: str
    old: str
    new: str
    changes: tuple[NkiChange, ...]
    lost: bool
    schema: str = SCHEMA

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return dataclasses.asdict(self)

    def __rich__(self) -> Group:
        title = f"{place(self.candidate)} from NKI {self.old} to {self.new}"
        columns = {"line": WORD, "": WORD, "what, and what to do": TEXT}
        rows = []
        for c in self.changes:
            text = Text(f"{c.name} ", style="bold")
            text.append(f"{c.what} ({c.source})", style="not bold")
            if c.how != "gained":
                text.append(f"\n{c.remedy}", style="not bold dim")
            rows.append((place(c.location), Text(c.how, style=_STYLES[c.how]), text))
        count = sum(c.how == "lost" for c in self.changes)
        changed = f"changes: {len(rows)}; lost: {count}"
        words = changed if rows else "nothing that the kernel uses differs"
        return Group(new_table(title, columns, rows), Text(words))

    def __repr__(self) -> str:
        return (
            f"<neuronjax.NkiDiff {self.old} to {self.new}, {len(self.changes)} changes>"
        )


def nki_diff(
    candidate: str | Path, *, old: str | None = None, new: str | None = None
) -> NkiDiff:
    """Return the features that a kernel loses and gains between two NKI releases.

    The file is read, not executed. Other files that the kernel imports, names from
    `from ... import *`, and shapes of tensors are not analysed; `judge` with `nki=`
    also checks the traced instructions.

    Args:
        candidate: A Python file with an NKI kernel, of the newer or the older style.
        old: The release of the kernel. None for 0.3; for a kernel of the older style,
            None for the last release that had only the older style.
        new: The release to move to. None for the newest.

    Raises:
        InvalidProgramError: an unknown release, a missing file, or a file that is not
            Python or does not import NKI.

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
    before, after = m.holds_in(start), m.holds_in(end)
    if before == after:
        return None
    d = m.difference
    how: How = "gained" if before else "changed"
    if d.effect == "order" or (after and d.effect == "lost"):
        how = "lost"
    words = {name: getattr(d, name) for name in ("what", "remedy", "source")}
    return NkiChange(location=m.location, name=m.name, how=how, **words)
