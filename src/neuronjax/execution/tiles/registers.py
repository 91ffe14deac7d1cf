"""Registers: 32-bit integers that the sequencers hold."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from neuronjax.execution.tiles.registry import (
    Context,
    Operands,
    Results,
    Signature,
    executes,
)


@executes("register_move")
def register_move(i: Signature, x: Operands, c: Context) -> Results:
    """A constant or another register."""
    return (jnp.int32(x[0]),)


@executes("register_load")
def register_load(i: Signature, x: Operands, c: Context) -> Results:
    """One element: integers by value, floats by their FP32 bits."""
    value = x[0].reshape(())
    if value.dtype.kind == "f":
        return (lax.bitcast_convert_type(value.astype(jnp.float32), jnp.int32),)
    if value.dtype == jnp.uint32:
        return (lax.bitcast_convert_type(value, jnp.int32),)
    return (value.astype(jnp.int32),)


@executes("register_store")
def register_store(i: Signature, x: Operands, c: Context) -> Results:
    """A register's value; to a float tensor it is the FP32 bits again."""
    if i.outputs[0].dtype == "float32":
        value = lax.bitcast_convert_type(x[0], jnp.float32)
    elif i.outputs[0].dtype == "uint32":
        value = lax.bitcast_convert_type(x[0], jnp.uint32)
    else:
        value = x[0]
    return (value.reshape(i.outputs[0].shape),)
