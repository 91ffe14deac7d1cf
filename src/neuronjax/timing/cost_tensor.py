"""Costs of contractions and transposes on TensorE.

In a program, the operand that makes the contraction quicker is the stationary one, and
small operands use only a tile (a part) of the array. VectorE or ScalarE copies every
result out of PSUM: the copy is the last `Work` of each `Way`, and `pricing` removes it
if the consumer reads PSUM. A kernel itself specifies stationary operands, tiles and
copies; `kernel_queues.Array` runs tiles of the array in parallel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from neuronjax.ir.instruction import View
from neuronjax.ir.instruction_set import (
    NcMatmul,
    NcMatmulMx,
    NcMatmulSparse,
    NcTranspose,
)
from neuronjax.ir.kernel import Access, KernelInstruction
from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_gpsimd import software
from neuronjax.timing.cost_lanes import on_lanes
from neuronjax.timing.cost_rules import (
    FREE,
    KernelPrice,
    Reading,
    prices,
    rule,
    tiles_of,
)
from neuronjax.timing.engines.lanes import lane_work
from neuronjax.timing.engines.task import LaneStream, LaneTask, has
from neuronjax.timing.engines.tensor import (
    ArrayTask,
    Products,
    array_latency_seconds,
    array_seconds,
    column_cycles,
    least_tile,
    load_seconds,
    multiply_seconds,
    seen_load_seconds,
    tiles_at_once,
    transpose_cycles,
)
from neuronjax.timing.kernel_operands import operand
from neuronjax.timing.work import Core, Queue, Way, Work


@dataclass(frozen=True, slots=True)
class Contraction:
    """A batch of products [m, k] x [k, n], as the array executes them.

    Attributes:
        batch, m, n, k: sizes. If the stationary operand is compressed (sparse), k is
            the number of rows that it stores, not of those that it stands for.
        k_tile: rows of k that one pass of the array contracts.
        rows_per_cell: rows of k that one row of the array's cells contracts.
        column_cycles: cycles per column of the moving operand.
        item_bytes: bytes of an element of the operands.
        psum_bytes: bytes of an element of the result in PSUM.
        flops_per_k: floating-point operations of the program, per element of the result
            and row of k: 2 for a matmul, less if zeros were added to its operands, more
            if the stationary operand is compressed; 0 for a sum over k.
        stationary: the stationary operand: "lhs", "rhs", or "" for the quicker choice.
        row_tiles: whether the array may be divided into row tiles.
        column_tiles: whether the array may be divided into column tiles.
    """

    batch: int
    m: int
    n: int
    k: int
    k_tile: int
    rows_per_cell: int = 1
    column_cycles: float = 1.0
    item_bytes: float = 2.0
    psum_bytes: int = 4
    flops_per_k: float = 2.0
    stationary: str = ""
    row_tiles: bool = True
    column_tiles: bool = True


@dataclass(frozen=True, slots=True)
class ArrayTiling:
    """The matmuls that execute a contraction with a given stationary operand.

    Attributes:
        task: the number and the sizes of the matmuls.
        groups: the number of times that PSUM banks are filled, one after the other;
            tiles of the array and physical cores fill their banks at the same time.
        evacuated: elements per lane that one physical core copies out of PSUM.
        read_bytes: bytes read from SBUF.
    """

    task: ArrayTask
    groups: int
    evacuated: int
    read_bytes: float


def _tile_size(core: Core, used: int, whole: int, allowed: bool) -> int:
    tile = least_tile(core) if allowed else whole
    while tile < used and tile < whole:
        tile *= 2
    return tile


def _tiling(c: Contraction, core: Core, held: int, moved: int) -> ArrayTiling:
    spec = core.spec
    rows = min(spec.partitions, ceil(c.k / c.rows_per_cell))
    columns = min(spec.max_stationary_free, held)
    row_tile = _tile_size(core, rows, spec.partitions, c.row_tiles)
    column_tile = _tile_size(core, columns, spec.array_columns, c.column_tiles)
    parallel = tiles_at_once(core, row_tile, column_tile)
    passes = ceil(c.k / c.k_tile)
    blocks = c.batch * ceil(held / spec.max_stationary_free)
    narrow = spec.max_moving_free_bf16 if c.psum_bytes == 2 else None
    strips = ceil(moved / (narrow or spec.max_moving_free))
    banks = ceil(moved * c.psum_bytes / spec.psum_bank_bytes_per_partition)
    task = ArrayTask(
        held=columns,
        moved=blocks * moved * passes,
        rows=rows,
        column_cycles=c.column_cycles,
        matmuls=blocks * strips * passes,
        loads=ceil(blocks * passes / core.lnc),
        parallel=parallel * core.lnc,
        packed=c.rows_per_cell,
    )
    return ArrayTiling(
        task,
        groups=max(1, ceil(blocks * banks / task.parallel)),
        evacuated=ceil(blocks * moved / (spec.array_columns // column_tile * core.lnc)),
        read_bytes=c.item_bytes * c.k * blocks * (moved + columns * strips),
    )


def contraction_ways(c: Contraction, core: Core, before: Way = ()) -> tuple[Way, ...]:
    """Return two ways to execute a contraction; `FREE` if its result is empty. Each way
    is `before`, then the matmuls, then a copy of the result out of PSUM: by VectorE in
    the first way, by ScalarE in the second."""
    if not c.batch * c.m * c.n:
        return FREE
    sides = {"lhs": (c.m, c.n), "rhs": (c.n, c.m)}
    asked = [sides[c.stationary]] if c.stationary else sides.values()
    tilings = [_tiling(c, core, *sizes) for sizes in asked]
    t = min(tilings, key=lambda t: array_seconds(core, t.task))
    flops = c.flops_per_k * c.batch * c.m * c.n * c.k
    # BF16 operations that the array could execute in the time of one of `c`.
    executed = c.column_cycles * core.spec.partitions / c.k_tile
    sums = c.batch * c.m * c.n * c.psum_bytes
    matmul = Work(
        queue="tensor",
        seconds=array_seconds(core, t.task),
        tiles=t.groups,
        latency_seconds=array_latency_seconds(core, t.task.rows),
        opcode="MATMUL",
        flops=flops,
        hardware_flops=2.0 * c.batch * c.m * c.n * c.k * executed,
        sbuf_read_bytes=t.read_bytes,
        psum_write_bytes=float(sums * ceil(c.k / c.k_tile)),
    )
    return tuple(
        (*before, matmul, copy)
        for copy in evacuations(core, t.evacuated, sums, c.psum_bytes)
    )


def evacuations(
    core: Core, per_lane: int, psum_read_bytes: float, item_bytes: int
) -> tuple[Work, Work]:
    """Return two alternatives to copy a result from PSUM to SBUF: the `Work` of VectorE
    if it copies, and the `Work` of ScalarE if it copies.

    `per_lane` is the number of elements per lane of one physical core, and `item_bytes`
    the size of an element in PSUM."""
    dtype = np.dtype(np.float16 if item_bytes == 2 else np.float32)
    moved = float(psum_read_bytes)
    bank = core.spec.psum_bank_bytes_per_partition

    def copied(queue: Queue) -> Work:
        return lane_work(
            core,
            LaneTask(
                name="tensor_copy",
                queue=queue,
                read=(LaneStream("psum", dtype, per_lane),),
                written=(LaneStream("sbuf", dtype, per_lane),),
            ),
            tiles=tiles_of(per_lane, bank / item_bytes),  # one copy per bank
            psum_read_bytes=moved,
            sbuf_write_bytes=moved,
        )

    return copied("vector"), copied("scalar")


def transpose_works(
    core: Core, batch: int, rows: int, columns: int, item_bytes: int
) -> tuple[Way, Way]:
    """Return two ways to transpose `batch` matrices [rows, columns] on TensorE's array:
    VectorE copies the result out of PSUM in the first way, ScalarE in the second.

    A matrix is divided into blocks of the array's size, each a stationary operand."""
    side, wide = core.spec.partitions, core.spec.array_columns
    blocks = batch * ceil(columns / wide)
    squares = ceil(blocks * ceil(rows / side) / core.lnc)
    streamed = ceil(blocks * rows / core.lnc)
    task = ArrayTask(
        held=min(columns, wide),
        moved=streamed,
        rows=min(rows, side),
        column_cycles=transpose_cycles(core, item_bytes),
        matmuls=squares,
        loads=squares,
    )
    exact = has(core, "exact_transpose")
    psum_item = 2 if exact and item_bytes <= 2 else 4
    elements = batch * rows * columns
    executed = 2.0 * elements * side * task.column_cycles
    work = Work(
        queue="tensor",
        seconds=array_seconds(core, task),
        tiles=max(1, squares),
        latency_seconds=array_latency_seconds(core),
        opcode="MATMUL",
        hardware_flops=executed,
        transpose_flops=executed,
        sbuf_read_bytes=float(elements * item_bytes),
        psum_write_bytes=float(elements * psum_item),
    )
    copies = evacuations(core, streamed, elements * psum_item, psum_item)
    return (work, copies[0]), (work, copies[1])


def _transposed_first(
    views: tuple[View, ...], c: Contraction, core: Core, reading: Reading
) -> Way:
    works: list[Work] = []
    for position in sorted(reading.to_transpose):
        item = views[position].type.dtype.itemsize
        free = c.m if position == 0 else c.n
        works += transpose_works(core, c.batch, free, c.k, item)[0]
    return tuple(works)


@rule.register
def _(i: NcMatmul, core: Core, reading: Reading) -> tuple[Way, ...]:
    lhs, rhs = i.operands[:2]
    asked = i.dimensions.sizes(lhs.type.shape, rhs.type.shape)
    batch, m, n, k = i.held or asked
    if i.accumulation == "integer" or i.engine == "gpsimd":
        return (software(core, i, batch * m * n * k * 2),)
    dtypes = {lhs.type.dtype.name, rhs.type.dtype.name}
    kind = "int8" if dtypes == {"int8"} <= {*core.spec.tensor.dtypes} else "bf16"
    cycles = column_cycles(core, kind) * i.passes
    if i.rows_per_cell > 1:
        cycles = column_cycles(core, "fp8", i.rows_per_cell)
    c = Contraction(
        *(batch, m, n, k, i.k_tile),
        rows_per_cell=i.rows_per_cell,
        column_cycles=cycles,
        item_bytes=float(max(lhs.type.dtype.itemsize, rhs.type.dtype.itemsize)),
        psum_bytes=i.results[0].type.dtype.itemsize,
        flops_per_k=2.0 * prod(asked) / max(1, batch * m * n * k),
        column_tiles=i.rows_per_cell == 1,  # [A3, ISA]
    )
    before = _transposed_first(i.operands, c, core, reading)
    return contraction_ways(c, core, before)


@rule.register
def _(i: NcMatmulMx, core: Core, reading: Reading) -> tuple[Way, ...]:
    lhs, rhs = i.operands[:2]
    batch, m, n, k = i.dimensions.sizes(lhs.type.shape, rhs.type.shape)
    rows_per_cell = max(1, i.k_tile // core.spec.partitions)
    c = Contraction(
        *(batch, m, n, k, i.k_tile),
        rows_per_cell=rows_per_cell,
        column_cycles=column_cycles(core, "mx", rows_per_cell),
        item_bytes=1.0,
        psum_bytes=i.results[0].type.dtype.itemsize,
        column_tiles=False,  # row tiling only [ISA]
    )
    return contraction_ways(c, core)


@rule.register
def _(i: NcMatmulSparse, core: Core, reading: Reading) -> tuple[Way, ...]:
    values, moving = i.operands[0], i.operands[2]
    d = i.dimensions
    batch = prod(values.type.shape[x] for x in d.lhs_batch)
    k = prod(values.type.shape[x] for x in d.lhs_contract)
    dense = prod(moving.type.shape[x] for x in d.rhs_contract)
    held = prod(values.type.shape) // max(1, batch * k)
    moved = prod(moving.type.shape) // max(1, batch * dense)
    full = 4  # 4:16 sparsity: a row of `values` selects one of 4 moving rows [C3]
    c = Contraction(
        *(batch, held, moved, k, i.k_tile),
        column_cycles=column_cycles(core, "sparse", full),
        item_bytes=float(moving.type.dtype.itemsize),
        psum_bytes=i.results[0].type.dtype.itemsize,
        flops_per_k=2.0 * dense / max(1, k),
        stationary="lhs",  # the compressed operand
        row_tiles=False,
        column_tiles=False,
    )
    return contraction_ways(c, core)


@rule.register
def _(i: NcTranspose, core: Core, reading: Reading) -> tuple[Way, ...]:
    *batch, rows, columns = i.operands[0].type.shape
    item = i.operands[0].type.dtype.itemsize
    return transpose_works(core, prod(batch), rows, columns, item)


# -- kernels ---------------------------------------------------------------------------


def _cycles(i: KernelInstruction, core: Core, both: tuple[LaneStream, ...]) -> float:
    """Return the cycles per column of the moving operand: fewer for each FP32 operand
    whose elements are all 0 or 1 according to the kernel. `both` are the stationary and
    the moving operand."""
    per_cell = int(i.attributes.get("rows_per_cell", 1))
    wide = [o.name == "float32" for o in both]
    if not any(wide):
        return column_cycles(core, "fp8" if per_cell > 1 else "bf16", per_cell)
    if i.attributes.get("is_transpose") and has(core, "exact_transpose"):
        return transpose_cycles(core, 4)
    flags = "is_stationary_onezero", "is_moving_onezero"
    declared = sum(
        bool(i.attributes.get(flag)) and w for flag, w in zip(flags, wide, strict=True)
    )
    return column_cycles(core, "fp32", zeros_and_ones=declared)


def _tiles(i: KernelInstruction) -> tuple[tuple[int, int], tuple[int, int]]:
    quarter = int(a.TILE_ROWS.value)
    position = i.attributes.get("tile_position") or (0, 0)
    size = i.attributes.get("tile_size") or (128, 128)
    rows, columns = (
        (first // quarter, max(1, ceil(count / quarter)))
        for first, count in zip(position, size, strict=True)
    )
    return rows, columns


def _matmul(
    core: Core,
    both: tuple[LaneStream, LaneStream],
    out: LaneStream,
    task: ArrayTask,
    *,
    per_cell: int = 1,
    is_transpose: bool = False,
    tiles: tuple[tuple[int, int], tuple[int, int]] = ((0, 4), (0, 4)),
) -> KernelPrice:
    operations = 2.0 * task.rows * per_cell * task.held * task.moved
    executed = operations * task.column_cycles / per_cell
    work = Work(
        queue="tensor",
        seconds=multiply_seconds(core, task),
        latency_seconds=array_latency_seconds(core, task.rows),
        opcode="MATMUL",
        flops=0.0 if is_transpose else operations,
        hardware_flops=executed,
        transpose_flops=executed if is_transpose else 0.0,
        sbuf_read_bytes=float(sum(o.bytes for o in both)),
        psum_write_bytes=float(out.bytes),
    )
    return KernelPrice(
        work=work,
        load_seconds=load_seconds(core, task),
        seen_seconds=seen_load_seconds(core, task),
        rows=tiles[0],
        columns=tiles[1],
        array_share=min(1.0, task.rows / (tiles[0][1] * a.TILE_ROWS.value)),
    )


def _pair(i: KernelInstruction) -> tuple[LaneStream, LaneStream]:
    stationary, moving = (x for x in i.inputs[:2] if isinstance(x, Access))
    return operand(stationary), operand(moving)


@prices("nc_matmul")
def nc_matmul(i: KernelInstruction, core: Core) -> KernelPrice:
    stationary, moving = both = _pair(i)
    per_cell = int(i.attributes.get("rows_per_cell", 1))
    return _matmul(
        core,
        both,
        operand(i.outputs[0]),
        ArrayTask(
            held=stationary.free // per_cell,
            moved=moving.free // per_cell,
            rows=stationary.partitions,
            column_cycles=_cycles(i, core, both),
            packed=per_cell,
        ),
        per_cell=per_cell,
        is_transpose=bool(i.attributes.get("is_transpose")),
        tiles=_tiles(i),
    )


@prices("nc_matmul_mx")
def nc_matmul_mx(i: KernelInstruction, core: Core) -> KernelPrice:
    stationary, moving = both = _pair(i)
    packed = 4
    task = ArrayTask(
        held=stationary.free,
        moved=moving.free,
        rows=stationary.partitions,
        column_cycles=column_cycles(core, "mx", packed),
        packed=packed,
    )
    out = operand(i.outputs[0])
    return _matmul(core, both, out, task, per_cell=packed, tiles=_tiles(i))


@prices("nc_transpose")
def nc_transpose(i: KernelInstruction, core: Core) -> KernelPrice:
    """Price a transpose. On TensorE it is a matmul with the data as the stationary
    operand."""
    if i.engine != "tensor":
        return on_lanes(i, core)
    access = i.inputs[0]
    assert isinstance(access, Access)
    data, out = operand(access), operand(i.outputs[0])
    task = ArrayTask(
        held=data.free,
        moved=data.partitions,
        rows=data.partitions,
        column_cycles=transpose_cycles(core, data.dtype.itemsize),
    )
    return _matmul(core, (data, data), out, task, is_transpose=True)


def over_partitions(i: KernelInstruction, core: Core) -> KernelPrice:
    """Price a copy of one partition to several partitions: a matmul whose stationary
    operand is a row of ones."""
    out = operand(i.outputs[0])
    kind: Products = "fp32" if out.dtype.itemsize == 4 else "bf16"
    task = ArrayTask(
        held=out.partitions,
        moved=out.free,
        rows=1,
        column_cycles=column_cycles(core, kind),
    )
    return _matmul(core, (operand(i.accesses[1]), out), out, task)
