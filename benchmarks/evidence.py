"""Writes the model's errors that the package reports: `timing/measured_times.json`.

    python -m benchmarks.evidence

Programs are priced again (`validation`, best times only); kernels are taken from
`results/validate_kernels.json`, which `benchmarks.validate_kernels` writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import results_file
from benchmarks.validation.report import Prediction, predict
from benchmarks.validation.rows import ROWS, Row
from neuronjax.timing import evidence

FILE = Path(evidence.__file__).parent / "measured_times.json"
KERNELS = Path(__file__).parent / "results" / "validate_kernels.json"
DIGITS = 4


def rows() -> Iterator[dict[str, Any]]:
    """Yield all rows as plain data."""
    for row in ROWS:
        if counts(row):
            yield of_program(predict(row))
    for entry in results_file.read(KERNELS)["entries"]:
        yield of_kernel(entry)


def counts(row: Row) -> bool:
    """Return whether a row is used: a best time and, for trn3, one that is held out,
    because it has more rows than any other chip."""
    return row.kind == "best" and (row.chip != "trn3" or row.is_held_out)


def of_program(found: Prediction) -> dict[str, Any]:
    """Return a row of `validation` as plain data."""
    row = found.row
    return _row(
        row.name.removesuffix(" -"),
        "program",
        row.chip,
        row.lnc,
        row.seconds,
        found.seconds,
        dict(found.busy_seconds),
    )


def of_kernel(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a row of `validate_kernels` as plain data."""
    return _row(
        Path(entry["kernel"]).stem,
        "kernel",
        entry["chip"],
        1,
        entry["measured_seconds"],
        entry["predicted_seconds"],
        entry["busy_seconds"],
    )


def _row(
    name: str,
    kind: str,
    chip: str,
    lnc: int,
    measured: float,
    predicted: float,
    busy: dict[Any, float],
) -> dict[str, Any]:
    shares = {q: round(seconds / predicted, DIGITS) for q, seconds in busy.items()}
    return {
        "name": name,
        "kind": kind,
        "chip": chip,
        "lnc": lnc,
        "measured_seconds": float(f"{measured:.{DIGITS}g}"),
        "predicted_seconds": float(f"{predicted:.{DIGITS}g}"),
        "shares": {q: share for q, share in shares.items() if share},
    }


def main() -> None:
    lines = ",\n  ".join(json.dumps(row) for row in rows())
    what = "times measured on chips, and the model's; by python -m benchmarks.evidence"
    FILE.write_text(f'{{\n "what": "{what}",\n "rows": [\n  {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
