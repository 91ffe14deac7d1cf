"""The common parts of all matmuls: operands that TensorE takes, and sums in PSUM."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from neuronjax.errors import UnsupportedError
from neuronjax.hardware import chips_that_take
from neuronjax.ir.instruction import Buffer, Instruction, View
from neuronjax.ir.instruction_set import TensorCopy, TensorScalar
from neuronjax.lowering.context import Context
from neuronjax.numerics.float_format import FP8, get_format

_BYTES = ("bool", "int8", "uint8")


class MatmulOperand(NamedTuple):
    """A prepared operand."""

    #: In the dtype that TensorE multiplies; an MX operand is not quantized yet.
    view: View
    format: str  # of its numbers; other than the dtype's only for tfloat32 and MX
    inverse_scale: View | None = None  # a float32 scalar that multiplies the result
    pattern: str | None = None  # the N:M sparsity of a weight, not compressed yet


def check_operand(context: Context, name: str, *, is_integer: bool = False) -> None:
    """Refuse an operand in a format that the chip's TensorE does not take. The compiler
    casts other integers: to BF16 if BF16 holds every number of the dtype, else to
    FP32."""
    if context.policy.accumulation == "host":  # XLA multiplies
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


def check_psum(context: Context, name: str, instead: str) -> np.dtype:
    """Return the dtype of the format `name`. Raise an error if the chip's PSUM cannot
    add in it; the remedy is `instead`, or another format or chip."""
    has_bf16 = "bf16_psum" in context.core.capabilities
    if name == "float32" or (name == "bfloat16" and has_bf16):
        return get_format(name).dtype
    target = context.shared.target.name
    formats = "float32 or bfloat16" if has_bf16 else "float32 only"
    other = "bfloat16" if has_bf16 else "target trn3, which adds in bfloat16"
    raise UnsupportedError(
        f"PSUM of {target} adds in {formats}, not in {name}",
        location=context.location.source,
        remedy=f"in place of {name}, use {instead} or {other}",
    )


def from_psum(
    context: Context,
    datapath: Callable[[Buffer], Iterable[Instruction]],
    scales: list[View],
    result: Buffer,
    *,
    psum: np.dtype | None = None,
) -> Iterator[Instruction]:
    """Yield a matmul into PSUM, the rescaling of its sums, and their last write.
    `datapath` yields the instructions that leave the sums in a buffer; `scales` are
    float32 scalars by which they are multiplied; `psum` overrides the policy's dtype of
    sums."""
    if psum is None:
        psum = check_psum(context, context.policy.psum_dtype, 'psum_dtype="float32"')
    dtypes = [psum, *[np.dtype(np.float32)] * len(scales)]
    if dtypes[-1] == result.type.dtype:
        dtypes.pop()
    buffers = [context.temporary(result.type.shape, d) for d in dtypes] + [result]
    yield from datapath(buffers[0])
    for i, (source, target) in enumerate(itertools.pairwise(buffers)):
        views, results = (View(source), *scales[i : i + 1]), (target,)
        if i < len(scales):
            fields: dict[str, Any] = dict(engine="vector", op="multiply")
            yield context.make(TensorScalar, views, results, **fields)
        else:
            yield context.arithmetic(TensorCopy, views, results, engine="scalar")


def into_psum(
    context: Context,
    cls: type,
    operands: tuple[View, ...],
    psum: Buffer,
    **attributes: Any,
) -> Instruction:
    """Return a matmul of any kind into PSUM; FP32 sums are not rounded."""
    return context.make(
        cls,
        operands,
        (psum,),
        engine="tensor",
        accumulation=context.policy.accumulation,
        **context.on_write(psum.type.dtype.name),
        **attributes,
    )
