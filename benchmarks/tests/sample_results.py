"""One small results file of each benchmark, as the page reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import results_file, time_model

ABOUT = {
    "started": "2026-01-02T03:04:05+00:00",
    "versions": {"python": "3.11.0", "jax": "0.0", "commit": "abc"},
    "machine": {"processor": "P", "threads": 2, "load_at_start": 0.5},
}


def documents() -> dict[str, dict[str, Any]]:
    """Return name -> results: the bodies of `sample_results.json`, with a head."""
    bodies = json.loads(Path(__file__).with_suffix(".json").read_text())
    rows = bodies["time_model"]["entries"]
    about = {"summary": time_model.summary(rows), "band": time_model.BAND}
    bodies["time_model"] |= about
    return {
        name: results_file.document(name, body, quick=True, seconds=1.0, **ABOUT)
        for name, body in bodies.items()
    }
