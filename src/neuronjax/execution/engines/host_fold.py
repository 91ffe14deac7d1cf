"""The systolic array's sums by kernels compiled for the host's processor.

The same sums as `array_fold.scanned` and `cell_fold`, bit for bit, for a CPU that
`host_kernels` has code for: in the order that design, section 5 states by construction,
with nothing for XLA to rewrite or to verify, and as one operation of the program
where the others are hundreds. They read BF16 and FP8 as stored, and operands in any
memory order. Elsewhere, on an accelerator, without llvmlite, in `exportable` or with
NEURONJAX_HOST_KERNELS=0 in the environment, the others are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from neuronjax.execution.engines.array_fold import Matrix
from neuronjax.execution.engines.cells import Cells
from neuronjax.execution.host_kernels.plan import BOUNDED_RULES, FoldShape, Stored
from neuronjax.ir.instruction_set import QuantizeMx
from neuronjax.numerics.float_format import FLOAT8_E8M0FNU, get_format
from neuronjax.numerics.host_kernels import choice
from neuronjax.numerics.microscaling import get_mx_format
from neuronjax.numerics.widening import from_codes, widen_finite

# Columns from which on a result is not worth transposing to have more.
FEW_COLUMNS = 32
#: Rows of a pass, of which a kernel has panels in memory; longer sums are rare.
MOST_ROWS = 1 << 14


def usable(rows: int = 0) -> bool:
    """Whether programs traced now run where there are kernels, for passes so long."""
    on_cpu = jax.default_backend() == "cpu"
    return rows <= MOST_ROWS and on_cpu and choice.usable()


def contract(
    lhs: Matrix,
    rhs: Matrix,
    k_tile: int,
    *,
    rows_per_cell: int = 1,
    passes: int = 1,
    group_rows: int | None = None,
    in_range: bool = False,
    settles: bool = False,
) -> jax.Array:
    """The tiles' sums, added in order, float32 [batch, M, N].

    Args:
        lhs: of any float format, with or without scales; of 12 significant bits or
            fewer but for four passes.
        rhs: the same; batch and K are those of `lhs`.
        k_tile: rows of one pass of the array.
        rows_per_cell: 1; 2, rows p and p + k_tile/2 in cell p; 4, 4p .. 4p+3.
        passes: 4 of high and low halves, added in the order hi.hi, hi.lo, lo.hi, lo.lo.
        group_rows: rows that make a sum of a pass, their sums added up in order.
        in_range: as in `cell_fold.fold_cells`.
        settles: whether zeros are +0 and NaNs have one bit pattern, as from PSUM.
    """
    if lhs.free > rhs.free and rhs.free < FEW_COLUMNS and passes == 1:
        options: dict[str, Any] = dict(
            rows_per_cell=rows_per_cell,
            group_rows=group_rows,
            in_range=in_range,
            settles=settles,
        )
        out = contract(rhs, lhs, k_tile, **options)
        return jnp.swapaxes(out, 1, 2)
    cells, strides = {
        1: (min(k_tile, lhs.k), (1, 1)),
        2: (min(k_tile // 2, lhs.k), (1, k_tile // 2)),
        4: (-(-min(k_tile, lhs.k) // 4), (4, 1)),
    }[rows_per_cell]
    (a, a_stored), (b, b_stored) = _stored(lhs), _stored(rhs)
    scales = [x.scales for x in (lhs, rhs) if x.scales is not None]
    return _fold(
        (a, b, *scales),
        (a_stored, b_stored),
        sizes=(lhs.batch, lhs.free, rhs.free, lhs.k),
        k_tile=k_tile,
        cells=cells,
        group=group_rows or max(cells, 1),
        strides=strides,
        rows_per_cell=rows_per_cell,
        passes=passes,
        in_range=in_range,
        settles=settles,
    )


def fold_cells(lhs: Cells, rhs: Cells, *, in_range: bool) -> jax.Array:
    """`cell_fold.fold_cells` of one tile."""
    if lhs.free > rhs.free and rhs.free < FEW_COLUMNS:
        return jnp.swapaxes(fold_cells(rhs, lhs, in_range=in_range), 1, 2)
    k = lhs.cells * lhs.rows
    between = (1, lhs.cells) if lhs.rows_first else (lhs.rows, 1)
    return _fold(
        (lhs.array, rhs.array),
        (Stored(lhs.free, 1), Stored(rhs.free, 1)),
        sizes=(lhs.batch, lhs.free, rhs.free, k),
        k_tile=k,
        cells=lhs.cells,
        group=max(lhs.cells, 1),
        strides=between,
        rows_per_cell=lhs.rows,
        passes=1,
        in_range=in_range,
        settles=False,
    )


def quantizes(i: QuantizeMx) -> bool:
    """Whether a kernel does what an instruction says."""
    return i.scale_rule in BOUNDED_RULES and i.rounding == "rne"


def quantize(i: QuantizeMx, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Elements and scales of an array of any float format."""
    from neuronjax.execution.host_kernels.quantize import quantize  # it needs llvmlite

    if x.dtype not in (jnp.float32, jnp.bfloat16):
        x = widen_finite(x)
    element = get_mx_format(i.format).element
    codes, scales = quantize(x, i.axis, element.name, i.scale_rule)
    return from_codes(codes, element), from_codes(scales, FLOAT8_E8M0FNU)


def _fold(
    arrays: Sequence[jax.Array],
    layouts: tuple[Stored, Stored],
    *,
    sizes: tuple[int, int, int, int],
    strides: tuple[int, int],
    **options: Any,
) -> jax.Array:
    from neuronjax.execution.host_kernels.fold import fold  # it needs llvmlite

    if 0 in sizes:
        return jnp.zeros(sizes[:3], jnp.float32)
    cell_stride, row_stride = strides
    shape = FoldShape(*sizes, cell_stride=cell_stride, row_stride=row_stride, **options)
    return fold(arrays, *layouts, shape)


def _stored(x: Matrix) -> tuple[jax.Array, Stored]:
    """An array that a kernel reads, and how it lies in memory."""
    k, free = (x.free, 1) if x.k_first else (1, x.k)
    layout = Stored(k, free)
    if x.scales is not None:
        blocks = x.scales.shape[1 if x.k_first else 2]
        scale_k, scale_free = (x.free, 1) if x.k_first else (1, blocks)
        layout = layout._replace(scale_k=scale_k, scale_free=scale_free)
    dtype = x.array.dtype
    if dtype in (jnp.float32, jnp.bfloat16):
        return x.array, layout._replace(dtype=dtype.name)
    width = get_format(dtype).width
    if width == 8:
        return x.array, layout._replace(dtype="table", format=dtype.name)
    if width < 8:  # in memory it is not always a byte
        return x.array.astype(jnp.bfloat16), layout._replace(dtype="bfloat16")
    return widen_finite(x.array), layout
