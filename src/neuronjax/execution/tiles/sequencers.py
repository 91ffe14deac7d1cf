"""The instructions of sequencers: registers, order between cores, text for the host.

Registers are 32-bit integers. `nki.linking` puts the instructions of two cores in
order.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.tiles.registry import (
    Bits,
    Operands,
    Results,
    Signature,
    TileContext,
    executes,
)


@executes("register_move")
def register_move(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return a constant or the value of another register."""
    return (jnp.int32(x[0]),)


@executes("register_load")
def register_load(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return one element: an integer by value, a float by its FP32 bits."""
    value = x[0].reshape(())
    if value.dtype.kind == "f":
        return (lax.bitcast_convert_type(value.astype(jnp.float32), jnp.int32),)
    if value.dtype == jnp.uint32:
        return (lax.bitcast_convert_type(value, jnp.int32),)
    return (value.astype(jnp.int32),)


@executes("register_store")
def register_store(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return a register's value; a float32 tensor gets the number with these bits."""
    value, dst = x[0], i.outputs[0]
    if dst.dtype in ("float32", "uint32"):
        value = lax.bitcast_convert_type(value, jnp.dtype(dst.dtype))
    return (value.reshape(dst.shape),)


@executes("core_barrier")
def core_barrier(i: Signature, x: Operands, c: TileContext) -> Results:
    """Do nothing: the instructions are already in the order that the barrier makes."""
    return ()


@executes("sendrecv")
def sendrecv(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return the other core's tile."""
    return (Bits(x[0]),)


@executes("device_print")
def device_print(i: Signature, x: Operands, c: TileContext) -> Results:
    """Print the prefix and the value, in the order of the instructions."""
    jax.debug.callback(functools.partial(_show, i.attributes["prefix"]), x[0])
    return ()


def _show(prefix: str, value: jax.Array) -> None:
    print(prefix, np.asarray(value), flush=True)
