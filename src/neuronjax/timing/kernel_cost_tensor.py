"""TensorE in kernels: `nc_matmul`, `nc_matmul_mx`, `nc_transpose`.

A matmul loads its stationary operand and streams the moving one: max(min(64, M), N)
cycles [V26], four times that in FP32; the load of the next stationary operand is hidden
behind it [A2], and left out where the same operand is used again. The array's row and
column tiles work side by side.
"""

from __future__ import annotations

from math import ceil

from neuronjax.ir.kernel import Access, KernelInstruction
from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_tensor import (
    array_latency_seconds,
    load_stationary_seconds,
    multiply_moving_seconds,
)
from neuronjax.timing.kernel_operands import KernelOperand, operand
from neuronjax.timing.kernel_price import KernelPrice, on_engine, prices
from neuronjax.timing.work import Core, Work

_WIDE = frozenset({"float32"})
#: Rows and columns that the array is divided by.
QUARTER = 32


def _fp32_cycles(
    i: KernelInstruction, core: Core, both: tuple[KernelOperand, ...]
) -> float:
    """Cycles of a moving column: passes of FP32, fewer where values are 0 and 1."""
    if not any(o.name in _WIDE for o in both):
        return 1.0
    spec = core.spec
    if i.attributes.get("is_transpose") and "exact_transpose" in spec.capabilities:
        return a.FP32_TRANSPOSE_PASSES.value
    products = spec.products_per_cell_per_cycle.fp32
    passes = 1.0 / (products or 1.0)
    for flag, side in zip(("stationary", "moving"), both, strict=True):
        if i.attributes.get(f"is_{flag}_onezero") and side.name in _WIDE:
            passes /= a.ONE_ZERO.value
    return max(1.0, passes)


def _tiles(i: KernelInstruction) -> tuple[tuple[int, int], tuple[int, int]]:
    """First row and column tile of the array, and how many."""
    position = i.attributes.get("tile_position") or (0, 0)
    size = i.attributes.get("tile_size") or (128, 128)
    return (
        (position[0] // QUARTER, max(1, ceil(size[0] / QUARTER))),
        (position[1] // QUARTER, max(1, ceil(size[1] / QUARTER))),
    )


def _matmul(
    core: Core,
    both: tuple[KernelOperand, KernelOperand],
    out: KernelOperand,
    *,
    held: int,
    moved: int,
    rows: int,
    per_cell: int,
    column_cycles: float,
    is_transpose: bool,
    tiles: tuple[tuple[int, int], tuple[int, int]] = ((0, 4), (0, 4)),
) -> KernelPrice:
    spent = multiply_moving_seconds(core, moved, held=held, column_cycles=column_cycles)
    operations = 2.0 * rows * per_cell * held * moved
    executed = operations * column_cycles / per_cell
    latency = array_latency_seconds(core, rows)
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
        load_seconds=load_stationary_seconds(core, held, rows, column_cycles),
        rows=tiles[0],
        columns=tiles[1],
        is_transpose=is_transpose,
    )


def _pair(i: KernelInstruction) -> tuple[KernelOperand, KernelOperand]:
    stationary, moving = (x for x in i.inputs[:2] if isinstance(x, Access))
    return operand(stationary), operand(moving)


@prices("nc_matmul")
def nc_matmul(i: KernelInstruction, core: Core) -> KernelPrice:
    stationary, moving = both = _pair(i)
    per_cell = int(i.attributes.get("rows_per_cell", 1))
    cycles = _fp32_cycles(i, core, both)
    if per_cell > 1:
        products = core.spec.products_per_cell_per_cycle.fp8 or 1.0
        cycles = max(1.0, per_cell / products)
    return _matmul(
        core,
        both,
        operand(i.outputs[0]),
        held=stationary.free // per_cell,
        moved=moving.free // per_cell,
        rows=stationary.partitions,
        per_cell=per_cell,
        column_cycles=cycles,
        is_transpose=bool(i.attributes.get("is_transpose")),
        tiles=_tiles(i),
    )


@prices("nc_matmul_mx")
def nc_matmul_mx(i: KernelInstruction, core: Core) -> KernelPrice:
    """Four products in a cell; a column takes as long as one of BF16 [A4]."""
    stationary, moving = both = _pair(i)
    packed = 4
    products = core.spec.products_per_cell_per_cycle.mx or 1.0
    return _matmul(
        core,
        both,
        operand(i.outputs[0]),
        held=stationary.free,
        moved=moving.free,
        rows=stationary.partitions,
        per_cell=packed,
        column_cycles=max(1.0, packed / products),
        is_transpose=False,
        tiles=_tiles(i),
    )


@prices("nc_transpose")
def nc_transpose(i: KernelInstruction, core: Core) -> KernelPrice:
    """max(P, min(64, F)) on TensorE, the data stationary; max(64, N) on VectorE."""
    access = i.inputs[0]
    assert isinstance(access, Access)
    data, out = operand(access), operand(i.outputs[0])
    if i.engine != "tensor":
        return on_engine(i, core, max(data.free, out.free), "TRANSPOSE")
    spec = core.spec
    cycles = 1.0
    if data.dtype.itemsize == 4:
        four = 1.0 / (spec.products_per_cell_per_cycle.fp32 or 1.0)
        exact = "exact_transpose" in spec.capabilities
        cycles = a.FP32_TRANSPOSE_PASSES.value if exact else four
    return _matmul(
        core,
        (data, data),
        out,
        held=data.free,
        moved=data.partitions,
        rows=data.partitions,
        per_cell=1,
        column_cycles=cycles,
        is_transpose=True,
    )


def chain_speedup(core: Core) -> float:
    """Of transposes that follow one another: on NeuronCore-v4 they overlap [A4]."""
    if "background_transpose" in core.spec.capabilities:
        return a.BACKGROUND_TRANSPOSE.value
    return 1.0


def stationary_key(i: KernelInstruction) -> tuple[int, int, object] | None:
    """Equal for matmuls of the same stationary operand."""
    if i.name not in ("nc_matmul", "nc_matmul_mx", "nc_transpose"):
        return None
    held = i.inputs[0]
    assert isinstance(held, Access)
    if held.dynamic is not None:
        return None
    return held.storage.number, held.offset, held.pattern
