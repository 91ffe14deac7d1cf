"""Stochastic rounding to 8 bits and fewer by a kernel of this processor: the call."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.host_kernels import compiled, stochastic_kernel
from neuronjax.numerics.host_kernels.stochastic_kernel import StochasticKind
from neuronjax.numerics.host_kernels.work import MANY, RowParts, by_rows, element_words
from neuronjax.numerics.portable import host_call


def rounded(x: jax.Array, keys: jax.Array, element: str, saturates: bool) -> jax.Array:
    """[outer, size], of each row as `random_bits((size,), key)` rounds it.

    Elements of the format, whose bits XLA would copy to call them so; of one of 4 bits
    its codes, uint8.

    Args:
        x: float32 or bfloat16, [outer, size]; fewer than 2^32 elements in a row.
        keys: uint32 [outer].
        element: the name of a format of 8 bits or fewer, with a sign.
        saturates: whether an overflow stops at the largest value.
    """
    outer, size = x.shape
    parts = max(-(-size // MANY), 1)
    plan = RowParts(size=size, parts=parts, each=MANY)
    kind = StochasticKind(x.dtype.name, element, saturates)
    target = compiled.registered(
        kind.name,
        lambda module: stochastic_kernel.write(module, kind, compiled.lanes()),
    )
    # As a type of its own: inside `shard_map` it varies as the operands do.
    fmt = get_format(element)
    dtype = fmt.dtype if fmt.width == 8 else fmt.code_dtype
    result = jax.eval_shape(lambda x, keys: _some(x, keys).astype(dtype), x, keys)

    told = element_words(outer * parts, x.size, plan)
    call = functools.partial(host_call(target, result), plan=told)
    again = functools.partial(rounded, element=element, saturates=saturates)
    return by_rows(call, again)(x, keys)


def _some(x: jax.Array, keys: jax.Array) -> jax.Array:
    """Something of the shape of the result."""
    return x.astype(jnp.uint32) + keys[:, None]
