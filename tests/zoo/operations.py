"""Which operations a program consists of once it is lowered for platform "neuron".

Counts are static: a loop's body counts once, a function once however often called.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import jax

_NAMED_BY = {
    "stablehlo.custom_call": "call_target_name",
    "stablehlo.composite": "name",
}


def trace(fn: Any, args: tuple) -> Any:
    """fn traced by jax.jit for the shapes of args alone."""
    avals = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
    return jax.jit(fn).trace(*avals)


def lower(traced: Any) -> Any:
    """The StableHLO module, for platform "neuron", of what jax.jit traced."""
    lowered = traced.lower(lowering_platforms=("neuron",))
    return lowered.compiler_ir("stablehlo")


def operations(module: Any) -> Iterator[Any]:
    """Every operation below `module`, depth first."""

    def walk(operation: Any) -> Iterator[Any]:
        for region in operation.regions:
            for block in region:
                for inner in block:
                    yield inner.operation
                    yield from walk(inner.operation)

    return walk(module.operation)


def full_name(operation: Any) -> str:
    """The operation's name; custom calls and composites with what they call."""
    attribute = _NAMED_BY.get(operation.name)
    if attribute is None:
        return operation.name
    return f"{operation.name}[{operation.attributes[attribute].value}]"


def stablehlo_ops(fn: Any, args: tuple) -> collections.Counter[str]:
    """How often each operation occurs in fn lowered for the shapes of args."""
    return collections.Counter(map(full_name, operations(lower(trace(fn, args)))))
