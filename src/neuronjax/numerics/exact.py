"""XLA-proof arithmetic: the only file that hides a value from the compiler.

XLA rewrites floating-point arithmetic in composition: `x * y + z` becomes a fused
multiply-add, `a / broadcast(b)` a multiplication with the reciprocal, sums are
reassociated through constants. A *seal* stops this: the bits of an intermediate result
are xor-ed with a zero that the compiler cannot know. The zero is computed inside the
graph from the bits of a runtime input, `b * (b + 1) & 1`, because an argument alone
becomes a constant under an outer `jax.jit`.

Two zeros exist, so that two neighbouring seals never cancel (`x ^ z ^ z` is simplified to
`x`): `Zeros.inner` inside a multi-step instruction, `Zeros.write` on what it writes.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Zeros(NamedTuple):
    """Two uint32 scalars, both zero, neither known to the compiler."""

    inner: jax.Array
    write: jax.Array


def opaque_zeros(bits: jax.Array) -> Zeros:
    """Derives the zeros from any runtime uint32 scalar."""
    one = jnp.uint32(1)
    return Zeros(
        inner=(bits * (bits + one)) & one,
        write=((bits + one) * (bits + jnp.uint32(2))) & one,
    )


def seal(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Returns float32 `x`, bit for bit, as a value the compiler cannot see through."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return lax.bitcast_convert_type(bits ^ zero, jnp.float32)
