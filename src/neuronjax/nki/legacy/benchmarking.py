"""`nki.benchmark`, `nki.baremetal` and `nki.profile`: what they leave behind.

Latencies are predicted. Files that these decorators are asked for are JSON that says
what it is, nothing here compiles for a chip or runs on one; the summary in them is what
`neuron-profile` shows, see `neuronjax.nki.neuron_profile`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NOTE = "made by neuronjax, an emulator: no compiled kernel and no trace of a chip"
#: Options of the decorators, and the names that `nki.profile` has for what is not named
#: (nki/api/generated/nki.profile.rst, SDK 2.26).
_FILES = {"save_neff_name": "file.neff", "save_trace_name": "profile.ntff"}
_SUMMARY = "profile.json"


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
        predicted: that it was not measured.
    """

    nc_latency: Latency
    predicted: bool = True


def asked_files(options: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """What a decorator is asked to save, and where.

    Args:
        options: of the decorator. `artifacts_dir` is where files go whose names are
            relative; with the `working_directory` of `nki.profile` all are written, and
            the summary alone too.
    """
    working = options.get("working_directory")
    folder = Path(working or options.get("artifacts_dir") or ".")
    for option, usual in _FILES.items():
        name = options.get(option) or (usual if working else "")
        if name:
            yield option, folder / name
    if working:
        yield "working_directory", folder / _SUMMARY


def write_files(
    kernel: str, options: Mapping[str, Any], found: Mapping[str, Any]
) -> None:
    """Writes the files that a decorator is asked for.

    Args:
        kernel: its name.
        options: of the decorator, see `asked_files`.
        found: the call's `summary`, or `unpriced`, why there is none.
    """
    for option, path in asked_files(options):
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"what": _NOTE, "predicted": True, "kernel": kernel}
        content |= {"option": option, **found}
        path.write_text(json.dumps(content, indent=2) + "\n")
