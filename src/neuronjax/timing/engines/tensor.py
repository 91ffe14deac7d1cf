"""TensorE: matmuls and transposes on the array of 128 x 128 cells.

A matmul loads up to 128 columns of the stationary operand, then streams columns of the
moving one; it takes max(min(64, stationary columns), moving columns) cycles [V26],
times the cycles of a column (4 in FP32). The next stationary operand loads meanwhile
[A2], but no sooner than the matmul before begins, which sets the pace of short ones; on
NeuronCore-v4 a part of each load is seen instead, in matmuls and transposes of any
length. Row and column tiles of the array work side by side.
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

#: Whose products a cell adds, by the field of `products_per_cell_per_cycle`.
Products = Literal["bf16", "fp32", "fp8", "int8", "mx", "sparse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayTask:
    """A matmul or transpose, or equal ones, on one physical core.

    Attributes:
        held: columns of a stationary operand.
        moved: columns of the moving operands of all matmuls together.
        rows: of the array that are in use.
        column_cycles: what a moving column takes.
        matmuls: how many.
        loads: how many stationary operands.
        parallel: matmuls that the array's tiles do at once.
        packed: rows of the contraction that a cell holds.
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
    """How long the array multiplies; of one matmul, the interval to the next."""
    least = min(a.MATMUL_MINIMUM.value, task.held) * max(1.0, task.column_cycles)
    short = ceil(task.matmuls / task.parallel) * least
    streamed = ceil(task.moved / task.parallel) * task.column_cycles
    return max(short, streamed) / clock(core, "tensor")


def load_seconds(core: Core, task: ArrayTask) -> float:
    """A LoadStationary by itself, from its issue to its end."""
    spec = core.spec
    least = max(a.MATMUL_MINIMUM.value, task.held) / a.FAST_LOAD.value
    cycles = least * max(1.0, task.column_cycles) + task.rows
    # Accesses count the base clock: 188 ns for one moving column on trn1 [PG, picture].
    return cycles / spec.tensor.clock_hz + spec.access_start_cycles / spec.sync.clock_hz


def array_seconds(core: Core, task: ArrayTask) -> float:
    """Matmuls one after the other, their loads in the background of each other."""
    load, spent = load_seconds(core, task), multiply_seconds(core, task)
    if core.spec.seen_load_cycles is None:
        return load + max(spent, (task.loads - 1) * load)
    # Sums in FP32 fill a bank, and each of their passes loads its own operand.
    columns = task.parallel * core.spec.psum_bank_bytes_per_partition / 4
    loads = max(task.loads, task.moved / columns)
    return load + spent + (loads - 1) * seen_load_seconds(core, task)


def seen_load_seconds(core: Core, task: ArrayTask) -> float:
    """Return what a load in the background of another matmul holds up the array."""
    cycles = (core.spec.seen_load_cycles or 0.0) * task.packed
    share = task.held / core.spec.max_stationary_free
    return cycles * share * max(1.0, task.column_cycles) / clock(core, "tensor")


def array_latency_seconds(core: Core, rows: int | None = None) -> float:
    """From a matmul's last column entering the array to its sum being in PSUM.

    `rows` of the array are in use; None is all of them."""
    spec = core.spec
    through = (spec.partitions if rows is None else rows) + spec.array_columns
    accesses = 2 * spec.access_start_cycles
    return through / spec.tensor.clock_hz + accesses / spec.sync.clock_hz


# -- what a column takes ---------------------------------------------------------------


def products(core: Core, kind: Products) -> float:
    """Products of a kind that a cell adds per cycle, on a chip that has that kind."""
    found = getattr(core.spec.products_per_cell_per_cycle, kind)
    if found is None:
        raise InternalError(f"{core.chip.name} has no {kind} matmul", op="nc_matmul")
    return found


def column_cycles(
    core: Core, kind: Products, rows_per_cell: int = 1, *, zeros_and_ones: int = 0
) -> float:
    """Cycles of a moving column whose products a cell adds `rows_per_cell` of.

    Of FP32, `zeros_and_ones` counts the operands that are nothing else."""
    return rows_per_cell / products(core, kind) / a.ONE_ZERO.value**zeros_and_ones


def transpose_cycles(core: Core, item_bytes: int) -> float:
    """Cycles of a column in transposes."""
    if item_bytes < 4:
        return 1.0
    exact = has(core, "exact_transpose")
    return a.FP32_TRANSPOSE_PASSES.value if exact else column_cycles(core, "fp32")


def peak_flops_per_second(core: Core, kind: str) -> float | None:
    """What the array reaches when no cycle is lost.

    A multiply-add counts as 2, and of "sparse" (4:16) the zeros count too; None where
    the core has no such matmul."""
    spec = core.spec
    added = getattr(spec.products_per_cell_per_cycle, kind)
    if added is None:
        return None
    cells = spec.partitions * spec.array_columns * core.lnc
    return 2.0 * cells * added * spec.tensor.clock_hz


# -- tiles of the array ----------------------------------------------------------------


def least_tile(core: Core) -> int:
    """Rows, or columns, of the smallest tile of the array."""
    quarter = has(core, "quarter_tiling")
    return int((a.TILE_ROWS if quarter else a.TILE_ROWS_V2).value)


def tiles_at_once(core: Core, rows: int, columns: int) -> int:
    """Tiles of a size that work side by side, as the array's input allows."""
    tiles = (core.spec.partitions // rows) * (core.spec.array_columns // columns)
    # Without tiles the array takes one matmul at a time, whatever its input could.
    return max(1, min(tiles, int(a.PARALLEL_INPUT.value) // rows))
