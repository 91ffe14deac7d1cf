"""A contraction by a kernel of this processor: the plan of a call, and the call."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from neuronjax.execution.host_kernels import compiled, fold_kernel
from neuronjax.execution.host_kernels.fold_kernel import FoldKind, RegisterTile
from neuronjax.execution.host_kernels.plan import FoldShape, FoldBlocks, Stored
from neuronjax.numerics.float_format import FORMATS

#: Multiply-adds below which another thread takes longer to wake than to help.
FEW = 1 << 19
#: Rows and columns of a block, at most: its operands of one pass stay in a cache of
#: the second level, and packing them is little beside multiplying them.
BLOCK_M, BLOCK_N = 384, 512
#: Rows up to which they go one by one, each through more columns at a time.
NARROW = 2


def fold(
    a: jax.Array, b: jax.Array, lhs: Stored, rhs: Stored, shape: FoldShape
) -> jax.Array:
    """[batch, m, n] float32."""
    return _call(lhs, rhs, shape)(a, b)


def _call(
    lhs: Stored, rhs: Stored, shape: FoldShape
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The call of a kernel, which more of a batch makes one call of a larger batch."""
    kind = FoldKind(
        lhs=lhs.dtype,
        rhs=rhs.dtype,
        rows_per_cell=shape.rows_per_cell,
        passes=shape.passes,
        in_range=shape.in_range,
        narrow=shape.m <= NARROW,
    )

    @custom_vmap
    def call(a: jax.Array, b: jax.Array) -> jax.Array:
        registers = compiled.register_tile(kind)
        plan = _plan(lhs, rhs, (a.shape, b.shape), shape, registers)
        scratch = fold_kernel.scratch_bytes(kind, registers, plan)
        words = np.append(plan.array(), np.int64(scratch))
        result = jax.ShapeDtypeStruct((shape.batch, shape.m, shape.n), jnp.float32)
        tables = [_table(x.format) for x in (lhs, rhs) if x.format]
        target = compiled.register(kind)
        return jax.ffi.ffi_call(target, result)(a, b, *tables, plan=words)

    @call.def_vmap
    def batched(size: int, mapped: list[bool], a: jax.Array, b: jax.Array) -> Any:
        together = [
            (x if is_mapped else jnp.broadcast_to(x, (size, *x.shape))).reshape(
                -1, *x.shape[1 + is_mapped :]
            )
            for x, is_mapped in zip((a, b), mapped, strict=True)
        ]
        larger = shape._replace(batch=size * shape.batch)
        out = _call(lhs, rhs, larger)(*together)
        return out.reshape(size, shape.batch, shape.m, shape.n), True

    return call


@functools.cache
def _table(name: str) -> np.ndarray:
    """What the codes of a format are, float32."""
    dtype = FORMATS[name].dtype
    return np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)


def _plan(
    lhs: Stored,
    rhs: Stored,
    shapes: tuple[tuple[int, ...], ...],
    s: FoldShape,
    registers: RegisterTile,
) -> FoldBlocks:
    lhs_batch, rhs_batch = (int(np.prod(shape[1:])) for shape in shapes)
    threads = _threads() if s.batch * s.m * s.n * s.k * s.passes > FEW else 1
    block_m = _part(s.m, BLOCK_M, registers.rows)
    block_n = _part(s.n, BLOCK_N, registers.columns)
    if s.batch * -(-s.m // block_m) * -(-s.n // block_n) < threads:
        block_n = _part(s.n, -(-s.n // threads), registers.columns)
    blocks_m, blocks_n = -(-s.m // block_m), -(-s.n // block_n)
    blocks = s.batch * blocks_m * blocks_n
    return FoldBlocks(
        batch=s.batch, m=s.m, n=s.n, k=s.k, k_tile=s.k_tile,
        tiles=-(-s.k // s.k_tile), cells=s.cells, group=s.group,
        cell_stride=s.cell_stride, row_stride=s.row_stride,
        lhs_batch=lhs_batch, lhs_k=lhs.k, lhs_free=lhs.free,
        rhs_batch=rhs_batch, rhs_k=rhs.k, rhs_free=rhs.free,
        block_m=block_m, block_n=block_n, blocks_m=blocks_m, blocks_n=blocks_n,
        blocks=blocks, settles=int(s.settles), helpers=min(threads, blocks) - 1,
    )  # fmt: skip


def _part(size: int, most: int, multiple: int) -> int:
    """The length of the fewest equal parts of at most about `most`."""
    part = -(-size // -(-size // most))
    return -(-part // multiple) * multiple


@functools.cache
def _threads() -> int:
    affinity: Any = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
