"""GpSimdE: gathers, bounds of segments, nonzero elements, largest elements of a snake.

A GpSimd core sees 16 partitions, whose elements, column by column, are a snake. VectorE
shuffles within quadrants of 32 partitions. Values are moved, not computed.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.engines.dispatch import bits_of
from neuronjax.execution.tiles.accumulators import flat
from neuronjax.execution.tiles.moving import where_bits
from neuronjax.execution.tiles.registry import (
    Bits,
    Operands,
    Results,
    Signature,
    TileContext,
    executes,
)
from neuronjax.execution.tiles.rounding import wide
from neuronjax.numerics.elementary_core import flush

QUADRANT = 32
UNCHANGED = 255
CORE_PARTITIONS = 16


@executes("local_gather")
def local_gather(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return, in every partition of a GpSimd core, the elements of that partition at
    the indices of the core."""
    a = i.attributes
    src, index = flat(x[0]), flat(x[1])
    cores = src.shape[0] // CORE_PARTITIONS
    named = index.reshape(cores, CORE_PARTITIONS, -1).swapaxes(1, 2)
    named = named.reshape(cores, -1)[:, : a["valid"]].astype(jnp.int32)
    picks = named[:, :, None] + jnp.arange(a["elements"], dtype=jnp.int32)
    picks = jnp.repeat(picks.reshape(cores, -1), CORE_PARTITIONS, axis=0)
    return (Bits(_taken(src, picks)),)


@executes("nc_n_gather")
def nc_n_gather(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return, in every partition, its elements at its own indices."""
    return (Bits(_taken(flat(x[0]), flat(x[1]).astype(jnp.int32))),)


def _taken(rows: jax.Array, picks: jax.Array) -> jax.Array:
    bits = jnp.take_along_axis(bits_of(rows), picks, axis=1, mode="clip")
    return lax.bitcast_convert_type(bits, rows.dtype)


@executes("sequence_bounds")
def sequence_bounds(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return where the elements with the same id begin and end (exclusive). Padding,
    whose id is 0, gets the number of all elements and -1."""
    ids = flat(x[0])[0].astype(jnp.int32)
    n = ids.shape[0]
    place = jnp.arange(n, dtype=jnp.int32)
    same = ids[:, None] == ids[None, :]
    first = jnp.where(same, place[None], n).min(axis=1)
    last = jnp.where(same, place[None], -1).max(axis=1) + 1
    padding = ids == 0
    start = jnp.where(padding, n, first)
    end = jnp.where(padding, -1, last)
    return (jnp.stack([start, end]).astype(jnp.int32),)


@executes("nonzero_with_count")
def nonzero_with_count(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return, in one partition per core, the indices of nonzero elements, padding, and
    their count."""
    src, offset, padding = x
    rows, old = flat(src), flat(c.previous[0])
    used = rows[::CORE_PARTITIONS]
    nonzero = used != 0
    count = nonzero.sum(axis=1, dtype=jnp.int32)
    width = used.shape[1]
    place = jnp.arange(width, dtype=jnp.int32)
    # A stable order: nonzero elements come first, in their order.
    order = jnp.argsort(jnp.where(nonzero, place, width + place), axis=1)
    indices = order.astype(jnp.int32) + offset
    indices = jnp.where(place[None] < count[:, None], indices, padding)
    new = jnp.concatenate([indices, count[:, None]], axis=1)
    return (old.at[::CORE_PARTITIONS].set(new),)


@executes("topk")
def topk(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return the k largest per 16 partitions, ascending, and column-major indices."""
    src = flat(x[0])
    k = i.outputs[0].shape[-1]
    cores = src.shape[0] // CORE_PARTITIONS
    snake = src.reshape(cores, CORE_PARTITIONS, -1).swapaxes(1, 2).reshape(cores, -1)
    values = flush(wide(snake[:, : i.attributes["n"]], c.zero))
    best, index = lax.top_k(values, k)
    results = (best[:, ::-1], index[:, ::-1].astype(jnp.uint32))
    return tuple(jnp.repeat(r, CORE_PARTITIONS, axis=0) for r in results)


@executes("nc_stream_shuffle")
def nc_stream_shuffle(i: Signature, x: Operands, c: TileContext) -> Results:
    """Copy partition mask[p] of a quadrant to partition p; 255 keeps partition p."""
    src = flat(x[0])
    partitions = i.outputs[0].shape[0]
    mask = np.resize(np.array(i.attributes["mask"]), partitions)
    base = np.arange(partitions) // QUADRANT * QUADRANT
    moved = src[np.where(mask == UNCHANGED, 0, base + mask)]
    if not i.reads_outputs:
        return (Bits(moved),)
    stays = jnp.asarray(mask == UNCHANGED)[:, None]
    return (Bits(where_bits(stays, flat(c.previous[0]), moved)),)
