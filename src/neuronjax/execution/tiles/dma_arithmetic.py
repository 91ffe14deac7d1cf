"""`dma_transpose` and `dma_compute`."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from neuronjax.execution.tiles.registry import (
    Bits,
    Context,
    Operands,
    Results,
    Signature,
    executes,
)
from neuronjax.execution.tiles.rounding import wide
from neuronjax.numerics.exact import seal


@executes("dma_transpose")
def dma_transpose(i: Signature, x: Operands, c: Context) -> Results:
    """The axes in their new order; bits."""
    return (Bits(lax.transpose(x[0], i.attributes["axes"])),)


@executes("dma_compute")
def dma_compute(i: Signature, x: Operands, c: Context) -> Results:
    """The sum of the sources in FP32, from left to right."""
    size = i.outputs[0].shape
    total = wide(x[0], c.zero).reshape(size)
    for source in x[1:]:
        total = seal(jnp.add(total, wide(source, c.zero).reshape(size)), c.zero)
    return (total,)
