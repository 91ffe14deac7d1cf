"""`activation`: a function of data * scale + bias, and its sums per partition.

FP32 throughout: the product is rounded, the sum is rounded, the function is the
project's own (`numerics.elementary`). The sums are left folds from the accumulator of
the partition on (`accumulators`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from neuronjax.execution.tiles.accumulators import accumulated
from neuronjax.execution.tiles.activation_functions import function
from neuronjax.execution.tiles.registry import (
    Context,
    Operands,
    Results,
    Signature,
    executes,
)
from neuronjax.execution.tiles.rounding import wide
from neuronjax.numerics.exact import seal


@executes("activation")
def activation(i: Signature, x: Operands, c: Context) -> Results:
    """op(data * scale + bias); outputs are dst, then accumulators, then reduce_res."""
    data, scale, bias, *state = x
    argument = scaled(wide(data, c.zero), scale, bias, c.zero)
    result = function(i.attributes["op"])(argument, c.zero)
    if not state:
        return (result,)
    command = i.attributes["reduce_cmd"]
    registers = accumulated(command, "add", state[0], result, c.zero)
    partitions = data.shape[0]
    return (result, registers, registers[:partitions])[: len(i.outputs)]


def scaled(data: jax.Array, scale: Any, bias: Any, zero: jax.Array) -> jax.Array:
    """data * scale + bias, two roundings; [partitions, elements]."""
    data = data.reshape(data.shape[0], -1)
    result = data
    if scale is not None:
        result = seal(data * _lane(scale, data, zero), zero)
    if bias is not None:
        result = seal(result + _lane(bias, data, zero), zero)
    return result


def _lane(value: Any, data: jax.Array, zero: jax.Array) -> jax.Array:
    value = wide(value, zero)
    shape = () if value.ndim == 0 else (data.shape[0], 1)
    return jnp.broadcast_to(value.reshape(shape), data.shape)
