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

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata


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


def kept_apart(results: Any) -> Any:
    """Keeps the call of a jitted function, given its results, a call for XLA.

    XLA would inline it and fuse its operations into every consumer, and behind a
    broadcast compute them again for every element. It never does this to its own `exp`,
    which it knows is expensive; of a chain of cheap operations it does not know.
    """
    return jax.tree.map(lambda x: set_xla_metadata(x, inlineable="false"), results)


def own_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays whose call XLA keeps a call; see `kept_apart`."""
    jitted = jax.jit(function)
    return lambda *arrays: kept_apart(jitted(*arrays))
