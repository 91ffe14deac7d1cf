"""XLA-proof arithmetic: the only file that hides a value from the compiler.

XLA rewrites floating-point arithmetic in composition: `x * y + z` becomes a fused
multiply-add, `a / broadcast(b)` a multiplication with the reciprocal, products are
reassociated through constants. A *seal* stops this: -0.0 is added to the intermediate
result, which changes no value, by a -0.0 that the compiler cannot know. The product can
only be contracted with that -0.0, and `fma(x, y, -0.0)` is `x * y` rounded. It costs
one operation, none where the processor contracts.

The -0.0 is computed inside the graph from the bits of a runtime input, `b * (b + 1) &
1`, because an argument alone becomes a constant under an outer `jax.jit`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata


def opaque_zero(bits: jax.Array) -> jax.Array:
    """A float32 scalar -0.0 that the compiler cannot know, from any uint32 scalar."""
    one = jnp.uint32(1)
    zero = (bits * (bits + one)) & one
    return lax.bitcast_convert_type(zero ^ jnp.uint32(0x8000_0000), jnp.float32)


def seal(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Returns float32 `x`, every bit but a NaN's, as a value that stands for itself.

    Args:
        x: float32, any shape.
        zero: the scalar of `opaque_zero`.
    """
    return x + zero


def opaque(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Returns float32 `x`, bit for bit, as a value the compiler knows nothing about.

    For what an addition could be merged into: XLA turns the constant 0 + y into y, also
    where that is -0.0, and scatter(0, u) + y into scatter(y, u).
    """
    bits = lax.bitcast_convert_type(x, jnp.uint32) ^ zero_bits(zero)
    return lax.bitcast_convert_type(bits, jnp.float32)


def zero_bits(zero: jax.Array) -> jax.Array:
    """The uint32 scalar 0, as little known to the compiler as `zero`."""
    return lax.bitcast_convert_type(zero, jnp.uint32) << jnp.uint32(1)


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
