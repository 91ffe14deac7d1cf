"""GpSimdE: scatters, in row-major order of the indices.

A window that is not wholly inside the tensor is dropped, as in XLA. Windows are written
one after another, so the last of several windows that assign an element wins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.engines.bodies import on_elements
from neuronjax.execution.engines.dispatch import Arrays, Registers, execute, wide, write
from neuronjax.execution.engines.dma import as_int32, index_vectors_last
from neuronjax.ir.block_set import ScatterBlock
from neuronjax.ir.instruction_set import LocalScatter
from neuronjax.numerics.elementary_core import flush
from neuronjax.numerics.exact import opaque
from neuronjax.numerics.rounding import round_to_int

SCATTERS: dict[str, Callable[..., jax.Array]] = {
    "add": lax.scatter_add,
    "multiply": lax.scatter_mul,
    "minimum": lax.scatter_min,
    "maximum": lax.scatter_max,
    "assign": lax.scatter,
}


@execute.register
def local_scatter(i: LocalScatter, x: Sequence[jax.Array], r: Registers) -> Arrays:
    """Scatter by XLA, whose CPU scatter loops over updates in row-major order. All
    inputs and outputs are opaque, so nothing merges with the additions of the loop. XLA
    gets no hints about the indices, because a wrong hint must not change the result."""
    operand, indices, updates = x
    if not updates.size:
        return (operand,)
    indices, dtype = as_int32(indices), operand.dtype
    through_floats = i.integer_path == "fp32"
    if through_floats:
        operand, updates = (a.astype(jnp.float32) for a in (operand, updates))
    combines = i.op != "assign" and operand.dtype.kind not in "iub"
    if combines:
        operand, updates = (opaque(wide(a), r.zero) for a in (operand, updates))
    if combines and i.op in ("minimum", "maximum"):
        operand, updates = flush(operand), flush(updates)
    out = scattered(i, operand, indices, updates)
    if combines:
        out = opaque(out, r.zero)
    if through_floats:
        return (round_to_int(out, dtype, mode="rne"),)
    return (write(out, i, r) if combines else out,)


def scattered(i: LocalScatter, operand: Any, indices: Any, updates: Any) -> jax.Array:
    """Return the result of XLA's scatter in the operands' dtype."""
    numbers = dict(i.dimension_numbers)
    dimensions = lax.ScatterDimensionNumbers(
        update_window_dims=numbers["update_window_dims"],
        inserted_window_dims=numbers["inserted_window_dims"],
        scatter_dims_to_operand_dims=numbers["scattered_dims_to_operand_dims"],
        operand_batching_dims=numbers["input_batching_dims"],
        scatter_indices_batching_dims=numbers["scatter_indices_batching_dims"],
    )
    indices = index_vectors_last(indices, numbers["index_vector_dim"])
    # Emits the plain StableHLO scatter, which drops windows that are out of bounds.
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return SCATTERS[i.op](operand, indices, updates, dimensions, mode=mode)


@execute.register
def scatter_block(i: ScatterBlock, x: Sequence[jax.Array], r: Registers) -> Arrays:
    count = (len(x) - i.captures - 1) // 2
    inputs, indices = tuple(x[:count]), x[count]
    updates, captured = x[count + 1 : 2 * count + 1], x[2 * count + 1 :]
    if not updates[0].size:
        return inputs
    numbers = dict(i.dimension_numbers)
    starts = _starts(as_int32(indices), numbers, inputs[0].ndim)
    windows = tuple(_windows(u, numbers, inputs[0].ndim) for u in updates)
    body = on_elements(i.body, captured, r)
    sizes = windows[0].shape[1:]
    limits = np.array([n - m for n, m in zip(inputs[0].shape, sizes, strict=True)])
    limits = jnp.asarray(limits, jnp.int32)

    def step(tensors: tuple, row: tuple) -> tuple[tuple, None]:
        number, start, *parts = row
        fits = jnp.all((start >= 0) & (start <= limits))
        at = list(jnp.clip(start, 0, limits))
        old = [lax.dynamic_slice(t, at, sizes) for t in tensors]
        new = body(number, *old, *parts)
        kept = (jnp.where(fits, n, o) for n, o in zip(new, old, strict=True))
        merged = zip(tensors, kept, strict=True)
        return tuple(lax.dynamic_update_slice(t, k, at) for t, k in merged), None

    order = lax.iota(jnp.uint32, starts.shape[0])
    return lax.scan(step, inputs, (order, starts, *windows))[0]


def _starts(indices: jax.Array, numbers: Mapping[str, Any], rank: int) -> jax.Array:
    """Return [N, rank]: where each window starts in the tensor, in row-major order."""
    indices = index_vectors_last(indices, numbers["index_vector_dim"])
    shape, count = indices.shape[:-1], prod(indices.shape[:-1])
    columns = [jnp.zeros(count, jnp.int32)] * rank
    for n, dimension in enumerate(numbers["scattered_dims_to_operand_dims"]):
        columns[dimension] = indices[..., n].reshape(count)
    vector = numbers["index_vector_dim"]
    batching = (
        numbers["input_batching_dims"],
        numbers["scatter_indices_batching_dims"],
    )
    for dimension, along in zip(*batching, strict=True):
        axis = along - (along > vector)  # without the axis of the index vectors
        positions = lax.broadcasted_iota(jnp.int32, shape, axis)
        columns[dimension] = positions.reshape(count)
    if not rank:
        return jnp.zeros((count, 0), jnp.int32)
    return jnp.stack(columns, axis=1)


def _windows(updates: jax.Array, numbers: Mapping[str, Any], rank: int) -> jax.Array:
    """Return [N, *window]: the windows in row-major order, each with `rank` axes."""
    inside = tuple(numbers["update_window_dims"])
    outside = tuple(d for d in range(updates.ndim) if d not in inside)
    single = {*numbers["inserted_window_dims"], *numbers["input_batching_dims"]}
    sizes = iter([updates.shape[d] for d in inside])
    window = [1 if d in single else next(sizes) for d in range(rank)]
    count = prod(updates.shape[d] for d in outside)
    return lax.transpose(updates, outside + inside).reshape(count, *window)
