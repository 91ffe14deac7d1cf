"""How many faults `compare` finds: `python -m benchmarks.faults`.

All sets are counted by kind; only of those that may be looked at the missed ones are
listed. `--keep` writes `results/faults.json`, of which the page of benchmarks makes
tables; what was not asked about stays as it was, with the commit of that count. The
file also says of every fault what was named. The command fails where a whole set misses
a target.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from rich.console import Console
from rich.progress import track

from benchmarks import results_file
from benchmarks.faults import held_out, seen
from benchmarks.faults.counted import NAME, table
from benchmarks.faults.found import FEW, Found, found
from benchmarks.faults.targets import missed
from neuronjax.execution.interpreter import forget_kernels
from tests import compilation_cache

HELD_OUT = "held out"
HALVES = {"seen": seen.FAULTS, HELD_OUT: held_out.FAULTS}
REFERENCES = ("float64", "float32")
Entry = Mapping[str, Any]


def counts(cases: Sequence[Found]) -> dict[str, int]:
    """Return the figures of some faults."""
    return {
        "faults": len(cases),
        "first": sum(c.rank == 1 for c in cases),
        "top": sum(0 < c.rank <= FEW for c in cases),
        "missed": sum(c.rank == 0 for c in cases),
        "named": sum(c.kind for c in cases),
        "alarms": sum(c.alarms > 0 for c in cases),
    }


def by_kind(cases: Iterable[Found]) -> dict[str, dict[str, int]]:
    """Return the figures by the first kind of a fault, and of all faults."""
    groups: dict[str, list[Found]] = defaultdict(list)
    for case in cases:
        groups[case.fault.kinds[0]].append(case)
    every = [case for group in groups.values() for case in group]
    return {**{k: counts(groups[k]) for k in sorted(groups)}, "all": counts(every)}


def entries(
    half: str, reference: str, commit: str, rows: Mapping[str, Mapping[str, int]]
) -> list[Entry]:
    """Return the figures of one set against one reference as entries of the file."""
    about = {"half": half, "reference": reference, "commit": commit}
    return [{**about, "kind": kind, **row} for kind, row in rows.items()]


def named(half: str, reference: str, commit: str, cases: Iterable[Found]) -> Entry:
    """Return the report on every fault of a set; for held-out faults only its rank."""
    about = {"half": half, "reference": reference, "commit": commit}
    return {**about, "named": {c.fault.name: _said(c, half) for c in cases}}


def _said(case: Found, half: str) -> str:
    kind = "right" if case.kind else "other"
    text = f"rank {case.rank or '-'}, {kind} kind, {case.alarms} alarms"
    if half == HELD_OUT:
        return text
    lines = ", ".join(case.reported) or "nothing"
    false = f"; healthy: {', '.join(case.false)}" if case.false else ""
    return f"{text}: {lines}{false}"


def merged(
    kept: Sequence[Entry], before: Mapping[str, Any] | None, key: str = "entries"
) -> list[Entry]:
    """Return new entries, and the entries of a document that were not counted again."""
    known = [] if before is None else before.get(key, [])
    again = {_group(e) for e in kept}
    commit = "" if before is None else before["versions"]["commit"]
    others = [{"commit": commit, **e} for e in known if _group(e) not in again]
    order = [(half, reference) for reference in REFERENCES for half in HALVES]
    return sorted([*kept, *others], key=lambda e: order.index(_group(e)))


def _group(entry: Entry) -> tuple[str, str]:
    return entry["half"], entry["reference"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, store them, and fail if a whole set misses a target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=tuple(HALVES), action="append")
    parser.add_argument("--reference", choices=REFERENCES, action="append")
    parser.add_argument("--name", action="append", help="of single faults")
    parser.add_argument("--keep", action="store_true", help=f"write {NAME}.json")
    options = parser.parse_args(arguments)
    if options.keep and options.name:
        parser.error("--keep is for whole sets, and --name asks about single faults")
    compilation_cache.use()
    begun = results_file.Run(NAME)
    commit = begun.about["versions"]["commit"]
    console = Console()
    kept: list[Entry] = []
    said: list[Entry] = []
    for reference in options.reference or REFERENCES:
        for half in options.half or HALVES:
            faults = [
                f for f in HALVES[half] if not options.name or f.name in options.name
            ]
            if not faults:
                continue
            cases = [found(f, reference) for f in track(faults, transient=True)]
            rows = by_kind(cases)
            kept += entries(half, reference, commit, rows)
            said.append(named(half, reference, commit, cases))
            console.print(table(f"{half}, against {reference}", rows))
            jax.clear_caches()  # a thousand programs do not fit into memory
            forget_kernels()
            if half != HELD_OUT:
                _list(console, cases)
    if options.keep:
        path = results_file.RESULTS / f"{NAME}.json"
        before = results_file.read(path) if path.exists() else None
        body = {
            "entries": merged(kept, before),
            "faults": merged(said, before, "faults"),
        }
        results_file.write(begun.document(body, quick=False), path)
    misses = [] if options.name else list(missed(kept))
    if misses:
        raise SystemExit("\n".join(["Targets are missed.", *misses]))


def _list(console: Console, cases: Iterable[Found]) -> None:
    for case in cases:
        if case.rank != 1 or not case.kind:
            line = case.fault.line[1]
            console.print(
                f"{case.fault.name}: line {line}, {case.fault.kinds[0]}; rank "
                f"{case.rank or '-'}, reported {', '.join(case.reported) or 'nothing'}"
            )
        if case.alarms:
            console.print(f"{case.fault.name}: healthy, {', '.join(case.false)}")


if __name__ == "__main__":
    main()
