"""A probe's inputs and outputs as numbers, which are rounded and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from neuronjax.numerics.float_format import FORMATS

_QUIET_NAN = np.uint32(0x7FC00000)


@dataclass(frozen=True, kw_only=True)
class ProbeCase:
    """A probe with the inputs for a chip, and the chip's outputs, as numbers by name:
    FP32 for every float, int64 for integers. Packed formats stay unsigned integers."""

    probe: str  # its name
    chip: str  # trn1, trn2 or trn3
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.inputs[name] if name in self.inputs else self.outputs[name]


def numbers(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Return bit patterns as FP32 or int64; packed formats stay bit patterns."""
    if dtype == "float32":
        return bits.view(np.float32)
    if dtype in FORMATS:
        with np.errstate(invalid="ignore"):
            return bits.view(FORMATS[dtype].dtype).astype(np.float32)
    if dtype.endswith("_x4"):
        return bits
    return bits.view(dtype).astype(np.int64)


def patterns(x: np.ndarray, *, payloads: bool = False) -> np.ndarray:
    """Return an array's bits; FP32 NaNs become equal unless `payloads` is true."""
    if x.dtype != np.float32:
        return x
    bits = np.ascontiguousarray(x).view(np.uint32)
    return bits if payloads else np.where(np.isnan(x), _QUIET_NAN, bits)


def flushed(x: np.ndarray) -> np.ndarray:
    """Return FP32 numbers, with subnormals replaced by zeros of their sign."""
    tiny = np.abs(x) < np.float32(2.0**-126)
    return np.where(tiny, np.copysign(np.float32(0), x), x).astype(np.float32)


def rounded_once(total: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Return FP32 of an exact sum that float64 splits into `total` and a smaller
    `rest`.

    If `rest` is not zero, the sum is first rounded to odd in float64, so that rounding
    to FP32 gives the same as a single rounding of the exact sum."""
    bits = total.view(np.int64)
    toward = np.where((rest < 0) == (total < 0), bits, bits - 1)
    odd = np.where((rest != 0) & (bits & 1 == 0), toward | 1, bits)
    return odd.view(np.float64).astype(np.float32)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a * b + c in FP32, rounded once; the arrays broadcast."""
    product = a.astype(np.float64) * b
    total = product + c
    part = total - product
    rest = (product - (total - part)) + (c - part)
    return rounded_once(total, rest)


def toward_zero(exact: np.ndarray) -> np.ndarray:
    """Return float64 rounded to FP32 towards zero."""
    nearest = exact.astype(np.float32)
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(exact)
    return np.where(beyond, np.nextafter(nearest, np.float32(0)), nearest)
