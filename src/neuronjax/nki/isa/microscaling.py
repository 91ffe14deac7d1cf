"""Microscaling (NeuronCore-v4): `quantize_mx` and `nc_matmul_mx`.

A group is 8 partitions by the 4 elements of an x4 word. Its scale lies in the quadrant
of 32 partitions that it comes from, on one of the first four partitions from where the
scale tensor starts there: at 0, or at 4, 8 or 12 where several tensors share a tile
(nki/deep-dives/mxfp-matmul.rst, "Packing Scale Values"). Only those partitions are
operands of an instruction, so scales of others between them are left alone.
"""

from __future__ import annotations

from typing import Any

from neuronjax.nki import trace as tracing
from neuronjax.nki.access_patterns import on_tensor_engine
from neuronjax.nki.isa.request import Request, instruction, per_partition
from neuronjax.nki.limits.operands import start_partition
from neuronjax.nki.psum_writes import accumulates
from neuronjax.nki.tensor import NkiTensor
from neuronjax.numerics.mx_layout import (
    GROUP,
    PARTITIONS,
    QUADRANT,
    SCALE_OFFSETS,
    SCALES,
    SLOTS,
)

ARRAY_COLUMNS = 128
ROW_SIZES = (32, 64, 128)


@instruction
def quantize_mx(call: Request) -> Any:
    """Find the partitions of dst_scale that are written."""
    dst, src, scale = call.of("dst", "src", "dst_scale")
    _check_partitions(call, "src")
    free = per_partition(src)
    whole = free % SLOTS == 0 and dst.shape[0] == src.shape[0]
    if not whole or per_partition(dst) * SLOTS != free:
        call.refuse(
            f"src has shape {src.shape}, dst {dst.shape}",
            f"dst has the partitions of src, and a {SLOTS}th of its free elements",
        )
    if _is_gathered(scale):
        call.refuse("dst_scale is an indirect view", "quantize to a tile, then scatter")
    call.values["dst_scale"] = _quadrants(call, "dst_scale", dst)
    return call.emit()


@instruction
def nc_matmul_mx(call: Request) -> Any:
    """Find the partitions of the scales, the tile, and whether it accumulates."""
    _check_partitions(call, "stationary")
    _check_partitions(call, "moving")
    for name in ("dst", "stationary", "moving"):
        call.values[name] = on_tensor_engine(call.values[name])
    dst, stationary, moving, accumulate = call.of(
        "dst", "stationary", "moving", "accumulate"
    )
    _check_shapes(call)
    position, size = _row_tile(call)
    scales = _quadrants(call, "stationary_scale", stationary)
    call.values |= {
        "stationary_scale": scales,
        "moving_scale": _quadrants(call, "moving_scale", moving),
    }
    adds = accumulates(dst.access(), accumulate, tracing.current().psum_notes)
    return call.emit(
        reads_outputs=adds,
        accumulate=adds,
        stationary_scales=len(scales),
        tile_position=position,
        tile_size=size,
    )


# ---- Checks.


def _check_partitions(call: Request, name: str) -> None:
    t = call.values[name]
    if t.shape[0] % QUADRANT or t.shape[0] > PARTITIONS:
        call.refuse(
            f"{name} has {t.shape[0]} partitions",
            f"use a multiple of {QUADRANT}, at most {PARTITIONS}; pad with zeros",
        )


def _check_shapes(call: Request) -> None:
    dst, stationary, moving = call.of("dst", "stationary", "moving")
    m, n = per_partition(stationary), per_partition(moving)
    if stationary.shape[0] != moving.shape[0]:
        shapes = f"stationary has shape {stationary.shape}, moving {moving.shape}"
        call.refuse(shapes, "stationary and moving need equal partitions (K)")
    if m % 2:
        call.refuse(f"stationary has {m} free elements", "use an even number")
    if (dst.shape[0], per_partition(dst)) != (m, n):
        call.refuse(f"dst has shape {dst.shape}", f"dst must be [{m}, {n}]")


def _row_tile(call: Request) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return position and size of the part in use; rows alone are tiled."""
    position, size = call.of("tile_position", "tile_size")
    stationary, moving = call.of("stationary", "moving")
    whole = (PARTITIONS, ARRAY_COLUMNS)
    if not position and not size:
        return (0, 0), whole
    if not position or not size or len(position) != 2 or len(size) != 2:
        asked = f"tile_position={position}, tile_size={size}"
        call.refuse(asked, "give both as (row, column), or neither")
    (row, column), (rows, columns) = position, size
    if rows not in ROW_SIZES or columns != ARRAY_COLUMNS:
        remedy = f"use ({', '.join(map(str, ROW_SIZES))}; {ARRAY_COLUMNS})"
        call.refuse(f"tile_size {tuple(size)}", remedy)
    if column or row % rows or not 0 <= row < PARTITIONS:
        starts = ", ".join(f"({r}, 0)" for r in range(0, PARTITIONS, rows))
        call.refuse(f"tile_position {tuple(position)}", f"use one of {starts}")
    if stationary.shape[0] > rows:
        found = f"stationary has {stationary.shape[0]} partitions, the tile {rows} rows"
        call.refuse(found, "make tile_size larger, or split K")
    if row and (_is_gathered(stationary) or _is_gathered(moving)):
        call.refuse("tensor indirection in a tile", "use tile_position=(0, 0)")
    return tuple(position), tuple(size)


# ---- Scales.


def _quadrants(call: Request, name: str, data: NkiTensor) -> list[NkiTensor]:
    """Return the partitions of a scale tensor that hold scales of `data`, by quadrant.

    Of an indirect view, which cannot be sliced, the whole is returned.
    """
    scale = call.values[name]
    quadrants = data.shape[0] // QUADRANT
    least = (quadrants - 1) * QUADRANT + SCALES
    if (
        per_partition(scale) != per_partition(data)
        or not least <= scale.shape[0] <= data.shape[0]
    ):
        short = f" or [{data.shape[0] // GROUP}, F]" if quadrants == 1 else ""
        call.refuse(
            f"{name} has shape {scale.shape} beside x4 words of shape {data.shape}",
            f"give [{data.shape[0]}, F]{short} with F = {per_partition(data)}",
        )
    start = start_partition(scale.access()) % QUADRANT
    if start not in SCALE_OFFSETS:
        offsets = ", ".join(map(str, SCALE_OFFSETS))
        call.refuse(
            f"{name} starts at partition {start} of a quadrant",
            f"start at one of {offsets}",
        )
    if _is_gathered(scale):
        return [on_tensor_engine(scale)]
    starts = range(0, quadrants * QUADRANT, QUADRANT)
    return [scale.slice(0, first, first + SCALES) for first in starts]


def _is_gathered(t: NkiTensor) -> bool:
    """Whether a view was made by `.indirect()`."""
    return t.dynamic is not None and t.dynamic.kind == "indirect"
