"""DMA and on-chip movement, which change no bit of a value."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.engines.dispatch import (
    Arrays,
    Registers,
    bits_of,
    execute,
    write,
)
from neuronjax.execution.engines.tensor import has_host_kernels
from neuronjax.ir.instruction_set import (
    BitcastCopy,
    DmaCopy,
    Im2col,
    Iota,
    LocalGather,
    Memset,
    Window,
)
from neuronjax.numerics.exact import opaque, own_kernel


def clamped_starts(
    starts: Sequence[jax.Array], shape: tuple[int, ...], sizes: tuple[int, ...]
) -> list[jax.Array]:
    """Return starts clamped so that the window fits, as StableHLO says. JAX's `lax`
    would instead count negative starts from the end."""
    return [
        lax.clamp(jnp.int32(0), as_int32(s), jnp.int32(n - m))
        for s, n, m in zip(starts, shape, sizes, strict=True)
    ]


def as_int32(indices: jax.Array) -> jax.Array:
    """Return indices of any integer dtype as int32, clipped to its range. No dimension
    is as long as 2^31 - 1, so a clipped index is never a legal one."""
    ends = jnp.iinfo(indices.dtype)
    low, high = max(ends.min, -(2**31)), min(ends.max, 2**31 - 1)
    bounds = (jnp.asarray(end, indices.dtype) for end in (low, high))
    return jnp.clip(indices, *bounds).astype(jnp.int32)


def index_vectors_last(indices: jax.Array, dimension: int) -> jax.Array:
    """Return indices with the index vector as the last axis, as `lax` expects.
    If StableHLO omits the axis, `dimension` is the rank of `indices`."""
    if dimension == indices.ndim:
        return indices[..., None]
    return jnp.moveaxis(indices, dimension, -1)


COPIES: dict[str, Callable[[DmaCopy, Sequence[jax.Array]], jax.Array]] = {
    "broadcast": lambda i, x: lax.broadcast_in_dim(
        x[0], i.results[0].type.shape, i.parameters[0]
    ),
    "reshape": lambda i, x: lax.reshape(x[0], i.results[0].type.shape),
    "transpose": lambda i, x: lax.transpose(x[0], i.parameters[0]),
    "slice": lambda i, x: lax.slice(x[0], *i.parameters),
    "pad": lambda i, x: lax.pad(x[0], x[1], list(zip(*i.parameters, strict=True))),
    "concatenate": lambda i, x: lax.concatenate(list(x), i.parameters[0][0]),
    "reverse": lambda i, x: lax.rev(x[0], i.parameters[0]),
    "dynamic_slice": lambda i, x: lax.dynamic_slice(
        x[0], clamped_starts(x[1:], x[0].shape, i.parameters[0]), i.parameters[0]
    ),
    "dynamic_update_slice": lambda i, x: lax.dynamic_update_slice(
        x[0], x[1], clamped_starts(x[2:], x[0].shape, x[1].shape)
    ),
}


@execute.register
def dma_copy(i: DmaCopy, x: Sequence[jax.Array], r: Registers) -> Arrays:
    return (COPIES[i.kind](i, x),)


@execute.register
def memset(i: Memset, x: Sequence[jax.Array], r: Registers) -> Arrays:
    value = i.value
    if value.size > 1 and (value == value.flat[0]).all():
        one = _constant(value.reshape(-1)[:1].reshape(()), r)
        return (lax.broadcast(one, value.shape),)
    return (_constant(value, r),)


def _constant(value: np.ndarray, r: Registers) -> jax.Array:
    array = jnp.asarray(value)
    return array if value.dtype.kind in "iub" else opaque(array, r.zero)


@execute.register
def iota(i: Iota, x: Sequence[jax.Array], r: Registers) -> Arrays:
    dtype, shape = i.results[0].type.dtype, i.results[0].type.shape
    if dtype.kind in "iu":
        return (lax.broadcasted_iota(dtype, shape, i.dimension),)
    floats = lax.broadcasted_iota(jnp.float32, shape, i.dimension)
    return (floats if dtype == jnp.float32 else write(floats, i, r),)


@execute.register
def bitcast_copy(i: BitcastCopy, x: Sequence[jax.Array], r: Registers) -> Arrays:
    return (lax.bitcast_convert_type(x[0], i.results[0].type.dtype),)


@execute.register
def local_gather(i: LocalGather, x: Sequence[jax.Array], r: Registers) -> Arrays:
    numbers = dict(i.dimension_numbers)
    operand, indices = x
    result = i.results[0].type
    if not prod(result.shape):
        return (jnp.zeros(result.shape, result.dtype),)
    indices = index_vectors_last(as_int32(indices), numbers.pop("index_vector_dim"))
    dimensions = lax.GatherDimensionNumbers(**numbers)
    out = lax.gather(
        operand,
        indices,
        dimensions,
        i.slice_sizes,
        # Emits the plain StableHLO gather, which clamps.
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )
    return (out,)


def dilated_and_padded(x: jax.Array, window: Window, fill: jax.Array) -> jax.Array:
    """Return the array that a window slides over: dilated, then padded or cropped."""
    return lax.pad(x, fill, _dilation_and_padding(window))


def _dilation_and_padding(window: Window) -> list[tuple[int, int, int]]:
    pairs = zip(window.padding, window.base_dilations, strict=True)
    return [(low, high, dilation - 1) for (low, high), dilation in pairs]


def window_counts(shape: tuple[int, ...], window: Window) -> tuple[int, ...]:
    """Return the number of windows along each dimension of a padded array."""
    return tuple(
        max((n - ((size - 1) * dilation + 1)) // stride + 1, 0)
        for n, size, dilation, stride in zip(
            shape, window.sizes, window.window_dilations, window.strides, strict=True
        )
    )


def window_positions(window: Window) -> list[tuple[int, ...]]:
    """Return the positions inside a window, in row-major order."""
    return list(itertools.product(*map(range, window.sizes)))


@execute.register
def im2col(i: Im2col, x: Sequence[jax.Array], r: Registers) -> Arrays:
    """Return the patches of a convolution; groups are part of the batch. The patches
    are moved as integers: XLA widens floats of fewer than 32 bits when it moves them,
    which changes the bits of a NaN."""
    window, (groups, batch, *spatial, channels) = i.window, x[0].shape
    dtype, is_float = x[0].dtype, x[0].dtype.kind not in "iub"
    rows = bits_of(x[0]) if is_float else x[0]
    rows = lax.reshape(rows, (groups * batch, *spatial, channels))
    none, fill = (0, 0, 0), jnp.zeros((), rows.dtype)
    base = lax.pad(rows, fill, [none, *_dilation_and_padding(window), none])
    counts = window_counts(base.shape[1:-1], window)
    positions = prod(window.sizes)
    copies = jax.dtypes.itemsize_bits(base.dtype) >= 8 and len(counts) <= 3
    if positions == prod(window.strides) == 1:
        patches = base
    elif copies and has_host_kernels():
        from neuronjax.execution.host_kernels.patches import copied  # needs llvmlite

        patches = copied(base, window, counts)
    else:
        gather = functools.partial(_gathered, window=window, counts=counts)
        patches = own_kernel(gather)(base)
    shape = (groups, batch * prod(counts), positions * channels)
    out = lax.reshape(patches, shape)
    return (lax.bitcast_convert_type(out, dtype) if is_float else out,)


def _gathered(out: jax.Array, window: Window, counts: tuple[int, ...]) -> jax.Array:
    """Return the windows of an array: [outer, *counts, *window.sizes, channels]."""
    steps = zip(
        counts, window.strides, window.sizes, window.window_dilations, strict=True
    )
    for d, (count, stride, size, dilation) in enumerate(steps):
        places = np.arange(count)[:, None] * stride + np.arange(size) * dilation
        out = jnp.take(out, places.astype(np.int32), axis=1 + 2 * d, mode="clip")
    last = out.ndim - 1
    return lax.transpose(out, (0, *range(1, last, 2), *range(2, last, 2), last))
