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


def ratio(error: float, size: float) -> float:
    """Return an error divided by the size of the reference.

    It is 0 where there is no error, and Inf where the reference is zero.
    """
    if error == 0:
        return 0.0
    return float(error / size) if size else math.inf


def difference(actual: np.ndarray, reference: np.ndarray) -> Difference:
    """Compares arrays of one shape and dtype.

    Complex numbers are compared as their two parts."""
    actual, reference = parts(actual), parts(reference)
    a, b = (np.asarray(x, np.float64) for x in (actual, reference))
    with np.errstate(invalid="ignore", over="ignore"):
        same = alike(a, b)
        error = np.where(same, 0.0, np.abs(a - b))
        error = np.where(np.isnan(error), np.inf, error)
        norm = float(np.linalg.norm(np.where(np.isfinite(b), b, 0.0)))
        distance = float(np.linalg.norm(error))
    has_steps = actual.dtype.kind not in "iub"
    steps = steps_apart(actual, reference) if has_steps else None
    return Difference(
        equal=bool(same.all()),
        differing=int((~same).sum()),
        max_abs=float(error.max(initial=0.0)),
        max_ulp=None if steps is None else float(steps.max(initial=0.0)),
        relative_l2=ratio(distance, norm),
    )


def parts(array: np.ndarray) -> np.ndarray:
    """Return the real numbers of an array, flat, where it is complex."""
    if array.dtype.kind != "c":
        return array
    part = f"f{array.dtype.itemsize // 2}"
    return np.ascontiguousarray(array).reshape(-1).view(part)


def steps_apart(actual: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return how many numbers of their format the elements of two arrays are apart."""
    a, b = (np.asarray(x, np.float64) for x in (actual, reference))
    with np.errstate(invalid="ignore", over="ignore"):
        same, is_far = alike(a, b), ~np.isfinite(a - b)
    steps = np.abs(_ordered(actual) - _ordered(reference)).astype(np.float64)
    return np.where(same, 0.0, np.where(is_far, np.inf, steps))


def _ordered(values: np.ndarray) -> np.ndarray:
    """Integers in the order of the floats, consecutive for neighbours."""
    bits = values.dtype.itemsize * 8
    codes = np.ascontiguousarray(values).view(f"uint{bits}").astype(np.int64)
    magnitude = codes & ((1 << (bits - 1)) - 1)
    return np.where(codes >> (bits - 1), -magnitude, magnitude)
