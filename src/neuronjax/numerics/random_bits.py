"""Counter-based random bits for stochastic rounding: an integer hash without state.

bits = H(key, row-major element index), each of 32 bits. `fold` mixes into the key
whatever distinguishes one rounding from another: seed, call index, emulated device,
instruction ordinal, loop counters. The same key gives the same bits on every host and
however the array is sharded. The hash is statistical, not cryptographic, and not the
LFSR or XORWOW of the chips, whose parameters are not documented. A key has 32 bits, so
among about 2^16 keys two are likely to be equal.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.errors import InvalidProgramError

GOLDEN = np.uint32(0x9E37_79B9)  # 2^32 / golden ratio, whose bits have no pattern
#: (shift, factor) of each multiplication of the mixer; the shift comes first.
STEPS = ((16, 0x21F0_AAAD), (15, 0xD35A_2D97))
LAST_SHIFT = 15  # the shift after both multiplications


def fold(key: jax.Array, data: jax.Array) -> jax.Array:
    """Return a key made of `key` and `data`, uint32 scalars; it differs for different
    data. A seed is a key. The order of folds matters."""
    return _mix(_mix(key + GOLDEN) ^ data)


def random_bits(shape: tuple[int, ...], key: jax.Array) -> jax.Array:
    """Return uint32 random bits of a shape; element i depends on (key, i) only. The key
    is a uint32 scalar.

    Raises:
        InvalidProgramError: the shape has 2^32 elements or more.
    """
    if math.prod(shape) >= 1 << 32:
        raise InvalidProgramError(
            f"stochastic rounding of {math.prod(shape)} elements in one instruction",
            remedy="split the tensor into parts of fewer than 2^32 elements",
        )
    # The key enters twice. If it entered once, the streams of two keys would be
    # permutations of each other: H(k, i) = H(k', i ^ k ^ k').
    return _mix(_mix(_row_major_index(shape) ^ key) + _mix(key ^ GOLDEN))


def _row_major_index(shape: tuple[int, ...]) -> jax.Array:
    index = jnp.zeros(shape, jnp.uint32)
    for axis, size in enumerate(shape):
        iota = lax.broadcasted_iota(jnp.uint32, shape, axis)
        index = index * np.uint32(size) + iota
    return index


def _mix(x: jax.Array) -> jax.Array:
    """Map uint32 one to one, so that every input bit flips every output bit half of the
    time. The operations are those of murmur3's finaliser, with the constants of
    Wellons' hash-prospector (bias 0.107; murmur3's is 0.26)."""
    for shift, factor in STEPS:
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(LAST_SHIFT))
