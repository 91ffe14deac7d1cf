"""All-reduces a slice of the elements at a time, and on each real device its own.

A reduction over devices is elementwise: what becomes of the k-th element of every chunk
depends on these alone. So real devices share the elements out, instead of everyone
folding all of everyone's; and a fold of large arrays takes them in slices, whose
reordered copies are small. Not where rounding is stochastic, for its bits depend on an
element's place in the whole array.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.execution.device_sharding import RealDevices
from neuronjax.execution.exchange import filled
from neuronjax.ir.collective_set import AllReduce

# Of all devices together. Larger ones gain nothing, smaller ones cost time.
_SLICE_BYTES = 4 << 20


def is_sliceable(i: AllReduce) -> bool:
    """Whether an instruction's elements can be reduced apart from each other."""
    return i.rounding != "stochastic"


def all_reduced(
    i: AllReduce,
    x: jax.Array,
    devices: int,
    real: RealDevices,
    reduce: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """One operand of an all-reduce, reduced.

    Args:
        i: the instruction, of which the chunks count.
        x: [carried devices, *local shape].
        devices: how many there are.
        real: who carries them.
        reduce: all-reduces [devices, elements] of all devices; to [elements] where all
            get the same, else to [devices, elements].

    Returns:
        [*local shape] or [carried devices, *local shape], as `reduce` has it.
    """
    local = x.shape[1:]
    count, chunks = prod(local), i.plan.chunks
    length = -(-count // chunks)
    x = filled(lax.reshape(x, (x.shape[0], count)), chunks * length)
    x = lax.reshape(x, (x.shape[0], chunks, length))
    x = real.exchanged(filled(x, real.share_of(length) * real.count), 2, 0)
    total = _in_slices(x, reduce)
    if total.ndim == 2:
        total = real.everyone(total, 1)
    else:
        total = real.exchanged(total, 0, 2)
    lead = total.shape[:-2]
    total = lax.reshape(total[..., :length], (*lead, chunks * length))
    return lax.reshape(total[..., :count], (*lead, *local))


def _in_slices(x: jax.Array, reduce: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """[devices, chunks, length], or [chunks, length], of [devices, chunks, length]."""
    devices, chunks, length = x.shape
    slices = slices_of(length, x.size * x.dtype.itemsize)
    width = length // slices
    # Without dimensions of 1, for the place of which XLA would copy all of it.
    x = lax.reshape(x, (devices * chunks, slices, width))

    def one(number: jax.Array) -> jax.Array:
        own = lax.dynamic_index_in_dim(x, number, 1, keepdims=False)
        total = reduce(lax.reshape(own, (devices, chunks * width)))
        return lax.reshape(total, (*total.shape[:-1], chunks, width))

    if slices == 1:
        return one(jnp.int32(0))
    total = lax.map(one, jnp.arange(slices, dtype=jnp.int32))
    total = jnp.moveaxis(total, 0, -2)
    return lax.reshape(total, (*total.shape[:-2], length))


def slices_of(length: int, size_bytes: int) -> int:
    """Into how many equal slices so many elements of every chunk are cut; 1 where no
    number close to the right one divides them."""
    wanted = max(-(-size_bytes // _SLICE_BYTES), 1)
    legal = (n for n in range(wanted, 4 * wanted + 1) if length % n == 0)
    return next(legal, 1)
