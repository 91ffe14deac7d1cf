"""TensorE: `nc_matmul`, `nc_transpose`."""

from __future__ import annotations

from math import prod
from typing import Any

from neuronjax.nki import trace as tracing
from neuronjax.nki.access_patterns import on_tensor_engine
from neuronjax.nki.isa.constants import engine as Engine, matmul_perf_mode as PerfMode
from neuronjax.nki.isa.operands import ON_CHIP, check_tensor, engine_name, refuse
from neuronjax.nki.psum_writes import accumulates
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction, emit

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
    """dst = stationary.T @ moving, or dst += ..., a fold down the partitions.

    Args:
        dst: [M, N] in PSUM.
        stationary: [K, M] in SBUF; [K, 2, M] in double-row mode.
        moving: [K, N] in SBUF; [K, 2, N] in double-row mode.
        is_stationary_onezero: hints about time alone.
        is_moving_onezero: likewise.
        is_transpose: pass the stationary operand's bits through the one-hot `moving`.
        accumulate: add to `dst`; None does so where a matmul wrote it before.
        tile_position: part of the array that is used.
        tile_size: likewise.
        perf_mode: `matmul_perf_mode.double_row` for two FP8 products per cell.
        name: label of the instruction.
    """
    where = "nc_matmul"
    check_tensor(where, "dst", dst, "psum")
    check_tensor(where, "stationary", stationary, "sbuf")
    check_tensor(where, "moving", moving, "sbuf")
    dst, stationary, moving = map(on_tensor_engine, (dst, stationary, moving))
    rows = 2 if PerfMode(perf_mode) == PerfMode.double_row else 1
    _check_shapes(dst, stationary, moving, rows)
    notes = tracing.current().psum_notes
    adds = accumulates(dst.access(), accumulate, notes)
    attributes = {
        "rows_per_cell": rows,
        "is_transpose": bool(is_transpose),
        "accumulate": adds,
        "is_stationary_onezero": bool(is_stationary_onezero),
        "is_moving_onezero": bool(is_moving_onezero),
        "tile_position": tuple(tile_position or (0, 0)),
        "tile_size": tuple(tile_size or WHOLE_ARRAY),
    }
    return emit(
        where,
        "tensor",
        [dst],
        [stationary, moving],
        attributes=attributes,
        reads_outputs=adds,
        label=name,
    )


def _check_shapes(
    dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, rows: int
) -> None:
    free = [prod(t.shape[1:]) for t in (stationary, moving, dst)]
    shapes = f"stationary {stationary.shape}, moving {moving.shape}, dst {dst.shape}"
    if rows == 2 and (stationary.shape[1] != 2 or moving.shape[1] != 2):
        refuse("nc_matmul", shapes, "double_row takes [K, 2, M] and [K, 2, N]")
    m, n = free[0] // rows, free[1] // rows
    if stationary.shape[0] != moving.shape[0]:
        refuse("nc_matmul", shapes, "stationary and moving need equal partitions (K)")
    if dst.shape[0] != m or free[2] != n:
        refuse("nc_matmul", shapes, f"dst must be [{m}, {n}]")


def nc_transpose(
    dst: NkiTensor,
    data: NkiTensor,
    engine: Any = Engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """dst = data.T, free dimensions taken as one.

    Args:
        dst: of the dtype of `data`; in PSUM on TensorE.
        data: on chip; in SBUF on TensorE.
        engine: tensor or vector; by default TensorE where the memories allow.
        name: label of the instruction.
    """
    where = "nc_transpose"
    check_tensor(where, "dst", dst, *ON_CHIP)
    check_tensor(where, "data", data, *ON_CHIP)
    partitions, free = data.shape[0], prod(data.shape[1:])
    if dst.shape[0] != free or prod(dst.shape[1:]) != partitions:
        refuse(
            where,
            f"data has shape {data.shape}, dst {dst.shape}",
            f"dst must be [{free}, {partitions}]",
        )
    fits = dst.storage.memory == "psum" and data.storage.memory == "sbuf"
    by = engine_name(
        where, engine, ("tensor", "vector"), "tensor" if fits else "vector"
    )
    return emit(where, by, [dst], [data], label=name)
