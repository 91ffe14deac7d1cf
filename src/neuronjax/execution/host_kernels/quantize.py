"""Microscaling by a kernel of this processor: the call."""

from __future__ import annotations

import functools
from math import prod

import jax
import jax.numpy as jnp

from neuronjax.execution.host_kernels import quantize_kernel
from neuronjax.execution.host_kernels.panels import BLOCK
from neuronjax.execution.host_kernels.plan import QuantizeRows
from neuronjax.execution.host_kernels.quantize_kernel import QuantizeKind
from neuronjax.numerics.host_kernels import compiled
from neuronjax.numerics.host_kernels.work import MANY, by_rows, element_words
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
    before, k, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    rows = x.reshape(prod(before), k, prod(after))
    codes, scales = _of_rows(rows, element, rule)
    return codes.reshape(x.shape), scales.reshape(*before, -(-k // BLOCK), *after)


def _of_rows(x: jax.Array, element: str, rule: str) -> tuple[jax.Array, jax.Array]:
    """Return the same of [outer, k, inner], along k."""
    outer, k, inner = x.shape
    kind = QuantizeKind(x.dtype.name, element, rule, contiguous=inner == 1)
    target = compiled.registered(
        kind.name,
        lambda module: quantize_kernel.write(module, kind, compiled.lanes()),
    )
    blocks = -(-k // BLOCK)
    rows = max(1, MANY // max(1, k * inner))
    plan = QuantizeRows(outer=outer, k=k, inner=inner, blocks=blocks, rows=rows)
    parts = -(-outer // rows)
    shapes = (x.shape, (outer, blocks, inner))
    results = [jax.ShapeDtypeStruct(shape, jnp.uint8) for shape in shapes]
    told = element_words(parts, x.size, plan)

    def call(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        codes, scales = host_call(target, results)(x, plan=told)
        return codes, scales

    return by_rows(call, functools.partial(_of_rows, element=element, rule=rule))(x)
