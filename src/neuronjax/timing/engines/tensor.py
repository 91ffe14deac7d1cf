"""Times of matmuls and transposes on TensorE's array of 128 x 128 cells.

A matmul loads up to 128 columns of the stationary operand, then streams the columns of
the moving one; it takes max(min(64, stationary columns), moving columns) cycles [V26],
multiplied by the cycles of a column (4 in FP32). During a matmul the stationary operand
of the next one loads [A2]; if the load takes longer than the matmul, the next matmul
waits. On NeuronCore-v4, a part of each load always delays what follows it.
Row and column tiles of the array work in parallel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from neuronjax.errors import InternalError
from neuronjax.timing import assumptions as a
from neuronjax.timing.engines.lanes import clock
from neuronjax.timing.engines.task import has
from neuronjax.timing.work import Core

#: Kinds of products, as the fields of `products_per_cell_per_cycle`.
Products = Literal["bf16", "fp32", "fp8", "int8", "mx", "sparse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayTask:
    """A matmul or transpose, or several equal ones, on one physical core.

    Attributes:
        held: columns of a stationary operand.
        moved: columns of the moving operands of all matmuls together.
        rows: rows of the array that are in use.
        column_cycles: cycles per moving column.
        loads: the number of stationary operands.
        parallel: matmuls that tiles of the array execute at the same time.
        packed: contracted rows in one row of cells.
    """

    held: int
    moved: int
    rows: int = 128
    column_cycles: float = 1.0
    matmuls: int = 1
    loads: int = 1
    parallel: int = 1
    packed: int = 1


def multiply_seconds(core: Core, task: ArrayTask) -> float:
    """Return the seconds in which matmuls occupy the array, without loads."""
    least = min(a.MATMUL_MINIMUM.value, task.held) * max(1.0, task.column_cycles)
    short = ceil(task.matmuls / task.parallel) * least
    streamed = ceil(task.moved / task.parallel) * task.column_cycles
    return max(short, streamed) / clock(core, "tensor")


def load_seconds(core: Core, task: ArrayTask) -> float:
    """Return the time of a LoadStationary by itself, from its issue to its end."""
    spec = core.spec
    least = max(a.MATMUL_MINIMUM.value, task.held) / a.FAST_LOAD.value
    cycles = least * max(1.0, task.column_cycles) + task.rows
    # The start of an access takes cycles of the base clock: on trn1 one moving column
    # takes 188 ns in all [PG, picture].
    return cycles / spec.tensor.clock_hz + spec.access_start_cycles / spec.sync.clock_hz


def array_seconds(core: Core, task: ArrayTask) -> float:
    """Return the seconds of successive matmuls; a load overlaps the previous matmul."""
    load, spent = load_seconds(core, task), multiply_seconds(core, task)
    if core.spec.seen_load_cycles is None:
        return load + max(spent, (task.loads - 1) * load)
    # One load serves at most as many moving columns as a bank of PSUM has columns.
    columns = task.parallel * core.spec.psum_bank_bytes_per_partition / 4
    loads = max(task.loads, task.moved / columns)
    return load + spent + (loads - 1) * seen_load_seconds(core, task)


def seen_load_seconds(core: Core, task: ArrayTask) -> float:
    """Return the seconds by which a load delays matmuls; 0 before NeuronCore-v4."""
    cycles = (core.spec.seen_load_cycles or 0.0) * task.packed
    share = task.held / core.spec.max_stationary_free
    return cycles * share * max(1.0, task.column_cycles) / clock(core, "tensor")


def array_latency_seconds(core: Core, rows: int | None = None) -> float:
    """Return the time from a matmul's last moving column to its sum in PSUM.

    `rows` is the number of the array's rows in use; None means all rows."""
    spec = core.spec
    through = (spec.partitions if rows is None else rows) + spec.array_columns
    accesses = 2 * spec.access_start_cycles
    return through / spec.tensor.clock_hz + accesses / spec.sync.clock_hz


def products(core: Core, kind: Products) -> float:
    """Return the number of products of `kind` that a cell adds per cycle.

    Raises:
        InternalError: the chip has no matmul of this kind.
    """
    found = getattr(core.spec.products_per_cell_per_cycle, kind)
    if found is None:
        raise InternalError(f"{core.chip.name} has no {kind} matmul", op="nc_matmul")
    return found


def column_cycles(
    core: Core, kind: Products, rows_per_cell: int = 1, *, zeros_and_ones: int = 0
) -> float:
    """Return the cycles of a moving column, with `rows_per_cell` products in each cell.

    `zeros_and_ones` is the number of FP32 operands whose values are all 0 or 1."""
    return rows_per_cell / products(core, kind) / a.ONE_ZERO.value**zeros_and_ones


def transpose_cycles(core: Core, item_bytes: int) -> float:
    """Return the cycles of a moving column in a transpose."""
    if item_bytes < 4:
        return 1.0
    exact = has(core, "exact_transpose")
    return a.FP32_TRANSPOSE_PASSES.value if exact else column_cycles(core, "fp32")


def peak_flops_per_second(core: Core, kind: str) -> float | None:
    """Return the peak rate of the array; None if it has no matmul of `kind`.

    A multiply-add counts as 2; for "sparse" (4:16) the zeros count too."""
    spec = core.spec
    added = getattr(spec.products_per_cell_per_cycle, kind)
    if added is None:
        return None
    cells = spec.partitions * spec.array_columns * core.lnc
    return 2.0 * cells * added * spec.tensor.clock_hz


def least_tile(core: Core) -> int:
    """Return the number of rows, and of columns, of the smallest tile of the array."""
    quarter = has(core, "quarter_tiling")
    return int((a.TILE_ROWS if quarter else a.TILE_ROWS_V2).value)


def tiles_at_once(core: Core, rows: int, columns: int) -> int:
    """Return how many tiles of `rows` x `columns` cells the array runs in parallel."""
    tiles = (core.spec.partitions // rows) * (core.spec.array_columns // columns)
    # Without tiling the array takes one matmul at a time, whatever its input allows.
    return max(1, min(tiles, int(a.PARALLEL_INPUT.value) // rows))
