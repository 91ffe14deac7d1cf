"""Checks of selections, copies and DMA that `ir.nki_instructions` cannot express."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.nki import trace as tracing
from neuronjax.nki.isa.constants import FP32_MIN, engine as Engine
from neuronjax.nki.isa.request import Request, instruction, per_partition
from neuronjax.nki.tensor import NkiTensor

_LEAST = np.float32(FP32_MIN)
#: The order of the result's axes by number of dimensions (nki.isa.dma_transpose).
_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
_MOST_SOURCES = 16


@instruction
def range_select(call: Request) -> Any:
    value = call.values["on_false_value"]
    if value is not ... and np.float32(value) != _LEAST:
        call.refuse(f"on_false_value {value}", f"use {FP32_MIN}")
    return call.emit()


@instruction
def tensor_copy(call: Request) -> Any:
    dtype, dst = call.of("dtype", "dst")
    if dtype is not None and dtypes.as_dtype(dtype) != dst.dtype:
        call.refuse(f"dtype={dtype} for dst {dst.describe()}", "leave dtype out")
    return call.emit()


@instruction
def memset(call: Request) -> Any:
    dst, value = call.of("dst", "value")
    dtype = dtypes.info(dst.dtype)
    if dtype.kind == "packed" and value != 0:
        call.refuse(f"{value} for {dst.dtype}", "packed types take 0 only")
    exact = not dtype.is_float and value == int(value)
    call.values["value"] = [int(value) if exact else float(value)]
    return call.emit()


@instruction("affine_select", "iota")
def with_pattern(call: Request) -> Any:
    """Pass the pattern's steps as operands, and its counts as an attribute."""
    dst, pattern = call.of("dst", "pattern")
    pairs = [(int(step), int(count)) for step, count in pattern]
    counts = tuple(count for _, count in pairs)
    if not 1 <= len(counts) <= 4 or prod(counts) != per_partition(dst):
        call.refuse(
            f"pattern {pattern} for {per_partition(dst)} elements per partition",
            "give one to four pairs [step, count] whose counts multiply to that number",
        )
    call.values["pattern"] = [step for step, _ in pairs]
    return call.emit(counts=counts)


@instruction
def dma_copy(call: Request) -> Any:
    """Let the host prepare the descriptors of static copies in the older style."""
    dst, src, priority, engine = call.of("dst", "src", "priority", "engine")
    _check_elements(call, "src", src)
    mode = call.attributes["dge_mode"]
    if mode == "unknown" and tracing.current().older:
        if dst.dynamic is None and src.dynamic is None:
            mode = "none"
    return call.emit(
        "dma",
        dge_mode=mode,
        dge_engine=Engine(engine).name,
        priority=-1 if priority is None else priority,
    )


@instruction
def dma_transpose(call: Request) -> Any:
    dst, src, axes = call.of("dst", "src", "axes")
    wanted = _AXES.get(src.ndim)
    if wanted is None or (axes is not None and tuple(axes) != wanted):
        call.refuse(
            f"axes {axes} of {src.ndim} dimensions",
            "use (1, 0) for 2 dimensions, (2, 1, 0) for 3, (3, 1, 2, 0) for 4",
        )
    shape = tuple(src.shape[a] for a in wanted)
    if dst.size != src.size or dst.shape[0] != shape[0]:
        call.refuse(f"dst has shape {dst.shape}", f"give shape {shape}")
    return call.emit(axes=wanted, priority=call.values["priority"])


@instruction
def dma_compute(call: Request) -> Any:
    dst, scales, unique = call.of("dst", "scales", "unique_indices")
    srcs = call.values["srcs"] = list(call.values["srcs"])
    if not 1 <= len(srcs) <= _MOST_SOURCES:
        call.refuse(f"{len(srcs)} sources", f"give 1 to {_MOST_SOURCES}")
    for n, source in enumerate(srcs):
        _check_elements(call, f"srcs[{n}]", source)
    if scales is not None and any(scale != 1.0 for scale in scales):
        call.refuse(f"scales {list(scales)}", "use 1.0 for all, or None")
    indirect = any(t.is_indirect() for t in (dst, *srcs))
    if indirect and (len(srcs) != 2 or not unique):
        call.refuse(
            f"{len(srcs)} sources, unique_indices={unique}, with indices",
            "use two sources and unique_indices=True",
        )
    return call.emit()


def _check_elements(call: Request, name: str, source: NkiTensor) -> None:
    dst = call.values["dst"]
    if source.size != dst.size:
        call.refuse(
            f"{name} has shape {source.shape}, dst {dst.shape}",
            "give both the same number of elements",
        )
