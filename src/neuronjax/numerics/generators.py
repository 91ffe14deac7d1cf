"""The chips' random number generators as pure functions: XORWOW, and an LFSR.

`next_xorwow` is bit-exact to G. Marsaglia, "Xorshift RNGs", Journal of Statistical
Software 8(14), 2003, section 3. The vendor documents that Trainium3 has it, by name and
by the size of its state (6 words per lane; 4 such states per VectorE lane). Constants,
seeding, the interleaving of states and the LFSR of older chips are not documented; our
choices are marked ASSUMPTION. Functions take and return the state; nothing is kept.
Stochastic rounding uses `random_bits` instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.exact import opaque_zero_of, seal
from neuronjax.numerics.random_bits import random_bits

XORWOW_WORDS = 6
# The increment of the Weyl sequence (Marsaglia 2003).
_WEYL = np.uint32(362437)
# ASSUMPTION: the polynomial x^32 + x^22 + x^2 + x + 1, primitive (P. Alfke, Xilinx XAPP
# 052, 1996: taps 32, 22, 2, 1). The constant omits x^32; bit i is the coefficient of
# x^i.
LFSR_POLYNOMIAL = np.uint32(1 << 22 | 1 << 2 | 1 << 1 | 1)
# ASSUMPTION: a whole word is shifted out, so that successive words share no bit.
_LFSR_STEPS_PER_WORD = 32
# ASSUMPTION: a uniform number uses the top 24 bits of a word, the digits of a float32.
_UNIFORM_BITS = 24

_State = TypeVar("_State")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class XorwowState:
    """States of independent XORWOW generators, as `rand_get_state` returns them.

    Attributes:
        words: uint32[..., 6], the published x, y, z, w, v and d of every generator. x
            to v must not all be zero, because they would stay zero.
    """

    words: jax.Array

    @classmethod
    def from_seed(cls, seed: jax.Array, lanes: tuple[int, ...] = ()) -> XorwowState:
        """Return one state per lane, made from the uint32 scalar `seed`. ASSUMPTION:
        word j of lane i is `random_bits((*lanes, 6), seed)[i, j]`; how `set_rng_seed`
        expands its seed is not documented."""
        return cls(random_bits((*lanes, XORWOW_WORDS), seed))


def next_xorwow(state: XorwowState, count: int) -> tuple[jax.Array, XorwowState]:
    """Draw `count` words from every generator. Return uint32[..., count] in the order
    of drawing, and the new state.

    Raises:
        InvalidProgramError: the state is not uint32[..., 6].
    """
    words = state.words
    if words.dtype != jnp.uint32 or words.shape[-1:] != (XORWOW_WORDS,):
        raise InvalidProgramError(
            f"a XORWOW state of {words.dtype} and shape {words.shape}",
            remedy="use uint32 with 6 words in the last axis",
        )
    drawn, after = _drawn(_xorwow_step, words, count)
    return drawn, XorwowState(after)


def next_lane_words(state: XorwowState, count: int) -> tuple[jax.Array, XorwowState]:
    """Draw words from lanes that have several generators each (VectorE of v4: four).

    ASSUMPTION: word i of a lane comes from its generator i mod 4, and all generators
    advance together, because the chip draws four words per lane and cycle. Words beyond
    `count` are lost. The state has the shape [..., generators, 6]; return uint32[...,
    count] and the new state.
    """
    generators = state.words.shape[-2]
    drawn, after = next_xorwow(state, -(-count // generators))
    turns = jnp.swapaxes(drawn, -1, -2)
    return turns.reshape(*turns.shape[:-2], -1)[..., :count], after


def seed_lfsr(seed: jax.Array, lanes: tuple[int, ...] = ()) -> jax.Array:
    """Return nonzero uint32 states of the modelled LFSR. ASSUMPTION:
    `random_bits(lanes, seed)`, with the lowest bit set."""
    return random_bits(lanes, seed) | np.uint32(1)


def next_lfsr(state: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Draw words from linear-feedback shift registers (VectorE before v4; a model).

    A state is a polynomial over GF(2); a step multiplies it by x modulo
    `LFSR_POLYNOMIAL`, and a word is the state after 32 steps. The period is 2^32 - 1. A
    state of zero would stay zero. Return uint32[..., count] in the order of drawing,
    and the new states.

    Raises:
        InvalidProgramError: the state is not uint32.
    """
    if state.dtype != jnp.uint32:
        raise InvalidProgramError(
            f"an LFSR state of {state.dtype}", remedy="use uint32"
        )
    return _drawn(_lfsr_step, state, count)


def fractions(words: jax.Array) -> jax.Array:
    """Return the top 24 bits of uint32 words as exact float32 numbers in [0, 1)."""
    whole = (words >> np.uint32(32 - _UNIFORM_BITS)).astype(jnp.float32)
    return whole * np.float32(2.0**-_UNIFORM_BITS)


def uniform(words: jax.Array, low: float, high: float) -> jax.Array:
    """Map random words to float32 numbers in [low, high], as `rand2` returns them.

    ASSUMPTION: low + u (high - low), at most `high`, where u is the top 24 bits of a
    word as a fraction of 2^24; product, difference and sum are each rounded to float32.

    Raises:
        InvalidProgramError: the bounds are not finite and in order.
    """
    start, end = np.float32(low), np.float32(high)
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        span = end - start
    if not (start <= end and np.isfinite(span)):
        raise InvalidProgramError(
            f"uniform numbers between {low} and {high}",
            remedy="use finite bounds, the lower first, less than 2^128 apart",
        )
    fraction = fractions(words)
    if not words.size:
        return jnp.zeros(words.shape, jnp.float32)
    zero = opaque_zero_of(words.reshape(-1)[0])
    # Seals keep XLA from merging this product with the product in `fractions`, and from
    # fusing it with the sum.
    product = seal(seal(fraction, zero) * span, zero)
    return jnp.minimum(product + start, end)


def _drawn(
    step: Callable[[_State], tuple[_State, jax.Array]], state: _State, count: int
) -> tuple[jax.Array, _State]:
    state, words = lax.scan(lambda carry, _: step(carry), state, length=count)
    return jnp.moveaxis(words, 0, -1), state


def _xorwow_step(words: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, y, z, w, v, d = (words[..., i] for i in range(XORWOW_WORDS))
    t = x ^ (x >> np.uint32(2))
    last = (v ^ (v << np.uint32(4))) ^ (t ^ (t << np.uint32(1)))
    d = d + _WEYL
    return jnp.stack([y, z, w, v, last, d], axis=-1), d + last


def _lfsr_step(state: jax.Array) -> tuple[jax.Array, jax.Array]:
    def shift(_: int, s: jax.Array) -> jax.Array:
        carry = s >> np.uint32(31)
        return (s << np.uint32(1)) ^ (carry * LFSR_POLYNOMIAL)

    state = lax.fori_loop(0, _LFSR_STEPS_PER_WORD, shift, state)
    return state, state
