"""The public cast: any float array to any format of the chips, differentiable.

`cast` returns an array of the target's dtype, `fake_cast` the rounded values in
float32. Both first widen `x` exactly to float32, then round once as an engine's write
does (`rounding`). The bits are the same eagerly, under jit, under vmap and in a scan.
The docstring of `cast` describes the gradients. Blocks with scales are in
`microscaling`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.numerics import rounding as engine
from neuronjax.numerics.float_format import FloatFormat, IntFormat, get_number_format
from neuronjax.numerics.host_kernels import choice
from neuronjax.numerics.random_bits import random_bits as draw
from neuronjax.numerics.rounding import IntegerMode, Overflow, Rounding
from neuronjax.numerics.widening import from_codes, widen

# Stochastic rounding applies to float targets only (the runtime's
# NEURON_RT_STOCHASTIC_ROUNDING_EN: FP32 to FP16, BF16, FP8 and TF32).
_INTEGER_MODES: dict[str, IntegerMode] = {
    "rne": "rne",
    "rtz": "truncate",
    "half_away": "half_away",
}


class _How(NamedTuple):
    """The static options of a cast to a float format."""

    fmt: FloatFormat
    rounding: Rounding
    overflow: Overflow
    random_bit_count: int
    widened: bool  # whether the result is float32
    seeded: bool = False  # whether a kernel draws the random bits from a key


def cast(
    x: Any,
    dtype: Any,
    *,
    rounding: Rounding = "rne",
    overflow: Overflow = "ieee",
    seed: int | jax.Array | None = None,
    random_bits: jax.Array | None = None,
    random_bit_count: int = 32,
) -> jax.Array:
    """Round an array to a number format, with the bits of an engine's write.

    For NaN, Inf, zeros and subnormals see `numerics.rounding.round_to_format`. An array
    that already has the target's dtype is rounded like any other. Integer targets
    saturate, whatever `overflow` says, and NaN becomes 0.

    Gradients are straight-through: the cast has derivative 1, but 0 beyond the largest
    value if an overflow gives the largest value (`overflow="saturate"`, "rtz", and
    always float4_e2m1fn). Where an overflow gives Inf or NaN, the derivative is 1. In
    JAX the cotangent has the dtype of the result, float8 for a float8 result, so it
    arrives rounded and is widened exactly. In forward mode JAX's own conversion rounds
    a tangent to the dtype of the result. Use `fake_cast` for gradients that stay in
    float32. Integer and float8_e8m0fnu results have no gradient.

    Casts to float4_e2m1fn, and stochastic casts to 8 bits with a seed, may run as
    kernels compiled for this processor: to export them, use `nj.exportable()`.

    Args:
        x: a Python float or int, or an array of any float dtype of the chips, of any
            shape. NumPy's float64 becomes float32 first, as everywhere in JAX.
        dtype: a name ("float8_e4m3", "tfloat32", "int8"), a dtype, a `FloatFormat` or
            an `IntFormat`.
        rounding: "rne", "rtz", "half_away", or "stochastic" (float targets only).
        overflow: "ieee" (Inf, or the format's substitute for it) or "saturate".
        seed: for "stochastic", a Python int (modulo 2^32) or a uint32 scalar; element
            i's random bits depend on (seed, i) only. Under `jax.vmap`, examples with
            the same seed get the same bits.
        random_bits: for "stochastic" and instead of `seed`, uint32 of the shape of `x`.
        random_bit_count: how many of the random bits are used, 1 to 32.

    Returns:
        An array of the target's dtype (float32 for tfloat32) and of the shape of `x`.

    Raises:
        InvalidProgramError: an unknown format or option, an `x` that is not of floats,
            or "stochastic" without exactly one of `seed` and `random_bits`.
        UnsupportedError: `x` is float64 (a second rounding would be hidden in the
            cast), or "stochastic" is requested for an integer target.
    """
    target = get_number_format(dtype)
    x = _float_array(x)
    if isinstance(target, IntFormat):
        return _to_integer(x, target, rounding, overflow)
    how = _How(target, rounding, overflow, random_bit_count, widened=False)
    return _to_float(x, how, seed, random_bits)


def fake_cast(
    x: Any,
    dtype: Any,
    *,
    rounding: Rounding = "rne",
    overflow: Overflow = "ieee",
    seed: int | jax.Array | None = None,
    random_bits: jax.Array | None = None,
    random_bit_count: int = 32,
) -> jax.Array:
    """Round `x` to values of a float format, and return these values in float32.

    Use it to train through a narrow format: the gradient is straight-through like that
    of `cast`, but cotangents and tangents stay in float32. Arguments and errors are
    those of `cast`.

    Returns:
        float32 of the shape of `x`.

    Raises:
        InvalidProgramError: an integer format; or as `cast`.
    """
    target = get_number_format(dtype)
    if isinstance(target, IntFormat):
        raise InvalidProgramError(
            f"fake_cast has no {target.name}", remedy="use cast(x, dtype) for integers"
        )
    how = _How(target, rounding, overflow, random_bit_count, widened=True)
    return _to_float(_float_array(x), how, seed, random_bits)


def _float_array(x: Any) -> jax.Array:
    if isinstance(x, float | int) and not isinstance(x, bool):
        return jnp.asarray(x, jnp.float32)
    array = jnp.asarray(x)
    if array.dtype == np.float64:
        raise UnsupportedError(
            "cast of float64, which no engine reads",
            remedy="round to float32 first: x.astype(jnp.float32)",
        )
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise InvalidProgramError(
            f"cast of {array.dtype}, which is no float",
            remedy="first use x.astype(jnp.float32), exact for integers up to 2^24",
        )
    return array


def _to_integer(
    x: jax.Array, target: IntFormat, rounding: Rounding, overflow: Overflow
) -> jax.Array:
    if rounding == "stochastic":
        raise UnsupportedError(
            f"stochastic rounding to {target.name}: chips support it only for floats",
            remedy=f"use one of: {', '.join(_INTEGER_MODES)}",
        )
    mode = engine.choose("rounding", rounding, _INTEGER_MODES)
    if overflow not in get_args(Overflow):
        raise InvalidProgramError(
            f"overflow={overflow!r}", remedy="leave overflow out: integers saturate"
        )
    wide = widen(jax.lax.stop_gradient(x))
    return neuronjax_cast_to_integer(wide, target.dtype, mode)


def _to_float(
    x: jax.Array,
    how: _How,
    seed: int | jax.Array | None,
    random_bits: jax.Array | None,
) -> jax.Array:
    random = None
    if how.rounding == "stochastic":
        random = _random(seed, random_bits)
        how = how._replace(seeded=seed is not None and _has_kernel(how))
        if seed is not None and not how.seeded:
            random = neuronjax_random_bits(x.shape, random)
    if not (how.fmt.signed or how.widened):
        # float8_e8m0fnu has no zero, which a tangent may need.
        return _rounded(jax.lax.stop_gradient(x), random, how)
    return _straight_through(x, random, how)


def _random(seed: int | jax.Array | None, bits: jax.Array | None) -> jax.Array:
    if (seed is None) == (bits is None):
        raise InvalidProgramError(
            "stochastic rounding needs one of seed and random_bits, and has "
            f"{'neither' if seed is None else 'both'}",
            remedy="pass only seed=, a different number for every cast",
        )
    if bits is not None:
        return bits
    if isinstance(seed, int | np.integer):
        key = jnp.uint32(int(seed) % (1 << 32))
    else:
        key = jnp.asarray(seed)
    if key.shape != () or key.dtype != jnp.uint32:
        raise InvalidProgramError(
            f"seed is {key.dtype} of shape {key.shape}",
            remedy="pass a Python int or a uint32 scalar",
        )
    return key


# The functions below have about 30 operations, so they are jitted even if the caller is
# eager. Captured programs show their names, which `timing.library_calls` knows.
@functools.partial(jax.jit, static_argnums=0)
def neuronjax_random_bits(shape: tuple[int, ...], key: jax.Array) -> jax.Array:
    return draw(shape, key)


@functools.partial(jax.jit, static_argnums=(1, 2))
def neuronjax_cast_to_integer(x: jax.Array, dtype: Any, mode: Any) -> jax.Array:
    return engine.round_to_int(x, dtype=dtype, mode=mode)


@functools.partial(jax.jit, static_argnums=2)
def neuronjax_cast(x: jax.Array, random: jax.Array | None, how: _How) -> jax.Array:
    function = engine.round_to_format if how.widened else engine.cast
    return function(
        widen(x),
        how.fmt,
        rounding=how.rounding,
        overflow=how.overflow,
        random_bits=random,
        random_bit_count=how.random_bit_count,
    )


@functools.partial(jax.jit, static_argnums=2, inline=True)
def _rounded(x: jax.Array, random: jax.Array | None, how: _How) -> jax.Array:
    if not how.seeded:
        return neuronjax_cast(x, random, how)

    def drawn(x: jax.Array, key: jax.Array) -> jax.Array:
        return neuronjax_cast(x, neuronjax_random_bits(x.shape, key), how)

    kernel = functools.partial(_by_kernel, how=how)
    return choice.by_kernel(kernel, drawn, x, random)


def _has_kernel(how: _How) -> bool:
    narrow = how.fmt.signed and how.fmt.width <= 8 and not how.widened
    return narrow and how.random_bit_count == 32 and choice.usable()


def _by_kernel(x: jax.Array, key: jax.Array, how: _How) -> jax.Array:
    from neuronjax.numerics.host_kernels import stochastic  # needs llvmlite

    x = x if x.dtype == jnp.bfloat16 else widen(x)
    rows = x.reshape(1, x.size), key.reshape(1)
    codes = stochastic.rounded(*rows, how.fmt.name, how.overflow == "saturate")
    codes = codes.reshape(x.shape)
    return from_codes(codes, how.fmt) if how.fmt.width < 8 else codes


_straight_through = jax.custom_jvp(_rounded, nondiff_argnums=(2,))


@_straight_through.defjvp
def _tangent(
    how: _How,
    primals: tuple[jax.Array, jax.Array | None],
    tangents: tuple[jax.Array, Any],
) -> tuple[jax.Array, jax.Array]:
    """Return (result, tangent), which is linear in `tangents`: JAX can transpose it."""
    x, random = primals
    result = _straight_through(x, random, how)
    tangent = tangents[0]
    stops = how.overflow == "saturate" or how.rounding == "rtz"
    if stops or how.fmt.overflow_code == how.fmt.max_code:
        largest = np.float32(how.fmt.max_finite)
        stopped = jnp.abs(widen(x)) > largest
        tangent = jnp.where(stopped, jnp.zeros_like(tangent), tangent)
    return result, jax.lax.convert_element_type(tangent, result.dtype)
