"""The systolic array's sum: a sequential FP32 fold down the cells of one K tile.

    total = 0
    for p in cells:
        s = a[p, 0] * b[p, 0];  for j in 1 .. J-1: s = s + a[p, j] * b[p, j]
        total = total + s

A cell holds one row of K (J = 1), two (double-row FP8) or four (MX). With one row per
cell the product enters the adder exactly, without rounding or limit of range, and only
the sum is rounded: a fused multiply-add, as in every host's matmul kernels. (What the
hardware does with products outside the range of FP32 is not documented.) With several
rows per cell every product is rounded, then every sum. A sum that is zero is +0.

`folded` is this loop in XLA, correct by construction on every device. Where the host
has compiled kernels, they compute the same bits many times faster (`tensor.contract`).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.errors import InternalError
from neuronjax.ir.instruction_set import NcMatmul
from neuronjax.numerics.exact import own_kernel, seal


class FoldOrder(NamedTuple):
    """The order in which the array adds up a contraction.

    Attributes:
        k_tile: the rows of K in one pass of the array.
        rows_per_cell: the rows of K that one cell holds, J.
        apart: True if the rows of a cell are `k_tile / J` apart (rows p and p +
            k_tile/2 in cell p); False if they are consecutive (rows J p to J p + J -
            1).
        passes: 1, or 4 for the high and low halves of FP32 operands.
        group_rows: the rows of a pass that are summed together, None for all; the sums
            of the groups are then added in order.
        in_range: True if every product of two finite nonzero operands is known to be a
            normal FP32 number, as products of unscaled FP8 are. Such a product is
            exact, so a fused multiply-add rounds as two operations do. If False, a
            kernel checks each tile.
    """

    k_tile: int
    rows_per_cell: int = 1
    apart: bool = False
    passes: int = 1
    group_rows: int | None = None
    in_range: bool = False

    @classmethod
    def of(cls, i: NcMatmul) -> FoldOrder:
        """Return the order that an instruction specifies."""
        double = i.rows_per_cell == 2
        return cls(
            i.k_tile,
            i.rows_per_cell,
            apart=double,
            passes=i.passes,
            group_rows=i.group_rows,
            in_range=double,
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Matrix:
    """A batch of matrices in either memory order.

    Attributes:
        array: [batch, K, free] if `k_first`, else [batch, free, K].
        k_first: whether K is the first axis of each matrix.
        scales: the E8M0 scales of blocks of 32 along K, in the same memory order; only
            for kernels of the host, which read operands as they are stored.
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
        """Return the matrix as [K, batch, free]."""
        return jnp.moveaxis(self.array, 1 if self.k_first else 2, 0)


#: Rows of K that one XLA kernel adds to the result, which stays in registers meanwhile.
#: Only speed depends on it: on a Zen 4, 16 are as fast as blocks that fit the cache.
ROWS_AT_ONCE = 16


@functools.partial(jax.jit, static_argnames="order")
def folded(lhs: Matrix, rhs: Matrix, order: FoldOrder, zero: jax.Array) -> jax.Array:
    """Return the fold of one pass of the array over all of K, float32 [batch, M, N].
    The operands are float32 numbers of at most 12 significant bits; `order` says which
    rows a cell holds."""
    # A +0 whose value the compiler does not know.
    start = lax.broadcast(lax.neg(zero), (lhs.batch, lhs.free, rhs.free))
    cells = (_by_cell(lhs, order), _by_cell(rhs, order))
    if order.rows_per_cell > 1:
        return _rounded(start, *cells, zero)
    # If all products are in range they are exact, and rounding them changes nothing.
    is_in_range = in_range(lhs.array, rhs.array)
    return lax.cond(is_in_range, _rounded, _exact, start, *cells, zero)


def _rounded(
    total: jax.Array, lhs: jax.Array, rhs: jax.Array, zero: jax.Array
) -> jax.Array:
    """Return `total` plus the sums of all cells, [cells, J, batch, free], in order."""
    width = max(1, ROWS_AT_ONCE // lhs.shape[1])
    whole = lhs.shape[0] // width * width
    groups = [x[:whole].reshape(-1, width, *x.shape[1:]) for x in (lhs, rhs)]
    # A separate kernel: if XLA fused the slices with it, it would read their indices
    # for every element and would not vectorize, which takes ten times as long.
    add = own_kernel(_add_cells)
    step = lambda total, group: (add(total, *group, zero), None)  # noqa: E731
    total = lax.scan(step, total, groups)[0]
    rest_rows = [x[whole:] for x in (lhs, rhs)]
    return add(total, *rest_rows, zero) if len(rest_rows[0]) else total


def _add_cells(
    total: jax.Array, lhs: jax.Array, rhs: jax.Array, zero: jax.Array
) -> jax.Array:
    for cell in range(lhs.shape[0]):
        products = [
            seal(a[:, :, None] * b[:, None, :], zero)
            for a, b in zip(lhs[cell], rhs[cell], strict=True)
        ]
        total = total + functools.reduce(lax.add, products)
    return total


def _exact(
    total: jax.Array, lhs: jax.Array, rhs: jax.Array, zero: jax.Array
) -> jax.Array:
    """Return `_rounded` for cells of one row, with products of any size."""

    def step(total: jax.Array, row: tuple) -> tuple[jax.Array, None]:
        a, b = row
        return fused(a[0][:, :, None], b[0][:, None, :], total, zero), None

    return lax.scan(step, total, (lhs, rhs))[0]


def _by_cell(x: Matrix, order: FoldOrder) -> jax.Array:
    """Return the rows of a matrix by cells, [cells, J, batch, free]."""
    j = order.rows_per_cell
    if x.k % j:
        raise InternalError(
            f"a K tile of {x.k} rows does not fill cells of {j} rows; pad K with zeros "
            f"to a multiple of {j}"
        )
    rows = x.rows()
    if order.apart:
        return jnp.moveaxis(rows.reshape(j, -1, *rows.shape[1:]), 0, 1)
    return rows.reshape(-1, j, *rows.shape[1:])


UP, DOWN = np.float32(2.0**60), np.float32(2.0**-60)
# A product that underflows can change only a total below SMALL.
SMALL = np.float32(2.0**-100)
LARGE = np.float32(2.0**100)


def fused(a: jax.Array, b: jax.Array, total: jax.Array, zero: jax.Array) -> jax.Array:
    """Return a * b + total, rounded once, whether or not the compiler contracts it.

    A product in range is exact; it is sealed and then added. If a product out of range
    can change the sum, `a` and `total` are first scaled by 2^60 or 2^-60.
    """
    plain = total + seal(a * b, zero)
    # Without the inner seal XLA might scale `b` instead of `a`: if `b` overflows and
    # `a` is zero, the product would be a NaN.
    low = total * UP + seal(seal(a * UP, zero) * b, zero)
    high = total * DOWN + seal(seal(a * DOWN, zero) * b, zero)
    # A product underflows only if |a| < 1, and overflows only if |a| > 1. A NaN may be
    # the difference of an infinite total and a product that overflowed.
    size, magnitude = jnp.abs(a), jnp.abs(plain)
    is_low = (jnp.abs(total) < SMALL) & (magnitude < SMALL) & (size < 1)
    is_high = ~(magnitude <= LARGE) & (size > 1)
    # A product beyond 2^188 overflows even when scaled; an infinite total stays.
    is_kept = jnp.isinf(total) & jnp.isfinite(a) & jnp.isfinite(b)
    high = jnp.where(is_kept, total, high * UP)
    return jnp.where(is_low, low * DOWN, jnp.where(is_high, high, plain))


def in_range(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Return whether every nonzero product is certainly finite and normal. If all
    magnitudes of an operand lie between 2^-(d+1) and 2^(d+1), products with an operand
    of distance d' lie within a factor 2^(d+d'+2) of one. Each `distance` is biased by
    127."""
    return distance(lhs) + distance(rhs) <= 126 - 2 + 2 * 127


def distance(x: jax.Array) -> jax.Array:
    """Return the largest biased exponent of the numbers and their reciprocals."""
    smallest, one, infinity = map(jnp.int32, (0x00800000, 0x3F800000, 0x7F800000))
    bits = lax.bitcast_convert_type(jnp.abs(x), jnp.int32)
    # Zeros and subnormals count as one, since their products are zero; NaN as infinite.
    bits = jnp.where(bits < smallest, one, jnp.minimum(bits, infinity))
    # 2 * one - bits is the code of the reciprocal, apart from its significand. The
    # maximum of floats is faster than that of integers.
    larger = jnp.maximum(bits, 2 * one - bits)
    farthest = lax.bitcast_convert_type(larger, jnp.float32).max()
    return lax.bitcast_convert_type(farthest, jnp.int32) >> 23
