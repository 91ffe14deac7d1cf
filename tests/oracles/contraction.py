"""Matrix products and convolutions as TensorE takes them, term by term.

`dot_general` and `convolution` take FP32 arrays that hold numbers of the declared
formats, and name how the array sees them (`Array`). They return what PSUM holds, in
FP32; rounding to a narrower result type is the caller's. Section 5 of the design:
"TensorE", "Convolution".
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from tests.oracles import floats, reduction

ROWS = 128
#: Of FP32 operands: a pass is the sum of every 32 rows, and these sums added in order.
FP32_ROWS = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Array:
    """How the array takes a matmul: formats, FP8 scaling and double-row, PSUM, and the
    rows of a tile of FP32 operands that make one sum; those of others are one sum."""

    lhs: str = "fp32"
    rhs: str = "fp32"
    scaled: bool = False
    double_row: bool = False
    psum: str = "fp32"
    fp32_rows: int = FP32_ROWS

    @property
    def passes(self) -> int:
        """Multiplications per product: four for FP32 operands."""
        return 4 if (self.lhs, self.rhs) == ("fp32", "fp32") else 1

    @property
    def group_rows(self) -> int:
        """Rows of a tile that make one sum."""
        return self.fp32_rows if self.passes == 4 else ROWS


#: VectorE in place of the array: products in FP32, and their sum.
VECTOR = Array()


def dot_general(
    lhs: np.ndarray,
    rhs: np.ndarray,
    dimensions: tuple[tuple[Sequence[int], Sequence[int]], ...],
    array: Array,
) -> np.ndarray:
    """`lax.dot_general` with dimensions ((lhs_contract, rhs_contract), (batches))."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimensions
    a, a_free = _as_matrices(lhs, lhs_batch, lhs_contract)
    b, b_free = _as_matrices(rhs, rhs_batch, rhs_contract)
    batch = tuple(lhs.shape[d] for d in lhs_batch)
    if a.shape[2] == 1 or a.shape[1] == b.shape[1] == 1:
        array = VECTOR  # no matmul, but products or a product of vectors
    (a, b), inverses = _stored((a, b), array)
    out = _rescaled(_accumulate(a, b, array), inverses)
    return out.reshape(batch + a_free + b_free)


def _as_matrices(
    x: np.ndarray, batch: Sequence[int], contract: Sequence[int]
) -> tuple[np.ndarray, tuple[int, ...]]:
    """x as [batch, free, K], and the shape of its free dimensions."""
    free = [d for d in range(x.ndim) if d not in (*batch, *contract)]
    shape = tuple(x.shape[d] for d in free)
    sizes = [math.prod(x.shape[d] for d in ds) for ds in (batch, free, contract)]
    return x.transpose([*batch, *free, *contract]).reshape(sizes), shape


def _stored(
    operands: Sequence[np.ndarray], array: Array
) -> tuple[list[np.ndarray], list[np.float32]]:
    """Operands in the array's formats, and what to multiply the result with."""
    stored, inverses = [], []
    for x, name in zip(operands, (array.lhs, array.rhs), strict=True):
        if array.scaled:
            scale, inverse = floats.power_of_two_scale(x, name)
            inverses.append(inverse)
            x = floats.multiply(x, scale)
        stored.append(floats.flush(x) if name == "fp32" else floats.round_to(x, name))
    return stored, inverses


def _rescaled(x: np.ndarray, inverses: Sequence[np.float32]) -> np.ndarray:
    """One after the other: that of lhs, then that of rhs."""
    for inverse in inverses:
        x = floats.multiply(x, inverse)
    return x


def _accumulate(lhs: np.ndarray, rhs: np.ndarray, array: Array) -> np.ndarray:
    """[batch, M, K] and [batch, N, K] to [batch, M, N], every zero of sums positive."""
    if array is VECTOR:
        terms = floats.multiply(lhs[:, :, None], rhs[:, None])
        return terms[..., 0] if terms.shape[-1] == 1 else reduction.reduce(terms, [3])
    if not lhs.shape[-1]:
        return np.zeros((*lhs.shape[:2], rhs.shape[1]), np.float32)
    paired = array.double_row and lhs.shape[-1] >= 2 * ROWS
    step = 2 * ROWS if paired else ROWS
    starts = range(0, lhs.shape[-1], step)
    tiles = [slice(start, start + step) for start in starts]
    fold = _paired_fold if paired else functools.partial(_grouped, array.group_rows)
    folds = (
        fold(a[..., tile], b[..., tile])
        for tile in tiles
        for a, b in _passes(lhs, rhs, array.passes)
    )
    return floats.positive_zeros(_psum(folds, array.psum))


def _psum(tiles: Iterator[np.ndarray], name: str) -> np.ndarray:
    """Adds tile results in order; a narrow PSUM rounds each time it is written."""
    if name == "fp32":
        return floats.left_fold(tiles)
    total = floats.round_to(next(tiles), name)
    for tile in tiles:
        total = floats.round_to(floats.add(total, tile), name)
    return total


def _passes(
    lhs: np.ndarray, rhs: np.ndarray, count: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    if count == 1:
        return [(lhs, rhs)]
    return list(itertools.product(floats.split(lhs), floats.split(rhs)))


def _factors(lhs: np.ndarray, rhs: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Per k, what broadcasts to the two factors of [batch, M, N] products."""
    return [(lhs[:, :, None, k], rhs[:, None, :, k]) for k in range(lhs.shape[-1])]


def _grouped(rows: int, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """The sums of so many rows each, added in order."""
    starts = range(0, lhs.shape[-1], rows)
    parts = (slice(start, start + rows) for start in starts)
    return floats.left_fold(_plain_fold(lhs[..., p], rhs[..., p]) for p in parts)


def _plain_fold(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Fused multiply-adds down the rows."""
    total: np.ndarray = np.zeros((), np.float32)
    for a, b in _factors(lhs, rhs):
        total = floats.fma(a, b, total)
    return total


def _paired_fold(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Each cell rounds the sum of its two exact products before the row's sum."""
    factors = _factors(lhs, rhs)
    nothing = (np.float32(0), np.float32(0))
    pairs = itertools.zip_longest(factors[:ROWS], factors[ROWS:], fillvalue=nothing)
    total: np.ndarray = np.zeros((), np.float32)
    for upper, lower in pairs:
        # Products of FP8 numbers are FP32 numbers.
        total = floats.add(total, floats.fma(*lower, floats.multiply(*upper)))
    return total


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window:
    """The window of a convolution over its spatial dimensions."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]


def convolution(
    image: np.ndarray,
    kernel: np.ndarray,
    window: Window,
    array: Array,
    *,
    feature_groups: int = 1,
) -> np.ndarray:
    """[N, C, *space] and [O, C / groups, *space] to [N, O, *space]."""
    (image, kernel), inverses = _stored((image, kernel), array)
    images = np.split(image, feature_groups, 1)
    kernels = np.split(kernel, feature_groups, 0)
    parts = [_convolve(i, k, window) for i, k in zip(images, kernels, strict=True)]
    shape = parts[0][2]
    lhs, rhs = (np.stack([part[n] for part in parts]) for n in (0, 1))
    out = _rescaled(_accumulate(lhs, rhs, array), inverses)  # [groups, N * space, O]
    out = out.reshape(len(parts), -1, *shape, out.shape[-1])
    out = np.moveaxis(out, -1, 2)
    return np.concatenate(list(out), axis=1)


def _convolve(
    image: np.ndarray, kernel: np.ndarray, window: Window
) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """The two operands [N * space, K] and [O, K], and the output's space."""
    padded = _pad(image, window)
    reach = [
        (k - 1) * d + 1
        for k, d in zip(kernel.shape[2:], window.rhs_dilation, strict=True)
    ]
    shape = tuple(
        (p - r) // s + 1
        for p, r, s in zip(padded.shape[2:], reach, window.strides, strict=True)
    )
    patches = [
        padded[(slice(None), slice(None), *at)]
        for at in _positions(kernel.shape[2:], shape, window)
    ]
    lhs = np.stack(patches, axis=1)  # [N, positions, C, *space]
    lhs = np.moveaxis(lhs, (1, 2), (-2, -1))
    k = math.prod(lhs.shape[-2:])
    rhs = np.moveaxis(kernel, 1, -1)  # [O, *positions, C]
    return lhs.reshape(-1, k), rhs.reshape(kernel.shape[0], k), shape


def _positions(
    kernel: Sequence[int], shape: Sequence[int], window: Window
) -> Iterator[list[slice]]:
    """Which elements meet each kernel position, in row-major order of positions."""
    for position in np.ndindex(*kernel):
        yield [
            slice(p * d, p * d + (n - 1) * s + 1, s)
            for p, d, n, s in zip(
                position, window.rhs_dilation, shape, window.strides, strict=True
            )
        ]


def _pad(image: np.ndarray, window: Window) -> np.ndarray:
    sizes = [
        (n - 1) * d + 1
        for n, d in zip(image.shape[2:], window.lhs_dilation, strict=True)
    ]
    dilated = np.zeros((*image.shape[:2], *sizes), np.float32)
    steps = [slice(None, None, d) for d in window.lhs_dilation]
    dilated[(slice(None), slice(None), *steps)] = image
    widths = [(max(low, 0), max(high, 0)) for low, high in window.padding]
    out = np.pad(dilated, [(0, 0), (0, 0), *widths])
    crops = [
        slice(max(-low, 0), size - max(-high, 0))
        for (low, high), size in zip(window.padding, out.shape[2:], strict=True)
    ]
    return out[(slice(None), slice(None), *crops)]


def input_gradient(
    cotangent: np.ndarray,
    kernel: np.ndarray,
    window: Window,
    array: Array,
    *,
    space: Sequence[int],
    feature_groups: int = 1,
) -> np.ndarray:
    """The cotangent, dilated by the strides, meets the reversed kernel."""
    groups = np.split(kernel, feature_groups, 0)
    swapped = np.concatenate([group.swapaxes(0, 1) for group in groups], axis=0)
    backward = swapped[(slice(None), slice(None), *_reversed(kernel.ndim - 2))]
    padding = []
    for axis, (low, _) in enumerate(window.padding):
        reach = (kernel.shape[2 + axis] - 1) * window.rhs_dilation[axis]
        length = (cotangent.shape[2 + axis] - 1) * window.strides[axis] + 1
        first = reach - low
        padding.append((first, space[axis] + reach - length - first))
    adjoint = Window(
        strides=(1,) * len(padding),
        padding=tuple(padding),
        lhs_dilation=window.strides,
        rhs_dilation=window.rhs_dilation,
    )
    return convolution(
        cotangent, backward, adjoint, array, feature_groups=feature_groups
    )


def _reversed(rank: int) -> list[slice]:
    return [slice(None, None, -1)] * rank


def kernel_gradient(
    image: np.ndarray,
    cotangent: np.ndarray,
    window: Window,
    array: Array,
    *,
    space: Sequence[int],
    feature_groups: int = 1,
) -> np.ndarray:
    """The image meets the cotangent, K being output positions and then the batch."""
    padding = []
    for axis, (low, _) in enumerate(window.padding):
        reach = (cotangent.shape[2 + axis] - 1) * window.strides[axis] + 1
        size = (space[axis] - 1) * window.rhs_dilation[axis] + reach
        padding.append((low, size - image.shape[2 + axis] - low))
    adjoint = Window(
        strides=window.rhs_dilation,
        padding=tuple(padding),
        lhs_dilation=(1,) * len(padding),
        rhs_dilation=window.strides,
    )
    parts = zip(
        np.split(image, feature_groups, 1),
        np.split(cotangent, feature_groups, 1),
        strict=True,
    )
    gradients = [
        convolution(i.swapaxes(0, 1), c.swapaxes(0, 1), adjoint, array)
        for i, c in parts
    ]
    return np.concatenate([g.swapaxes(0, 1) for g in gradients], axis=0)
