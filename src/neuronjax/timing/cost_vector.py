"""Costs of programs' elementwise instructions on VectorE, ScalarE and GpSimdE."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType

import numpy as np

from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import (
    SOFTWARE_FUNCTIONS,
    BitcastCopy,
    Compare,
    Memset,
    QuantizeMx,
    ReadAmax,
    RecordAmax,
    ReducePrecision,
    ScaleFromAmax,
    Select,
    Sparsify,
    TensorCopy,
    TensorScalar,
    TensorTensor,
)
from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_gpsimd import software
from neuronjax.timing.cost_rules import FREE, Reading, elementwise, lane_task, rule
from neuronjax.timing.engines.lanes import lane_work
from neuronjax.timing.engines.task import LaneTask
from neuronjax.timing.instruction_kinds import is_stored
from neuronjax.timing.passes import ON_SCALAR
from neuronjax.timing.work import Core, Queue, Way

BITWISE = frozenset(
    {"and", "or", "xor", "not", "shift_left", "shift_right_logical"}
    | {"shift_right_arithmetic"}
)
#: The number of VectorE's instructions for an operation, if it needs several.
PASSES: Mapping[str, float] = MappingProxyType(
    {
        "floor": a.ROUNDING_PASSES.value,
        "ceil": a.ROUNDING_PASSES.value,
        "round_nearest_even": 2,  # to int32 and back
        "round_nearest_afz": a.ROUNDING_PASSES.value + 1,
        "sign": 2,  # (x > 0) - (x < 0)
        "is_finite": 2,  # |x| < Inf
        "popcnt": a.BIT_COUNT_PASSES.value,
        "count_leading_zeros": a.BIT_COUNT_PASSES.value,
        "remainder": 3 + a.ROUNDING_PASSES.value,  # x - y trunc(x / y)
    }
)


def one_stream(
    core: Core,
    i: Instruction,
    reading: Reading,
    name: str,
    *,
    times: float = 1,
    on_scalar: bool = False,
    on_gpsimd: bool = True,
) -> tuple[Way, ...]:
    """Return the ways to execute an operation that has one tensor operand: one for each
    engine that can do it. ScalarE needs one instruction per tile; VectorE and
    GpSimdE need `times` instructions per tile. GpSimdE cannot read from PSUM."""
    queues: list[tuple[Queue, float]] = [("vector", times)]
    if on_scalar:
        queues.append(("scalar", 1))
    if on_gpsimd and not reading.in_psum:
        queues.append(("gpsimd", times))
    return tuple(
        elementwise(core, i, lane_task(core, i, queue, name, reading), times=n)
        for queue, n in queues
    )


def streams(
    core: Core,
    i: Instruction,
    reading: Reading,
    name: str,
    *,
    on_vector: bool = True,
    ops: tuple[str, ...] = (),
) -> tuple[Way, ...]:
    """Return the ways to execute an operation on two or more tensors of one shape: one
    on VectorE if `on_vector`, and one on GpSimdE if no operand is in PSUM. Each tensor
    after the second costs an additional copy."""
    read = [p for p in range(len(i.operands)) if p not in reading.scalars]
    queues: list[Queue] = ["vector"] if on_vector else []
    if not reading.in_psum:
        queues.append("gpsimd")

    def tasks(queue: Queue) -> list[LaneTask]:
        copies = [
            lane_task(core, i, queue, "tensor_copy", reading, operands=(p,))
            for p in read[2:]
        ]
        both = read[:2]
        main = lane_task(core, i, queue, name, reading, operands=both, ops=ops)
        return [*copies, main]

    return tuple(elementwise(core, i, *tasks(queue)) for queue in queues)


def _exact_in_fp32(op: str, dtype: np.dtype) -> bool:
    """Return whether `op` on integers of `dtype` is exact in FP32; True for floats."""
    if dtype.kind not in "iu" or op in BITWISE:
        return True
    return dtype.itemsize == 1 or (dtype.itemsize == 2 and op != "multiply")


def _tensors(i: Instruction, reading: Reading) -> int:
    return len(i.operands) - len(reading.scalars)


def _divide(i: TensorTensor, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Return the ways to divide x by y: ScalarE or VectorE computes 1 / y, which is
    then multiplied by x."""
    shape = i.results[0].type.shape
    if 1 in reading.scalars:  # one divisor per row
        shape = shape[:-1]

    def one_over(queue: Queue, name: str) -> Way:
        task = lane_task(
            core,
            i,
            queue,
            name,
            shape=shape,
            operands=(len(i.operands) - 1,),
            function="reciprocal",
        )
        return elementwise(core, i, task, sbuf_write_bytes=0.0)

    reciprocals = one_over("scalar", "activation"), one_over("vector", "reciprocal")
    if 0 in reading.scalars:  # the activation's scale is the dividend
        return reciprocals
    both = Reading(scalars=reading.scalars - {0}, in_psum=reading.in_psum)
    if _tensors(i, both) == 1:  # 1 / y is the scalar operand of tensor_scalar
        products = one_stream(
            core, i, both, "tensor_scalar", on_scalar=True, on_gpsimd=False
        )
    else:
        products = streams(core, i, both, "tensor_tensor", ops=("multiply",))[:1]
    return tuple((*r, *product) for r in reciprocals for product in products)


@rule.register
def _(i: TensorTensor, core: Core, reading: Reading) -> tuple[Way, ...]:
    dtype, elements = i.results[0].type.dtype, prod(i.results[0].type.shape)
    if i.op in SOFTWARE_FUNCTIONS:
        return (software(core, i, elements * a.FUNCTION_OPERATIONS.value),)
    if i.op in ("divide", "remainder") and i.engine == "gpsimd":  # integers
        return (software(core, i, elements * a.INTEGER_DIVISION.value),)
    if i.op == "divide":
        return _divide(i, core, reading)
    if i.engine != "vector" and not _exact_in_fp32(i.op, dtype):
        return streams(core, i, reading, "tensor_tensor", on_vector=False)
    if _tensors(i, reading) < 2 or i.op in PASSES:
        return one_stream(
            core,
            i,
            reading,
            "tensor_scalar",
            times=PASSES.get(i.op, 1),
            on_scalar=i.op in ON_SCALAR and dtype.kind not in "iub",
        )
    ways = streams(core, i, reading, "tensor_tensor", ops=(i.op,))
    if i.op == "multiply" and i.operands[0].buffer is i.operands[1].buffer:
        square = lane_task(core, i, "scalar", "activation", function="square")
        return (*ways, elementwise(core, i, square))
    return ways


@rule.register
def _(i: Compare, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Price a comparison of a tensor with a scalar or with another tensor. On a
    chip that has GpSimdE, this engine compares 32-bit integers."""
    on_vector = i.engine == "vector" or i.operands[0].type.dtype.itemsize < 4
    if on_vector and _tensors(i, reading) < 2:
        return one_stream(core, i, reading, "tensor_scalar")
    return streams(
        core, i, reading, "tensor_tensor", on_vector=on_vector, ops=("compare",)
    )


@rule.register
def _(i: Select, core: Core, reading: Reading) -> tuple[Way, ...]:
    if _tensors(i, reading) < 2:
        return one_stream(core, i, reading, "tensor_scalar")
    return streams(core, i, reading, "tensor_copy_predicated")


@rule.register
def _(i: TensorScalar, core: Core, reading: Reading) -> tuple[Way, ...]:
    scalars = Reading(scalars=reading.scalars | {1}, in_psum=reading.in_psum)
    on_scalar = i.op in ON_SCALAR
    return one_stream(core, i, scalars, "tensor_scalar", on_scalar=on_scalar)


@rule.register
def _(i: TensorCopy, core: Core, reading: Reading) -> tuple[Way, ...]:
    dtypes = (i.operands[0].type.dtype, i.results[0].type.dtype)
    wide = any(d.itemsize > 4 for d in dtypes)
    floats = all(d.kind not in "iub" for d in dtypes)
    return one_stream(core, i, reading, "tensor_copy", on_scalar=floats and not wide)


@rule.register
def _(i: ReducePrecision, core: Core, reading: Reading) -> tuple[Way, ...]:
    return one_stream(core, i, reading, "tensor_copy", times=2)


@rule.register
def _(i: BitcastCopy, core: Core, reading: Reading) -> tuple[Way, ...]:
    return FREE


@rule.register
def _(i: Memset, core: Core, reading: Reading) -> tuple[Way, ...]:
    if prod(i.results[0].type.shape) == 1 or is_stored(i):
        return FREE
    zero = not np.any(np.ascontiguousarray(i.value).reshape(-1)[:1].view(np.uint8))
    queues: tuple[Queue, ...] = ("gpsimd", "vector")
    return tuple(
        elementwise(core, i, lane_task(core, i, queue, "memset", is_zero=zero))
        for queue in queues
    )


@rule.register
def _(i: QuantizeMx, core: Core, reading: Reading) -> tuple[Way, ...]:
    if i.engine == "offline":
        return FREE
    shape = i.operands[0].type.shape
    task = lane_task(core, i, "vector", "quantize_mx", shape=shape, operands=(0,))
    return (elementwise(core, i, task),)


@rule.register
def _(i: Sparsify, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Price a sparsification. It is free if done offline; otherwise software on GpSimdE
    compares each element with all elements of its group."""
    if i.engine == "offline":
        return FREE
    group = int(i.pattern.split(":")[1])
    return (software(core, i, prod(i.operands[0].type.shape) * group),)


@rule.register(ScaleFromAmax)
@rule.register(RecordAmax)
@rule.register(ReadAmax)
def _(i: Instruction, core: Core, reading: Reading) -> tuple[Way, ...]:
    times = a.SCALE_STEPS.value if isinstance(i, ScaleFromAmax) else 1
    task = lane_task(core, i, "vector", "tensor_scalar", shape=())
    return ((lane_work(core, task, times=times),),)
