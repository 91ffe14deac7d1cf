"""The StableHLO reference interpreter of jaxlib, as a user would call it.

It evaluates a module element by element, with APFloat; arrays are passed as attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir
from jaxlib.mlir import passmanager

PIPELINE = "builtin.module(func.func(chlo-legalize-to-stablehlo))"


def evaluator(
    function: Callable[..., Any], *args: Any
) -> Callable[[], list[np.ndarray]]:
    """Return a function that evaluates a JAX function on arguments converted once.

    Results are read as float32, int32 or bool: let `function` widen narrower types."""
    stablehlo.register_stablehlo_passes()
    text = str(jax.jit(function).lower(*args).compiler_ir())
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(args)]
    context = mlir.make_ir_context()
    with context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        # Convert CHLO ops, because the interpreter would end the process at one.
        passmanager.PassManager.parse(PIPELINE).run(module.operation)
        attributes = [_attribute(leaf) for leaf in leaves]

    def run() -> list[np.ndarray]:
        with context, ir.Location.unknown(context):
            return _arrays(stablehlo.eval_module(module, attributes))

    return run


def _attribute(array: np.ndarray) -> Any:
    data: Any = np.array(array, order="C")  # a buffer; the stub knows attributes only
    return ir.DenseElementsAttr.get(data)


def _arrays(results: Sequence[Any]) -> list[np.ndarray]:
    return [np.array(ir.DenseElementsAttr(result)) for result in results]
