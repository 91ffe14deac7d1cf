"""TensorE: one K tile, folded down the partitions, added to PSUM.

The folds are those of `engines`: a left fold in FP32 down the rows, four passes of
halves by 32 rows for FP32 operands, and pairs of rows in a cell for double-row mode.
"""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.execution.engines.array_fold import FoldOrder, Matrix
from neuronjax.execution.engines.tensor import Psum, accumulate, through_identity
from neuronjax.execution.tiles.registry import (
    Bits,
    Operands,
    OperandView,
    Results,
    Signature,
    TileContext,
    executes,
)
from neuronjax.execution.tiles.rounding import wide
from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.instruction_set import FP32_ROWS
from neuronjax.numerics.float_format import get_format


@executes("nc_matmul")
def nc_matmul(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return what PSUM holds after stationary.T @ moving."""
    stationary, moving = x
    exact = "exact_transpose" in c.core.capabilities
    if i.attributes["is_transpose"] and exact:
        return (_passed_through(stationary, moving, i.outputs[0]),)
    # In double-row mode a cell holds both rows of its partition.
    rows = i.attributes["rows_per_cell"]
    left, right = (_matrix(wide(v), rows) for v in x)
    order = FoldOrder(left.k, rows_per_cell=rows, in_range=rows == 2)
    if any(v is not None and v.dtype == "float32" for v in i.inputs):
        order = FoldOrder(left.k, passes=4, group_rows=FP32_ROWS)
    return summed(i, left, right, order, c)


def summed(
    i: Signature, left: Matrix, right: Matrix, order: FoldOrder, c: TileContext
) -> Results:
    """Return the array's results, added to the contents of PSUM if `i` reads them."""
    held = (wide(x).reshape(1, left.free, right.free) for x in c.previous)
    result = i.outputs[0]
    narrow = None if result.dtype == "float32" else get_format(result.dtype)
    psum = Psum(c.zero, c.key, c.rounding, narrow)
    return (accumulate(left, right, order, psum, *held).reshape(result.shape),)


def _matrix(x: jax.Array, rows: int = 1) -> Matrix:
    return Matrix(x.reshape(1, rows * x.shape[0], -1), k_first=True)


def _passed_through(
    stationary: jax.Array, moving: jax.Array, result: OperandView
) -> Bits:
    """Return the bits of the stationary row that each column of `moving` selects."""
    k = stationary.shape[0]
    word = dtypes.info(result.dtype).carrier
    rows = stationary.reshape(k, -1)
    if rows.dtype.itemsize != word.itemsize:
        raise TypeError("a transpose needs operands and results of equal width")
    bits = rows if rows.dtype == word else lax.bitcast_convert_type(rows, word)
    ones = moving.reshape(k, -1) != 0
    # A column's first one is the maximum of falling counts. For a constant, such as an
    # identity matrix, XLA folds a maximum in a tenth of an argmax's time.
    down = jnp.arange(k, 0, -1, dtype=jnp.int32)
    left = jnp.where(ones, down[:, None], 0).max(axis=0)
    taken = jnp.take(bits, k - left, axis=0, mode="clip")
    nothing = jnp.zeros((), word)
    return Bits(jnp.where((left > 0)[:, None], taken, nothing).T)


@executes("nc_transpose")
def nc_transpose(i: Signature, x: Operands, c: TileContext) -> Results:
    """Transpose bits; a core that cannot do so multiplies by the identity."""
    data = x[0].reshape(x[0].shape[0], prod(x[0].shape[1:]))
    exact = i.engine != "tensor" or "exact_transpose" in c.core.capabilities
    if exact or data.dtype.kind in "iu":
        return (Bits(data.T),)
    return (through_identity(_matrix(wide(data)), c.zero)[0],)
