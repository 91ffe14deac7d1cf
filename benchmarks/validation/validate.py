"""`python -m benchmarks.validation`: the time model against published measurements.

Prints instructions and transfers (`micro_rows`), then whole programs (`rows`); with
`--json FILE` writes the same as data ("-": to standard output, and nothing else there).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.validation import micro_rows
from benchmarks.validation.report import Prediction, predict, summaries, tables
from benchmarks.validation.rows import ROWS, UNEXPRESSED


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 if every row has a prediction."""
    options = _parser().parse_args(arguments)
    chosen = [row for row in ROWS if re.search(options.rows, row.name)]
    if not chosen:
        print(f"no row matches {options.rows!r}", file=sys.stderr)
        return 2
    predictions = [predict(row) for row in chosen]
    if options.json == "-":
        json.dump(as_json(predictions), sys.stdout, indent=1)
        return 0
    if not options.rows:
        print("Instructions and transfers")
        print(micro_rows.table(), end="\n\n")
    print(tables(predictions))
    if not options.rows:
        print("\nNot expressed:")
        for name, reason in UNEXPRESSED.items():
            print(f"  {name}: {reason}")
    if options.json:
        Path(options.json).write_text(json.dumps(as_json(predictions), indent=1))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.validation", description=__doc__
    )
    parser.add_argument("--json", metavar="FILE", default="", help="write as data")
    parser.add_argument(
        "--rows", metavar="PATTERN", default="", help="only rows whose names match"
    )
    return parser


def as_json(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Rows and medians as plain data."""
    return {
        "micro": [
            {
                "name": row.name,
                "chip": row.chip,
                "source": row.source,
                "published_seconds": row.published,
                "predicted_seconds": row.predicted(),
                "error": row.error,
                "is_input": row.is_input,
            }
            for row in micro_rows.ROWS
        ],
        "micro_median": micro_rows.median_error(),
        "rows": [p.as_json() for p in predictions],
        "summary": [s.as_json() for s in summaries(predictions)],
        "not_expressed": dict(UNEXPRESSED),
    }
