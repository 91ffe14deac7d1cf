"""Results, summary and files of `nki.benchmark`, `nki.baremetal` and `nki.profile`.

Latencies are predicted. Nothing here compiles for a chip or runs on one, so the files
that a decorator is asked to save hold JSON that says so. The summary in them has the
format of `neuron-profile`, see `neuronjax.nki.neuron_profile`.

The older `neuron-profile view --output-format summary-json` has no `adjusted_*` names.
The fields `hardware_flops` and `transpose_flops` are sums over the instructions of the
array, as in `Profile.metrics`, and `mm_arithmetic_intensity` is their difference
divided by all bytes of HBM (definitions: github.com/zhang677/AccelOpt, 47e29a7,
prompts/planner_prompts/base_prompt.txt).

Unexplained: published counters of FP32 kernels on trn1 (NKIBench's rmsnorm_matmul, bmm,
gqa_full, matmul_add_rmsnorm) count 2 x 2 M N K for products; here they count 4 x 2 M N
K, because the array needs four passes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NOTE = "made by neuronjax, an emulator: no compiled kernel and no trace of a chip"
#: Options of the decorators, and the default names of `nki.profile`
#: (nki/api/generated/nki.profile.rst, SDK 2.26).
_FILES = {"save_neff_name": "file.neff", "save_trace_name": "profile.ntff"}
_SUMMARY = "profile.json"


@dataclass(frozen=True)
class Latency:
    """The latency of a kernel's call.

    Attributes:
        microseconds: the prediction of the time model, the same for every call.
        predicted: True, because the latency was not measured.
    """

    microseconds: float
    predicted: bool = True

    def get_latency_percentile(self, percentile: float) -> float:
        """Return the latency in microseconds, the same for every percentile."""
        return self.microseconds


@dataclass(frozen=True)
class BenchmarkResult:
    """The result of `nki.benchmark`.

    Attributes:
        nc_latency: the latency on the NeuronCore.
        predicted: True, because the latency was not measured.
    """

    nc_latency: Latency
    predicted: bool = True


def asked_files(options: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """Yield the options that ask for a file, each with the file's path.

    Args:
        options: the decorator's options. Relative paths are in `artifacts_dir`. If
            there is a `working_directory`, they and a summary are in it instead.
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
    """Write the files that a decorator is asked for.

    Args:
        options: the decorator's options, see `asked_files`.
        found: the call's {"summary": ...}, or {"unpriced": why it has no summary}.
    """
    for option, path in asked_files(options):
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"what": _NOTE, "predicted": True, "kernel": kernel}
        content |= {"option": option, **found}
        path.write_text(json.dumps(content, indent=2) + "\n")


def summary(figures: Mapping[str, float]) -> dict[str, Any]:
    """Return the summary of a profile; its `predicted` says that nothing was measured.

    Args:
        figures: `Profile.metrics`: seconds, bytes, FLOP, and fractions from 0 to 1.
    """
    moved = figures["hbm_read_bytes"] + figures["hbm_write_bytes"]
    executed = figures["adjusted_hardware_flops"]
    transposed = figures["adjusted_transpose_flops"]
    older = {
        "hardware_flops": executed,
        "transpose_flops": transposed,
        "mm_arithmetic_intensity": (executed - transposed) / moved if moved else 0.0,
    }
    return {"predicted": True, **figures, **older}
