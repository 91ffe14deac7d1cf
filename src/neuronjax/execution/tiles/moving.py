"""Helpers of several instructions: choose bits, count along an axis."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.execution.engines.dispatch import bits_of


def where_bits(chosen: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Return `jnp.where` of equal dtypes with every bit kept, also those of a NaN."""
    bits = jnp.where(chosen, bits_of(new), bits_of(old))
    return lax.bitcast_convert_type(bits, new.dtype)


def affine_values(
    offset: jax.Array,
    multiplier: jax.Array,
    steps: Sequence[jax.Array],
    counts: Sequence[int],
    partitions: int,
) -> jax.Array:
    """Return offset + partition * multiplier + index * step, [partitions, elements]."""
    total = offset + jnp.arange(partitions, dtype=jnp.int32) * multiplier
    for step, count in zip(steps, counts, strict=True):
        total = total[..., None] + jnp.arange(count, dtype=jnp.int32) * step
    return total.reshape(partitions, -1)
