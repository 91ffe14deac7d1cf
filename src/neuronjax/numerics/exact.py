"""XLA-proof arithmetic: the only file that hides a value from the compiler.

XLA rewrites floating-point arithmetic in composition: `x * y + z` becomes a fused
multiply-add, `a / broadcast(b)` a multiplication with the reciprocal, products are
reassociated through constants. A *seal* stops this: -0.0 is added to the intermediate
result, which changes no value, by a -0.0 that the compiler cannot know. The product can
only be contracted with that -0.0, and `fma(x, y, -0.0)` is `x * y` rounded. It costs
one operation, none where the processor contracts.

The -0.0 is computed inside the graph, from a number that only the run knows. An
argument would not do, under an outer `jax.jit` it may be a constant. On CPU the number
is one of a Fourier transform, which XLA leaves to a library and never folds; elsewhere
XLA's stateful generator draws it. That one is expanded into ten rounds of arithmetic,
which cost a sixth of the compilation of a small program. Whatever it is, the result is
-0.0.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

from neuronjax.numerics.host_kernels.choice import is_exportable


def opaque_zero() -> jax.Array:
    """A float32 scalar -0.0 that the compiler cannot know."""
    return opaque_zero_of(lax.bitcast_convert_type(_unknown(), jnp.uint32))


def opaque_zero_of(bits: jax.Array) -> jax.Array:
    """The same from any uint32 scalar, as little known as that is.

    For functions of which every operand is computed from `bits`: if those are constant,
    all is, and XLA evaluates it operation by operation. In a captured program there is
    nothing of the host's to draw from.
    """
    one = jnp.uint32(1)
    zero = (bits * (bits + one)) & one
    return lax.bitcast_convert_type(zero ^ jnp.uint32(0x8000_0000), jnp.float32)


def _unknown() -> jax.Array:
    """A float32 scalar."""
    return lax.platform_dependent(cpu=_transformed, default=_drawn)


def _transformed() -> jax.Array:
    return lax.real(lax.fft(jnp.ones(2, jnp.float32), "RFFT", (2,)))[1]


def _drawn() -> jax.Array:
    low, high = jnp.float32(0), jnp.float32(1)
    return lax.rng_uniform(low, high, (1,)).reshape(())


def seal(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Returns float32 `x`, every bit but a NaN's, as a value that stands for itself.

    Args:
        x: float32, any shape.
        zero: the scalar of `opaque_zero`.
    """
    return lax.add(x, lax.broadcast(zero, x.shape))


def product(a: jax.Array, b: jax.Array, zero: jax.Array) -> jax.Array:
    """Return float32 `a * b`, not sealed: rounded, and then flushed, on every host.

    An x86-64 does so. Others flush what lies below 2^-126 before they round it, also
    where it would be rounded to 2^-126: the product 2^64 times larger tells. It
    overflows only where the product itself is none of the smallest numbers.
    """
    plain = a * b
    if _rounds_first():
        return plain
    up, down = np.float32(2.0**64), np.float32(2.0**-64)
    # Sealed, for XLA would scale the constants together.
    large = seal(seal(a * up, zero) * b, zero)
    return jnp.where(lax.abs(large) == np.float32(2.0**-62), large * down, plain)


def sealed_product(a: jax.Array, b: jax.Array, zero: jax.Array) -> jax.Array:
    """Return `product`, sealed."""
    return seal(product(a, b, zero), zero)


def _rounds_first() -> bool:
    """Whether what is traced now runs on an x86-64, and nowhere else."""
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    return is_x86 and jax.default_backend() == "cpu" and not is_exportable()


def opaque(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Returns `x`, bit for bit, as a value the compiler knows nothing about.

    For constants, which XLA folds by arithmetic of its own, and for what an addition
    could be merged into: XLA turns the constant 0 + y into y, also where that is -0.0,
    and scatter(0, u) + y into scatter(y, u).

    Args:
        x: booleans, integers or floats, any shape.
        zero: the scalar of `opaque_zero`.
    """
    return opaque_by(x, zero_bits(zero))


def opaque_by(x: jax.Array, hidden: jax.Array) -> jax.Array:
    """The same from what `zero_bits` gives, for many arrays."""
    if x.dtype == jnp.bool_:
        return lax.bitwise_xor(x, lax.broadcast(hidden != 0, x.shape))
    word = jnp.dtype(f"uint{jax.dtypes.itemsize_bits(x.dtype)}")
    hidden = lax.broadcast(lax.convert_element_type(hidden, word), x.shape)
    bits = lax.bitwise_xor(lax.bitcast_convert_type(x, word), hidden)
    return lax.bitcast_convert_type(bits, x.dtype)


def zero_bits(zero: jax.Array) -> jax.Array:
    """The uint32 scalar 0, as little known to the compiler as `zero`."""
    return lax.shift_left(lax.bitcast_convert_type(zero, jnp.uint32), np.uint32(1))


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
