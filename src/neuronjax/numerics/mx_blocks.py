"""Arrays whose axis of length K is two, of ceil(K / size) blocks and `size` elements.

Counted from the end, the second keeps the number of the axis.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def blocked(x: jax.Array, axis: int, size: int) -> jax.Array:
    """Splits an axis into blocks, the last filled up with zeros."""
    length = x.shape[axis]
    blocks = -(-length // size)
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, blocks * size - length)
    return jnp.pad(x, padding).reshape(replaced(x.shape, axis, blocks, size))


def unblocked(blocks: jax.Array, shape: tuple[int, ...], axis: int) -> jax.Array:
    """The inverse of `blocked`, for an array of this shape."""
    padded = blocks.shape[axis - 1] * blocks.shape[axis]
    flat = blocks.reshape(replaced(shape, axis, padded))
    return lax.slice_in_dim(flat, 0, shape[axis], axis=axis)


def replaced(shape: tuple[int, ...], axis: int, *sizes: int) -> tuple[int, ...]:
    """A shape with other sizes in the place of one axis."""
    index = len(shape) + axis
    return (*shape[:index], *sizes, *shape[index + 1 :])
