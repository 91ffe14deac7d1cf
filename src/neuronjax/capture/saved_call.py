"""Makes a saved program a JAX function to be traced, captured and differentiated.

JAX can call what `jax.export` has exported. To get an export in the installed JAX's
format, a function of the same types that returns zeros is exported, and its module is
replaced by the saved program. The program has fixed shapes, so `vmap` is a loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import dtypes, export
from jax.custom_batching import sequential_vmap
from jax.extend import mlir
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo
from jax.interpreters.mlir import make_ir_context

from neuronjax.capture.artifacts import Artifact, type_of
from neuronjax.capture.saved_forms import is_main, shardings
from neuronjax.capture.trace import PLATFORM, as_declared, float0, is_key
from neuronjax.errors import UnsupportedError


def function_of(artifact: Artifact) -> Callable[..., list[Any]]:
    """Return a saved program as a function from flat arguments to flat results, with
    the saved derivative."""
    call = sequential_vmap(_call(artifact))
    with_derivative = jax.custom_vjp(call)

    def forward(*leaves: Any) -> tuple[list[Any], tuple[Any, ...]]:
        if artifact.vjp is None:
            raise UnsupportedError(
                f"{artifact.name} is a loaded program without a derivative",
                remedy="export it with exported.serialize(vjp_order=1), or emulate the "
                "function: jax.grad(nj.jit(f))",
            )
        return call(*leaves), leaves

    def backward(leaves: tuple[Any, ...], cotangents: Sequence[Any]) -> tuple[Any, ...]:
        derivative = artifact.vjp
        assert derivative is not None
        flat: list[Any] = [np.zeros(a.shape, a.dtype) for a in artifact.in_avals]
        for place, leaf in zip(artifact.kept, leaves, strict=True):
            flat[place] = leaf
        flat += cotangents
        gradients = function_of(derivative)(*(flat[n] for n in derivative.kept))
        pairs = zip((gradients[n] for n in artifact.kept), leaves, strict=True)
        return tuple(
            g if dtypes.issubdtype(x.dtype, np.inexact) else float0(x) for g, x in pairs
        )

    with_derivative.defvjp(forward, backward)
    return with_derivative


def _call(artifact: Artifact) -> Callable[..., list[Any]]:
    body = artifact.program.entry.body
    results = list(map(type_of, body.results))

    def frame(*arrays: Any) -> list[Any]:
        return [jax.numpy.zeros(type.shape, type.dtype) for type in results]

    whole = jax.jit(frame, keep_unused=True)
    exported = export.export(whole, platforms=[PLATFORM])(*map(type_of, body.arguments))
    with make_ir_context():
        module = ir.Module.parse(artifact.code)
        _constrain(module)
        version = stablehlo.get_current_version()
        code = mlir.serialize_portable_artifact(module, version, True)
    saved = dataclasses.replace(exported, mlir_module_serialized=code)

    def call(*leaves: Any) -> list[Any]:
        words = (jax.random.key_data(x) if is_key(x.dtype) else x for x in leaves)
        pairs = zip(saved.call(*words), artifact.out_avals, strict=True)
        return [as_declared(*pair) for pair in pairs]

    return call


def _constrain(module: Any) -> None:
    """Write main's shardings as constraints in its body, because calls drop them."""
    main = next(filter(is_main, module.body))
    block = main.regions[0].blocks[0]
    last = block.operations[len(block.operations) - 1]
    for number, sharding in shardings(main, "arg_attrs").items():
        value = block.arguments[number]
        with ir.InsertionPoint.at_block_begin(block), last.location:
            op = sdy.ShardingConstraintOp(value, sharding)
        value.replace_all_uses_except(op.result, op.operation)
    for number, sharding in shardings(main, "res_attrs").items():
        with ir.InsertionPoint(last), last.location:
            op = sdy.ShardingConstraintOp(last.operands[number], sharding)
        last.operands[number] = op.result
