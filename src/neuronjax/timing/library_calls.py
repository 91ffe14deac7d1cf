"""Our own functions in a program that the chip has one instruction for.

`neuronjax.cast` computes its bits with some thirty integer operations on the host; an
engine rounds as it writes, and draws the random bits of stochastic rounding itself. JAX
keeps the functions apart under the names that `numerics.casting` gives them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import Call, Memset, TensorCopy

# A function that a module has twice gets a number, from JAX and from lowering.
_NAME = re.compile(r"(neuronjax_[a-z_]*[a-z])(_\d+)?(\.\d+)?")


def _cast(call: Call) -> Instruction:
    return TensorCopy(
        operands=call.operands[:1],
        results=call.results,
        engine="vector",
        location=call.location,
    )


def _random_bits(call: Call) -> Instruction:
    return Memset(
        operands=(),
        results=call.results,
        engine="gpsimd",
        value=np.uint32(0),
        location=call.location,
    )


_INSTRUCTIONS: Mapping[str, Callable[[Call], Instruction]] = {
    "neuronjax_cast": _cast,
    "neuronjax_cast_to_integer": _cast,
    "neuronjax_random_bits": _random_bits,
}


def chip_instruction(call: Call) -> Instruction | None:
    """What the chip does in the place of a call, None where it does the callee."""
    if not call.callee.startswith("neuronjax_"):
        return None
    name = _NAME.fullmatch(call.callee)
    make = _INSTRUCTIONS.get(name.group(1)) if name else None
    return make(call) if make else None
