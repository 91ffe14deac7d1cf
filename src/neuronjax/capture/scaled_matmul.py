"""`jax.nn.scaled_matmul` for platform "neuron": a custom call of the vendor's compiler.

JAX lowers the primitive behind it for CUDA alone, newer versions to plain arithmetic on
dequantized operands. A NeuronCore has the operation, so it is kept whole, as
`__op$block_scaled_dot` of (lhs, rhs, lhs scales, rhs scales). The primitive has no
public name: it is taken from the jaxpr of the public function.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from neuronjax.capture.host_calls import leaves, on_platform

CALL = "__op$block_scaled_dot"


@functools.cache
def keep_whole(platform: str) -> None:
    """Registers the lowering, once; on other platforms JAX's own stays."""
    as_custom_call = jax.ffi.ffi_lowering(CALL)

    def rule(context: Any, *operands: Any, **parameters: Any) -> Any:
        return as_custom_call(context, *operands)

    on_platform(platform, _primitive(), rule)


def _primitive() -> Any:
    elements = jax.ShapeDtypeStruct((1, 1, 32), jnp.float8_e4m3fn)
    scales = jax.ShapeDtypeStruct((1, 1, 1), jnp.float8_e8m0fnu)
    traced = jax.make_jaxpr(jax.nn.scaled_matmul)(elements, elements, scales, scales)
    [primitive] = {e.primitive for e in leaves(traced.jaxpr)}
    return primitive
