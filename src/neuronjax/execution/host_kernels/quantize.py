"""Microscaling by a kernel of this processor: the call."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from neuronjax.execution.host_kernels import quantize_kernel
from neuronjax.execution.host_kernels.panels import BLOCK
from neuronjax.execution.host_kernels.plan import QuantizeRows
from neuronjax.execution.host_kernels.quantize_kernel import QuantizeKind
from neuronjax.numerics.host_kernels import compiled
from neuronjax.numerics.host_kernels.work import MANY, element_words
from neuronjax.numerics.portable import host_call


def quantize(
    x: jax.Array, axis: int, element: str, rule: str
) -> tuple[jax.Array, jax.Array]:
    """Codes, of the shape of `x`, and scales, the axis a 32nd as long; uint8.

    Args:
        x: float32 or bfloat16.
        axis: along which blocks of 32 extend.
        element: the name of the elements' format.
        rule: of `plan.BOUNDED_RULES`.
    """
    axis %= x.ndim
    outer, inner = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    kind = QuantizeKind(x.dtype.name, element, rule, contiguous=inner == 1)
    target = compiled.registered(
        kind.name,
        lambda module: quantize_kernel.write(module, kind, compiled.lanes()),
    )
    k = x.shape[axis]
    blocks = -(-k // BLOCK)
    rows = max(1, MANY // max(1, k * inner))
    plan = QuantizeRows(outer=outer, k=k, inner=inner, blocks=blocks, rows=rows)
    parts = -(-outer // rows)
    scales = (*x.shape[:axis], blocks, *x.shape[axis + 1 :])
    results = [jax.ShapeDtypeStruct(s, jnp.uint8) for s in (x.shape, scales)]

    @custom_vmap
    def call(x: jax.Array) -> Sequence[jax.Array]:
        plan_words = element_words(parts, x.size, plan)
        return tuple(host_call(target, results)(x, plan=plan_words))

    @call.def_vmap
    def batched(size: int, mapped: list[bool], x: jax.Array) -> Any:
        del size, mapped
        return quantize(x, axis + 1, element, rule), (True, True)

    codes, found = call(x)
    return codes, found
