"""GpSimdE: eight processors of 512 bits, programmed freely.

A documented instruction takes 150 cycles to start and what its formula says [V26];
software is counted in operations on vectors of 128 lanes, all partitions together, and
reads or writes 4 bytes per lane and cycle [A2]. How well software does is not
published: the counts are those of the plain algorithm, in kernels too. Registers and
barriers of kernels are instructions of the sequencers.
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
from neuronjax.ir.kernel import Access, KernelInstruction
from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_rules import (
    Reading,
    clock,
    columns,
    engine_work,
    latency_seconds,
    rule,
    tiles_of,
)
from neuronjax.timing.kernel_constants import REGISTER_CYCLES
from neuronjax.timing.kernel_price import (
    KernelPrice,
    on_engine,
    outputs,
    per_partition,
    prices,
    tensors,
)
from neuronjax.timing.work import Core, Way, Work


def nbytes(views_or_buffers: tuple) -> int:
    """The bytes of all views or buffers together."""
    return sum(prod(v.type.shape) * v.type.dtype.itemsize for v in views_or_buffers)


def gpsimd(core: Core, instruction: Instruction, cycles: float, opcode: str) -> Way:
    """One work of GpSimdE: `cycles` of each physical core's processors."""
    tensors = (*instruction.operands, *instruction.results)
    biggest = max((t.type.shape for t in tensors), key=prod, default=())
    tiles = tiles_of(columns(biggest, core))
    work = engine_work(
        core,
        "gpsimd",
        cycles,
        tiles,
        opcode,
        sbuf_read_bytes=float(nbytes(instruction.operands)),
        sbuf_write_bytes=float(nbytes(instruction.results)),
    )
    return (work,)


def software(
    core: Core, instruction: Instruction, operations: float, opcode: str = "CUSTOM_OP"
) -> Way:
    """So many scalar operations of 32 bits, spread over the lanes."""
    lanes = core.spec.partitions * core.lnc * a.GPSIMD_SHARE.value
    moved = nbytes(instruction.operands) + nbytes(instruction.results)
    streamed = moved / (lanes * a.GPSIMD_BYTES.value)
    return gpsimd(core, instruction, max(operations / lanes, streamed), opcode)


def software_cycles(item_bytes: float) -> float:
    """Cycles of software for an element whose operands are that long together."""
    return item_bytes / (a.GPSIMD_BYTES.value * a.GPSIMD_SHARE.value)


def _rows(instruction: Instruction, axis: int) -> tuple[int, int]:
    """Length of an axis of the first operand, and how many such rows there are."""
    shape = instruction.operands[0].type.shape
    length = shape[axis] if shape else 1
    return length, prod(shape) // max(1, length)


def _in_rounds_of_eight(
    core: Core, instruction: Instruction, length: int, rows: int, wanted: int
) -> Way:
    """max8, nc_find_index8 and nc_match_replace8 on VectorE, eight results a round."""
    lanes = core.spec.partitions * core.lnc
    rounds = ceil(wanted / 8) * ceil(rows / lanes)
    cycles = rounds * (3 * length + 2 * a.MAX8_EXTRA.value)
    work = engine_work(
        core,
        "vector",
        cycles,
        3 * max(1, rounds),
        "MAX8",
        tiles=max(1, ceil(rows / lanes)),
        sbuf_read_bytes=float(nbytes(instruction.operands)) * rounds * 3,
        sbuf_write_bytes=float(nbytes(instruction.results)),
    )
    return (work,)


def _merge_operations(length: int, rows: int, tensors: int) -> float:
    """A merge sort of every row, each step carrying every tensor."""
    steps = ceil(log2(length)) if length > 1 else 0
    return a.SORT_OPERATIONS.value * rows * length * steps * max(1, tensors)


@rule.register
def _(i: Sort, core: Core, reading: Reading) -> tuple[Way, ...]:
    """A merge sort in software, or rounds of eight on VectorE for up to two tensors."""
    length, rows = _rows(i, i.dimension)
    merged = software(core, i, _merge_operations(length, rows, len(i.operands)), "SORT")
    if len(i.operands) > 2:
        return (merged,)
    return (merged, _in_rounds_of_eight(core, i, length, rows, length))


@rule.register
def _(i: SortBlock, core: Core, reading: Reading) -> tuple[Way, ...]:
    """A merge sort in software, whose steps run the comparison of the body."""
    length, rows = _rows(i, i.dimension)
    tensors = len(i.operands) - i.captures + _operations(i.body)
    return (software(core, i, _merge_operations(length, rows, tensors), "SORT"),)


@rule.register
def _(i: TopK, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Rounds of eight on VectorE, or `topk`: 4 n + K for a row on 16 partitions."""
    length, rows = _rows(i, -1)
    at_once = a.GPSIMD_PROCESSORS.value * core.lnc
    cycles = ceil(rows / at_once) * (a.TOPK_PASSES.value * length + i.k)
    return (
        _in_rounds_of_eight(core, i, length, rows, i.k),
        gpsimd(core, i, cycles, "TOPK"),
    )


@rule.register
def _(i: Iota, core: Core, reading: Reading) -> tuple[Way, ...]:
    """A number for every element of a lane."""
    return (gpsimd(core, i, columns(i.results[0].type.shape, core), "IOTA"),)


@rule.register
def _(i: Rng, core: Core, reading: Reading) -> tuple[Way, ...]:
    """The engine's own generator where the program leaves the choice."""
    bits = i.results[-1]
    words = ceil(nbytes((bits,)) / 4)
    per_word = {
        "THREE_FRY": a.THREEFRY_OPERATIONS.value,
        "PHILOX": a.PHILOX_OPERATIONS.value,
    }.get(i.algorithm.upper())
    if per_word is not None:
        return (software(core, i, per_word * words, "RNG"),)
    xorwow = "xorwow" in core.spec.capabilities
    rate = (a.RANDOM_XORWOW if xorwow else a.UNPUBLISHED_RANDOM).value
    per_lane = columns(bits.type.shape, core)
    tiles, written = tiles_of(per_lane), float(nbytes(i.results))
    cycles = per_lane / rate
    return (
        (engine_work(core, "vector", cycles, tiles, "RNG", sbuf_write_bytes=written),),
    )


# -- bodies ----------------------------------------------------------------------------


def _operations(block: Block) -> int:
    return max(1, sum(1 for _ in block.walk()))


def _shape(tensor: View | Buffer) -> tuple[int, ...]:
    return tensor.type.shape


def _parts(instruction: Instruction) -> int:
    """Real operations for one: 4 for complex numbers."""
    return 4 if len(instruction.results) > 1 else 1


def _selecting(i: SelectAndScatterBlock) -> int:
    selecting = prod(i.window.sizes) * _operations(i.select)
    return prod(_shape(i.operands[1])) * (selecting + _operations(i.scatter))


def _transforming(i: Fft) -> float:
    """5 n log2 n."""
    elements = max(prod(_shape(i.operands[0])), prod(_shape(i.results[0])))
    return 5 * elements * sum(log2(max(2, n)) for n in i.fft_length)


#: Scalar operations of what is software: of a body as often as it runs.
_SOFTWARE: Mapping[type[Instruction], Callable[[Any], float]] = {
    MapBlock: lambda i: prod(_shape(i.results[0])) * _operations(i.body),
    ReduceBlock: lambda i: prod(_shape(i.operands[0])) * _operations(i.body),
    ScanBlock: lambda i: prod(_shape(i.operands[0])) * _operations(i.body),
    PoolBlock: lambda i: (
        prod(_shape(i.results[0])) * prod(i.window.sizes) * _operations(i.body)
    ),
    ScatterBlock: lambda i: (
        prod(_shape(i.operands[-1 - i.captures])) * _operations(i.body)
    ),
    SelectAndScatterBlock: _selecting,
    Cholesky: lambda i: (
        prod(_shape(i.operands[0])[:-2])
        * _shape(i.operands[0])[-1] ** 3
        / 3
        * _parts(i)
    ),
    TriangularSolve: lambda i: (
        prod(_shape(i.results[0])) * _shape(i.operands[0])[-1] * _parts(i)
    ),
    Fft: _transforming,
}


def _in_software(i: Instruction, core: Core, reading: Reading) -> tuple[Way, ...]:
    return (software(core, i, _SOFTWARE[type(i)](i)),)


for _kind in _SOFTWARE:
    rule.register(_kind, _in_software)


@rule.register
def _(i: HostCall, core: Core, reading: Reading) -> tuple[Way, ...]:
    """There and back over PCIe; the cube of matrices' sides, as decompositions take."""
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


# -- kernels ---------------------------------------------------------------------------


#: Indices that a group of instructions of nc_n_gather takes [ISA].
_GATHER_GROUP = 512


@prices("iota", "affine_select")
def per_element(i: KernelInstruction, core: Core) -> KernelPrice:
    """An instruction of N elements takes 150 + N cycles."""
    return on_engine(i, core, per_partition(i), i.name.upper())


@prices("tensor_partition_reduce", "sequence_bounds", "nonzero_with_count")
def in_software(i: KernelInstruction, core: Core) -> KernelPrice:
    """Not published: what a lane holds is read once."""
    item = max((o.dtype.itemsize for o in tensors(i)), default=4)
    cycles = per_partition(i) * software_cycles(item)
    return on_engine(i, core, cycles, i.name.upper())


@prices("local_gather")
def local_gather(i: KernelInstruction, core: Core) -> KernelPrice:
    """An index at a time; see `assumptions.GATHER_INDEX`."""
    item = outputs(i)[0].dtype.itemsize
    elements = int(i.attributes.get("elements", 1))
    per_index = a.GATHER_INDEX.value + elements / max(1.0, 4 / item)
    cycles = int(i.attributes.get("valid", per_partition(i))) * per_index
    return on_engine(i, core, cycles, "LOCAL_GATHER")


@prices("nc_n_gather")
def nc_n_gather(i: KernelInstruction, core: Core) -> KernelPrice:
    """A group of instructions for 512 indices [ISA]; an index as of local_gather."""
    n = outputs(i)[0].free
    starts = (ceil(n / _GATHER_GROUP) - 1) * a.GPSIMD_START.value
    return on_engine(i, core, n * a.GATHER_INDEX.value + starts, "N_GATHER")


@prices("topk")
def topk(i: KernelInstruction, core: Core) -> KernelPrice:
    """4 n + K [ISA]."""
    n, k = int(i.attributes.get("n", per_partition(i))), outputs(i)[0].free
    return on_engine(i, core, a.TOPK_PASSES.value * n + k, "TOPK")


@prices("register_move", "register_load", "register_store", "core_barrier")
def on_sequencer(i: KernelInstruction, core: Core) -> KernelPrice:
    """A few cycles; what is in memory has to come first."""
    spent = REGISTER_CYCLES.value / clock(core, "sync")
    latency = latency_seconds(core, "sync")
    memories = {x.storage.memory for x in i.inputs if isinstance(x, Access)}
    if any(memory.endswith("hbm") for memory in memories):
        latency += a.HBM_LATENCY.value
    work = Work(
        queue="sync", seconds=spent, latency_seconds=latency, opcode=i.name.upper()
    )
    return KernelPrice(
        queue="sync", source=work, seconds=spent, latency_seconds=latency
    )
