"""A contraction's operand as lowering hands it from cast to datapath."""

from __future__ import annotations

from typing import NamedTuple

from neuronjax.errors import UnsupportedError
from neuronjax.hardware import chips_with
from neuronjax.ir.instruction import View
from neuronjax.lowering.context import Context

FP8 = ("float8_e4m3", "float8_e4m3fn", "float8_e5m2")


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


def no_such_format(context: Context, name: str) -> UnsupportedError:
    """The error for a format that the chip's engines do not have."""
    return UnsupportedError(
        f"{name} does not exist on {context.shared.target.name}",
        location=context.location.source,
        remedy=f"use {context.shared.target.chip.forward_fp8}, or a target that has "
        f"{name}: {', '.join(chips_with(name))}",
    )


def no_such_datapath(context: Context, what: str, capability: str) -> UnsupportedError:
    """The error for a datapath that the chip's TensorE does not have."""
    return UnsupportedError(
        f"{context.shared.target.name} has no {what}",
        location=context.location.source,
        remedy=f"use a target that has one: {', '.join(chips_with(capability))}",
    )
