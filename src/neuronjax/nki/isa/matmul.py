"""TensorE: `nc_matmul`, `nc_transpose`."""

from __future__ import annotations

from math import prod
from typing import Any

from neuronjax.nki import trace as tracing
from neuronjax.nki.access_patterns import on_tensor_engine
from neuronjax.nki.isa.constants import engine as Engine, matmul_perf_mode as PerfMode
from neuronjax.nki.isa.operands import refuse
from neuronjax.nki.isa.request import Request
from neuronjax.nki.psum_writes import accumulates
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction

WHOLE_ARRAY = (128, 128)


def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: Any = PerfMode.none,
    name: str | None = None,
) -> NkiInstruction:
    """dst = stationary.T @ moving, or dst += ..., a fold down the partitions."""
    request = Request("nc_matmul", locals())
    dst, stationary, moving = map(on_tensor_engine, (dst, stationary, moving))
    request.values |= {"dst": dst, "stationary": stationary, "moving": moving}
    rows = 2 if PerfMode(perf_mode) == PerfMode.double_row else 1
    _check_shapes(dst, stationary, moving, rows)
    adds = accumulates(dst.access(), accumulate, tracing.current().psum_notes)
    return request.emit(
        reads_outputs=adds,
        rows_per_cell=rows,
        accumulate=adds,
        tile_position=tuple(tile_position or (0, 0)),
        tile_size=tuple(tile_size or WHOLE_ARRAY),
    )


def _check_shapes(
    dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, rows: int
) -> None:
    (k, *stationary_free), (rows_moved, *moving_free) = stationary.shape, moving.shape
    m, n = prod(stationary_free) // rows, prod(moving_free) // rows
    remedy = ""
    if rows == 2 and (stationary_free[0] != 2 or moving_free[0] != 2):
        remedy = "double_row takes [K, 2, M] and [K, 2, N]"
    elif k != rows_moved:
        remedy = "stationary and moving need equal partitions (K)"
    elif dst.shape[0] != m or prod(dst.shape[1:]) != n:
        remedy = f"dst must be [{m}, {n}]"
    if remedy:
        shapes = f"moving {moving.shape}, dst {dst.shape}"
        refuse("nc_matmul", f"stationary {stationary.shape}, {shapes}", remedy)


def nc_transpose(
    dst: NkiTensor,
    data: NkiTensor,
    engine: Any = Engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """dst = data.T, free dimensions taken as one; on TensorE if the memories allow."""
    where = "nc_transpose"
    request = Request(where, locals())
    partitions, free = data.shape[0], prod(data.shape[1:])
    if dst.shape[0] != free or prod(dst.shape[1:]) != partitions:
        refuse(
            where,
            f"data has shape {data.shape}, dst {dst.shape}",
            f"dst must be [{free}, {partitions}]",
        )
    fits = dst.storage.memory == "psum" and data.storage.memory == "sbuf"
    return request.emit(request.engine("tensor" if fits else "vector"))
