"""`jax.nn.scaled_matmul` for platform "neuron": a custom call of the vendor's compiler.

JAX lowers the primitive behind it for CUDA alone, newer versions to plain arithmetic on
dequantized operands. A NeuronCore has the operation, so it is kept whole, as
`__op$block_scaled_dot` of (lhs, rhs, lhs scales, rhs scales). The primitive has no
public name: it is taken from the jaxpr of the public function.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import mlir

CALL = "__op$block_scaled_dot"


@functools.cache
def keep_whole(platform: str) -> None:
    """Registers the lowering, once; on other platforms JAX's own stays.

    JAX takes rules for its own platforms only, so this one is the rule of all and asks
    for which platform it is called.
    """
    primitive = _primitive()
    # Private, but the only way to the rule that is replaced.
    entry = mlir._lowerings[primitive]  # type: ignore[attr-defined]
    others: Any = getattr(entry, "rule", entry)
    as_custom_call = jax.ffi.ffi_lowering(CALL)

    def rule(context: Any, *operands: Any, **parameters: Any) -> Any:
        if tuple(context.module_context.platforms) == (platform,):
            return as_custom_call(context, *operands)
        return others(context, *operands, **parameters)

    mlir.register_lowering(primitive, rule)


def _primitive() -> Any:
    elements = jax.ShapeDtypeStruct((1, 1, 32), jnp.float8_e4m3fn)
    scales = jax.ShapeDtypeStruct((1, 1, 1), jnp.float8_e8m0fnu)
    traced = jax.make_jaxpr(jax.nn.scaled_matmul)(elements, elements, scales, scales)
    [primitive] = {e.primitive for e in _leaves(traced.jaxpr)}
    return primitive


def _leaves(jaxpr: Any) -> Iterator[Any]:
    """The equations that hold no others."""
    for equation in jaxpr.eqns:
        inner = [p.jaxpr for p in equation.params.values() if hasattr(p, "jaxpr")]
        if not inner:
            yield equation
        for one in inner:
            yield from _leaves(one)
