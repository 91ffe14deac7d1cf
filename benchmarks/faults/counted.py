"""Tables of the faults that were found, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from rich import box
from rich.table import Table

from benchmarks import results_file
from benchmarks.faults.found import FEW

NAME = "faults"
_FIGURES = {
    "faults": "faults",
    "first": "first line",
    "top": f"first {FEW}",
    "missed": "missed",
    "named": "kind",
    "alarms": "alarms",
}


def table(title: str, rows: Mapping[str, Mapping[str, int]]) -> Table:
    """Return the table of one set against one reference, by kind."""
    out = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    out.add_column("kind")
    for name in _FIGURES.values():
        out.add_column(name, justify="right")
    for kind, row in rows.items():
        out.add_row(kind, *(str(row[name]) for name in _FIGURES))
    return out


def kept_tables(folder: Path = results_file.RESULTS) -> Iterator[Table]:
    """Yield the tables of the last count; `make faults ARGS=--keep` takes an hour."""
    entries = results_file.read(folder / f"{NAME}.json")["entries"]
    for about, group in groupby(entries, lambda e: [e[k] for k in _ABOUT]):
        half, reference, commit = about
        title = f"numerical faults, {half}, against {reference}, at {commit[:8]}"
        yield table(title, {entry["kind"]: entry for entry in group})


_ABOUT = ("half", "reference", "commit")
