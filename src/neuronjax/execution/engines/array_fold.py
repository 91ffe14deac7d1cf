"""The systolic array's sum: a sequential FP32 fold down the rows of one K tile.

    acc = 0;  for k in range(K): acc = acc + lhs[m, k] * rhs[k, n]

The product enters the adder exact, with no rounding and no limit of range, and the sum
is rounded once: a fused multiply-add, as in every host's matmul kernels. (What the
hardware does with products outside FP32's range is not documented.) A zero sum is +0.
Two ways:

- `scanned`: a `lax.scan` over k of a fused multiply-add that is spelled out. Right by
  construction, everywhere.
- `pinned`: XLA's dot with row-major layouts pinned on both operands and the result and
  the columns padded to a multiple of 64. As fast as XLA, and this very fold on the
  shapes where that was verified; see `dot_verdicts`.

Both take a pair of `Matrix`, float32, of 12 significant bits or fewer: their products
are exact in FP32 while they are in its range. The result is [batch, M, N].
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from neuronjax.numerics.exact import seal
from neuronjax.numerics.portable import of_this_host

# Columns of the pinned dot: a multiple of the widest register block of the host's
# matmul kernels, so that no remainder kernel with another order is used.
COLUMN_MULTIPLE = 64


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Matrix:
    """A batch of operands in the memory order they have.

    Attributes:
        array: [batch, K, free] if `k_first`, else [batch, free, K].
        k_first: which.
        scales: of blocks of 32 along K, E8M0, in the same order; for kernels of the
            host's, which read operands as stored.
    """

    array: jax.Array
    k_first: bool = dataclasses.field(metadata=dict(static=True))
    scales: jax.Array | None = None

    @property
    def batch(self) -> int:
        return self.array.shape[0]

    @property
    def k(self) -> int:
        return self.array.shape[1 if self.k_first else 2]

    @property
    def free(self) -> int:
        return self.array.shape[2 if self.k_first else 1]

    def rows(self) -> jax.Array:
        """The matrix as [K, batch, free]."""
        return jnp.moveaxis(self.array, 1 if self.k_first else 2, 0)


def scanned(lhs: Matrix, rhs: Matrix, zero: jax.Array) -> jax.Array:
    """The fold as a scan over k."""
    products = (lhs.rows(), rhs.rows())

    def step(total: jax.Array, row: tuple) -> tuple[jax.Array, None]:
        a, b = row
        return fused(a[:, :, None], b[:, None, :], total, zero), None

    shape = (lhs.batch, lhs.free, rhs.free)
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
    # Sealed, for XLA would scale `b` instead where that is the shorter of the two, and
    # zero times what has overflowed is a NaN.
    low = total * UP + seal(seal(a * UP, zero) * b, zero)
    high = total * DOWN + seal(seal(a * DOWN, zero) * b, zero)
    # A product underflows only if |a| < 1, and overflows only if |a| > 1. A NaN may be
    # the difference of an infinite total and a product that overflowed.
    size, magnitude = jnp.abs(a), jnp.abs(plain)
    is_low = (jnp.abs(total) < SMALL) & (magnitude < SMALL) & (size < 1)
    is_high = ~(magnitude <= LARGE) & (size > 1)
    # Beyond 2^188 a product overflows made smaller, too: it is none of an infinite
    # total's business.
    is_kept = jnp.isinf(total) & jnp.isfinite(a) & jnp.isfinite(b)
    high = jnp.where(is_kept, total, high * UP)
    return jnp.where(is_low, low * DOWN, jnp.where(is_high, high, plain))


def pinned(lhs: Matrix, rhs: Matrix) -> jax.Array:
    """XLA's dot with pinned layouts and padded columns."""
    if narrower_as_columns(lhs.free, rhs.free):
        return jnp.swapaxes(_pinned(rhs, lhs), 1, 2)
    return _pinned(lhs, rhs)


def _pinned(lhs: Matrix, rhs: Matrix) -> jax.Array:
    if lhs.free == 1 and not rhs.k_first:
        # A single row against rows would be another kernel, with sums of its own order.
        lhs = Matrix(
            jnp.concatenate([lhs.array] * 2, 2 if lhs.k_first else 1), lhs.k_first
        )
        return _pinned(lhs, rhs)[:, :1]
    columns = rhs.free
    missing = padded(columns) - columns
    b = rhs.array
    if missing:
        config = ((0, 0), (0, 0), (0, missing))
        b = jnp.pad(b, config if rhs.k_first else (config[0], config[2], config[1]))
    a_contract, b_contract = (1 if m.k_first else 2 for m in (lhs, rhs))
    numbers = (((a_contract,), (b_contract,)), ((0,), (0,)))
    a = lhs.array
    if lhs.batch == 1:
        a, b = a[0], b[0]
        numbers = (((a_contract - 1,), (b_contract - 1,)), ((), ()))
    out = _row_major(lax.dot_general(_row_major(a), _row_major(b), numbers))
    out = out.reshape(lhs.batch, lhs.free, columns + missing)
    return out[:, :, :columns] if missing else out


def narrower_as_columns(m: int, n: int) -> bool:
    """Whether the transposed product pads so much less that it is worth a transpose."""
    return 2 * padded(m) * n < padded(n) * m


def padded(columns: int) -> int:
    """The number of columns that the pinned dot computes."""
    return -(-columns // COLUMN_MULTIPLE) * COLUMN_MULTIPLE


def _row_major(x: jax.Array) -> jax.Array:
    layout = Layout(major_to_minor=tuple(range(x.ndim)))
    return with_layout_constraint(of_this_host(x), layout)
