"""FP32 arithmetic with subnormals counted as zero, and rounding to narrower formats.

Values are NumPy arrays of dtype float32 whatever the format: a BF16 or FP8 number is
the FP32 number that it equals. Rounding is done on float64, where every power-of-two
rescaling of an FP32 number is exact. FP32 computes, other formats only store. Section 5
of the design ("Decisions already taken").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

_SMALLEST_NORMAL = np.float32(2.0**-126)
# Below it a result rounded to 24 digits lies under the smallest normal. IEEE 754 calls
# this tininess after rounding, which is what x86 flushes; ARM looks before rounding,
# and gradual underflow would round some of these up to the smallest normal.
_TINY = 2.0**-126 * (1 - 2.0**-25)


def flush(x: np.ndarray) -> np.ndarray:
    """FP32 with each subnormal replaced by the zero of its sign."""
    x = np.asarray(x, np.float32)
    return np.where(np.abs(x) < _SMALLEST_NORMAL, np.copysign(np.float32(0), x), x)


def _flushed(operation: np.ufunc, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, y = flush(x), flush(y)
    with np.errstate(all="ignore"):
        result = operation(x, y, dtype=np.float32)
        tiny = np.abs(operation(x, y, dtype=np.float64)) < _TINY
    return np.where(tiny, np.copysign(np.float32(0), result), result)


def add(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """FP32 sum, inputs and result flushed."""
    return _flushed(np.add, x, y)


def subtract(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """FP32 difference, inputs and result flushed."""
    return _flushed(np.subtract, x, y)


def multiply(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """FP32 product, inputs and result flushed."""
    return _flushed(np.multiply, x, y)


def divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """FP32 quotient, correctly rounded, inputs and result flushed."""
    return _flushed(np.divide, x, y)


def fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """FP32 x * y + z, rounded once; inputs and result flushed.

    The product of two FP32 numbers has at most 48 digits, so float64 holds it exactly;
    the sum is rounded to odd there, after which rounding to 24 digits is that of the
    exact sum.
    """
    with np.errstate(all="ignore"):
        product = flush(x).astype(np.float64) * flush(y).astype(np.float64)
        total = _sum_to_odd(product, flush(z).astype(np.float64))
        result = total.astype(np.float32)
    return np.where(np.abs(total) < _TINY, np.copysign(np.float32(0), result), result)


def _sum_to_odd(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Float64 x + y; where inexact, the neighbour with an odd last digit."""
    total = x + y
    image = total - x
    error = (x - (total - image)) + (y - image)  # exact: Knuth's TwoSum
    even = (total.view(np.int64) & 1) == 0
    moved = np.isfinite(total) & (error != 0) & even
    return np.where(moved, np.nextafter(total, np.copysign(np.inf, error)), total)


def positive_zeros(x: np.ndarray) -> np.ndarray:
    """x with every zero positive."""
    return np.where(x == 0, np.float32(0), x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """A binary float format: `digits` of precision, exponents `emin..emax`."""

    digits: int
    emin: int
    emax: int
    largest: float
    overflow: float


def _ieee(digits: int, exponent_bits: int) -> Format:
    emax = 2 ** (exponent_bits - 1) - 1
    largest = (2 - 2.0 ** (1 - digits)) * 2.0**emax
    return Format(
        digits=digits, emin=1 - emax, emax=emax, largest=largest, overflow=np.inf
    )


FORMATS = {
    "bf16": _ieee(8, 8),
    "fp16": _ieee(11, 5),
    "tf32": _ieee(11, 8),
    "e5m2": _ieee(3, 5),
    "e4m3": _ieee(4, 4),
    "e4m3fn": Format(digits=4, emin=-6, emax=8, largest=448.0, overflow=np.nan),
}


def round_to(x: np.ndarray, name: str) -> np.ndarray:
    """Round to nearest even; beyond the largest value Inf, or NaN for e4m3fn."""
    fmt = FORMATS[name]
    wide = flush(x).astype(np.float64)
    finite = np.where(np.isfinite(wide), wide, 0.0)
    exponent = np.maximum(np.frexp(finite)[1] - 1, fmt.emin)
    quantum = np.ldexp(1.0, exponent - (fmt.digits - 1))
    rounded = np.copysign(np.rint(finite / quantum) * quantum, wide)
    out = np.where(np.isfinite(wide), rounded, wide)
    beyond = np.abs(out) > fmt.largest
    out = np.where(beyond, np.copysign(fmt.overflow, wide), out)
    return flush(out.astype(np.float32))


def neighbours(x: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The nearest numbers of a format at or below and at or above finite `x`."""
    fmt = FORMATS[name]
    wide = flush(x).astype(np.float64)
    exponent = np.maximum(np.frexp(wide)[1] - 1, fmt.emin)
    quantum = np.ldexp(1.0, exponent - (fmt.digits - 1))
    low, high = np.floor(wide / quantum) * quantum, np.ceil(wide / quantum) * quantum
    return low.astype(np.float32), high.astype(np.float32)


def split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An FP32 number as its upper 12 digits and the rest: (hi, lo)."""
    x = flush(x)
    hi = (x.view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
    return hi, subtract(x, hi)


def power_of_two_scale(x: np.ndarray, name: str) -> tuple[np.float32, np.float32]:
    """(scale, 1 / scale), the largest scale that keeps max |x| finite in a format."""
    amax = np.max(np.abs(flush(x)), initial=0).astype(np.float64)
    if amax == 0 or not np.isfinite(amax):
        return np.float32(1), np.float32(1)
    exponent = int(np.frexp(FORMATS[name].largest / amax)[1]) - 1
    exponent = min(max(exponent, -126), 126)
    return np.float32(2.0**exponent), np.float32(2.0**-exponent)


def left_fold(terms: Iterable[np.ndarray]) -> np.ndarray:
    """((t0 + t1) + t2) + ..., in FP32."""
    terms = iter(terms)
    total = flush(next(terms))
    for term in terms:
        total = add(total, term)
    return total


CANONICAL_NANS = {"float32": 0x7FC00000, "bfloat16": 0x7FC0, "float16": 0x7E00}


def same_bits(actual: np.ndarray, expected: np.ndarray, what: str = "") -> None:
    """Asserts equal shapes and bits, and NaNs that are the canonical one."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    assert actual.dtype == expected.dtype, (what, actual.dtype, expected.dtype)
    unsigned = np.dtype(f"u{actual.dtype.itemsize}")
    a = np.ascontiguousarray(actual).view(unsigned).reshape(actual.shape)
    e = np.ascontiguousarray(expected).view(unsigned).reshape(actual.shape)
    if actual.dtype.name in CANONICAL_NANS:
        nan = np.isnan(expected.astype(np.float64))
        e = np.where(nan, unsigned.type(CANONICAL_NANS[actual.dtype.name]), e)
    wrong = np.argwhere(a != e)
    if len(wrong):
        lines = [
            f"  [{', '.join(map(str, at))}] expected {expected[tuple(at)]!r}"
            f" {e[tuple(at)]:#010x}, got {actual[tuple(at)]!r} {a[tuple(at)]:#010x}"
            for at in wrong[:5]
        ]
        header = f"{what}: {len(wrong)} of {actual.size} elements differ"
        raise AssertionError("\n".join([header, *lines]))
