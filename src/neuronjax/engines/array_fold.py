"""The systolic array's sum: a sequential FP32 fold down the rows of one K tile.

    acc = 0;  for k in range(K): acc = acc + lhs[m, k] * rhs[k, n]

The product enters the adder exact, with no rounding and no limit of range, and the sum is
rounded once: a fused multiply-add, as in every host's matmul kernels. (What the hardware
does with products outside FP32's range is not documented.) A zero sum is +0. Two ways:

- `scanned`: a `lax.scan` over k of a fused multiply-add that is spelled out. Right by
  construction, everywhere.
- `pinned`: XLA's dot with row-major layouts pinned on both operands and the result and
  the columns padded to a multiple of 64. As fast as XLA, and this very fold on the
  shapes where that was verified; see `dot_verdicts`.

All take lhs [batch, M, K] and rhs [batch, K, N], float32, of 12 significant bits or
fewer: their products are exact in FP32 while they are in its range.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from neuronjax.numerics.exact import seal

# Columns of the pinned dot: a multiple of the widest register block of the host's
# matmul kernels, so that no remainder kernel with another order is used.
COLUMN_MULTIPLE = 64


def scanned(lhs: jax.Array, rhs: jax.Array, zero: jax.Array) -> jax.Array:
    """The fold as a scan over k."""
    products = (jnp.moveaxis(lhs, 2, 0), jnp.moveaxis(rhs, 1, 0))

    def step(total: jax.Array, row: tuple) -> tuple[jax.Array, None]:
        a, b = row
        return fused(a[:, :, None], b[:, None, :], total, zero), None

    shape = (lhs.shape[0], lhs.shape[1], rhs.shape[2])
    return lax.scan(step, jnp.zeros(shape, jnp.float32), products)[0]


UP, DOWN = np.float32(2.0**60), np.float32(2.0**-60)
# Below, a product that underflows may still change the total; above, it is lost.
SMALL = np.float32(2.0**-100)
LARGE = np.float32(2.0**100)


def fused(a: jax.Array, b: jax.Array, total: jax.Array, zero: jax.Array) -> jax.Array:
    """a * b + total, rounded once, whether or not the compiler contracts it.

    A product in range is exact, and sealed it is added. One outside is taken 2^60 times
    larger or smaller, together with the total, where the total is small or large enough
    to matter; where it is not, it is lost in the product or the product in it.
    """
    plain = total + seal(a * b, zero)
    low = total * UP + seal((a * UP) * b, zero)
    high = total * DOWN + seal((a * DOWN) * b, zero)
    # A product underflows only if |a| < 1, and overflows only if |a| > 1. A NaN may be
    # the difference of an infinite total and a product that overflowed.
    size, magnitude = jnp.abs(a), jnp.abs(plain)
    is_low = (jnp.abs(total) < SMALL) & (magnitude < SMALL) & (size < 1)
    is_high = ~(magnitude <= LARGE) & (size > 1)
    return jnp.where(is_low, low * DOWN, jnp.where(is_high, high * UP, plain))


def scanned_pairs(lhs: jax.Array, rhs: jax.Array, zero: jax.Array) -> jax.Array:
    """Double-row: cell p adds the products of rows p and p + K/2 first, in FP32.

    The operands are FP8, whose products are far inside FP32's range.
    """
    half = lhs.shape[2] // 2
    a = jnp.moveaxis(lhs, 2, 0)
    b = jnp.moveaxis(rhs, 1, 0)
    rows = (a[:half], b[:half], a[half:], b[half:])

    def step(total: jax.Array, row: tuple) -> tuple[jax.Array, None]:
        a0, b0, a1, b1 = row
        return total + (_outer(a0, b0, zero) + _outer(a1, b1, zero)), None

    shape = (lhs.shape[0], lhs.shape[1], rhs.shape[2])
    return lax.scan(step, jnp.zeros(shape, jnp.float32), rows)[0]


def _outer(a: jax.Array, b: jax.Array, zero: jax.Array) -> jax.Array:
    return seal(a[:, :, None] * b[:, None, :], zero)


def pinned(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """XLA's dot with pinned layouts; the narrower side becomes the columns' padding."""
    if _padded(lhs.shape[1]) * rhs.shape[2] < _padded(rhs.shape[2]) * lhs.shape[1]:
        swapped = _pinned(jnp.swapaxes(rhs, 1, 2), jnp.swapaxes(lhs, 1, 2))
        return jnp.swapaxes(swapped, 1, 2)
    return _pinned(lhs, rhs)


def _pinned(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    columns = rhs.shape[2]
    if _padded(columns) != columns:
        rhs = jnp.pad(rhs, ((0, 0), (0, 0), (0, _padded(columns) - columns)))
    if lhs.shape[0] == 1:
        numbers = (((1,), (0,)), ((), ()))
        out = lax.dot_general(_row_major(lhs[0]), _row_major(rhs[0]), numbers)
        out = _row_major(out)[None]
    else:
        numbers = (((2,), (1,)), ((0,), (0,)))
        out = lax.dot_general(_row_major(lhs), _row_major(rhs), numbers)
        out = _row_major(out)
    return out if out.shape[2] == columns else out[:, :, :columns]


def pinned_shape(lhs: tuple[int, ...], rhs: tuple[int, ...]) -> tuple[int, int, int, int]:
    """The (batch, M, K, N) of the dot that `pinned` issues for these shapes."""
    batch, m, k = lhs
    n = rhs[2]
    if _padded(m) * n < _padded(n) * m:
        m, n = n, m
    return (batch, m, k, _padded(n))


def _padded(columns: int) -> int:
    return -(-columns // COLUMN_MULTIPLE) * COLUMN_MULTIPLE


def _row_major(x: jax.Array) -> jax.Array:
    layout = Layout(major_to_minor=tuple(range(x.ndim)))
    return with_layout_constraint(x, layout)
