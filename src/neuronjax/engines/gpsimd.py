"""GpSimdE: scatters, windows, sorts, general reductions and random bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.engines.dispatch import Arrays, Registers, execute, wide, write
from neuronjax.engines.dma import (
    at_position,
    dilated_and_padded,
    window_counts,
    window_positions,
)
from neuronjax.engines.fold import TILE, combiner, reduced_axis_first
from neuronjax.engines.vector import BOOLEANS, EXACT, INTEGERS, total_order
from neuronjax.errors import InternalError
from neuronjax.ir.instruction_set import (
    LocalScatter,
    Pool,
    ReduceBlock,
    Rng,
    SelectAndScatter,
    Sort,
    TopK,
    Window,
)
from neuronjax.numerics.exact import opaque
from neuronjax.numerics.rounding import round_to_int

# -- scatter ---------------------------------------------------------------------------

SCATTERS: dict[str, Callable[..., jax.Array]] = {
    "add": lax.scatter_add,
    "multiply": lax.scatter_mul,
    "minimum": lax.scatter_min,
    "maximum": lax.scatter_max,
    "assign": lax.scatter,
}


@execute.register
def local_scatter(i: LocalScatter, x: Sequence[jax.Array], r: Registers) -> Arrays:
    """XLA's CPU scatter is a loop over updates in row-major order of the indices.

    All that goes in and out is opaque, so nothing merges with the loop's additions.
    """
    operand, indices, updates = x
    numbers = dict(i.dimension_numbers)
    dimension = numbers["index_vector_dim"]
    if dimension == indices.ndim:
        indices = indices[..., None]
    else:
        indices = jnp.moveaxis(indices, dimension, -1)
    dimensions = lax.ScatterDimensionNumbers(
        update_window_dims=numbers["update_window_dims"],
        inserted_window_dims=numbers["inserted_window_dims"],
        scatter_dims_to_operand_dims=numbers["scattered_dims_to_operand_dims"],
        operand_batching_dims=numbers["input_batching_dims"],
        scatter_indices_batching_dims=numbers["scatter_indices_batching_dims"],
    )
    dtype = operand.dtype
    through_floats = i.integer_path == "fp32"
    if through_floats:
        operand, updates = (a.astype(jnp.float32) for a in (operand, updates))
    combines = i.op != "assign" and operand.dtype.kind not in "iub"
    narrow = combines and operand.dtype != jnp.float32
    if narrow:
        operand, updates = wide(operand), wide(updates)
    if combines:
        operand, updates = (opaque(a, r.zero) for a in (operand, updates))
    out = SCATTERS[i.op](
        operand,
        indices,
        updates,
        dimensions,
        indices_are_sorted=i.indices_are_sorted,
        unique_indices=i.unique_indices,
        # Emits the plain StableHLO scatter, which drops what is out of bounds.
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )
    if combines:
        out = opaque(out, r.zero)
    if through_floats:
        return (round_to_int(out, dtype, mode="rne"),)
    return (write(out, i, r) if combines else out,)


# -- windows ---------------------------------------------------------------------------


def _window_combiner(op: str, dtype: np.dtype, zero: jax.Array) -> Callable:
    if dtype.kind in "iub":
        return (BOOLEANS if dtype == np.bool_ else INTEGERS)[op]
    return EXACT[op] if op in ("maximum", "minimum") else combiner(op, zero)


# More window positions than this are a loop instead of straight-line code.
UNROLLED_POSITIONS = 32


@execute.register
def pool(i: Pool, x: Sequence[jax.Array], r: Registers) -> Arrays:
    operand, init = x
    if operand.dtype.kind not in "iub":
        operand, init = wide(operand), wide(init)
    combine = _window_combiner(i.op, operand.dtype, r.zero)
    base = dilated_and_padded(operand, i.window, init)
    counts = window_counts(base.shape, i.window)
    result = jnp.broadcast_to(init, counts)
    positions = window_positions(i.window)
    for start in range(0, len(positions), TILE):
        tile = positions[start : start + TILE]
        result = combine(result, _fold_positions(base, tile, counts, i.window, combine))
    if operand.dtype.kind in "iub":
        return (result,)
    return (write(result, i, r),)


def _fold_positions(
    base: jax.Array,
    positions: list[tuple[int, ...]],
    counts: tuple[int, ...],
    window: Window,
    combine: Callable,
) -> jax.Array:
    total = at_position(base, positions[0], counts, window)
    if len(positions) <= UNROLLED_POSITIONS:
        for position in positions[1:]:
            total = combine(total, at_position(base, position, counts, window))
        return total
    starts = np.array(positions[1:], np.int32) * np.array(
        window.window_dilations, np.int32
    )
    extents = [(c - 1) * s + 1 for c, s in zip(counts, window.strides, strict=True)]

    def step(total: jax.Array, start: jax.Array) -> tuple[jax.Array, None]:
        part = lax.dynamic_slice(base, list(start), extents)
        part = lax.slice(part, [0] * base.ndim, part.shape, window.strides)
        return combine(total, part), None

    return lax.scan(step, total, jnp.asarray(starts))[0]


@execute.register
def select_and_scatter(
    i: SelectAndScatter, x: Sequence[jax.Array], r: Registers
) -> Arrays:
    """The gradient of max (min) pooling.

    Each window sends its source value to the first of its elements that is selected.
    An element collects from its windows in row-major order, which is the positions
    inside the window in reverse.
    """
    operand, source, init = (wide(a) for a in x)
    window, zero = i.window, r.zero
    worst = jnp.float32(-np.inf if i.select == "maximum" else np.inf)
    base = dilated_and_padded(operand, window, worst)
    counts = source.shape
    positions = window_positions(window)
    chosen = _selected(base, positions, counts, window, i.select)
    total = jnp.broadcast_to(init, base.shape)
    combine = combiner("add", zero)
    for number in reversed(range(len(positions))):
        part = jnp.where(chosen == number, source, jnp.float32(-0.0))
        spread = _spread(part, positions[number], base.shape, window)
        total = combine(total, spread)
    limits = [n - high for n, (_, high) in zip(base.shape, window.padding, strict=True)]
    starts = [low for low, _ in window.padding]
    return (write(lax.slice(total, starts, limits), i, r),)


def _selected(
    base: jax.Array,
    positions: list[tuple[int, ...]],
    counts: tuple[int, ...],
    window: Window,
    select: str,
) -> jax.Array:
    """The number of the position that each window selects: ties keep the first."""
    best = at_position(base, positions[0], counts, window)
    chosen = jnp.zeros(best.shape, jnp.int32)
    keeps = lax.ge if select == "maximum" else lax.le
    for number, position in enumerate(positions[1:], 1):
        value = at_position(base, position, counts, window)
        keep = keeps(best, value)
        best = lax.select(keep, best, value)
        chosen = jnp.where(keep, chosen, number)
    return chosen


def _spread(
    part: jax.Array, position: tuple[int, ...], shape: tuple[int, ...], window: Window
) -> jax.Array:
    """Places one value per window at a position of the window, -0 elsewhere."""
    config = []
    for p, n, c, stride in zip(
        position, shape, part.shape, window.strides, strict=True
    ):
        low = p
        high = n - low - ((c - 1) * stride + 1)
        config.append((low, high, stride - 1))
    return lax.pad(part, jnp.float32(-0.0), config)


# -- general reductions, sorting -------------------------------------------------------


@execute.register
def reduce_block(i: ReduceBlock, x: Sequence[jax.Array], r: Registers) -> Arrays:
    """A left fold by any scalar block, every other axis in parallel."""
    if r.run is None:
        raise InternalError("reduce_block needs a runner for its block")
    run = r.run
    count = len(x) // 2
    inputs = [reduced_axis_first(a, i.axes) for a in x[:count]]
    rest = inputs[0].shape[1]
    start = tuple(jnp.broadcast_to(a, (rest,)) for a in x[count:])

    def step(carry: tuple, row: tuple) -> tuple[tuple, None]:
        return tuple(run(i.body, (*carry, *row))), None

    out, _ = lax.scan(step, start, tuple(inputs))
    shapes = [buffer.type.shape for buffer in i.results]
    return tuple(lax.reshape(a, s) for a, s in zip(out, shapes, strict=True))


@execute.register
def sort(i: Sort, x: Sequence[jax.Array], r: Registers) -> Arrays:
    """Keys are compared as StableHLO programs from JAX do: -0 = 0, NaN last."""
    keys = [_sort_key(a, i.descending) for a in x[: i.num_keys]]
    out = lax.sort([*keys, *x], i.dimension, num_keys=i.num_keys)
    return tuple(out[i.num_keys :])


def _sort_key(x: jax.Array, descending: bool) -> jax.Array:
    """An integer key: ascending order of the key is the order wanted."""
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    if x.dtype.kind not in "iu":
        x = jnp.where(jnp.isnan(x), jnp.asarray(np.nan, x.dtype), x)
        x = total_order(jnp.where(x == 0, jnp.zeros((), x.dtype), x))
    return ~x if descending else x


@execute.register
def top_k(i: TopK, x: Sequence[jax.Array], r: Registers) -> Arrays:
    operand = x[0]
    last = operand.ndim - 1
    key = ~total_order(operand) if operand.dtype.kind not in "iu" else ~operand
    indices = lax.broadcasted_iota(jnp.int32, operand.shape, last)
    _, values, indices = lax.sort([key, operand, indices], last, num_keys=1)
    return (
        lax.slice_in_dim(values, 0, i.k, axis=last),
        lax.slice_in_dim(indices, 0, i.k, axis=last),
    )


@execute.register
def rng(i: Rng, x: Sequence[jax.Array], r: Registers) -> Arrays:
    """Philox and threefry are integer algorithms that XLA defines exactly."""
    algorithms = {
        "DEFAULT": lax.RandomAlgorithm.RNG_DEFAULT,
        "PHILOX": lax.RandomAlgorithm.RNG_PHILOX,
        "THREE_FRY": lax.RandomAlgorithm.RNG_THREE_FRY,
    }
    state, bits = i.results
    key = x[0]
    words = lax.bitcast_convert_type(key, jnp.uint32).reshape(-1)
    new_key, out = lax.rng_bit_generator(
        words,
        bits.type.shape,
        dtype=bits.type.dtype,  # type: ignore[arg-type]
        algorithm=algorithms[i.algorithm],
    )
    new_key = lax.bitcast_convert_type(
        lax.reshape(new_key, (*state.type.shape, 2)), state.type.dtype
    )
    return (new_key, out)
