"""TensorE in kernels: `nc_matmul`, `nc_matmul_mx`, `nc_transpose`.

The load of a stationary operand is left out where the same one is used again; what the
array's tiles do side by side is `kernel_array`'s.
"""

from __future__ import annotations

from math import ceil

from neuronjax.ir.kernel import Access, KernelInstruction
from neuronjax.timing import assumptions as a
from neuronjax.timing.engines.task import LaneStream, has
from neuronjax.timing.engines.tensor import (
    ArrayTask,
    Products,
    array_latency_seconds,
    column_cycles,
    load_seconds,
    multiply_seconds,
    transpose_cycles,
)
from neuronjax.timing.kernel_cost_lanes import on_lanes
from neuronjax.timing.kernel_operands import operand
from neuronjax.timing.kernel_price import KernelPrice, prices
from neuronjax.timing.work import Core, Work


def _cycles(i: KernelInstruction, core: Core, both: tuple[LaneStream, ...]) -> float:
    """Cycles of a moving column, fewer where FP32 values are 0 and 1."""
    per_cell = int(i.attributes.get("rows_per_cell", 1))
    wide = [o.name == "float32" for o in both]
    if not any(wide):
        return column_cycles(core, "fp8" if per_cell > 1 else "bf16", per_cell)
    if i.attributes.get("is_transpose") and has(core, "exact_transpose"):
        return transpose_cycles(core, 4)
    flags = "is_stationary_onezero", "is_moving_onezero"
    told = sum(
        bool(i.attributes.get(flag)) and w for flag, w in zip(flags, wide, strict=True)
    )
    return column_cycles(core, "fp32", zeros_and_ones=told)


def _tiles(i: KernelInstruction) -> tuple[tuple[int, int], tuple[int, int]]:
    """First row and column tile of the array, and how many, in quarters."""
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
    spent = multiply_seconds(core, task)
    operations = 2.0 * task.rows * per_cell * task.held * task.moved
    executed = operations * task.column_cycles / per_cell
    latency = array_latency_seconds(core, task.rows)
    work = Work(
        queue="tensor",
        seconds=spent,
        latency_seconds=latency,
        opcode="MATMUL",
        flops=0.0 if is_transpose else operations,
        hardware_flops=executed,
        transpose_flops=executed if is_transpose else 0.0,
        sbuf_read_bytes=float(sum(o.bytes for o in both)),
        psum_write_bytes=float(out.bytes),
    )
    return KernelPrice(
        queue="tensor",
        source=work,
        seconds=spent,
        latency_seconds=latency,
        load_seconds=load_seconds(core, task),
        rows=tiles[0],
        columns=tiles[1],
        array_share=min(1.0, task.rows / (tiles[0][1] * a.TILE_ROWS.value)),
        is_transpose=is_transpose,
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
        ),
        per_cell=per_cell,
        is_transpose=bool(i.attributes.get("is_transpose")),
        tiles=_tiles(i),
    )


@prices("nc_matmul_mx")
def nc_matmul_mx(i: KernelInstruction, core: Core) -> KernelPrice:
    """Four products in a cell."""
    stationary, moving = both = _pair(i)
    packed = 4
    task = ArrayTask(
        held=stationary.free,
        moved=moving.free,
        rows=stationary.partitions,
        column_cycles=column_cycles(core, "mx", packed),
    )
    out = operand(i.outputs[0])
    return _matmul(core, both, out, task, per_cell=packed, tiles=_tiles(i))


@prices("nc_transpose")
def nc_transpose(i: KernelInstruction, core: Core) -> KernelPrice:
    """On TensorE the data is stationary."""
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
    """A partition copied to all others: a matmul of one row with ones, in pieces."""
    out = operand(i.outputs[0])
    kind: Products = "fp32" if out.dtype.itemsize == 4 else "bf16"
    task = ArrayTask(
        held=out.partitions,
        moved=out.free,
        rows=1,
        column_cycles=column_cycles(core, kind),
    )
    return _matmul(core, (operand(i.accesses[1]), out), out, task)
