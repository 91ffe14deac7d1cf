"""Casts to narrower floats and integers that a chip may do, computed in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from neuronjax.numerics.float_format import FloatFormat

Rounding = Callable[[np.ndarray], np.ndarray]


def _odd(x: np.ndarray) -> np.ndarray:
    below = np.floor(x)
    return np.where(below == x, x, below + (below % 2 == 0))


ROUNDINGS: Mapping[str, Rounding] = {
    "nearest even": np.rint,
    "nearest, half away": lambda x: np.trunc(x + np.copysign(0.5, x)),
    "toward zero": np.trunc,
    "down": np.floor,
    "to odd": _odd,
}
"""Name -> a rounding of float64 to integers."""

OVERFLOWS: Mapping[str, Callable[[FloatFormat], float]] = {
    "Inf": lambda fmt: np.inf if fmt.has_inf else np.nan,
    "the largest": lambda fmt: fmt.max_finite,
    "NaN": lambda fmt: np.nan,
}


def to_float(
    x: np.ndarray, fmt: FloatFormat, how: Rounding, beyond: float = np.inf
) -> np.ndarray:
    """Return FP32 rounded to a narrower format, and `beyond` where it overflows."""
    exact = x.astype(np.float64)
    _, exponent = np.frexp(exact)
    step = np.exp2(np.maximum(exponent - 1, fmt.min_exponent) - fmt.mantissa_bits)
    with np.errstate(invalid="ignore"):
        rounded = how(exact / step) * step
        rounded = np.where(
            np.abs(rounded) > fmt.max_finite, np.copysign(beyond, exact), rounded
        )
    rounded = np.where(np.isfinite(exact), rounded, exact)
    return np.copysign(rounded, exact).astype(np.float32)


def to_integer(x: np.ndarray, dtype: str, how: Rounding) -> np.ndarray:
    """Return numbers rounded and clipped to an integer type, as int64; 0 for a NaN."""
    info = np.iinfo(dtype)
    with np.errstate(invalid="ignore"):
        rounded = how(np.nan_to_num(x.astype(np.float64), posinf=1e30, neginf=-1e30))
    return np.clip(rounded, float(info.min), float(info.max)).astype(np.int64)


def wrapped(x: np.ndarray, dtype: str) -> np.ndarray:
    """Return the lower bits of `x`'s integer part, as many as `dtype` has, as int64."""
    bits = np.iinfo(dtype).bits
    whole = np.trunc(np.where(np.isfinite(x), x, 0).astype(np.float64))
    return np.mod(whole, 2.0**bits).astype(np.uint64).astype(dtype).astype(np.int64)
