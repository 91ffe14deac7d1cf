"""`make bench`: runs the rows of every `bench_*.py` here and reports them.

Prints a table, and those of the last count of faults (or, with `--json`, the results
file's text), and writes `results/latest.json`. The exit code is 1 if a row crashed or
no row was selected, else 0: a missed target is a figure, not a failure.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# For a script, `benchmarks` itself is on the path instead of the folder that holds it.
sys.path.insert(0, str(HERE.parent))

import jax  # noqa: E402
from rich.console import Console  # noqa: E402

from benchmarks import harness  # noqa: E402
from benchmarks.faults.counted import kept_tables  # noqa: E402
from benchmarks.harness import Effort, Record, Row  # noqa: E402

OUTPUT = HERE / "results" / "latest.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    options = _parser().parse_args(arguments)
    # Without this, reading a compiled program from disk would count as compilation.
    jax.config.update("jax_enable_compilation_cache", False)
    discover()
    rows = harness.select(harness.ROWS, options.filter)
    if options.list or not rows:
        print("\n".join(harness.ROWS))
        return 0 if rows else 1
    about = harness.circumstances()
    effort = harness.QUICK if options.quick else harness.FULL
    records = measure(rows, effort, options.minutes * 60)
    results = harness.document(records, effort, about)
    text = json.dumps(results, indent=1)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text + "\n")
    crashed = [record for record in records if record.status == "crashed"]
    if options.json:
        print(text)
    else:
        show(records, about)
    for record in crashed:
        harness.progress(harness.error_report(record))
    return 1 if crashed else 0


def show(records: Sequence[Record], about: Mapping[str, Any]) -> None:
    """Print the table and its footnotes."""
    console = Console(width=80, highlight=False)
    console.print(harness.table(records))
    for table in kept_tables():
        console.print(table)
    console.print()
    for line in harness.footnotes(records, about):
        console.print(line, markup=False)


def discover() -> None:
    """Import every `bench_*.py`, which registers its rows."""
    for path in sorted(HERE.glob("bench_*.py")):
        importlib.import_module(f"benchmarks.{path.stem}")


def measure(rows: Sequence[Row], effort: Effort, seconds: float) -> list[Record]:
    """Run the rows; skip those that have not begun after `seconds`."""
    start = time.perf_counter()
    records = []
    for index, row in enumerate(rows, 1):
        if time.perf_counter() - start > seconds:
            record = Record(row=row, status="skipped")
        else:
            record = attempt(row, effort)
        records.append(record)
        harness.progress(
            f"{index}/{len(rows)} {row.name}: {record.status}, {record.seconds:.1f} s"
        )
    return records


def attempt(row: Row, effort: Effort) -> Record:
    """Run one row, and return its record; an exception is stored in the record."""
    start = time.perf_counter()
    try:
        result = row.measure(effort)
    except Exception:
        spent = time.perf_counter() - start
        error = traceback.format_exc()
        return Record(row=row, status="crashed", error=error, seconds=spent)
    spent = time.perf_counter() - start
    return Record(row=row, status="measured", result=result, seconds=spent)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add(
        "--filter",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only rows whose name contains this (a glob); may be repeated",
    )
    add("--quick", action="store_true", help="fewer repetitions")
    add("--json", action="store_true", help="print JSON and not the table")
    add("--list", action="store_true", help="print the names of the rows and stop")
    add("--output", type=Path, default=OUTPUT, help=f"results file [{OUTPUT}]")
    add(
        "--minutes",
        type=float,
        default=6.5,
        help="rows that have not begun by then are skipped [6.5]",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
