"""Largest magnitudes, scales, scaled casts by kernels of this processor: the calls."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from neuronjax.execution.host_kernels import scale_kernel
from neuronjax.execution.host_kernels.plan import ScaleFactors
from neuronjax.execution.host_kernels.scale_kernel import ScaleKind
from neuronjax.numerics.host_kernels import compiled
from neuronjax.numerics.host_kernels.work import MANY, RowParts, by_rows, element_words
from neuronjax.numerics.portable import host_call

#: Parts of a row, of which another call finds the largest.
MOST_PARTS = 64


def largest_magnitudes(x: jax.Array) -> jax.Array:
    """The largest magnitude of each row, float32 [outer]; of NaNs the one NaN.

    Args:
        x: float32 or bfloat16, [outer, size].
    """
    outer, size = x.shape
    each = max(MANY, -(-size // MOST_PARTS))
    parts = max(-(-size // each), 1)
    plan = RowParts(size=size, parts=parts, each=each)
    target = _registered(ScaleKind(x.dtype.name))
    result = jax.ShapeDtypeStruct((outer, parts), jnp.float32)

    told = element_words(outer * parts, x.size, plan)

    def call(x: jax.Array) -> jax.Array:
        found = host_call(target, result)(x, plan=told)
        return found[:, 0] if parts == 1 else largest_magnitudes(found)

    return by_rows(call, largest_magnitudes)(x)


def factors(amaxes: jax.Array, carry: int, top: int) -> tuple[jax.Array, jax.Array]:
    """Scales and their inverses, float32 [count], of largest magnitudes.

    Args:
        amaxes: float32 [count].
        carry: as `plan.ScaleFactors` says.
        top: likewise.
    """
    [count] = amaxes.shape
    target = compiled.registered(scale_kernel.FACTORS, scale_kernel.write_factors)
    result = jax.ShapeDtypeStruct((count,), jnp.float32)
    plan = ScaleFactors(count=count, carry=carry, top=top)

    told = element_words(1, count, plan)

    def call(amaxes: jax.Array) -> tuple[jax.Array, jax.Array]:
        scales, inverses = host_call(target, [result] * 2)(amaxes, plan=told)
        return scales, inverses

    return by_rows(call, functools.partial(factors, carry=carry, top=top))(amaxes)


def scaled_codes(
    x: jax.Array, scale: jax.Array, element: str, saturates: bool
) -> jax.Array:
    """Codes, uint8 [outer, size], of the elements times the scale of their row.

    Args:
        x: float32 or bfloat16, [outer, size].
        scale: float32 [outer], without NaN.
        element: the name of a format of 8 bits.
        saturates: whether an overflow stops at the largest value.
    """
    outer, size = x.shape
    parts = max(-(-size // MANY), 1)
    plan = RowParts(size=size, parts=parts, each=MANY)
    target = _registered(ScaleKind(x.dtype.name, element, saturates))
    result = jax.ShapeDtypeStruct(x.shape, jnp.uint8)

    told = element_words(outer * parts, x.size, plan)
    call = functools.partial(host_call(target, result), plan=told)
    again = functools.partial(scaled_codes, element=element, saturates=saturates)
    return by_rows(call, again)(x, scale)


def _registered(kind: ScaleKind) -> str:
    return compiled.registered(
        kind.name, lambda module: scale_kernel.write(module, kind, compiled.lanes())
    )
