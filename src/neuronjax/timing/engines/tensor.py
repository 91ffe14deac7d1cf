"""Times of matmuls and transposes on TensorE's array of 128 x 128 cells.

A matmul loads up to 128 columns of the stationary operand, then streams the columns of
the moving operand; the streaming takes max(min(64, stationary columns), moving columns)
cycles [V26], multiplied by the cycles of a column (4 in FP32). During a matmul, the
array loads the stationary operand of the next matmul [A2], which waits if the load
takes longer than the running matmul. On NeuronCore-v4, each load also delays the
running matmul. The array can be divided into tiles of rows or columns, which execute
matmuls in parallel.
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

#: Kinds of products, named as the fields of `CoreSpec.products_per_cell_per_cycle`.
Products = Literal["bf16", "fp32", "fp8", "int8", "mx", "sparse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayTask:
    """One or several equal matmuls or transposes on TensorE.

    Attributes:
        held: columns of each stationary operand.
        moved: columns of the moving operands of all matmuls together.
        rows: rows of the array that a matmul uses.
        column_cycles: cycles per moving column.
        matmuls: the number of matmuls.
        loads: the number of stationary operands that one physical core loads.
        parallel: how many matmuls run at the same time, on different tiles of the array
            or on different physical cores.
        packed: the number of contracted rows that one row of the array's cells holds.
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
    """Return the seconds for which the matmuls of `task` occupy the array, without the
    loads of stationary operands."""
    least = min(a.MATMUL_MINIMUM.value, task.held) * max(1.0, task.column_cycles)
    short = ceil(task.matmuls / task.parallel) * least
    streamed = ceil(task.moved / task.parallel) * task.column_cycles
    return max(short, streamed) / clock(core, "tensor")


def load_seconds(core: Core, task: ArrayTask) -> float:
    """Return the seconds from the issue of a LoadStationary, which loads a stationary
    operand, to its end, if it overlaps no matmul."""
    spec = core.spec
    least = max(a.MATMUL_MINIMUM.value, task.held) / a.FAST_LOAD.value
    cycles = least * max(1.0, task.column_cycles) + task.rows
    # The start of an access takes cycles of the base clock: on trn1 one moving column
    # takes 188 ns in all [PG, picture].
    return cycles / spec.tensor.clock_hz + spec.access_start_cycles / spec.sync.clock_hz


def array_seconds(core: Core, task: ArrayTask) -> float:
    """Return the seconds of all matmuls of `task`, one after the other, and of their
    loads. Each load overlaps the previous matmul."""
    load, spent = load_seconds(core, task), multiply_seconds(core, task)
    if core.spec.seen_load_cycles is None:
        return load + max(spent, (task.loads - 1) * load)
    # One load serves at most as many moving columns as a bank of PSUM holds in FP32.
    columns = task.parallel * core.spec.psum_bank_bytes_per_partition / 4
    loads = max(task.loads, task.moved / columns)
    return load + spent + (loads - 1) * seen_load_seconds(core, task)


def seen_load_seconds(core: Core, task: ArrayTask) -> float:
    """Return the seconds by which the load of one stationary operand delays the running
    matmul; 0 before NeuronCore-v4."""
    cycles = (core.spec.seen_load_cycles or 0.0) * task.packed
    share = task.held / core.spec.max_stationary_free
    return cycles * share * max(1.0, task.column_cycles) / clock(core, "tensor")


def array_latency_seconds(core: Core, rows: int | None = None) -> float:
    """Return the seconds from the read of a matmul's last moving column until its sums
    are in PSUM.

    `rows` is the number of the array's rows that the matmul uses; None means all."""
    spec = core.spec
    through = (spec.partitions if rows is None else rows) + spec.array_columns
    accesses = 2 * spec.access_start_cycles
    return through / spec.tensor.clock_hz + accesses / spec.sync.clock_hz


def products(core: Core, kind: Products) -> float:
    """Return the number of products of `kind` that a cell of the array adds per cycle.
    Refuse a `kind` that the chip does not have."""
    found = getattr(core.spec.products_per_cell_per_cycle, kind)
    if found is None:
        raise InternalError(f"{core.chip.name} has no {kind} matmul", op="nc_matmul")
    return found


def column_cycles(
    core: Core, kind: Products, rows_per_cell: int = 1, *, zeros_and_ones: int = 0
) -> float:
    """Return the cycles of a matmul per moving column, for which each cell of the array
    computes `rows_per_cell` products of `kind`.

    `zeros_and_ones` is the number of FP32 operands that have only zeros and ones."""
    return rows_per_cell / products(core, kind) / a.ONE_ZERO.value**zeros_and_ones


def transpose_cycles(core: Core, item_bytes: int) -> float:
    """Return the cycles of a transpose per moving column of elements of `item_bytes`
    bytes."""
    if item_bytes < 4:
        return 1.0
    exact = has(core, "exact_transpose")
    return a.FP32_TRANSPOSE_PASSES.value if exact else column_cycles(core, "fp32")


def peak_flops_per_second(core: Core, kind: str) -> float | None:
    """Return the peak FLOP/s of a logical core's TensorE; None if it has no matmul of
    `kind`.

    A multiply-add counts as 2 operations. For "sparse" (4:16), multiply-adds with the
    zeros of the sparse operand, which the array skips, count too."""
    spec = core.spec
    added = getattr(spec.products_per_cell_per_cycle, kind)
    if added is None:
        return None
    cells = spec.partitions * spec.array_columns * core.lnc
    return 2.0 * cells * added * spec.tensor.clock_hz


def least_tile(core: Core) -> int:
    """Return the number of rows of the smallest tile into which the array can be
    divided. The tile has as many columns."""
    quarter = has(core, "quarter_tiling")
    return int((a.TILE_ROWS if quarter else a.TILE_ROWS_V2).value)


def tiles_at_once(core: Core, rows: int, columns: int) -> int:
    """Return how many tiles of `rows` x `columns` cells the array runs in parallel."""
    tiles = (core.spec.partitions // rows) * (core.spec.array_columns // columns)
    # An array that is not divided executes one matmul at a time, even if PARALLEL_INPUT
    # would allow two.
    return max(1, min(tiles, int(a.PARALLEL_INPUT.value) // rows))
