"""Equality of two arrays, and their distance in steps of their format.

A step (ULP) leads from a number of the arrays' dtype to its neighbour; 0 and -0 are one
number. Equal infinities, and NaNs at the same position, are no difference. The distance
of a NaN from a number is infinite.
"""

from __future__ import annotations

import math

import numpy as np


def ratio(error: float, size: float) -> float:
    """Return `error` / `size`; 0 if `error` is 0, and Inf if only `size` is 0."""
    if error == 0:
        return 0.0
    return float(error / size) if size else math.inf


def alike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a mask of elements that are equal, or both NaN."""
    return (a == b) | (np.isnan(a) & np.isnan(b))


def parts(array: np.ndarray) -> np.ndarray:
    """Return a complex array as flat real numbers, any other array unchanged."""
    if array.dtype.kind != "c":
        return array
    part = f"f{array.dtype.itemsize // 2}"
    return np.ascontiguousarray(array).reshape(-1).view(part)


def steps_apart(actual: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return by how many steps of their format the elements of two arrays differ."""
    a, b = (np.asarray(x, np.float64) for x in (actual, reference))
    with np.errstate(invalid="ignore", over="ignore"):
        same, is_far = alike(a, b), ~np.isfinite(a - b)
    steps = np.abs(_ordered(actual) - _ordered(reference)).astype(np.float64)
    return np.where(same, 0.0, np.where(is_far, np.inf, steps))


def _ordered(values: np.ndarray) -> np.ndarray:
    """Map floats to integers in the same order; neighbours differ by 1."""
    bits = values.dtype.itemsize * 8
    codes = np.ascontiguousarray(values).view(f"uint{bits}").astype(np.int64)
    magnitude = codes & ((1 << (bits - 1)) - 1)
    return np.where(codes >> (bits - 1), -magnitude, magnitude)
