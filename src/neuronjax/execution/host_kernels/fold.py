"""A contraction by a kernel of this processor: how the work is cut up, and the call."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.execution.engines.array_fold import FoldOrder, Matrix
from neuronjax.execution.host_kernels import fold_kernel
from neuronjax.execution.host_kernels.fold_kernel import (
    FOLD_FIELDS,
    FoldKind,
    RegisterTile,
)
from neuronjax.numerics.float_format import FORMATS, get_format
from neuronjax.numerics.host_kernels import compiled
from neuronjax.numerics.host_kernels.handler import called, threads, words
from neuronjax.numerics.widening import widen_finite

#: With fewer multiply-adds, waking another thread takes longer than it saves.
FEW = 1 << 19
#: Largest rows and columns of a block: its operands of one pass fit a second-level
#: cache, and packing them takes little time compared with multiplying them.
BLOCK_M, BLOCK_N = 384, 512
#: Approximate number of floats in a thread's panels; deeper panels are narrower.
PANELS = 1 << 20
#: Up to this many rows are computed one by one, each over more columns at a time.
NARROW = 2


def fold(
    lhs: Matrix,
    rhs: Matrix,
    order: FoldOrder,
    canonical: bool,
    start: jax.Array | None = None,
) -> jax.Array:
    """Return the result of `tensor.contract` for operands that are not empty."""
    sides = [_readable(x) for x in (lhs, rhs)]
    names = [x.array.dtype.name for x in sides]
    stored = [n if n in ("float32", "bfloat16") else "table" for n in names]
    kind = FoldKind(
        lhs=stored[0],
        rhs=stored[1],
        rows_per_cell=order.rows_per_cell,
        passes=order.passes,
        in_range=order.in_range,
        narrow=lhs.free <= NARROW,
        lhs_scaled=lhs.scales is not None,
        rhs_scaled=rhs.scales is not None,
        started=start is not None,
    )
    registers = fold_kernel.register_tile(kind, compiled.lanes())
    write = functools.partial(fold_kernel.write, kind=kind, registers=registers)
    result = jax.ShapeDtypeStruct((lhs.batch, lhs.free, rhs.free), jnp.float32)
    plan = _plan(sides[0], sides[1], order, canonical, registers)
    # JAX keeps a reference to `again`, so it must hold no arrays.
    arrays, structure = jax.tree.flatten((*sides, start))

    def again(*arrays: jax.Array) -> jax.Array:
        left, right, first = structure.unflatten(arrays)
        return fold(left, right, order, canonical, first)

    pairs = zip(names, stored, strict=True)
    tables = [_table(name) for name, how in pairs if how == "table"]
    return called(kind.name, write, result, plan, again, *arrays, tables=tables)


def _readable(x: Matrix) -> Matrix:
    array = x.array
    if array.dtype in (jnp.float32, jnp.bfloat16):
        return x
    width = get_format(array.dtype).width
    if width < 8:  # an element does not always take a byte of memory
        array = array.astype(jnp.bfloat16)
    elif width > 8:
        array = widen_finite(array)
    return Matrix(array, x.k_first, x.scales)


@functools.cache
def _table(name: str) -> np.ndarray:
    return np.arange(256, dtype=np.uint8).view(FORMATS[name].dtype).astype(np.float32)


def _plan(
    lhs: Matrix, rhs: Matrix, order: FoldOrder, canonical: bool, registers: RegisterTile
) -> np.ndarray:
    batch, m, n, k = lhs.batch, lhs.free, rhs.free, lhs.k
    k_tile, j = order.k_tile, order.rows_per_cell
    if order.apart:
        cells, strides = min(k_tile // j, k), (1, k_tile // j)
    else:
        cells, strides = -(-min(k_tile, k) // j), (j, 1)
    available = threads() if batch * m * n * k * order.passes > FEW else 1
    depth = cells * j * (2 if order.passes == 4 else 1)
    fitting = max(1, PANELS // depth)
    block_m = _part(m, min(BLOCK_M, fitting), registers.rows)
    block_n = _part(n, min(BLOCK_N, fitting), registers.columns)
    if batch * -(-m // block_m) * -(-n // block_n) < available:
        block_n = _part(n, -(-n // available), registers.columns)
    blocks_m, blocks_n = -(-m // block_m), -(-n // block_n)
    plan = dict(
        m=m,
        n=n,
        k=k,
        k_tile=k_tile,
        tiles=-(-k // k_tile),
        cells=cells,
        group=order.group_rows or cells,
        cell_stride=strides[0],
        row_stride=strides[1],
        canonical=canonical,
        **_strides("lhs", lhs.array, lhs.k_first),
        **_strides("lhs_scale", lhs.scales, lhs.k_first),
        **_strides("rhs", rhs.array, rhs.k_first),
        **_strides("rhs_scale", rhs.scales, rhs.k_first),
        block_m=block_m,
        block_n=block_n,
        blocks_m=blocks_m,
        blocks_n=blocks_n,
    )
    scratch = fold_kernel.scratch_bytes(registers, depth, (block_m, block_n))
    numbers = (plan[field] for field in FOLD_FIELDS)
    return words(batch * blocks_m * blocks_n, available, scratch, numbers)


def _strides(name: str, x: jax.Array | None, k_first: bool) -> dict[str, int]:
    """Return the strides of a row-major array, [batch, K, free] or [batch, free, K]."""
    batch, long, last = (0, 0, 0) if x is None else (x.size // len(x), x.shape[2], 1)
    k, free = (long, last) if k_first else (last, long)
    return {f"{name}_batch": batch, f"{name}_k": k, f"{name}_free": free}


def _part(size: int, most: int, multiple: int) -> int:
    """Cut `size` into the fewest equal parts of at most `most`, and return a part's
    length, rounded up to a multiple of `multiple`."""
    part = -(-size // -(-size // most))
    return -(-part // multiple) * multiple
