"""A contraction's operand as lowering hands it from cast to datapath."""

from __future__ import annotations

from typing import NamedTuple

from neuronjax.errors import UnsupportedError
from neuronjax.hardware import chips_that_take
from neuronjax.ir.instruction import View
from neuronjax.lowering.context import Context
from neuronjax.numerics.float_format import FP8

_BYTES = ("bool", "int8", "uint8")


class MatmulOperand(NamedTuple):
    """A prepared operand.

    Attributes:
        view: in the dtype TensorE multiplies; for an MX format, not yet quantized.
        format: of its numbers, which is the dtype's but for tfloat32 and MX.
        inverse_scale: a float32 scalar to multiply the result with, or None.
        pattern: N:M sparsity it is to be compressed to, or None.
    """

    view: View
    format: str
    inverse_scale: View | None = None
    pattern: str | None = None


def check_operand(context: Context, name: str, *, is_integer: bool = False) -> None:
    """Refuse an operand in a format that the chip's TensorE does not take.

    Integers that it does not take the compiler writes in floats: BF16 where that holds
    them all, else FP32.

    Raises:
        UnsupportedError: names the format and the chips that take it.
    """
    if context.policy.accumulation == "host":  # it is XLA that multiplies
        return
    taken = context.core.tensor.dtypes
    if is_integer and name not in taken:
        name = "bfloat16" if name in _BYTES else "float32"
    if name in taken:
        return
    target = context.shared.target
    fp8 = target.chip.forward_fp8
    instead = "bfloat16 or float16 (policy='bf16' casts FP32)"
    if name in FP8 and fp8 is not None:
        instead = fp8
    raise UnsupportedError(
        f"{name} does not exist on {target.name} as an operand of TensorE",
        location=context.location.source,
        remedy=f"use {instead}, or a target that has {name}: "
        f"{', '.join(chips_that_take(name))}",
    )
