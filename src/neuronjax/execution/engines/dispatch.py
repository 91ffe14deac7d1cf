"""`execute`: an instruction and its operand arrays -> its result arrays.

Rules are registered by instruction class (functools.singledispatch), one file per
engine. An engine computes in FP32 and rounds once, in `write`, to the format of the
instruction. Time is modelled in `timing`; the interpreter handles control flow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.errors import InternalError
from neuronjax.ir.instruction import Block, Instruction
from neuronjax.numerics.exact import seal
from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.random_bits import random_bits
from neuronjax.numerics.rounding import cast, round_to_format
from neuronjax.numerics.widening import widen, widen_finite

Arrays = tuple[jax.Array, ...]

#: Convert a float operand to FP32, as the engine reads it.
wide = widen
#: Convert in fewer operations, for uses where the payload of a NaN does not matter.
wide_or_nan = widen_finite


class Registers(NamedTuple):
    """The state of a core that instructions read.

    Attributes:
        zero: a -0.0 that the compiler cannot know; see `numerics.exact`.
        key: the uint32 key of this instruction for stochastic rounding.
        run: executes a nested block of scalar instructions on arrays; its third
            argument is the key from which the block's instructions derive theirs.
    """

    zero: jax.Array
    key: jax.Array
    run: (
        Callable[[Block, Sequence[jax.Array], jax.Array], Sequence[jax.Array]] | None
    ) = None


@functools.singledispatch
def execute(
    instruction: Instruction, operands: Sequence[jax.Array], registers: Registers
) -> Arrays:
    """Return one array per result, by the function of the instruction's class."""
    raise InternalError(f"no engine executes {instruction.name}")


def write(x: jax.Array, instruction: Instruction, registers: Registers) -> jax.Array:
    """Round a float32 result once, to the instruction's format and by its rounding."""
    dtype = instruction.results[0].type.dtype
    rounding, overflow = instruction.rounding, instruction.overflow
    options: dict[str, Any] = dict(rounding=rounding, overflow=overflow)
    if rounding == "stochastic":
        options["random_bits"] = random_bits(x.shape, registers.key)
    if instruction.write_format is not None:
        x = round_to_format(x, get_format(instruction.write_format), **options)
        options = dict(overflow=overflow)
    elif dtype == jnp.float32:
        return seal(x, registers.zero)
    return x if dtype == jnp.float32 else cast(x, get_format(dtype), **options)


def bits_of(x: jax.Array) -> jax.Array:
    """Return the bits of a float array as unsigned integers of its width."""
    return lax.bitcast_convert_type(
        x, jnp.dtype(f"uint{jax.dtypes.itemsize_bits(x.dtype)}")
    )
