"""A contraction by a kernel of this processor: the plan of a call, and the call."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.execution.host_kernels import fold_kernel
from neuronjax.execution.host_kernels.fold_kernel import FoldKind, RegisterTile
from neuronjax.execution.host_kernels.plan import FoldBlocks, FoldShape, Stored
from neuronjax.numerics.float_format import FORMATS
from neuronjax.numerics.host_kernels import compiled
from neuronjax.numerics.host_kernels.work import by_rows, threads, words
from neuronjax.numerics.portable import host_call

#: Multiply-adds below which another thread takes longer to wake than to help.
FEW = 1 << 19
#: Rows and columns of a block, at most: its operands of one pass stay in a cache of
#: the second level, and packing them is little beside multiplying them.
BLOCK_M, BLOCK_N = 384, 512
#: Floats of a thread's panels, about; deep ones are narrower for it.
PANELS = 1 << 20
#: Rows up to which they go one by one, each through more columns at a time.
NARROW = 2


def fold(
    arrays: Sequence[jax.Array], lhs: Stored, rhs: Stored, shape: FoldShape
) -> jax.Array:
    """[batch, m, n] float32.

    Args:
        arrays: the elements of both sides, then the scales of those that have some.
        lhs: how the left side lies in memory.
        rhs: the right one.
        shape: of the contraction.
    """
    kind = FoldKind(
        lhs=lhs.dtype,
        rhs=rhs.dtype,
        rows_per_cell=shape.rows_per_cell,
        passes=shape.passes,
        in_range=shape.in_range,
        narrow=shape.m <= NARROW,
        lhs_scaled=lhs.is_scaled,
        rhs_scaled=rhs.is_scaled,
    )
    result = jax.ShapeDtypeStruct((shape.batch, shape.m, shape.n), jnp.float32)
    registers = fold_kernel.register_tile(kind, compiled.lanes())
    write = functools.partial(fold_kernel.write, kind=kind, registers=registers)
    target = host_call(compiled.registered(kind.name, write), result)

    def call(a: jax.Array, b: jax.Array, *scales: jax.Array) -> jax.Array:
        tables = [_table(x.format) for x in (lhs, rhs) if x.format]
        plan = _plan(lhs, rhs, (a, b, *scales), shape, kind, registers)
        return target(a, b, *tables, *scales, plan=plan)

    def again(*arrays: jax.Array) -> jax.Array:
        return fold(arrays, lhs, rhs, shape._replace(batch=arrays[0].shape[0]))

    return by_rows(call, again)(*arrays)


@functools.cache
def _table(name: str) -> np.ndarray:
    """What the codes of a format are, float32."""
    dtype = FORMATS[name].dtype
    return np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)


def _plan(
    lhs: Stored,
    rhs: Stored,
    arrays: Sequence[jax.Array],
    s: FoldShape,
    kind: FoldKind,
    registers: RegisterTile,
) -> np.ndarray:
    lhs_batch, rhs_batch, *scales = (int(np.prod(x.shape[1:])) for x in arrays)
    lhs_scales = scales.pop(0) if lhs.is_scaled else 0
    rhs_scales = scales.pop(0) if rhs.is_scaled else 0
    available = threads() if s.batch * s.m * s.n * s.k * s.passes > FEW else 1
    depth = s.cells * s.rows_per_cell * (2 if s.passes == 4 else 1)
    fitting = max(1, PANELS // depth)
    block_m = _part(s.m, min(BLOCK_M, fitting), registers.rows)
    block_n = _part(s.n, min(BLOCK_N, fitting), registers.columns)
    if s.batch * -(-s.m // block_m) * -(-s.n // block_n) < available:
        block_n = _part(s.n, -(-s.n // available), registers.columns)
    blocks_m, blocks_n = -(-s.m // block_m), -(-s.n // block_n)
    blocks = s.batch * blocks_m * blocks_n
    plan = FoldBlocks(
        tiles=-(-s.k // s.k_tile),
        lhs_batch=lhs_batch, lhs_k=lhs.k, lhs_free=lhs.free,
        lhs_scale_batch=lhs_scales, lhs_scale_k=lhs.scale_k,
        lhs_scale_free=lhs.scale_free,
        rhs_batch=rhs_batch, rhs_k=rhs.k, rhs_free=rhs.free,
        rhs_scale_batch=rhs_scales, rhs_scale_k=rhs.scale_k,
        rhs_scale_free=rhs.scale_free,
        block_m=block_m, block_n=block_n, blocks_m=blocks_m, blocks_n=blocks_n,
    )  # fmt: skip
    scratch = fold_kernel.scratch_bytes(kind, registers, plan, s.cells)
    return words(blocks, available, scratch, plan, *s)


def _part(size: int, most: int, multiple: int) -> int:
    """The length of the fewest equal parts of at most about `most`."""
    part = -(-size // -(-size // most))
    return -(-part // multiple) * multiple
