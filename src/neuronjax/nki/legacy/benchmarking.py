"""`nki.benchmark` and `nki.baremetal`: emulated, with latencies that are predicted.

Files that they are asked for are plain text that says what it is: nothing here compiles
for a chip or runs on one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NOTE = "made by neuronjax, an emulator: no compiled kernel and no trace of a chip"
_FILES = ("save_neff_name", "save_trace_name")


@dataclass(frozen=True)
class Latency:
    """Latency of a kernel's call.

    Attributes:
        microseconds: the time model's, alike for every call.
        predicted: that it was not measured.
    """

    microseconds: float
    predicted: bool = True

    def get_latency_percentile(self, percentile: float) -> float:
        """Microseconds: one prediction, whatever the percentile."""
        return self.microseconds


@dataclass(frozen=True)
class BenchmarkResult:
    """What `nki.benchmark` found.

    Attributes:
        nc_latency: of the NeuronCore.
    """

    nc_latency: Latency


def write_notes(kernel: str, options: Mapping[str, Any]) -> None:
    """Writes the files that `save_neff_name=` and `save_trace_name=` name.

    Args:
        kernel: its name.
        options: of the decorator; `artifacts_dir` is where the files go.
    """
    folder = Path(options.get("artifacts_dir") or ".")
    for option in _FILES:
        name = options.get(option)
        if not name:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        note = {"what": _NOTE, "kernel": kernel, "option": option}
        (folder / name).write_text(json.dumps(note, indent=2) + "\n")
