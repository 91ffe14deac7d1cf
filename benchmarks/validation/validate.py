"""`python -m benchmarks.validation`: the time model against published measurements.

Prints instructions and transfers (`micro_rows`), whole programs (`rows`), and traced
NKI kernels (`nki_rows`, a minute or two; `--no-kernels` leaves them out). `--json FILE`
writes the same as data ("-": to standard output, and nothing else there).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.validation import micro_rows, nki_rows
from benchmarks.validation.report import Prediction, predict, summaries, tables
from benchmarks.validation.rows import ROWS, UNEXPRESSED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if every row has a prediction."""
    options = _parser().parse_args(arguments)
    chosen = [row for row in ROWS if re.search(options.rows, row.name)]
    if not chosen:
        print(f"no row matches {options.rows!r}", file=sys.stderr)
        return 2
    predictions = [predict(row) for row in chosen]
    with_kernels = not (options.rows or options.no_kernels)
    kernels = [nki_rows.predict(row) for row in nki_rows.ROWS if with_kernels]
    if options.json == "-":
        json.dump(as_json(predictions, kernels), sys.stdout, indent=1)
        return 0
    if not options.rows:
        print("Instructions and transfers")
        print(micro_rows.table(), end="\n\n")
    print(tables(predictions))
    if not options.rows:
        print("\nNot expressed:")
        for name, reason in UNEXPRESSED.items():
            print(f"  {name}: {reason}")
    if kernels:
        print("\nNKI kernels")
        print(nki_rows.table(kernels))
        print(nki_rows.notes())
    if options.json:
        written = as_json(predictions, kernels)
        Path(options.json).write_text(json.dumps(written, indent=1))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.validation", description=__doc__
    )
    parser.add_argument("--json", metavar="FILE", default="", help="write as data")
    parser.add_argument(
        "--rows", metavar="PATTERN", default="", help="only rows whose names match"
    )
    parser.add_argument(
        "--no-kernels", action="store_true", help="without the NKI kernels"
    )
    return parser


def as_json(
    predictions: Sequence[Prediction], kernels: Sequence[nki_rows.KernelPrediction] = ()
) -> dict[str, Any]:
    """Return rows and medians as plain data."""
    return {
        "micro": [
            {
                "name": row.name,
                "chip": row.chip,
                "source": row.source,
                "published_seconds": row.published,
                "predicted_seconds": row.predicted,
                "error": row.error,
                "is_input": row.is_input,
            }
            for row in micro_rows.ROWS
        ],
        "micro_median": micro_rows.median_error(),
        "rows": [p.as_json() for p in predictions],
        "summary": [s.as_json() for s in summaries(predictions)],
        "kernels": [p.as_json() for p in kernels],
        "not_expressed": {**UNEXPRESSED, **nki_rows.UNEXPRESSED},
    }
