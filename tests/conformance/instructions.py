"""One instruction at a time: on arrays, compiled and alone, with equal bits."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.execution import interpreter
from neuronjax.ir import (
    algebra_set,
    block_set,
    collective_set,
    instruction_set,
    kernel_call,
)
from neuronjax.ir.instruction import (
    Block,
    Buffer,
    Instruction,
    InstructionProgram,
    View,
)
from neuronjax.ir.program import TensorType
from tests.conformance import bits


def typed(x: Any) -> TensorType:
    return TensorType(tuple(x.shape), np.dtype(x.dtype))


def run(
    cls: type, operands: list[Any], *results: tuple[tuple[int, ...], Any], **fields: Any
) -> list[np.ndarray]:
    """What an instruction writes.

    Args:
        cls: of `ir.instruction_set`.
        operands: arrays.
        results: shape and dtype of each result.
        fields: the other fields of the instruction.
    """
    arrays = [jnp.asarray(x) for x in operands]
    arguments = [Buffer(n, typed(x)) for n, x in enumerate(arrays)]
    written = tuple(
        Buffer(len(arguments) + n, TensorType(tuple(shape), np.dtype(dtype)))
        for n, (shape, dtype) in enumerate(results)
    )
    views = tuple(View(buffer) for buffer in arguments)
    instruction = cls(operands=views, results=written, **fields)
    main = Block(tuple(arguments), (instruction,), tuple(map(View, written)))
    stochastic = instruction.rounding == "stochastic"
    program = InstructionProgram(main, {}, stochastic=stochastic)
    compiled = jax.jit(lambda *x: interpreter.run(program, x).results)(*arrays)
    with jax.disable_jit():
        alone = interpreter.run(program, arrays).results
    bits.assert_same(list(compiled), list(alone), cls.__name__)
    return [np.asarray(x) for x in compiled]


def instruction_classes() -> dict[str, type[Instruction]]:
    """Return every instruction by the name of its class."""
    return {
        name: cls
        for module in (
            instruction_set,
            block_set,
            algebra_set,
            collective_set,
            kernel_call,
        )
        for name, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, Instruction)
        and not cls.__subclasses__()
        and not name.startswith("_")
    }
