"""TensorE in kernels: `nc_matmul`, `nc_matmul_mx`, `nc_transpose`.

A matmul loads its stationary operand and streams the moving one: max(min(64, M), N)
cycles [V26], four times that in FP32; the load of the next stationary operand is hidden
behind it [A2], and left out where the same operand is used again. The array's row and
column tiles work side by side.
"""

from __future__ import annotations

from math import ceil, inf

from neuronjax.ir.kernel import Access, KernelInstruction
from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_tensor import (
    array_latency_seconds,
    load_stationary_seconds,
    multiply_moving_seconds,
)
from neuronjax.timing.engines.task import LaneStream
from neuronjax.timing.kernel_cost_lanes import on_lanes
from neuronjax.timing.kernel_operands import operand
from neuronjax.timing.kernel_price import KernelPrice, prices
from neuronjax.timing.work import Core, Work

_WIDE = frozenset({"float32"})
#: Rows and columns that the array is divided by.
QUARTER = 32


def _fp32_cycles(
    i: KernelInstruction, core: Core, both: tuple[LaneStream, ...]
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
    both: tuple[LaneStream, LaneStream],
    out: LaneStream,
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


def _pair(i: KernelInstruction) -> tuple[LaneStream, LaneStream]:
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
        return on_lanes(i, core)
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


def over_partitions(i: KernelInstruction, core: Core) -> KernelPrice:
    """A partition copied to all others: a matmul of one row with ones, in pieces."""
    out = operand(i.outputs[0])
    passes = a.ONES_PASSES.value if out.dtype.itemsize == 4 else 1.0
    return _matmul(
        core,
        (operand(i.accesses[1]), out),
        out,
        held=out.partitions,
        moved=out.free,
        rows=1,
        per_cell=1,
        column_cycles=passes,
        is_transpose=False,
    )


# -- while a kernel runs ---------------------------------------------------------------


_QUARTERS = 4


class Array:
    """The array of one core; `is_tiled` says that some matmul of the kernel uses a
    part."""

    def __init__(self, core: Core, is_tiled: bool) -> None:
        self._is_tiled = is_tiled
        limited = "quarter_tiling" in core.spec.capabilities  # from NeuronCore-v3 on
        self._slow = 1 / a.THROTTLE_MEAN.value if limited else 1.0
        # Transposes that follow one another overlap on NeuronCore-v4 [A4].
        overlap = "background_transpose" in core.spec.capabilities
        self._chained = a.BACKGROUND_TRANSPOSE.value if overlap else 1.0
        self._start, self._end, self._ramp = -inf, -inf, -inf
        self._input = 0.0
        self._tiles = [[0.0] * _QUARTERS for _ in range(_QUARTERS)]
        self._was_transpose = False

    def multiply(
        self, p: KernelPrice, start: float, held: float | None
    ) -> tuple[float, float, float]:
        """One matmul or transpose, in the order of issue.

        `held` is since when the stationary operand is there; None if the array has it.
        What is returned is start, end, and when the next one may be issued."""
        if held is not None:
            start = max(start, max(held, self._start) + p.load_seconds)
        spent = p.seconds
        if p.is_transpose and self._was_transpose:
            spent /= self._chained
        if self._slow > 1.0:
            spent = self._throttled(start, spent)
        free = start + spent
        if self._is_tiled:
            start = free = self._tile(p, start, spent)
        self._was_transpose = p.is_transpose
        self._start, self._end = start, max(self._end, start + spent)
        return start, start + spent, free

    def _throttled(self, start: float, spent: float) -> float:
        """After half a window of rest, slower for a window [GL]."""
        if start - self._end > a.THROTTLE_SECONDS.value / 2:
            self._ramp = start + a.THROTTLE_SECONDS.value
        return spent * self._slow if start < self._ramp else spent

    def _tile(self, p: KernelPrice, start: float, spent: float) -> float:
        """When its tiles are free, and the input of the array."""
        rows = range(p.rows[0], min(_QUARTERS, sum(p.rows)))
        columns = range(p.columns[0], min(_QUARTERS, sum(p.columns)))
        used = [(r, c) for r in rows for c in columns]
        start = max(start, self._input, *(self._tiles[r][c] for r, c in used))
        for r, c in used:
            self._tiles[r][c] = start + spent
        share = len(rows) * QUARTER / a.PARALLEL_INPUT.value
        self._input = start + spent * share
        return start
