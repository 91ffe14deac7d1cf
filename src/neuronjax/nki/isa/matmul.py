"""Checks of matrix products that `ir.nki_instructions` cannot express."""

from __future__ import annotations

from math import prod
from typing import Any

from neuronjax.nki import trace as tracing
from neuronjax.nki.access_patterns import on_tensor_engine
from neuronjax.nki.isa.constants import matmul_perf_mode as PerfMode
from neuronjax.nki.isa.request import Request, instruction
from neuronjax.nki.psum_writes import accumulates

WHOLE_ARRAY = (128, 128)


@instruction
def nc_matmul(call: Request) -> Any:
    for name in ("dst", "stationary", "moving"):
        call.values[name] = on_tensor_engine(call.values[name])
    position, size, mode = call.of("tile_position", "tile_size", "perf_mode")
    rows = 2 if PerfMode(mode) == PerfMode.double_row else 1
    check_product(call, rows)
    dst, accumulate = call.of("dst", "accumulate")
    adds = accumulates(dst.access(), accumulate, tracing.current().psum_notes)
    return call.emit(
        reads_outputs=adds,
        rows_per_cell=rows,
        accumulate=adds,
        tile_position=tuple(position or (0, 0)),
        tile_size=tuple(size or WHOLE_ARRAY),
    )


def check_product(call: Request, rows: int = 1) -> None:
    """Refuse shapes other than [K, M], [K, N] and [M, N]; a cell holds `rows` rows."""
    dst, stationary, moving = call.of("dst", "stationary", "moving")
    (k, *stationary_free), (rows_moved, *moving_free) = stationary.shape, moving.shape
    m, n = prod(stationary_free) // rows, prod(moving_free) // rows
    remedy = ""
    if rows == 2 and (stationary_free[0] != 2 or moving_free[0] != 2):
        remedy = "double_row takes [K, 2, M] and [K, 2, N]"
    elif k != rows_moved:
        remedy = "stationary and moving need equally many partitions (K)"
    elif dst.shape[0] != m or prod(dst.shape[1:]) != n:
        remedy = f"dst must be [{m}, {n}]"
    if remedy:
        shapes = f"moving {moving.shape}, dst {dst.shape}"
        call.refuse(f"stationary {stationary.shape}, {shapes}", remedy)


@instruction
def nc_transpose(call: Request) -> Any:
    """Choose TensorE by default for a transpose from SBUF to PSUM, else VectorE."""
    dst, data = call.of("dst", "data")
    partitions, free = data.shape[0], prod(data.shape[1:])
    if dst.shape[0] != free or prod(dst.shape[1:]) != partitions:
        call.refuse(
            f"data has shape {data.shape}, dst {dst.shape}",
            f"dst must be [{free}, {partitions}]",
        )
    fits = dst.storage.memory == "psum" and data.storage.memory == "sbuf"
    return call.emit(call.engine("tensor" if fits else "vector"))
