"""Scatters, windows and running folds with any computation, element by element.

After the StableHLO specification (scatter, reduce_window), and section 5 of the design
where the specification leaves an order open. Bodies are functions of NumPy scalars, or
of arrays of one shape where they are applied to many elements at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

TILE = 512

Body = Callable[..., tuple]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScatterNumbers:
    """The dimension numbers of stablehlo.scatter, named as there."""

    update_window_dims: tuple[int, ...] = ()
    inserted_window_dims: tuple[int, ...] = ()
    input_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()
    scatter_dims_to_operand_dims: tuple[int, ...] = ()
    index_vector_dim: int = 0


def scatter(
    inputs: Sequence[np.ndarray],
    indices: np.ndarray,
    updates: Sequence[np.ndarray],
    numbers: ScatterNumbers,
    body: Body,
) -> list[np.ndarray]:
    """Windows in row-major order of the indices; one that does not fit is dropped.

    The specification drops single elements instead; XLA drops windows.
    """
    results = [x.copy() for x in inputs]
    shape = results[0].shape
    outer = [d for d in range(updates[0].ndim) if d not in numbers.update_window_dims]
    window = tuple(updates[0].shape[d] for d in numbers.update_window_dims)
    single = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    spread = [d for d in range(len(shape)) if d not in single]
    for place in np.ndindex(*[updates[0].shape[d] for d in outer]):
        start = _start(place, indices, numbers, len(shape))
        ends = dict(zip(spread, window, strict=True))
        if any(
            not 0 <= start[d] <= shape[d] - ends.get(d, 1) for d in range(len(shape))
        ):
            continue
        for offset in np.ndindex(*window):
            source = np.zeros(updates[0].ndim, int)
            source[outer] = place
            source[list(numbers.update_window_dims)] = offset
            target = list(start)
            for d, o in zip(spread, offset, strict=True):
                target[d] += o
            at, of = tuple(target), tuple(source)
            new = body(*[r[at] for r in results], *[u[of] for u in updates])
            for result, value in zip(results, new, strict=True):
                result[at] = value
    return results


def _start(
    place: tuple[int, ...], indices: np.ndarray, numbers: ScatterNumbers, rank: int
) -> list[int]:
    start = [0] * rank
    for i, dimension in enumerate(numbers.scatter_dims_to_operand_dims):
        vector = list(place)
        if numbers.index_vector_dim < indices.ndim:
            vector.insert(numbers.index_vector_dim, i)
        start[dimension] = int(indices[tuple(vector)])
    full = list(place)
    full.insert(numbers.index_vector_dim, 0)
    for dimension, along in zip(
        numbers.input_batching_dims, numbers.scatter_indices_batching_dims, strict=True
    ):
        start[dimension] = full[along]
    return start


@dataclasses.dataclass(frozen=True, kw_only=True)
class Windows:
    """The windows of stablehlo.reduce_window, named as there."""

    dimensions: tuple[int, ...]
    strides: tuple[int, ...]
    base_dilations: tuple[int, ...]
    window_dilations: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]


def reduce_window(
    inputs: Sequence[np.ndarray],
    inits: Sequence[np.generic],
    windows: Windows,
    body: Body,
) -> list[np.ndarray]:
    """Tiles of 512 positions, each a left fold; their left fold from `inits`."""
    padded = [_padded(x, i, windows) for x, i in zip(inputs, inits, strict=True)]
    out = [
        (n - (size - 1) * dilation - 1) // stride + 1
        if n > (size - 1) * dilation
        else 0
        for n, size, stride, dilation in zip(
            padded[0].shape,
            windows.dimensions,
            windows.strides,
            windows.window_dilations,
            strict=True,
        )
    ]
    results = [np.empty(out, x.dtype) for x in inputs]
    for at in np.ndindex(*out):
        seen = list(_window(at, padded, windows))
        for result, value in zip(results, _tiled(seen, inits, body), strict=True):
            result[at] = value
    return results


def _tiled(seen: list[tuple], inits: Sequence[np.generic], body: Body) -> tuple:
    total = tuple(inits)
    for start in range(0, len(seen), TILE):
        part = seen[start]
        for elements in seen[start + 1 : start + TILE]:
            part = body(*part, *elements)
        total = body(*total, *part)
    return total


def _padded(x: np.ndarray, init: np.generic, windows: Windows) -> np.ndarray:
    """Dilated, then padded or cropped."""
    for axis, (dilation, (low, high)) in enumerate(
        zip(windows.base_dilations, windows.padding, strict=True)
    ):
        n = x.shape[axis]
        length = (n - 1) * dilation + 1 if n else 0
        positions = low + np.arange(n) * dilation
        shape = list(x.shape)
        shape[axis] = max(low + length + high, 0)
        out = np.full(shape, init, x.dtype)
        keep = (positions >= 0) & (positions < shape[axis])
        moved = np.moveaxis(out, axis, 0)
        moved[positions[keep]] = np.moveaxis(x, axis, 0)[keep]
        x = out
    return x


def _window(
    at: tuple[int, ...], padded: Sequence[np.ndarray], windows: Windows
) -> Iterator[tuple]:
    for offset in np.ndindex(*windows.dimensions):
        place = tuple(
            a * s + o * d
            for a, s, o, d in zip(
                at, windows.strides, offset, windows.window_dilations, strict=True
            )
        )
        yield tuple(x[place] for x in padded)


def running_fold(
    inputs: Sequence[np.ndarray],
    inits: Sequence[np.generic],
    body: Body,
    reverse: bool = False,
) -> list[np.ndarray]:
    """Every prefix (suffix) of [rows, N] along N; earlier elements come first."""
    results = [np.empty(x.shape, x.dtype) for x in inputs]
    state = tuple(np.full(len(x), i) for x, i in zip(inputs, inits, strict=True))
    places = range(inputs[0].shape[1])
    for k in reversed(places) if reverse else places:
        row = [x[:, k] for x in inputs]
        state = body(*row, *state) if reverse else body(*state, *row)
        for result, value in zip(results, state, strict=True):
            result[:, k] = value
    return results


def select_and_scatter(
    operand: np.ndarray,
    source: np.ndarray,
    init: np.generic,
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    select: Callable,
    scatter: Callable,
) -> np.ndarray:
    """Windows in row-major order send their source to the element they select.

    Padding is never selected; true of `select(chosen, next)` keeps the chosen one.
    """
    out = np.full(operand.shape, init)
    for at in np.ndindex(*source.shape):
        chosen = None
        for offset in np.ndindex(*sizes):
            place = tuple(
                a * s + o - low
                for a, s, o, (low, _) in zip(at, strides, offset, padding, strict=True)
            )
            inside = all(0 <= p < n for p, n in zip(place, operand.shape, strict=True))
            if inside and (
                chosen is None or not select(operand[chosen], operand[place])
            ):
                chosen = place
        if chosen is not None:
            out[chosen] = scatter(out[chosen], source[at])
    return out
