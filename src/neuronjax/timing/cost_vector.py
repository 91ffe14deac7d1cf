"""VectorE: elementwise work, and the same work on ScalarE and GpSimdE where legal.

N elements per lane take N cycles where one tensor streams in. Where two do, it is 2 N
on NeuronCore-v2, which reads one element of a lane in a cycle [A2, V26], and N from v3
on, which reads two [A3] (measured: 1.08 N of FP32 in AdamW on trn2). Performance modes:
two tensors in 16 bits, or one of them still in PSUM, take N everywhere; one in 16 bits
N / 4 from v3 on, N / 2 where it is strided, in PSUM, or leaves in 8 bits (measured:
tensor_scalar to FP8) [A3].
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod
from types import MappingProxyType

import numpy as np

from neuronjax.ir.instruction import Instruction, View
from neuronjax.ir.instruction_set import (
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
from neuronjax.timing.cost_gpsimd import nbytes, software, software_cycles
from neuronjax.timing.cost_rules import (
    FREE,
    Reading,
    columns,
    engine_work,
    rule,
    tiles_of,
)
from neuronjax.timing.instruction_kinds import is_stored
from neuronjax.timing.passes import ON_SCALAR, ScalarTensorTensor
from neuronjax.timing.work import Core, Queue, Way, Work

BITWISE = frozenset(
    {"and", "or", "xor", "not", "shift_left", "shift_right_logical"}
    | {"shift_right_arithmetic"}
)
#: Of two arguments, in software of GpSimdE (`power` is an operator of its ALU).
FUNCTIONS = frozenset({"power", "atan2", "zeta", "polygamma", "mulhi", "next_after"})
#: Instructions of VectorE for what is more than one.
PASSES: Mapping[str, float] = MappingProxyType(
    {
        "floor": a.ROUNDING_PASSES.value,
        "ceil": a.ROUNDING_PASSES.value,
        "round_nearest_even": 2,  # to int32 and back
        "round_nearest_afz": a.ROUNDING_PASSES.value + 1,
        "sign": 2,  # x > 0 less x < 0
        "is_finite": 2,  # |x| < Inf
        "popcnt": a.BIT_COUNT_PASSES.value,
        "count_leading_zeros": a.BIT_COUNT_PASSES.value,
        "remainder": 3 + a.ROUNDING_PASSES.value,  # x - y trunc(x / y)
    }
)


def is_half(dtype: np.dtype) -> bool:
    """BF16 or FP16."""
    return dtype.itemsize == 2 and dtype.kind not in "iub"


def is_narrow_float(dtype: np.dtype) -> bool:
    """A float of 16 or 8 bits."""
    return dtype.itemsize <= 2 and dtype.kind not in "iub"


def streams_per_cycle(core: Core) -> float:
    """Elements of any type that a lane of VectorE reads in a cycle."""
    widths = core.spec.vector.elements_per_cycle
    return widths.fp32 / core.spec.partitions if widths and widths.fp32 else 1.0


def speed_of_one(
    core: Core,
    source: np.dtype,
    target: np.dtype,
    *,
    in_psum: bool = False,
    contiguous: bool = True,
) -> int:
    """Elements per lane and cycle of tensor_copy and tensor_scalar on VectorE."""
    spec = core.spec
    if "vector_perf_modes" not in spec.capabilities:
        return 1
    widths = spec.vector.elements_per_cycle
    wide8 = widths is not None and widths.fp8 == widths.bf16
    fits = is_narrow_float if wide8 else is_half
    if fits(source) and fits(target):
        return 4 if contiguous and not in_psum else 2
    return 2 if is_half(source) and is_narrow_float(target) else 1


def elementwise(
    core: Core,
    queue: Queue,
    shape: tuple[int, ...],
    cycles: float,
    opcode: str,
    *,
    instructions: float = 1,
    speed: int = 1,
    traffic: tuple[float, float] = (0.0, 0.0),
    table: str = "",
) -> Work:
    """Work of one engine on every element of a shape.

    An element of a lane takes `cycles`, all `instructions` of a tile together; `speed`
    names the performance mode, and `traffic` is bytes from SBUF and to it."""
    per_lane = columns(shape, core)
    tiles = tiles_of(per_lane)
    return engine_work(
        core,
        queue,
        per_lane * cycles,
        ceil(tiles * instructions),
        opcode,
        tiles=tiles,
        performance_mode=f"{speed}x" if speed > 1 else "",
        sbuf_read_bytes=traffic[0],
        sbuf_write_bytes=traffic[1],
        table=table,
    )


def traffic_of(i: Instruction) -> tuple[float, float]:
    return float(nbytes(i.operands)), float(nbytes(i.results))


def one_stream(
    core: Core,
    i: Instruction,
    reading: Reading,
    opcode: str,
    *,
    instructions: float = 1,
    on_scalar: bool = False,
    on_gpsimd: bool = True,
) -> tuple[Way, ...]:
    """An operation on one tensor, on every engine that has it."""
    tensors = [p for p in range(len(i.operands)) if p not in reading.scalars]
    source = i.operands[tensors[0] if tensors else 0].type.dtype
    shape, target = i.results[0].type.shape, i.results[0].type.dtype
    psum = bool(reading.in_psum)
    speed = speed_of_one(core, source, target, in_psum=psum)
    traffic = traffic_of(i)
    vector = elementwise(
        core,
        "vector",
        shape,
        instructions / speed,
        opcode,
        instructions=instructions,
        speed=speed,
        traffic=traffic,
    )
    ways: list[Way] = [(vector,)]
    if on_scalar:
        fast = "scalar_perf_modes" in core.spec.capabilities
        twice = 2 if fast and is_half(source) and is_half(target) and not psum else 1
        work = elementwise(
            core, "scalar", shape, 1 / twice, "ACTIVATE", speed=twice, traffic=traffic
        )
        ways.append((work,))
    if on_gpsimd and not psum:
        cycles = instructions * software_cycles(max(source.itemsize, target.itemsize))
        ways.append(
            (elementwise(core, "gpsimd", shape, cycles, opcode, traffic=traffic),)
        )
    return tuple(ways)


def streams(
    core: Core,
    i: Instruction,
    reading: Reading,
    opcode: str,
    *,
    on_vector: bool = True,
    simple: bool = False,
    halves: bool = True,
) -> tuple[Way, ...]:
    """An operation on two or more tensors of one shape.

    `simple` is add, subtract or multiply, which in 16 bits take N cycles on every
    generation [V26]; `halves` says whether 16 bits make it quicker at all."""
    tensors = [p for p in range(len(i.operands)) if p not in reading.scalars]
    dtypes = [i.operands[p].type.dtype for p in tensors] + [i.results[0].type.dtype]
    shape = i.results[0].type.shape
    traffic = traffic_of(i)
    modes = "vector_perf_modes" in core.spec.capabilities
    halves = halves and all(map(is_half, dtypes)) and (modes or simple)
    together = 2.0 if reading.in_psum or halves else streams_per_cycle(core)
    cycles = max(1.0, len(tensors) + 1 - together)
    ways: list[Way] = []
    if on_vector:
        speed = 2 if halves and modes and not reading.in_psum else 1
        work = elementwise(
            core, "vector", shape, cycles, opcode, speed=speed, traffic=traffic,
        )  # fmt: skip
        ways.append((work,))
    if not reading.in_psum:
        moved = sum(d.itemsize for d in dtypes[:-1])
        per_element = software_cycles(max(moved, dtypes[-1].itemsize))
        work = elementwise(core, "gpsimd", shape, per_element, opcode, traffic=traffic)
        ways.append((work,))
    return tuple(ways)


def _exact_in_fp32(op: str, dtype: np.dtype) -> bool:
    """Whether VectorE, which computes in FP32, gives an integer operation exactly."""
    if dtype.kind not in "iub" or op in BITWISE or dtype.kind == "b":
        return True
    return dtype.itemsize == 1 or (dtype.itemsize == 2 and op != "multiply")


def _same(operands: tuple[View, ...]) -> bool:
    return operands[0].buffer is operands[1].buffer


def _tensors(i: Instruction, reading: Reading) -> int:
    return len(i.operands) - len(reading.scalars)


def _divide(i: TensorTensor, core: Core, reading: Reading) -> tuple[Way, ...]:
    """1 / y, on ScalarE or (8 N) on VectorE, times x."""
    if i.results[0].type.dtype.kind in "iub":
        elements = prod(i.results[0].type.shape)
        return (software(core, i, elements * a.INTEGER_DIVISION.value),)
    shape = i.results[0].type.shape
    read = (float(nbytes(i.operands)), 0.0)
    if 1 in reading.scalars:  # a column of divisors: one element per row
        shape = shape[:-1]
    reciprocals = (
        elementwise(
            core, "scalar", shape, 1, "ACTIVATE", traffic=read, table="reciprocal"
        ),
        elementwise(
            core, "vector", shape, a.RECIPROCAL_PASSES.value, "RECIPROCAL", traffic=read
        ),
    )
    if 0 in reading.scalars:  # the dividend is a factor of the reciprocal's activation
        return tuple((work,) for work in reciprocals)
    both = Reading(scalars=reading.scalars - {0}, in_psum=reading.in_psum)
    if _tensors(i, both) == 1:  # a scale of ScalarE, or an operand of tensor_scalar
        products = one_stream(
            core, i, both, "TENSOR_TENSOR", on_scalar=True, on_gpsimd=False
        )
    else:
        products = streams(core, i, both, "TENSOR_TENSOR")[:1]
    return tuple((r, *product) for r in reciprocals for product in products)


@rule.register
def _(i: TensorTensor, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Two streams, or one and a scalar; what the ALU lacks takes passes or software."""
    dtype = i.results[0].type.dtype
    if i.op in FUNCTIONS:
        operations = prod(i.results[0].type.shape) * a.FUNCTION_OPERATIONS.value
        return (software(core, i, operations),)
    if i.op == "divide":
        return _divide(i, core, reading)
    if i.op == "remainder" and dtype.kind in "iu":
        elements = prod(i.results[0].type.shape)
        return (software(core, i, elements * a.INTEGER_DIVISION.value),)
    legal = i.engine == "vector" or _exact_in_fp32(i.op, dtype)
    if not legal:
        return streams(core, i, reading, "TENSOR_TENSOR", on_vector=False)
    if _tensors(i, reading) < 2 or i.op in PASSES:
        return one_stream(
            core,
            i,
            reading,
            "TENSOR_SCALAR",
            instructions=PASSES.get(i.op, 1),
            on_scalar=i.op in ON_SCALAR and dtype.kind not in "iub",
        )
    simple = i.op in ("add", "subtract", "multiply")
    ways = streams(core, i, reading, "TENSOR_TENSOR", simple=simple)
    if i.op == "multiply" and _same(i.operands):  # a square
        traffic = traffic_of(i)
        shape = i.results[0].type.shape
        square = elementwise(core, "scalar", shape, 1, "ACTIVATE", traffic=traffic)
        return (*ways, (square,))
    return ways


@rule.register
def _(i: ScalarTensorTensor, core: Core, reading: Reading) -> tuple[Way, ...]:
    """2 N cycles, and N of 16 bits for subtract and multiply only [V26]; N where one
    tensor is in PSUM (a measurement is met [RMQ, picture])."""
    halves = (i.first, i.then) == ("subtract", "multiply")
    return streams(core, i, reading, "SCALAR_TENSOR_TENSOR", simple=True, halves=halves)


@rule.register
def _(i: Compare, core: Core, reading: Reading) -> tuple[Way, ...]:
    """One or two streams; wide integers are compared on GpSimdE."""
    on_vector = i.engine == "vector" or i.operands[0].type.dtype.itemsize < 4
    if on_vector and _tensors(i, reading) < 2:
        return one_stream(core, i, reading, "TENSOR_SCALAR")
    return streams(core, i, reading, "TENSOR_TENSOR", on_vector=on_vector)


@rule.register
def _(i: Select, core: Core, reading: Reading) -> tuple[Way, ...]:
    """A stream for every tensor: a copy, then tensor_copy_predicated of 2 N."""
    if _tensors(i, reading) < 2:
        return one_stream(core, i, reading, "TENSOR_SCALAR")
    return streams(core, i, reading, "TENSOR_COPY_PREDICATED")


@rule.register
def _(i: TensorScalar, core: Core, reading: Reading) -> tuple[Way, ...]:
    """One stream, on ScalarE too where it has the operator."""
    scalars = Reading(scalars=reading.scalars | {1}, in_psum=reading.in_psum)
    on_scalar = i.op in ON_SCALAR
    return one_stream(core, i, scalars, "TENSOR_SCALAR", on_scalar=on_scalar)


@rule.register
def _(i: TensorCopy, core: Core, reading: Reading) -> tuple[Way, ...]:
    """One stream; ScalarE copies floats of up to 32 bits."""
    dtypes = (i.operands[0].type.dtype, i.results[0].type.dtype)
    wide = any(d.itemsize > 4 for d in dtypes)
    floats = all(d.kind not in "iub" for d in dtypes)
    return one_stream(core, i, reading, "TENSOR_COPY", on_scalar=floats and not wide)


@rule.register
def _(i: ReducePrecision, core: Core, reading: Reading) -> tuple[Way, ...]:
    """A cast to the narrow format and one back."""
    return one_stream(core, i, reading, "TENSOR_COPY", instructions=2)


@rule.register
def _(i: BitcastCopy, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Bytes that are there already are looked at in another way."""
    return FREE


@rule.register
def _(i: Memset, core: Core, reading: Reading) -> tuple[Way, ...]:
    """One element is an immediate of its consumers; a stored tensor is a transfer."""
    (result,) = i.results
    elements = prod(result.type.shape)
    if elements == 1 or is_stored(i):
        return FREE
    zero = not np.any(np.ascontiguousarray(i.value).reshape(-1)[:1].view(np.uint8))
    halved = zero and is_half(result.type.dtype)  # [V26]
    written = (0.0, float(nbytes(i.results)))
    shape = result.type.shape
    cycles = 0.5 if halved else 1.0
    return (
        (elementwise(core, "gpsimd", shape, cycles, "MEMSET", traffic=written),),
        (elementwise(core, "vector", shape, cycles, "MEMSET", traffic=written),),
    )


@rule.register
def _(i: QuantizeMx, core: Core, reading: Reading) -> tuple[Way, ...]:
    """VectorE quantizes at a rate of its own; weights come quantized."""
    if i.engine == "offline":
        return FREE
    shape = i.operands[0].type.shape
    traffic = traffic_of(i)
    cycles = 1 / a.QUANTIZE_MX_RATE.value
    work = elementwise(
        core, "vector", shape, cycles, "QUANTIZE_MX", speed=4, traffic=traffic,
    )  # fmt: skip
    return ((work,),)


@rule.register
def _(i: Sparsify, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Offline; else every element is compared with the others of its group."""
    if i.engine == "offline":
        return FREE
    group = int(i.pattern.split(":")[1])
    return (software(core, i, prod(i.operands[0].type.shape) * group),)


def _on_one_element(core: Core, i: Instruction, instructions: float) -> Way:
    work = elementwise(
        core, "vector", (), instructions, "TENSOR_SCALAR", instructions=instructions
    )
    return (work,)


@rule.register
def _(i: ScaleFromAmax, core: Core, reading: Reading) -> tuple[Way, ...]:
    """A few operations on one element."""
    return (_on_one_element(core, i, a.SCALE_STEPS.value),)


@rule.register(RecordAmax)
@rule.register(ReadAmax)
def _(i: Instruction, core: Core, reading: Reading) -> tuple[Way, ...]:
    """One operation on one element."""
    return (_on_one_element(core, i, 1),)
