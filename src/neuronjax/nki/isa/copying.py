"""Copies and constants on chip: `tensor_copy`, `memset`, `iota`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.nki.isa.constants import engine as Engine
from neuronjax.nki.isa.operands import (
    ON_CHIP,
    check_same_shape,
    check_tensor,
    engine_name,
    refuse,
)
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction, emit


def tensor_copy(
    dst: NkiTensor,
    src: NkiTensor,
    engine: Any = Engine.unknown,
    name: str | None = None,
    dtype: Any = None,
) -> NkiInstruction:
    """dst = src within SBUF and PSUM: bits if the dtypes are equal, else through FP32.

    Args:
        dst: equal partitions and elements per partition.
        src: likewise.
        engine: vector (default), scalar or gpsimd.
        name: label of the instruction.
        dtype: that of dst, if given; kernels of earlier releases repeat it.
    """
    check_tensor("tensor_copy", "dst", dst, *ON_CHIP)
    if dtype is not None and dtypes.as_dtype(dtype) != dst.dtype:
        refuse("tensor_copy", f"dtype={dtype} for dst {dst.describe()}", "leave it out")
    check_tensor("tensor_copy", "src", src, *ON_CHIP)
    check_same_shape("tensor_copy", dst, ("src", src))
    by = engine_name("tensor_copy", engine, ("vector", "scalar", "gpsimd"), "vector")
    return emit("tensor_copy", by, [dst], [src], label=name)


def memset(
    dst: NkiTensor, value: float, engine: Any = Engine.unknown, name: str | None = None
) -> NkiInstruction:
    """Fills a tile with a number.

    Args:
        dst: on chip.
        value: of an integer tile an integer; of packed dtypes only 0.
        engine: vector (default) or gpsimd.
        name: label of the instruction.
    """
    check_tensor("memset", "dst", dst)
    dtype = dtypes.info(dst.dtype)
    if dtype.kind == "packed" and value != 0:
        refuse("memset", f"{value} of {dst.dtype}", "packed types take 0 only")
    exact = int(value) if not dtype.is_float and value == int(value) else float(value)
    by = engine_name("memset", engine, ("vector", "gpsimd"), "vector")
    return emit("memset", by, [dst], [exact], label=name)


def iota(
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    offset: int = 0,
    channel_multiplier: int = 0,
    name: str | None = None,
) -> NkiInstruction:
    """offset + partition * channel_multiplier + sum of index * step, in 32-bit ints.

    Args:
        dst: in SBUF.
        pattern: up to four [step, count], whose counts make up a partition of `dst`.
        offset: int32.
        channel_multiplier: likewise.
        name: label of the instruction.
    """
    check_tensor("iota", "dst", dst, "sbuf")
    pairs = [(int(step), int(count)) for step, count in pattern]
    per_partition = dst.size // dst.shape[0]
    if not 1 <= len(pairs) <= 4 or prod(n for _, n in pairs) != per_partition:
        refuse(
            "iota",
            f"pattern {pattern} for {per_partition} elements per partition",
            "give one to four [step, count] whose counts multiply to that number",
        )
    counts = tuple(n for _, n in pairs)
    steps = [s for s, _ in pairs]
    return emit(
        "iota",
        "gpsimd",
        [dst],
        [int(offset), int(channel_multiplier), *steps],
        attributes={"counts": counts},
        label=name,
    )
