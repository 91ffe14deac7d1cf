"""Sums, extrema, scatters and windows as VectorE and GpSimd take them.

All compute in FP32 with subnormals counted as zero, and return FP32. Section 5 of the
design: "Reductions on VectorE", "Scatter-add".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tests.oracles import floats

TILE = 512

Binary = Callable[[np.ndarray, np.ndarray], np.ndarray]


def reduce(
    x: np.ndarray,
    axes: Sequence[int],
    init: float = 0.0,
    operation: Binary = floats.add,
    size: int = TILE,
) -> np.ndarray:
    """Left fold of (init, tile, tile, ...), each tile a left fold of so many elements.

    A zero sum from +0 is +0.
    """
    axes = sorted(axis % x.ndim for axis in axes)
    kept = [d for d in range(x.ndim) if d not in axes]
    shape = tuple(x.shape[d] for d in kept)
    flat = floats.flush(x).transpose(kept + axes)
    flat = flat.reshape(math.prod(shape), -1)
    total = np.full(flat.shape[0], init, np.float32)
    for start in range(0, flat.shape[1], size):
        tile = flat[:, start : start + size]
        partial = tile[:, 0]
        for k in range(1, tile.shape[1]):
            partial = operation(partial, tile[:, k])
        total = operation(total, partial)
    if operation is floats.add and init == 0 and not np.signbit(init):
        total = floats.positive_zeros(total)
    return total.reshape(shape)


def maximum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """FP32 maximum; NaN where either is, and -0 below +0."""
    x, y = floats.flush(x), floats.flush(y)
    smaller = (x < y) | ((x == y) & np.signbit(x))
    return np.where(np.isnan(x), x, np.where(smaller | np.isnan(y), y, x))


def minimum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """FP32 minimum; NaN where either is, and -0 below +0."""
    return -maximum(-x, -y)


def scatter_add_rows(
    table: np.ndarray, indices: np.ndarray, updates: np.ndarray
) -> np.ndarray:
    """Adds rows to a table in row-major order of `indices`; out of range is dropped.

    Rounding to the table's format, once after all updates, is the caller's.
    """
    out = floats.flush(table).copy()
    for at in np.ndindex(*indices.shape):
        row = int(indices[at])
        if 0 <= row < len(out):
            out[row] = floats.add(out[row], updates[at])
    return out


def windows(
    shape: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> Iterator[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """(output index, input indices in row-major order), the padding left out.

    For scatters; in `reduce_window` the padding takes part.
    """
    out = [
        (n + low + high - k) // s + 1
        for n, k, s, (low, high) in zip(shape, sizes, strides, padding, strict=True)
    ]
    for at in np.ndindex(*out):
        corner = [
            a * s - low for a, s, (low, _) in zip(at, strides, padding, strict=True)
        ]
        places = (
            tuple(c + o for c, o in zip(corner, offset, strict=True))
            for offset in np.ndindex(*sizes)
        )
        yield (
            at,
            [
                p
                for p in places
                if all(0 <= i < n for i, n in zip(p, shape, strict=True))
            ],
        )


def reduce_window(
    x: np.ndarray,
    init: float,
    operation: Binary,
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> np.ndarray:
    """Each window is a reduction over its positions, where padding holds `init`."""
    padded = np.pad(floats.flush(x), padding, constant_values=np.float32(init))
    views = np.lib.stride_tricks.sliding_window_view(padded, sizes)
    views = views[tuple(slice(None, None, s) for s in strides)]
    return reduce(views, range(x.ndim, 2 * x.ndim), init, operation)


def window_sum(x: np.ndarray, *window: Sequence) -> np.ndarray:
    """Sum pooling."""
    return reduce_window(x, 0.0, floats.add, *window)


def cumulative_sum(x: np.ndarray) -> np.ndarray:
    """Running sums of [rows, N] along N, one left fold from +0 for each row."""
    out, total = np.empty(x.shape, np.float32), np.zeros(len(x), np.float32)
    for k in range(x.shape[1]):
        out[:, k] = total = floats.add(total, x[:, k])
    return out


def max_pool_gradient(
    x: np.ndarray, cotangent: np.ndarray, *window: Sequence
) -> np.ndarray:
    """Each window, in row-major order, adds its cotangent to its first maximum."""
    out = np.zeros(x.shape, np.float32)
    for at, places in windows(x.shape, *window):
        best = max(places, key=lambda place: floats.flush(x[place]))
        out[best] = floats.add(out[best], cotangent[at])
    return out


def window_sum_gradient(
    shape: Sequence[int], cotangent: np.ndarray, *window: Sequence
) -> np.ndarray:
    """Every element sums the cotangents of its windows, latest window last."""
    out = np.zeros(tuple(shape), np.float32)
    for at, places in windows(shape, *window):
        for place in places:
            out[place] = floats.add(out[place], cotangent[at])
    return out
