"""Codes of 4 bits, two to a byte: the call of a kernel of this processor."""

from __future__ import annotations

from typing import Any

import jax
from jax.custom_batching import custom_vmap
from jax.typing import DTypeLike

from neuronjax.numerics.host_kernels import compiled, nibbles_kernel
from neuronjax.numerics.host_kernels.work import MANY, RowParts, element_words
from neuronjax.numerics.portable import host_call


def packed(codes: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Codes, uint8 below 16 of any shape, as elements of a dtype of 4 bits."""
    target = compiled.registered(
        nibbles_kernel.NAME,
        lambda module: nibbles_kernel.write(module, compiled.lanes()),
    )
    parts = -(-codes.size // MANY)
    plan = RowParts(size=codes.size, parts=parts, each=MANY)
    # As a type of its own: inside `shard_map` it varies as the codes do.
    result = jax.eval_shape(lambda codes: codes.astype(dtype), codes)

    @custom_vmap
    def call(codes: jax.Array) -> jax.Array:
        told = element_words(parts, codes.size, plan)
        return host_call(target, result)(codes, plan=told)

    @call.def_vmap
    def batched(size: int, mapped: list[bool], codes: jax.Array) -> Any:
        del size, mapped
        return packed(codes, dtype), True

    return call(codes)
