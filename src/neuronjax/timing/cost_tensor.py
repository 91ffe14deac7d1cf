"""TensorE: contractions and transposes on the array of 128 x 128 cells.

A matmul loads up to 128 columns of the stationary operand, then streams columns of the
moving one; it takes max(min(64, stationary columns), moving columns) cycles [V26],
times the cycles of a column (4 in FP32), while the next stationary operand loads in the
background [A2]. Which operand is stationary, and row and column tiles for small ones,
are chosen to take the least time. Every result then leaves PSUM through VectorE or
ScalarE: the last work of a way, which a consumer that reads PSUM itself does not need.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from neuronjax.errors import InternalError
from neuronjax.ir.instruction import View
from neuronjax.ir.instruction_set import (
    DotDimensions,
    NcMatmul,
    NcMatmulMx,
    NcMatmulSparse,
    NcTranspose,
)
from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_gpsimd import software
from neuronjax.timing.cost_rules import FREE, Reading, rule, tiles_of
from neuronjax.timing.engines.lanes import clock, lane_work, seconds
from neuronjax.timing.engines.task import LaneStream, LaneTask
from neuronjax.timing.work import Core, Queue, Way, Work


@dataclass(frozen=True, slots=True)
class Contraction:
    """A batch of [m, k] x [k, n] as the array sees it.

    Attributes:
        batch, m, n, k: sizes; k counts the rows that the stationary operand stores.
        k_tile: of them, in one pass of the array.
        rows_per_cell: rows of k that one row of cells holds.
        column_cycles: what one moving column takes.
        item_bytes: of an operand's element.
        psum_bytes: of a sum.
        flops_per_k: operations for a stored row: 2, more where zeros are not stored.
        stationary: "lhs", "rhs" or "" for the better one.
        row_tiles, column_tiles: whether the array may be tiled.
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
    """A contraction as instructions.

    Attributes:
        cycles: of the array, on one physical core.
        groups: banks of PSUM that are filled one after the other, on one core.
        first_load: cycles until the first stationary operand is in.
        rows: of the array that are in use.
        evacuated: elements per lane that leave PSUM, on one core.
        read_bytes: from SBUF.
    """

    cycles: float
    groups: int
    first_load: float
    rows: int
    evacuated: int
    read_bytes: float


def peak_flops_per_second(core: Core, kind: str) -> float | None:
    """What the array reaches when no cycle is lost.

    A multiply-add counts as 2, and of "sparse" (4:16) the zeros count too; None where
    the core has no such matmul."""
    spec = core.spec
    products = getattr(spec.products_per_cell_per_cycle, kind)
    if products is None:
        return None
    cells = spec.partitions * spec.array_columns * core.lnc
    return 2.0 * cells * products * spec.tensor.clock_hz


def _products(core: Core, kind: str) -> float:
    """Products of a kind that a cell adds per cycle, on a chip that has that kind."""
    found = getattr(core.spec.products_per_cell_per_cycle, kind)
    if found is None:
        raise InternalError(f"{core.chip.name} has no {kind} matmul", op="nc_matmul")
    return found


def sizes(lhs: View, rhs: View, dimensions: DotDimensions) -> tuple[int, int, int, int]:
    """Batch, lhs free, rhs free and contracted size of a contraction."""
    left, right = lhs.type.shape, rhs.type.shape
    batch = prod(left[d] for d in dimensions.lhs_batch)
    k = prod(left[d] for d in dimensions.lhs_contract)
    m = prod(left) // max(1, batch * k)
    n = prod(right) // max(1, batch * k)
    return batch, m, n, k


def _tile_sizes(core: Core, used: int, allowed: bool) -> int:
    """The smallest tile of the array, in rows or columns, that holds `used`."""
    whole = core.spec.partitions
    if not allowed:
        return whole
    quarter = "quarter_tiling" in core.spec.capabilities
    least = (a.TILE_ROWS if quarter else a.TILE_ROWS_V2).value
    tile = int(least)
    while tile < used and tile < whole:
        tile *= 2
    return tile


def _tiling(c: Contraction, core: Core, held: int, moved: int) -> ArrayTiling:
    """The contraction with `held` stationary and `moved` moving columns per batch."""
    spec = core.spec
    rows = min(spec.partitions, ceil(c.k / c.rows_per_cell))
    columns = min(spec.max_stationary_free, held)
    row_tile = _tile_sizes(core, rows, c.row_tiles)
    column_tile = _tile_sizes(core, columns, c.column_tiles)
    parts = spec.partitions // column_tile
    parallel = min(
        (spec.partitions // row_tile) * parts, int(a.PARALLEL_INPUT.value) // row_tile
    )
    # Without tiles the array takes one matmul at a time, whatever its input could.
    parallel = max(1, parallel) * core.lnc
    passes = ceil(c.k / c.k_tile)
    blocks = c.batch * ceil(held / spec.max_stationary_free)
    strips = ceil(moved / _moving_limit(c, core))
    banks = ceil(moved * c.psum_bytes / spec.psum_bank_bytes_per_partition)
    least = min(a.MATMUL_MINIMUM.value, columns) * max(1.0, c.column_cycles)
    matmuls = ceil(blocks * strips * passes / parallel)
    streamed = ceil(blocks * moved * passes / parallel)
    return ArrayTiling(
        cycles=max(matmuls * least, streamed * c.column_cycles),
        groups=max(1, ceil(blocks * banks / parallel)),
        first_load=columns / a.FAST_LOAD.value * max(1.0, c.column_cycles),
        rows=rows,
        evacuated=ceil(blocks * moved / (parts * core.lnc)),
        read_bytes=c.item_bytes * c.k * blocks * (moved + columns * strips),
    )


def _moving_limit(c: Contraction, core: Core) -> int:
    spec = core.spec
    if c.psum_bytes == 2 and spec.max_moving_free_bf16 is not None:
        return spec.max_moving_free_bf16
    return spec.max_moving_free


def _best_tiling(c: Contraction, core: Core) -> ArrayTiling:
    """The operand is stationary with which array and evacuation end first."""
    tilings = []
    if c.stationary != "rhs":
        tilings.append(_tiling(c, core, c.m, c.n))
    if c.stationary != "lhs":
        tilings.append(_tiling(c, core, c.n, c.m))
    if len(tilings) == 1 or c.m == c.n:
        return tilings[0]

    def ends(t: ArrayTiling) -> tuple[float, float]:
        array = (t.first_load + t.cycles) / clock(core, "tensor")
        tiles = _banks(core, t.evacuated, c.psum_bytes)
        engines: tuple[Queue, Queue] = ("vector", "scalar")
        copy = min(seconds(core, q, t.evacuated, tiles) for q in engines)
        return max(array, copy), array

    return min(tilings, key=ends)


def _banks(core: Core, per_lane: int, item_bytes: int) -> int:
    """Copies out of PSUM, each of a bank."""
    bank = core.spec.psum_bank_bytes_per_partition
    return tiles_of(per_lane, bank / item_bytes)


def array_latency_seconds(core: Core, rows: int | None = None) -> float:
    """From a matmul's last column entering the array to its sum being in PSUM.

    `rows` of the array are in use; None is all of them."""
    spec = core.spec
    through = (spec.partitions if rows is None else rows) + spec.array_columns
    accesses = 2 * spec.access_start_cycles * a.ACCESS_CLOCK.value
    return through / spec.tensor.clock_hz + accesses / spec.sync.clock_hz


def multiply_moving_seconds(
    core: Core, moving: int, *, held: int = 128, column_cycles: float = 1.0
) -> float:
    """The interval from one matmul to the next of its kind."""
    least = min(a.MATMUL_MINIMUM.value, held) * max(1.0, column_cycles)
    return max(least, moving * column_cycles) / clock(core, "tensor")


def load_stationary_seconds(
    core: Core, held: int, rows: int = 128, column_cycles: float = 1.0
) -> float:
    """A LoadStationary by itself, from its issue to its end."""
    spec = core.spec
    least = max(a.MATMUL_MINIMUM.value, held) / a.FAST_LOAD.value
    cycles = least * max(1.0, column_cycles) + rows
    access = spec.access_start_cycles * a.ACCESS_CLOCK.value
    return cycles / spec.tensor.clock_hz + access / spec.sync.clock_hz


def after_idle_seconds(core: Core, busy_seconds: float) -> float:
    """What TensorE loses when it starts after an idle stretch and works for a while.

    From NeuronCore-v3 on its rate is limited for the first 3 us [GL].
    """
    if "quarter_tiling" not in core.spec.capabilities:  # NeuronCore-v2
        return 0.0
    lost = 1 / a.THROTTLE_MEAN.value - 1
    ramp = a.THROTTLE_SECONDS.value
    return min(busy_seconds * lost, ramp * (1 - a.THROTTLE_MEAN.value))


def contraction_ways(c: Contraction, core: Core, before: Way = ()) -> tuple[Way, ...]:
    """Array, then PSUM to SBUF by VectorE or ScalarE, behind `before`."""
    if not c.batch * c.m * c.n:
        return FREE
    t = _best_tiling(c, core)
    flops = c.flops_per_k * c.batch * c.m * c.n * c.k
    # BF16 equivalents: cells x cycles of what is asked, not of the padding.
    executed = c.column_cycles * core.spec.partitions / c.k_tile
    sums = c.batch * c.m * c.n * c.psum_bytes
    matmul = Work(
        queue="tensor",
        seconds=(t.first_load + t.cycles) / clock(core, "tensor"),
        tiles=t.groups,
        latency_seconds=array_latency_seconds(core, t.rows),
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
    """The copy from PSUM to SBUF, by VectorE and by ScalarE.

    `per_lane` counts elements on one physical core, `item_bytes` those of an element in
    PSUM; 16 bits go twice as fast."""
    dtype = np.dtype(np.float16 if item_bytes == 2 else np.float32)
    moved = float(psum_read_bytes)

    def copied(queue: Queue) -> Work:
        return lane_work(
            core,
            LaneTask(
                name="tensor_copy",
                queue=queue,
                read=(LaneStream("psum", dtype, per_lane),),
                written=(LaneStream("sbuf", dtype, per_lane),),
            ),
            tiles=_banks(core, per_lane, item_bytes),
            psum_read_bytes=moved,
            sbuf_write_bytes=moved,
        )

    return copied("vector"), copied("scalar")


def transpose_works(
    core: Core, batch: int, rows: int, columns: int, item_bytes: int
) -> tuple[Way, Way]:
    """[rows, columns] matrices transposed by the array, in its two ways.

    max(rows, min(64, columns)) cycles for up to 128 x 128 [V26].
    """
    spec = core.spec
    side = spec.partitions
    exact = "exact_transpose" in spec.capabilities
    passes = 1.0
    if item_bytes == 4:
        four = 1 / spec.products_per_cell_per_cycle.fp32
        passes = a.FP32_TRANSPOSE_PASSES.value if exact else four
    blocks = batch * ceil(columns / side)
    squares = ceil(blocks * ceil(rows / side) / core.lnc)
    streamed = ceil(blocks * rows / core.lnc)
    least = min(a.MATMUL_MINIMUM.value, columns)
    cycles = max(squares * least, streamed) * passes
    if "background_transpose" in spec.capabilities and squares > 1:
        cycles /= a.BACKGROUND_TRANSPOSE.value
    psum_item = 2 if exact and item_bytes <= 2 else 4
    elements = batch * rows * columns
    executed = 2.0 * elements * side * passes
    work = Work(
        queue="tensor",
        seconds=cycles / clock(core, "tensor"),
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
    """Works that turn operands so that the contracted axis is on partitions."""
    works: list[Work] = []
    for position in sorted(reading.to_transpose):
        item = views[position].type.dtype.itemsize
        free = c.m if position == 0 else c.n
        works += transpose_works(core, c.batch, free, c.k, item)[0]
    return tuple(works)


@rule.register
def _(i: NcMatmul, core: Core, reading: Reading) -> tuple[Way, ...]:
    """The array takes the passes of the dtypes; integers are added in software."""
    lhs, rhs = i.operands[:2]
    batch, m, n, k = sizes(lhs, rhs, i.dimensions)
    if i.accumulation == "integer" or i.engine == "gpsimd":
        return (software(core, i, batch * m * n * k * 2),)
    rows = core.spec.partitions
    if i.rows_per_cell == 1:
        cycles = max(1.0, i.k_tile / (rows * _products(core, "bf16"))) * i.passes
    else:
        cycles = i.k_tile / (rows * _products(core, "fp8"))
    c = Contraction(
        *(batch, m, n, k, i.k_tile),
        rows_per_cell=i.rows_per_cell,
        column_cycles=cycles,
        item_bytes=float(max(lhs.type.dtype.itemsize, rhs.type.dtype.itemsize)),
        psum_bytes=i.results[0].type.dtype.itemsize,
        column_tiles=i.rows_per_cell == 1,  # [A3, ISA]
    )
    before = _transposed_first(i.operands, c, core, reading)
    return contraction_ways(c, core, before)


@rule.register
def _(i: NcMatmulMx, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Four products of a cell in one cycle; the array is tiled by rows only."""
    batch, m, n, k = sizes(i.operands[0], i.operands[1], i.dimensions)
    rows = core.spec.partitions
    products = _products(core, "mx")
    c = Contraction(
        *(batch, m, n, k, i.k_tile),
        rows_per_cell=max(1, i.k_tile // rows),
        column_cycles=i.k_tile / (rows * products),
        item_bytes=1.0,
        psum_bytes=i.results[0].type.dtype.itemsize,
        column_tiles=False,  # row tiling only [ISA]
    )
    return contraction_ways(c, core)


@rule.register
def _(i: NcMatmulSparse, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Compressed rows are held, and each selects from four rows that stream by."""
    values, moving = i.operands[0], i.operands[2]
    d = i.dimensions
    batch = prod(values.type.shape[x] for x in d.lhs_batch)
    k = prod(values.type.shape[x] for x in d.lhs_contract)
    dense = prod(moving.type.shape[x] for x in d.rhs_contract)
    held = prod(values.type.shape) // max(1, batch * k)
    moved = prod(moving.type.shape) // max(1, batch * dense)
    products = _products(core, "sparse")
    full = 4  # rows of a group that one compressed row selects from in 4:16 [C3]
    c = Contraction(
        *(batch, held, moved, k, i.k_tile),
        column_cycles=full / products,
        item_bytes=float(moving.type.dtype.itemsize),
        psum_bytes=i.results[0].type.dtype.itemsize,
        flops_per_k=2.0 * dense / max(1, k),
        stationary="lhs",  # of `c`: what is held
        row_tiles=False,
        column_tiles=False,
    )
    return contraction_ways(c, core)


@rule.register
def _(i: NcTranspose, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Squares of 128 x 128 pass through the array."""
    *batch, rows, columns = i.operands[0].type.shape
    item = i.operands[0].type.dtype.itemsize
    return transpose_works(core, prod(batch), rows, columns, item)
