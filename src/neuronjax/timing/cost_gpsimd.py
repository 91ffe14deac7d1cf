"""Cost rules for sorts, top-k, iota, random bits, linear algebra, FFTs and host calls.

GpSimdE executes most of these, with one of its instructions or as software. As software
it also executes instructions that apply a block of the program to elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, log2, prod
from typing import Any

from neuronjax.ir.algebra_set import Cholesky, Fft, HostCall, TriangularSolve
from neuronjax.ir.block_set import (
    MapBlock,
    PoolBlock,
    ReduceBlock,
    ScanBlock,
    ScatterBlock,
    SelectAndScatterBlock,
    SortBlock,
)
from neuronjax.ir.instruction import Block, Buffer, Instruction, View
from neuronjax.ir.instruction_set import Iota, Rng, Sort, TopK
from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_rules import (
    FREE,
    Reading,
    columns,
    elementwise,
    lane_task,
    nbytes,
    rule,
    stream,
    tiles_of,
    traffic_of,
)
from neuronjax.timing.engines.gpsimd import operations_cycles, topk_cycles
from neuronjax.timing.engines.lanes import engine_work, lane_work
from neuronjax.timing.engines.task import LaneTask
from neuronjax.timing.work import Core, Way, Work


def gpsimd(core: Core, instruction: Instruction, cycles: float, opcode: str) -> Way:
    """Return the `Way` to run an instruction on GpSimdE.

    `cycles` is its time on the GpSimdE of each physical core, without GPSIMD_START."""
    tensors = (*instruction.operands, *instruction.results)
    biggest = max((t.type.shape for t in tensors), key=prod, default=())
    tiles = tiles_of(columns(biggest, core))
    moved = traffic_of(instruction)
    return (
        engine_work(core, "gpsimd", cycles, tiles, opcode=opcode, tiles=tiles, **moved),
    )


def software(
    core: Core, instruction: Instruction, operations: float, opcode: str = "CUSTOM_OP"
) -> Way:
    """Return the `Way` to run an instruction as software on GpSimdE, with this number
    of 32-bit `operations` spread over the lanes."""
    moved = nbytes(instruction.operands) + nbytes(instruction.results)
    cycles = operations_cycles(core, operations, moved)
    return gpsimd(core, instruction, cycles, opcode)


def _rows(instruction: Instruction, axis: int) -> tuple[int, int]:
    shape = instruction.operands[0].type.shape
    length = shape[axis] if shape else 1
    return length, prod(shape) // max(1, length)


def _in_rounds_of_eight(
    core: Core, instruction: Instruction, length: int, rows: int, wanted: int
) -> Way:
    """Return the `Way` to find the `wanted` largest elements of each of `rows` rows, of
    `length` elements, on VectorE. A round of three instructions finds eight of them."""
    tiles = max(1, ceil(rows / (core.spec.partitions * core.lnc)))
    values = (stream(instruction.operands[0].type, tiles * length),)
    rounds = ceil(wanted / 8)
    tasks = (
        LaneTask(name=name, queue="vector", read=values, folds=tiles)
        for name in ("nc_find_index8", "nc_match_replace8", "max8")
    )
    fields = traffic_of(instruction)
    fields["sbuf_read_bytes"] *= 3 * rounds
    return (lane_work(core, *tasks, tiles=tiles, times=rounds, **fields),)


def _merge_operations(length: int, rows: int, tensors: int) -> float:
    steps = ceil(log2(length)) if length > 1 else 0
    return a.SORT_OPERATIONS.value * rows * length * steps * max(1, tensors)


@rule.register
def _(i: Sort, core: Core, reading: Reading) -> tuple[Way, ...]:
    length, rows = _rows(i, i.dimension)
    merged = software(core, i, _merge_operations(length, rows, len(i.operands)), "SORT")
    if len(i.operands) > 2:
        return (merged,)
    return (merged, _in_rounds_of_eight(core, i, length, rows, length))


@rule.register
def _(i: SortBlock, core: Core, reading: Reading) -> tuple[Way, ...]:
    length, rows = _rows(i, i.dimension)
    tensors = len(i.operands) - i.captures + _operations(i.body)
    return (software(core, i, _merge_operations(length, rows, tensors), "SORT"),)


@rule.register
def _(i: TopK, core: Core, reading: Reading) -> tuple[Way, ...]:
    length, rows = _rows(i, -1)
    at_once = a.GPSIMD_PROCESSORS.value * core.lnc
    cycles = ceil(rows / at_once) * topk_cycles(length, i.k)
    return (
        _in_rounds_of_eight(core, i, length, rows, i.k),
        gpsimd(core, i, cycles, "TOPK"),
    )


@rule.register
def _(i: Iota, core: Core, reading: Reading) -> tuple[Way, ...]:
    counted = elementwise(core, i, lane_task(core, i, "gpsimd", "iota"))
    scan = lane_task(core, i, "vector", "tensor_tensor_scan")
    return (counted,) if i.engine == "gpsimd" else (elementwise(core, i, scan),)


@rule.register
def _(i: Rng, core: Core, reading: Reading) -> tuple[Way, ...]:
    bits = i.results[-1]
    words = ceil(nbytes((bits,)) / 4)
    per_word = {
        "THREE_FRY": a.THREEFRY_OPERATIONS.value,
        "PHILOX": a.PHILOX_OPERATIONS.value,
    }.get(i.algorithm.upper())
    if per_word is not None:
        return (software(core, i, per_word * words, "RNG"),)
    words = stream(bits.type, columns(bits.type.shape, core))
    task = LaneTask(name="rng", queue="vector", written=(words,))
    return (elementwise(core, i, task, sbuf_read_bytes=0.0),)


def _operations(block: Block) -> int:
    return max(1, sum(1 for _ in block.walk()))


def _size(tensor: View | Buffer) -> int:
    return prod(tensor.type.shape)


def _parts(instruction: Instruction) -> int:
    """Return the number of real operations for each operation of `instruction`: 4 if
    the numbers are complex (the result is two tensors), else 1."""
    return 4 if len(instruction.results) > 1 else 1


#: Instruction class -> a function that returns the number of operations with which
#: GpSimdE runs such an instruction as software. If the instruction applies a block to
#: elements, the operations of the block count once per application.
_SOFTWARE: Mapping[type[Instruction], Callable[[Any], float]] = {
    MapBlock: lambda i: _size(i.results[0]) * _operations(i.body),
    ReduceBlock: lambda i: _size(i.operands[0]) * _operations(i.body),
    ScanBlock: lambda i: _size(i.operands[0]) * _operations(i.body),
    PoolBlock: lambda i: (
        _size(i.results[0]) * prod(i.window.sizes) * _operations(i.body)
    ),
    ScatterBlock: lambda i: _size(i.operands[-1 - i.captures]) * _operations(i.body),
    SelectAndScatterBlock: lambda i: (
        _size(i.operands[1])
        * (prod(i.window.sizes) * _operations(i.select) + _operations(i.scatter))
    ),
    Cholesky: lambda i: (  # n^3 / 3 operations for each matrix
        _size(i.operands[0]) * i.operands[0].type.shape[-1] / 3 * _parts(i)
    ),
    TriangularSolve: lambda i: (
        _size(i.results[0]) * i.operands[0].type.shape[-1] * _parts(i)
    ),
    Fft: lambda i: (
        5  # an FFT has 5 n log2 n operations
        * max(_size(i.operands[0]), _size(i.results[0]))
        * sum(log2(max(2, n)) for n in i.fft_length)
    ),
}


def _in_software(i: Instruction, core: Core, reading: Reading) -> tuple[Way, ...]:
    return (software(core, i, _SOFTWARE[type(i)](i)),)


for _kind in _SOFTWARE:
    rule.register(_kind, _in_software)


@rule.register
def _(i: HostCall, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Price a call of a function on the host: the call, transfers over PCIe, and N^3
    operations for an operand of N x N.

    Calls of `jax.debug` are free, since the chip does not run them."""
    if i.function.kind == "debug":
        return FREE
    moved = nbytes(i.operands) + nbytes(i.results)
    shape = i.operands[0].type.shape if i.operands else ()
    side = min(shape[-2:]) if len(shape) > 1 else 1
    work = Work(
        queue="host",
        seconds=a.HOST_CALL.value
        + moved / a.HOST_BYTES_PER_SECOND.value
        + prod(shape) * side / a.HOST_OPERATIONS.value,
        opcode="HOST",
    )
    return ((work,),)
