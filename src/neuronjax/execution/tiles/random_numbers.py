"""The engines' random number generators: `rng`, `rand2`, `dropout`, and their states.

VectorE has an LFSR per lane before NeuronCore-v4, and four XORWOW generators from then
on; GpSimdE has one XORWOW. Their states are operands. `numerics.generators` says what
is documented about them and what is assumed. ASSUMPTION: a generator that was never
seeded starts as if seeded with 0.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.execution.tiles.accumulators import flat, lanes
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
from neuronjax.numerics.exact import opaque, seal
from neuronjax.numerics.generators import (
    XORWOW_WORDS,
    XorwowState,
    fractions,
    next_lane_words,
    next_lfsr,
    seed_lfsr,
)


def _seeded(words: int, seed: jax.Array) -> jax.Array:
    """Return the state of 128 lanes of `words` words from one seed."""
    if words == 1:
        return seed_lfsr(seed, (128, 1))
    generators = words // XORWOW_WORDS
    return XorwowState.from_seed(seed, (128, generators)).words.reshape(128, words)


def _drawn(
    state: jax.Array, partitions: int, count: int
) -> tuple[jax.Array, jax.Array]:
    """Return uint32 [partitions, count], and the new states of all lanes."""
    fresh = _seeded(state.shape[1], jnp.uint32(0))
    state = jnp.where((state == 0).all(axis=1, keepdims=True), fresh, state)
    used = state[:partitions]
    if state.shape[1] == 1:
        drawn, after = next_lfsr(used[:, 0], count)
        after = after[:, None]
    else:
        words = used.reshape(partitions, -1, XORWOW_WORDS)
        drawn, next_state = next_lane_words(XorwowState(words), count)
        after = next_state.words.reshape(used.shape)
    return drawn, jnp.concatenate([after, state[partitions:]])


@executes("rng")
def rng(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return 32 random bits per element; narrower integers keep the lowest bits."""
    partitions, count = _sizes(i)
    words, after = _drawn(x[0], partitions, count)
    dtype = jnp.dtype(i.outputs[0].dtype)
    word = jnp.dtype(f"uint{8 * dtype.itemsize}")
    return (Bits(words.astype(word).view(dtype)), after)


def _sizes(i: Signature) -> tuple[int, int]:
    shape = i.outputs[0].shape
    return shape[0], int(np.prod(shape[1:]))


@executes("rand2")
def rand2(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return low + u (high - low), at most high, with u from the top 24 bits."""
    low, high, state = x
    partitions, count = _sizes(i)
    words, after = _drawn(state, partitions, count)
    start = lanes(low, partitions, c.zero)
    end = lanes(high, partitions, c.zero)
    fraction = fractions(words)
    span = seal(end - start, c.zero)
    value = seal(seal(opaque(fraction, c.zero) * span, c.zero) + start, c.zero)
    return (jnp.minimum(value, end), after)


@executes("dropout")
def dropout(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return the data, with zero where a uniform number is below the probability."""
    data, probability, state = x
    rows = flat(data)
    words, after = _drawn(state, *rows.shape)
    dropped = fractions(words) < lanes(probability, rows.shape[0], c.zero)
    return (Bits(where_bits(dropped, jnp.zeros_like(rows), rows)), after)


@executes("set_rng_seed")
def set_rng_seed(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return every lane's state from one 32-bit seed."""
    seed = x[0].reshape(())
    if seed.dtype != jnp.uint32:
        bits = seed if seed.dtype.itemsize == 4 else wide(seed, c.zero)
        seed = jax.lax.bitcast_convert_type(bits, jnp.uint32)
    return (_seeded(i.outputs[0].shape[1], seed),)


@executes("rand_set_state")
def rand_set_state(i: Signature, x: Operands, c: TileContext) -> Results:
    """Set the states of the first lanes."""
    seeds, state = flat(x[0]), x[1]
    return (jnp.concatenate([seeds, state[seeds.shape[0] :]]),)


@executes("rand_get_state")
def rand_get_state(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return the states of the first lanes, unchanged."""
    return (x[0][: i.outputs[0].shape[0]],)
