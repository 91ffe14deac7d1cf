"""XLA-proof arithmetic: the only file that hides a value from the compiler.

XLA rewrites floating-point arithmetic: `x * y + z` becomes a fused multiply-add,
`a / broadcast(b)` a product with the reciprocal, and constant factors are
multiplied first. A *seal* stops this: it adds to an intermediate result a -0.0 that the
compiler cannot know, which changes no value. XLA can then fuse a product only with that
-0.0, and `fma(x, y, -0.0)` is `x * y` rounded. A seal costs one operation, or none if
it is fused.

The -0.0 is computed inside the graph, from a number known only at run time. An argument
would not do, because under an outer `jax.jit` it may be a constant. On CPU the number
comes from a Fourier transform, which XLA leaves to a library and never folds; elsewhere
XLA's stateful generator draws it. On CPU the generator, ten rounds of arithmetic, would
take a sixth of the compile time of a small program. Whatever the number is, the result
is -0.0.
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
    """Return a float32 scalar -0.0 that the compiler cannot know."""
    unknown = lax.platform_dependent(cpu=_transformed, default=_drawn)
    return opaque_zero_of(lax.bitcast_convert_type(unknown, jnp.uint32))


def opaque_zero_of(bits: jax.Array) -> jax.Array:
    """Return -0.0 as a function of a uint32 scalar, so that XLA cannot fold it.
    This is for functions whose operands are all computed from `bits`: if `bits` is
    constant, XLA evaluates the whole function operation by operation."""
    one = jnp.uint32(1)
    zero = (bits * (bits + one)) & one
    return lax.bitcast_convert_type(zero ^ jnp.uint32(0x8000_0000), jnp.float32)


def _transformed() -> jax.Array:
    return lax.real(lax.fft(jnp.ones(2, jnp.float32), "RFFT", (2,)))[1]


def _drawn() -> jax.Array:
    low, high = jnp.float32(0), jnp.float32(1)
    return lax.rng_uniform(low, high, (1,)).reshape(())


def seal(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return float32 `x` as a value that XLA cannot rewrite. Its bits are unchanged,
    except that a NaN may get other bits. `zero` is the scalar of `opaque_zero`."""
    return lax.add(x, lax.broadcast(zero, x.shape))


def product(a: jax.Array, b: jax.Array, zero: jax.Array) -> jax.Array:
    """Return float32 `a * b`, not sealed: rounded and then flushed, on every host.
    x86-64 does this. Other hosts flush a product below 2^-126 before they round it,
    even if it would round to 2^-126. The product scaled by 2^64 shows this case; the
    scaled product overflows only where `a * b` is far above 2^-126."""
    plain = a * b
    if _rounds_first():
        return plain
    up, down = np.float32(2.0**64), np.float32(2.0**-64)
    # The seal keeps XLA from multiplying the constants.
    large = seal(seal(a * up, zero) * b, zero)
    return jnp.where(lax.abs(large) == np.float32(2.0**-62), large * down, plain)


def sealed_product(a: jax.Array, b: jax.Array, zero: jax.Array) -> jax.Array:
    return seal(product(a, b, zero), zero)


def _rounds_first() -> bool:
    """Return whether the code that JAX traces now will run only on x86-64."""
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    return is_x86 and jax.default_backend() == "cpu" and not is_exportable()


def opaque(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return `x`, bit for bit, as a value that the compiler does not know.

    Use it for constants, which XLA folds by its own arithmetic, and for values that an
    addition could be merged into: XLA turns the constant 0 + y into y, even if that is
    -0.0, and scatter(0, u) + y into scatter(y, u). `x` may have booleans, integers or
    floats; `zero` is the scalar of `opaque_zero`.
    """
    return opaque_by(x, zero_bits(zero))


def opaque_by(x: jax.Array, hidden: jax.Array) -> jax.Array:
    """Return `opaque(x, zero)`, given the result of `zero_bits(zero)` as `hidden`."""
    if x.dtype == jnp.bool_:
        return lax.bitwise_xor(x, lax.broadcast(hidden != 0, x.shape))
    word = jnp.dtype(f"uint{jax.dtypes.itemsize_bits(x.dtype)}")
    hidden = lax.broadcast(lax.convert_element_type(hidden, word), x.shape)
    bits = lax.bitwise_xor(lax.bitcast_convert_type(x, word), hidden)
    return lax.bitcast_convert_type(bits, x.dtype)


def zero_bits(zero: jax.Array) -> jax.Array:
    """Return the uint32 scalar 0, as unknown to the compiler as `zero`."""
    return lax.shift_left(lax.bitcast_convert_type(zero, jnp.uint32), np.uint32(1))


def kept_apart(results: Any) -> Any:
    """Mark the results of a jitted function so that XLA does not inline its call. XLA
    would fuse the function into every consumer, and after a broadcast compute it again
    for every element: it does not know the cost of a chain of cheap operations."""
    return jax.tree.map(lambda x: set_xla_metadata(x, inlineable="false"), results)


def own_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of arrays whose call XLA does not inline; see `kept_apart`."""
    jitted = jax.jit(function)
    return lambda *arrays: kept_apart(jitted(*arrays))
