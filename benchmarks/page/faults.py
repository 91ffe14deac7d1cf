"""The section on numerical faults and the number that `compare` finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.faults.targets import TARGETS, side
from benchmarks.page import text

Found = Mapping[str, Any]

FIGURES = {
    "first": "the line first",
    "top": "among three",
    "missed": "missed",
    "named": "named right",
    "alarms": "false alarms",
}

_ABOUT = """Programs of a screen or less with one numerical fault on one known line, as
bug reports and the literature have them, and the same programs as a careful author
writes them. `nj.compare` is asked about both: which line it names first, among its
first three, what it calls the fault, and of how many healthy twins it says that
something is wrong. Those *seen* were looked at while this was built; those *held out*
never were: their figures are the ones that count. Two such sets
before were opened to learn from what was missed, and others wrote a new one: of the
first 86.7 % came first, of the second 81.2 %.

The set that is seen has 297 programs today. It grew to 480, of which 183 showed the
same fault by the same mechanism as another and were taken out. *Faults then* is what a
set held at the commit of the row.

The targets are for the default reference, float64 without rounding. `"float32"` is the
program in its own formats on a host, and does wrong what the program itself does wrong:
there only what the chip and its policy add can be found."""


def tables(found: Found) -> str:
    """Return the tables of all sets against both references, then by kind."""
    entries = found["entries"]
    totals = [e for e in entries if e["kind"] == "all"]
    head = ("set", "reference", "commit", "faults then", *FIGURES.values())
    rows = [*map(_total, totals), _targets()]
    parts = [_ABOUT, text.table(head, rows)]
    for reference in dict.fromkeys(e["reference"] for e in entries):
        own = [e for e in entries if e["reference"] == reference]
        halves = list(dict.fromkeys(e["half"] for e in own))
        names = (f"{half}: {name}" for half in halves for name in _BY_KIND)
        head = ("kind", *names)
        words = f"By kind, against {reference}; every fault once, by its best name"
        parts.append(text.folded(words, text.table(head, _kinds(own, halves))))
    return "\n\n".join(parts)


_BY_KIND = ("faults", "first", "among three", "named", "alarms")
_COUNTS = ("faults", "first", "top", "named", "alarms")


def _total(entry: Found) -> tuple[str, ...]:
    shares = (_percent(entry[name] / entry["faults"]) for name in FIGURES)
    about = (entry["half"], f"`{entry['reference']}`", entry["commit"][:8])
    return (*about, str(entry["faults"]), *shares)


def _targets() -> tuple[str, ...]:
    aims = []
    for name in FIGURES:
        aim = f"{side(name)} {_percent(TARGETS[name])}" if name in TARGETS else ""
        aims.append(aim)
    return ("*target*", "", "", "", *aims)


def _kinds(entries: list[Found], halves: list[str]) -> Iterator[tuple[str, ...]]:
    known = {(e["half"], e["kind"]): e for e in entries}
    for kind in sorted({e["kind"] for e in entries} - {"all"}):
        cells: list[str] = []
        for half in halves:
            entry = known.get((half, kind))
            cells += ["" if entry is None else str(entry[name]) for name in _COUNTS]
        yield (kind, *cells)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
