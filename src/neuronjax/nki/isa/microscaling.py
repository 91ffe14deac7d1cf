"""Microscaling (NeuronCore-v4): `quantize_mx` and `nc_matmul_mx`.

A group is 8 partitions by the 4 elements of an x4 word. Its scale lies in the quadrant
of 32 partitions that it comes from, on one of the first four partitions from where the
scale tensor starts there: at 0, or at 4, 8 or 12 where several tensors share a tile
(nki/deep-dives/mxfp-matmul.rst, "Packing Scale Values"). Only those partitions are
operands of an instruction, so scales of others between them are left alone.
"""

from __future__ import annotations

from neuronjax.nki import trace as tracing
from neuronjax.nki.access_patterns import on_tensor_engine
from neuronjax.nki.isa.operands import per_partition, refuse
from neuronjax.nki.isa.request import Request
from neuronjax.nki.psum_writes import accumulates
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction
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


def quantize_mx(
    dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """Quantizes groups of 32 elements to MXFP8: elements and one scale per group.

    The scale is 2^(floor(log2 amax) - (emax - 1)), twice that of OCP MX, so that no
    element saturates. ASSUMPTION: a group with a NaN or an Inf gets the NaN scale.
    """
    op = "quantize_mx"
    request = Request(op, locals())
    _check_partitions(op, "src", src)
    free = per_partition(src)
    if (
        free % SLOTS
        or dst.shape[0] != src.shape[0]
        or per_partition(dst) * SLOTS != free
    ):
        refuse(
            op,
            f"src has shape {src.shape}, dst {dst.shape}",
            f"dst has the partitions of src, and a {SLOTS}th of its free elements",
        )
    if _is_gathered(dst_scale):
        refuse(op, "dst_scale is an indirect view", "quantize to a tile, then scatter")
    request.values["dst_scale"] = _quadrants(op, "dst_scale", dst_scale, dst)
    return request.emit()


def nc_matmul_mx(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    stationary_scale: NkiTensor,
    moving_scale: NkiTensor,
    tile_position: tuple[int, ...] | None = None,
    tile_size: tuple[int, ...] | None = None,
    accumulate: bool | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """dst = stationary.T @ moving, dequantized in the array, or dst += ...."""
    op = "nc_matmul_mx"
    request = Request(op, locals())
    _check_partitions(op, "stationary", stationary)
    _check_partitions(op, "moving", moving)
    dst, stationary, moving = map(on_tensor_engine, (dst, stationary, moving))
    _check_shapes(dst, stationary, moving)
    position, size = _row_tile(tile_position, tile_size, stationary, moving)
    scales = _quadrants(op, "stationary_scale", stationary_scale, stationary)
    request.values |= {
        "dst": dst,
        "stationary": stationary,
        "moving": moving,
        "stationary_scale": scales,
        "moving_scale": _quadrants(op, "moving_scale", moving_scale, moving),
    }
    adds = accumulates(dst.access(), accumulate, tracing.current().psum_notes)
    return request.emit(
        reads_outputs=adds,
        accumulate=adds,
        stationary_scales=len(scales),
        tile_position=position,
        tile_size=size,
    )


# ---- Checks.


def _check_partitions(op: str, name: str, t: NkiTensor) -> None:
    if t.shape[0] % QUADRANT or t.shape[0] > PARTITIONS:
        refuse(
            op,
            f"{name} has {t.shape[0]} partitions",
            f"use a multiple of {QUADRANT}, at most {PARTITIONS}; pad with zeros",
        )


def _check_shapes(dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor) -> None:
    m, n = per_partition(stationary), per_partition(moving)
    op = "nc_matmul_mx"
    if stationary.shape[0] != moving.shape[0]:
        shapes = f"stationary has shape {stationary.shape}, moving {moving.shape}"
        refuse(op, shapes, "stationary and moving need equal partitions (K)")
    if m % 2:
        refuse(op, f"stationary has {m} free elements", "use an even number")
    if (dst.shape[0], per_partition(dst)) != (m, n):
        refuse(op, f"dst has shape {dst.shape}", f"dst must be [{m}, {n}]")


def _row_tile(
    position: tuple[int, ...] | None,
    size: tuple[int, ...] | None,
    stationary: NkiTensor,
    moving: NkiTensor,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Position and size of the part of the array that is used; rows alone are tiled."""
    op, whole = "nc_matmul_mx", (PARTITIONS, ARRAY_COLUMNS)
    if not position and not size:
        return (0, 0), whole
    if not position or not size or len(position) != 2 or len(size) != 2:
        asked = f"tile_position={position}, tile_size={size}"
        refuse(op, asked, "give both as (row, column), or neither")
    (row, column), (rows, columns) = position, size
    if rows not in ROW_SIZES or columns != ARRAY_COLUMNS:
        remedy = f"use ({', '.join(map(str, ROW_SIZES))}; {ARRAY_COLUMNS})"
        refuse(op, f"tile_size {tuple(size)}", remedy)
    if column or row % rows or not 0 <= row < PARTITIONS:
        starts = ", ".join(f"({r}, 0)" for r in range(0, PARTITIONS, rows))
        refuse(op, f"tile_position {tuple(position)}", f"use one of {starts}")
    if stationary.shape[0] > rows:
        found = f"stationary has {stationary.shape[0]} partitions, the tile {rows} rows"
        refuse(op, found, "make tile_size larger, or split K")
    if row and (_is_gathered(stationary) or _is_gathered(moving)):
        refuse(op, "tensor indirection in a tile", "use tile_position=(0, 0)")
    return tuple(position), tuple(size)


# ---- Scales.


def _quadrants(
    op: str, name: str, scale: NkiTensor, data: NkiTensor
) -> list[NkiTensor]:
    """The partitions of a scale tensor that hold scales of `data`, by quadrant.

    Of an indirect view, which cannot be sliced, the whole.
    """
    quadrants = data.shape[0] // QUADRANT
    least = (quadrants - 1) * QUADRANT + SCALES
    if (
        per_partition(scale) != per_partition(data)
        or not least <= scale.shape[0] <= data.shape[0]
    ):
        short = f" or [{data.shape[0] // GROUP}, F]" if quadrants == 1 else ""
        refuse(
            op,
            f"{name} has shape {scale.shape} beside x4 words of shape {data.shape}",
            f"give [{data.shape[0]}, F]{short} with F = {per_partition(data)}",
        )
    start = _first_partition(scale) % QUADRANT
    if start not in SCALE_OFFSETS:
        offsets = ", ".join(map(str, SCALE_OFFSETS))
        refuse(
            op,
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


def _first_partition(t: NkiTensor) -> int:
    """Where a view starts; a tensor without an address starts at 0."""
    access, storage = t.access(), t.storage
    base = storage.address[0] if storage.address else 0
    stride = access.pattern[0][0]
    return base + (access.offset // stride if stride else 0)
