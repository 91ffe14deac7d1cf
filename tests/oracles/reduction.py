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
) -> np.ndarray:
    """Left fold of (init, tile, tile, ...), each tile a left fold of 512 elements."""
    axes = sorted(axis % x.ndim for axis in axes)
    kept = [d for d in range(x.ndim) if d not in axes]
    shape = tuple(x.shape[d] for d in kept)
    flat = floats.flush(x).transpose(kept + axes)
    flat = flat.reshape(math.prod(shape), -1)
    total = np.full(flat.shape[0], init, np.float32)
    for start in range(0, flat.shape[1], TILE):
        tile = flat[:, start : start + TILE]
        partial = tile[:, 0]
        for k in range(1, tile.shape[1]):
            partial = operation(partial, tile[:, k])
        total = operation(total, partial)
    return total.reshape(shape)


def maximum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """FP32 maximum; NaN where either is."""
    return floats.flush(np.maximum(floats.flush(x), floats.flush(y)))


def minimum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """FP32 minimum; NaN where either is."""
    return floats.flush(np.minimum(floats.flush(x), floats.flush(y)))


def cumulative_sum(x: np.ndarray) -> np.ndarray:
    """Left folds along the last axis."""
    totals = [floats.flush(x[..., 0])]
    for k in range(1, x.shape[-1]):
        totals.append(floats.add(totals[-1], x[..., k]))
    return np.stack(totals, axis=-1)


def scatter_add_rows(
    table: np.ndarray, indices: np.ndarray, updates: np.ndarray
) -> np.ndarray:
    """Adds rows to a table in row-major order of `indices`; out of range is dropped."""
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
    """(output index, input indices in row-major order), the padding left out."""
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


def window_sum(x: np.ndarray, *window: Sequence) -> np.ndarray:
    """Sum pooling: each window a left fold in row-major order."""
    return _gather(
        {at: floats.left_fold(x[p] for p in ps) for at, ps in windows(x.shape, *window)}
    )


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


def _gather(values: dict[tuple[int, ...], np.ndarray]) -> np.ndarray:
    last = max(values)
    out = np.zeros([n + 1 for n in last], np.float32)
    for at, value in values.items():
        out[at] = value
    return out
