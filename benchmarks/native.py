"""`python -m benchmarks.native`: `make bench`, with results stored for the page.

The rows of `run.py`, native `jax.jit` against the emulation, are written to
`results/native.json` in the form of the other results files.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import results_file, run

MINUTES = {False: 24.0, True: 2.0}


def measure(quick: bool) -> dict[str, Any]:
    """Run every row that fits into the time, and return the rows."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rows.json"
        minutes = ["--minutes", str(MINUTES[quick])]
        code = run.main(
            ["--output", str(output), *minutes, *(["--quick"] if quick else [])]
        )
        rows = json.loads(output.read_text())["rows"]
    for row in rows:
        for part in ("samples", "native_seconds", "emulated_seconds"):
            if row.get(part):
                del row[part]["values"]  # the page needs medians and quartiles
    return {"entries": rows, "failed": bool(code)}


def show(found: Mapping[str, Any]) -> str:
    """Return the number of rows by status; `run.main` has printed the table."""
    counts = [entry["status"] for entry in found["entries"]]
    return ", ".join(f"{counts.count(s)} {s}" for s in dict.fromkeys(counts))


if __name__ == "__main__":
    sys.exit(results_file.command("native", measure, show))
