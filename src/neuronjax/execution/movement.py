"""Instructions that move numbers and change no bit, on NumPy arrays.

A tool that executes one instruction at a time would wait for XLA to compile a program
for every shape, although most movement is another view of the same memory. The dtypes
may be wider than declared, since no value changes. A result may share the memory of an
operand, so neither may be written to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from neuronjax.ir.instruction_set import DmaCopy, Im2col, Window

Arrays = Sequence[np.ndarray]


def moved(i: DmaCopy | Im2col, x: Sequence[Any]) -> np.ndarray:
    if isinstance(i, Im2col):
        return patches(i.window, np.asarray(x[0]))
    return MOVES[i.kind](i, [*map(np.asarray, x)])


def patches(window: Window, x: np.ndarray) -> np.ndarray:
    """Return the patches of a convolution, [groups, batch * positions, K]."""
    groups, batch, *spatial, channels = x.shape
    sides = zip(window.padding, window.base_dilations, strict=True)
    around = [(low, high, dilation - 1) for (low, high), dilation in sides]
    whole = [(0, 0, 0)]
    base = _padded(x, np.zeros((), x.dtype), [*whole * 2, *around, *whole])
    reach = [
        (size - 1) * dilation + 1
        for size, dilation in zip(window.sizes, window.window_dilations, strict=True)
    ]
    counts = [max(0, n - r + 1) for n, r in zip(base.shape[2:-1], reach, strict=True)]
    if not math.prod(counts):
        return np.zeros((groups, 0, math.prod(window.sizes) * channels), x.dtype)
    axes = tuple(range(2, 2 + len(spatial)))
    # NumPy cannot make such a view of floats of 8 bits.
    codes = base.view(f"u{base.itemsize}")
    views = np.lib.stride_tricks.sliding_window_view(codes, reach, axes)
    every = slice(None)
    strides = (slice(None, None, n) for n in window.strides)
    steps = (slice(None, None, n) for n in window.window_dilations)
    views = np.moveaxis(views[every, every, *strides, every, *steps], len(axes) + 2, -1)
    positions = math.prod(views.shape[2 : 2 + len(axes)])
    return views.reshape(groups, batch * positions, -1).view(x.dtype)


def _broadcast(i: DmaCopy, x: Arrays) -> np.ndarray:
    shape, dimensions = i.results[0].type.shape, i.parameters[0]
    sizes = [1] * len(shape)
    for size, n in zip(x[0].shape, dimensions, strict=True):
        sizes[n] = size
    # StableHLO's dimensions need not ascend.
    order = np.argsort(dimensions) if x[0].ndim else ()
    return np.broadcast_to(x[0].transpose(order).reshape(sizes), shape)


def _transposed(i: DmaCopy, x: Arrays) -> np.ndarray:
    """Return the transposed array in the usual order, which later ops read faster."""
    turned = x[0].transpose(i.parameters[0])
    return turned if 0 in turned.strides else np.asarray(turned, order="C")


def _padded(
    x: np.ndarray, fill: np.ndarray, around: Sequence[tuple[int, int, int]]
) -> np.ndarray:
    """Return an array with a fill value before, after and between its elements.
    `around` says how many, (before, after, between), for every axis; a negative number
    removes elements."""
    if not any(map(any, around)):
        return x
    shape, taken, put = [], [], []
    for n, (low, high, between) in zip(x.shape, around, strict=True):
        step = between + 1
        size = low + high + (n - 1) * step + 1 if n else low + high
        first = max(0, -(low // step))
        last = min(n, (size - 1 - low) // step + 1)
        taken.append(slice(first, max(first, last)))
        put.append(slice(low + first * step, max(0, low + (last - 1) * step + 1), step))
        shape.append(size)
    out = np.full(shape, fill, x.dtype)
    if all(s.stop > s.start for s in taken):
        out[tuple(put)] = x[tuple(taken)]
    return out


def _window(starts: Arrays, shape: Sequence[int], sizes: Sequence[int]) -> tuple:
    bounds = zip(starts, shape, sizes, strict=True)
    lows = [min(max(int(start), 0), n - size) for start, n, size in bounds]
    return tuple(slice(a, a + n) for a, n in zip(lows, sizes, strict=True))


def _updated(i: DmaCopy, x: Arrays) -> np.ndarray:
    out = x[0].copy()
    out[_window(x[2:], out.shape, x[1].shape)] = x[1]
    return out


#: The function for each kind of copy.
MOVES: Mapping[str, Callable[[DmaCopy, Arrays], np.ndarray]] = {
    "broadcast": _broadcast,
    "reshape": lambda i, x: x[0].reshape(i.results[0].type.shape),
    "transpose": _transposed,
    "slice": lambda i, x: x[0][tuple(map(slice, *i.parameters))],
    "pad": lambda i, x: _padded(x[0], x[1], [*zip(*i.parameters, strict=True)]),
    "concatenate": lambda i, x: np.concatenate(x, i.parameters[0][0]),
    "reverse": lambda i, x: np.flip(x[0], i.parameters[0]),
    "dynamic_slice": lambda i, x: x[0][_window(x[1:], x[0].shape, i.parameters[0])],
    "dynamic_update_slice": _updated,
}
