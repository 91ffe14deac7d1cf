"""Single instructions of the chip, priced in place of NeuronJAX's own functions.

The emulation computes `neuronjax.cast` by some thirty integer operations on the host.
An engine of the chip instead rounds when it writes, and draws the random bits of
stochastic rounding itself. From NeuronCore-v4 on, VectorE has an instruction that
quantizes blocks with shared scales. In a program, NeuronJAX's own functions are callees
named like Python functions in `numerics`, such as `neuronjax_cast` in its module
`casting`. Only the time changes: execution still runs the function itself.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping

import numpy as np

from neuronjax.ir.instruction import Block, Instruction, InstructionProgram, View
from neuronjax.ir.instruction_set import Memset, QuantizeMx, TensorCopy, TensorTensor
from neuronjax.numerics.microscaling import BLOCK_SIZE, on_device
from neuronjax.timing.work import Core

# JAX and lowering each append a number to a name that occurs twice in a module.
_NAME = re.compile(r"(neuronjax_[a-z_]*[a-z])(_\d+)?(\.\d+)?")


def with_chip_instructions(
    program: InstructionProgram, core: Core
) -> InstructionProgram:
    """Return `program` with a single instruction as the body of each of NeuronJAX's own
    functions, such as `cast`. Functions for which the chip has no such instruction are
    unchanged."""
    found = {
        name: dataclasses.replace(block, instructions=(made,))
        for name, block in program.functions.items()
        if (made := _instruction(name, block, core)) is not None
    }
    if not found:
        return program
    return dataclasses.replace(program, functions={**program.functions, **found})


def _instruction(name: str, block: Block, core: Core) -> Instruction | None:
    match = _NAME.fullmatch(name)
    make = _INSTRUCTIONS.get(match.group(1)) if match else None
    # Differentiation can remove all results of a function; then nothing replaces it.
    return make(block, core) if make and block.results else None


def _operands(block: Block, count: int) -> tuple[View, ...]:
    return tuple([View(buffer) for buffer in block.arguments[:count]])


def _cast(block: Block, core: Core) -> Instruction:
    results = tuple([view.buffer for view in block.results])
    return TensorCopy(operands=_operands(block, 1), results=results, engine="vector")


def _random_bits(block: Block, core: Core) -> Instruction:
    """Return a Memset in place of the function that draws random bits. If only casts
    with stochastic rounding read the bits, the Memset takes no time: engines draw the
    bits for such casts themselves."""
    results = tuple([view.buffer for view in block.results])
    return Memset(
        operands=(), results=results, engine="gpsimd", value=np.zeros((), np.uint32)
    )


def _quantize(block: Block, core: Core) -> Instruction | None:
    elements, scales = [view.buffer for view in block.results]
    (x,) = _operands(block, 1)
    name = _FORMATS.get(elements.type.dtype.name)
    axis = _blocked_axis(x.type.shape, scales.type.shape)
    if not core.spec.mx_dtypes or name is None or axis is None:
        return None
    if not on_device(name, x.type.dtype):
        return None
    return QuantizeMx(
        operands=(x,),
        results=(elements, scales),
        engine="vector",
        axis=axis,
        format=name,
        scale_rule="neuron",
    )


def _dequantize(block: Block, core: Core) -> Instruction:
    elements = View(block.arguments[0])
    return TensorTensor(
        operands=(elements, elements),
        results=tuple([view.buffer for view in block.results]),
        engine="vector",
        op="multiply",
    )


def _blocked_axis(shape: tuple[int, ...], scales: tuple[int, ...]) -> int | None:
    """Return the axis of a tensor of `shape` along which every block of 32 elements has
    one scale, if the scales have the shape `scales`; None if there is no such axis."""
    if len(shape) != len(scales):
        return None
    axes = [d for d, n in enumerate(shape) if scales[d] != n]
    if len(axes) != 1 or scales[axes[0]] != -(-shape[axes[0]] // BLOCK_SIZE):
        return None
    return axes[0]


_FORMATS = {"float8_e4m3fn": "mxfp8_e4m3", "float8_e5m2": "mxfp8_e5m2"}
_INSTRUCTIONS: Mapping[str, Callable[[Block, Core], Instruction | None]] = {
    "neuronjax_cast": _cast,
    "neuronjax_cast_to_integer": _cast,
    "neuronjax_random_bits": _random_bits,
    "neuronjax_quantize_mx": _quantize,
    "neuronjax_dequantize_mx": _dequantize,
}
