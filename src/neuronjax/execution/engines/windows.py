"""VectorE and GpSimdE: sliding windows, running folds, selection in windows.

A window is reduced like a tensor (`fold`): tiles of 512 positions, each a left fold
from its own first element; the result is a left fold of (initial value, tile, tile,
...). Padding counts as elements. A running fold, such as a cumulative sum, keeps one
state per line (`nki.isa.tensor_tensor_scan`) instead of one reduction per element.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.engines import dma
from neuronjax.execution.engines.bodies import Body, on_elements
from neuronjax.execution.engines.dispatch import Arrays, Registers, execute, wide, write
from neuronjax.execution.engines.fold import combiner
from neuronjax.execution.engines.vector import BOOLEANS, COMPARISONS, EXACT, INTEGERS
from neuronjax.ir.block_set import PoolBlock, ScanBlock, SelectAndScatterBlock
from neuronjax.ir.instruction_set import (
    Pool,
    SelectAndScatter,
    TensorTensorScan,
    Window,
)
from neuronjax.ir.vector_sums import VECTOR_TILE
from neuronjax.numerics.rounding import round_to_int

# More window positions than this are summed in a loop instead of straight-line code.
UNROLLED_POSITIONS = 32


def _combination(op: str, dtype: np.dtype, zero: jax.Array) -> Body:
    if dtype.kind in "iub":
        function = (BOOLEANS if dtype == np.bool_ else INTEGERS)[op]
    elif op in ("maximum", "minimum"):
        function = EXACT[op]
    else:
        function = combiner(op, zero)
    return lambda step, a, b: (function(a, b),)


OneOp = Pool | TensorTensorScan | SelectAndScatter


def _computed(x: Sequence[jax.Array], i: OneOp) -> list[jax.Array]:
    if i.integer_path == "fp32":
        return [a.astype(jnp.float32) for a in x]
    return [a if a.dtype.kind in "iub" else wide(a) for a in x]


def _written(x: jax.Array, i: OneOp, r: Registers) -> Arrays:
    if i.integer_path == "fp32":
        return (round_to_int(x, i.results[0].type.dtype, mode="rne"),)
    return (x if x.dtype.kind in "iub" else write(x, i, r),)


# -- sliding windows -------------------------------------------------------------------


@execute.register
def pool(i: Pool, x: Sequence[jax.Array], r: Registers) -> Arrays:
    operand, init = _computed(x, i)
    body = _combination(i.op, operand.dtype, r.zero)
    (result,) = _reduced_windows([operand], [init], i.window, body, i.tile)
    return _written(result, i, r)


@execute.register
def pool_block(i: PoolBlock, x: Sequence[jax.Array], r: Registers) -> Arrays:
    count = (len(x) - i.captures) // 2
    body = on_elements(i.body, x[2 * count :], r)
    return _reduced_windows(x[:count], x[count : 2 * count], i.window, body)


def _reduced_windows(
    inputs: Sequence[jax.Array],
    inits: Sequence[jax.Array],
    window: Window,
    body: Body,
    tile: int | None = VECTOR_TILE,
) -> Arrays:
    pairs = zip(inputs, inits, strict=True)
    bases = [dma.dilated_and_padded(a, window, init) for a, init in pairs]
    counts = dma.window_counts(bases[0].shape, window)
    result = tuple(jnp.broadcast_to(init, counts) for init in inits)
    if 0 in counts:
        return result
    positions = np.array(dma.window_positions(window), np.int32)
    size = tile or len(positions) + 1
    whole = len(positions) // size

    def whole_tile(result: Arrays, row: Arrays) -> tuple[Arrays, None]:
        first, places = row
        tile = _fold(bases, places, counts, window, body, first)
        return body(first, *result, *tile), None

    if whole:
        tiles = positions[: whole * size].reshape(whole, size, -1)
        firsts = jnp.arange(whole, dtype=jnp.uint32) * size
        result, _ = lax.scan(whole_tile, result, (firsts, jnp.asarray(tiles)))
    rest, first = positions[whole * size :], jnp.uint32(whole * size)
    if not len(rest):
        return result
    return body(first, *result, *_fold(bases, rest, counts, window, body, first))


def _fold(
    bases: Sequence[jax.Array],
    positions: jax.Array | np.ndarray,
    counts: tuple[int, ...],
    window: Window,
    body: Body,
    first: jax.Array,
) -> Arrays:
    """Return the left fold of every window over positions [P, rank]. The body's step is
    the number of the position, counted from `first`. When a tile is added to the
    result, the step is the number of the tile's first position."""
    places = positions * np.array(window.window_dilations, np.int32)
    seen = lambda place: tuple(_seen(b, place, counts, window.strides) for b in bases)  # noqa: E731

    def step(total: Arrays, row: tuple) -> tuple[Arrays, None]:
        number, place = row
        return body(first + number, *total, *seen(place)), None

    total = seen(places[0])
    rows: tuple = (np.arange(1, len(places), dtype=np.uint32), places[1:])
    if len(places) > UNROLLED_POSITIONS:
        return lax.scan(step, total, rows)[0]
    for row in zip(*rows, strict=True):
        total, _ = step(total, row)
    return total


def _seen(
    base: jax.Array,
    place: jax.Array | np.ndarray,
    counts: Sequence[int],
    strides: Sequence[int],
) -> jax.Array:
    """Return the element at `place` of every window: a strided part of `base`."""
    extents = _extents(counts, strides)
    part = lax.dynamic_slice(base, list(place), extents)
    return lax.slice(part, [0] * len(extents), extents, strides)


def _extents(counts: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the number of elements from the first window's start to the last's."""
    return [(c - 1) * stride + 1 for c, stride in zip(counts, strides, strict=True)]


# -- running folds ---------------------------------------------------------------------


@execute.register
def tensor_tensor_scan(
    i: TensorTensorScan, x: Sequence[jax.Array], r: Registers
) -> Arrays:
    operand, init = _computed(x, i)
    body = _combination(i.op, operand.dtype, r.zero)
    (result,) = _running_fold([operand], [init], i.axis, i.reverse, body)
    return _written(result, i, r)


@execute.register
def scan_block(i: ScanBlock, x: Sequence[jax.Array], r: Registers) -> Arrays:
    count = (len(x) - i.captures) // 2
    body = on_elements(i.body, x[2 * count :], r)
    return _running_fold(x[:count], x[count : 2 * count], i.axis, i.reverse, body)


def _running_fold(
    inputs: Sequence[jax.Array],
    inits: Sequence[jax.Array],
    axis: int,
    reverse: bool,
    body: Body,
) -> Arrays:
    """Return the running results of body(state, x) along an axis; if `reverse`, of
    body(x, state) from its end."""
    rows = [jnp.moveaxis(a, axis, 0) for a in inputs]
    start = tuple(
        jnp.broadcast_to(init, a.shape[1:]) for init, a in zip(inits, rows, strict=True)
    )

    def step(state: Arrays, row: tuple) -> tuple[Arrays, Arrays]:
        number, *elements = row
        pair = (*elements, *state) if reverse else (*state, *elements)
        state = body(number, *pair)
        return state, state

    numbers = lax.iota(jnp.uint32, rows[0].shape[0])
    _, out = lax.scan(step, start, (numbers, *rows), reverse=reverse)
    return tuple(jnp.moveaxis(a, 0, axis) for a in out)


# -- selection -------------------------------------------------------------------------


@execute.register
def select_and_scatter(
    i: SelectAndScatter, x: Sequence[jax.Array], r: Registers
) -> Arrays:
    operand, source, init = _computed(x, i)
    keeps = COMPARISONS[i.select]
    combine = _combination(i.op, operand.dtype, r.zero)
    total = _select_and_scatter(
        operand, source, init, i.window, lambda step, a, b: (keeps(a, b),), combine
    )
    return _written(total, i, r)


@execute.register
def select_and_scatter_block(
    i: SelectAndScatterBlock, x: Sequence[jax.Array], r: Registers
) -> Arrays:
    operand, source, init, *captured = x
    keeps = on_elements(i.select, captured, r)
    combine = on_elements(i.scatter, captured, r)
    return (_select_and_scatter(operand, source, init, i.window, keeps, combine),)


def _select_and_scatter(
    operand: jax.Array,
    source: jax.Array,
    init: jax.Array,
    window: Window,
    keeps: Body,
    combine: Body,
) -> jax.Array:
    """Add source values to selected elements, in row-major order of windows."""
    if not source.size:
        return jnp.broadcast_to(init, operand.shape)
    base = dma.dilated_and_padded(operand, window, jnp.zeros((), operand.dtype))
    inside = dma.dilated_and_padded(
        jnp.ones(operand.shape, jnp.bool_), window, jnp.bool_(False)
    )
    places = jnp.asarray(dma.window_positions(window), jnp.int32)
    chosen = _selected(base, inside, source.shape, window.strides, places, keeps)
    total = jnp.broadcast_to(init, base.shape)
    extents = _extents(source.shape, window.strides)
    source = _spread(source, window.strides)
    chosen = _spread(chosen + 1, window.strides) - 1

    def step(total: jax.Array, row: tuple) -> tuple[jax.Array, None]:
        number, place = row
        old = lax.dynamic_slice(total, list(place), extents)
        (new,) = combine(number.astype(jnp.uint32), old, source)
        new = jnp.where(chosen == number, new, old)
        return lax.dynamic_update_slice(total, new, list(place)), None

    rows = (lax.iota(jnp.int32, len(places)), places)
    total, _ = lax.scan(step, total, rows, reverse=True)
    return lax.pad(total, init, [(-low, -high, 0) for low, high in window.padding])


def _selected(
    base: jax.Array,
    inside: jax.Array,
    counts: tuple[int, ...],
    strides: tuple[int, ...],
    places: jax.Array,
    keeps: Body,
) -> jax.Array:
    """Return the number of the position that each window selects; -1 for padding."""
    seen = functools.partial(_seen, counts=counts, strides=strides)

    def step(carry: tuple, row: tuple) -> tuple[tuple, None]:
        best, chosen = carry
        number, place = row
        value, real = seen(base, place), seen(inside, place)
        (keep,) = keeps(number.astype(jnp.uint32), best, value)
        change = real & ((chosen < 0) | ~keep)
        best = jnp.where(change, value, best)
        return (best, jnp.where(change, number, chosen)), None

    start = (seen(base, places[0]), jnp.full(counts, -1, jnp.int32))
    rows = (lax.iota(jnp.int32, len(places)), places)
    return lax.scan(step, start, rows)[0][1]


def _spread(x: jax.Array, strides: tuple[int, ...]) -> jax.Array:
    config = [(0, 0, stride - 1) for stride in strides]
    return lax.pad(x, jnp.zeros((), x.dtype), config)
