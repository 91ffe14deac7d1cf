"""Copies, constants, and arithmetic of DMA: bit for bit, or through FP32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.execution.tiles.moving import affine_values
from neuronjax.execution.tiles.registry import (
    Bits,
    Operands,
    Results,
    Signature,
    TileContext,
    executes,
)
from neuronjax.execution.tiles.rounding import wide
from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.numerics.exact import seal


@executes("dma_copy")
def dma_copy(i: Signature, x: Operands, c: TileContext) -> Results:
    """Convert src.dtype -> FP32 -> dst.dtype (nki.isa.dma_copy, "Data types")."""
    return (_converted(i, x[0], c),)


@executes("tensor_copy")
def tensor_copy(i: Signature, x: Operands, c: TileContext) -> Results:
    """Copy; ScalarE of a core without exact copies always goes through FP32."""
    exact = "scalar_engine_exact_copy" in c.core.capabilities
    if i.engine == "scalar" and not exact:
        return (wide(x[0], c.zero),)
    return (_converted(i, x[0], c),)


def _converted(i: Signature, x: jax.Array, c: TileContext) -> jax.Array | Bits:
    [source, target] = i.inputs[0], i.outputs[0]
    assert source is not None
    if source.dtype == target.dtype:
        return Bits(x)
    if dtypes.info(source.dtype).kind == "packed":
        return Bits(x)  # the front end has checked that the widths agree
    return wide(x, c.zero)


@executes("memset")
def memset(i: Signature, x: Operands, c: TileContext) -> Results:
    """Fill the output with one number."""
    [value] = x
    return (jnp.broadcast_to(value, i.outputs[0].shape),)


@executes("iota")
def iota(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return an affine expression of the indices, in 32 bits that wrap around."""
    offset, multiplier, *steps = x
    counts, partitions = i.attributes["counts"], i.outputs[0].shape[0]
    return (affine_values(offset, multiplier, steps, counts, partitions),)


@executes("dma_transpose")
def dma_transpose(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return the bits with the axes in their new order."""
    return (Bits(moved(i, x[0])),)


def moved(i: Signature, x: jax.Array) -> jax.Array:
    """Return the elements of a source in the order in which a movement writes them."""
    if "axes" in i.attributes:
        x = lax.transpose(x, i.attributes["axes"])
    return x.reshape(i.outputs[0].shape)


@executes("dma_compute")
def dma_compute(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return the sum of the sources in FP32, from left to right."""
    total, *others = [moved(i, wide(source, c.zero)) for source in x]
    for source in others:
        total = seal(jnp.add(total, source), c.zero)
    return (total,)
