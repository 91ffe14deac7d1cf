"""Copies and constants on chip: `tensor_copy`, `memset`, `iota`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.nki.isa.constants import engine as Engine
from neuronjax.nki.isa.operands import per_partition, refuse
from neuronjax.nki.isa.request import Request
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction


def tensor_copy(
    dst: NkiTensor,
    src: NkiTensor,
    engine: Any = Engine.unknown,
    name: str | None = None,
    dtype: Any = None,
) -> NkiInstruction:
    """dst = src on chip: bits if the dtypes are equal, else by way of FP32."""
    request = Request("tensor_copy", locals())
    if dtype is not None and dtypes.as_dtype(dtype) != dst.dtype:
        refuse("tensor_copy", f"dtype={dtype} for dst {dst.describe()}", "leave it out")
    return request.emit()


def memset(
    dst: NkiTensor, value: float, engine: Any = Engine.unknown, name: str | None = None
) -> NkiInstruction:
    """Fills a tile with a number."""
    request = Request("memset", locals())
    dtype = dtypes.info(dst.dtype)
    if dtype.kind == "packed" and value != 0:
        refuse("memset", f"{value} of {dst.dtype}", "packed types take 0 only")
    exact = not dtype.is_float and value == int(value)
    request.values["value"] = [int(value) if exact else float(value)]
    return request.emit()


def iota(
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    offset: int = 0,
    channel_multiplier: int = 0,
    name: str | None = None,
) -> NkiInstruction:
    """offset + partition * channel_multiplier + sum of index * step, in 32-bit ints."""
    request = Request("iota", locals())
    return request.emit(counts=affine_counts(request))


def affine_counts(request: Request) -> tuple[int, ...]:
    """The counts of a pattern, whose steps become operands."""
    dst, pattern = request.values["dst"], request.values["pattern"]
    pairs = [(int(step), int(count)) for step, count in pattern]
    counts = tuple(count for _, count in pairs)
    if not 1 <= len(counts) <= 4 or prod(counts) != per_partition(dst):
        refuse(
            request.spec.name,
            f"pattern {pattern} for {per_partition(dst)} elements per partition",
            "give one to four [step, count] whose counts multiply to that number",
        )
    request.values["pattern"] = [step for step, _ in pairs]
    return counts
