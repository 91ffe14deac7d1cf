"""How far two arrays are apart: largest absolute error, ULPs, relative L2 norm.

A ULP is the distance between neighbouring numbers of the array's own dtype, counted as
steps between bit patterns; zeros of both signs are one number. Equal infinities and
NaNs at the same place are no difference; a NaN on one side alone is infinitely far.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """The distance of an array from a reference.

    Attributes:
        max_abs: the largest absolute error.
        max_ulp: the largest distance in units in the last place of the dtype; None for
            integers.
        relative_l2: norm of the error over the norm of the reference.
    """

    equal: bool
    differing: int
    max_abs: float
    max_ulp: float | None
    relative_l2: float


def alike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where two arrays are equal, or both NaN."""
    return (a == b) | (np.isnan(a) & np.isnan(b))


def difference(actual: np.ndarray, reference: np.ndarray) -> Difference:
    """Compares arrays of one shape and dtype.

    Complex numbers are compared as their two parts."""
    if actual.dtype.kind == "c":
        part = f"f{actual.dtype.itemsize // 2}"
        actual, reference = (_parts(x, part) for x in (actual, reference))
    a, b = (np.asarray(x, np.float64) for x in (actual, reference))
    with np.errstate(invalid="ignore", over="ignore"):
        same = alike(a, b)
        error = np.where(same, 0.0, np.abs(a - b))
        error = np.where(np.isnan(error), np.inf, error)
        norm = float(np.linalg.norm(np.where(np.isfinite(b), b, 0.0)))
        distance = float(np.linalg.norm(error))
    return Difference(
        equal=bool(same.all()),
        differing=int((~same).sum()),
        max_abs=float(error.max(initial=0.0)),
        max_ulp=_max_ulp(actual, reference, same, error),
        relative_l2=_ratio(distance, norm),
    )


def _parts(array: np.ndarray, part: str) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(part)


def _ratio(distance: float, norm: float) -> float:
    if norm == 0.0:
        return 0.0 if distance == 0.0 else math.inf
    return distance / norm


def _max_ulp(
    actual: np.ndarray, reference: np.ndarray, same: np.ndarray, error: np.ndarray
) -> float | None:
    if actual.dtype.kind in "iub":
        return None
    if np.isinf(error).any():
        return math.inf
    steps = np.abs(_ordered(actual) - _ordered(reference))
    return float(np.where(same, 0, steps).max(initial=0))


def _ordered(values: np.ndarray) -> np.ndarray:
    """Integers in the order of the floats, consecutive for neighbours."""
    bits = values.dtype.itemsize * 8
    codes = np.ascontiguousarray(values).view(f"uint{bits}").astype(np.int64)
    magnitude = codes & ((1 << (bits - 1)) - 1)
    return np.where(codes >> (bits - 1), -magnitude, magnitude)
