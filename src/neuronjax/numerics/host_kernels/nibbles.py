"""Codes of 4 bits, two to a byte: the call of a kernel of this processor."""

from __future__ import annotations

import functools

import jax
from jax.typing import DTypeLike

from neuronjax.numerics.host_kernels import compiled, nibbles_kernel
from neuronjax.numerics.host_kernels.work import MANY, RowParts, by_rows, element_words
from neuronjax.numerics.portable import host_call


def packed(codes: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Codes, uint8 below 16 of any shape, as elements of a dtype of 4 bits."""
    target = compiled.registered(
        nibbles_kernel.NAME,
        lambda module: nibbles_kernel.write(module, compiled.lanes()),
    )
    parts = -(-codes.size // MANY)
    plan = RowParts(size=codes.size, parts=parts, each=MANY)
    flat = codes.reshape(-1)
    # As a type of its own: inside `shard_map` it varies as the codes do.
    result = jax.eval_shape(lambda codes: codes.astype(dtype), flat)
    told = element_words(parts, codes.size, plan)
    call = functools.partial(host_call(target, result), plan=told)
    again = functools.partial(packed, dtype=dtype)
    return by_rows(call, again)(flat).reshape(codes.shape)
