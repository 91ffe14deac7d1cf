"""What all matmuls have in common: their sums are added up in PSUM."""

from __future__ import annotations

from typing import Any

import numpy as np

from neuronjax.errors import UnsupportedError
from neuronjax.ir.instruction import Buffer, Instruction, View
from neuronjax.lowering.context import Context
from neuronjax.numerics.float_format import get_format


def psum_dtype(context: Context) -> np.dtype:
    """What the policy adds tiles in.

    Raises:
        UnsupportedError: the chip's PSUM does not add in it.
    """
    name = context.policy.psum_dtype
    if name == "bfloat16" and "bf16_psum" not in context.core.capabilities:
        raise UnsupportedError(
            f"PSUM of {context.shared.target.name} adds in float32 only",
            location=context.location.source,
            remedy='use psum_dtype="float32", or target trn3, which adds in bfloat16',
        )
    return get_format(name).dtype


def into_psum(
    context: Context,
    cls: type,
    operands: tuple[View, ...],
    psum: Buffer,
    **attributes: Any,
) -> Instruction:
    """A matmul of any kind; in FP32 its sums have nothing to round."""
    policy = context.policy
    return context.make(
        cls,
        operands,
        (psum,),
        engine="tensor",
        rounding="rne" if psum.type.dtype == np.float32 else policy.rounding,
        accumulation=policy.accumulation,
        **attributes,
    )
