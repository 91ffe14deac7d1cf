"""Microscaling (NeuronCore-v4): `quantize_mx` and `nc_matmul_mx`.

A group is 8 partitions by the 4 elements of an x4 word. The scales of a quadrant of 32
partitions are on four successive partitions of it, from 0 on, or from 4, 8 or 12 if
several tensors share a tile (nki/deep-dives/mxfp-matmul.rst, "Packing Scale Values").
An instruction takes only these partitions, so other tensors' scales do not change.
"""

from __future__ import annotations

from typing import Any

from neuronjax.nki import trace as tracing
from neuronjax.nki.access_patterns import on_tensor_engine
from neuronjax.nki.isa.matmul import WHOLE_ARRAY, check_product
from neuronjax.nki.isa.request import Request, instruction, per_partition
from neuronjax.nki.limits.operands import start_partition
from neuronjax.nki.psum_writes import accumulates
from neuronjax.nki.tensor import NkiTensor
from neuronjax.numerics import mx_layout


@instruction
def quantize_mx(call: Request) -> Any:
    """Select the partitions of dst_scale that are written."""
    dst, src, scale = call.of("dst", "src", "dst_scale")
    _check_partitions(call, "src")
    free = per_partition(src)
    whole = free % mx_layout.SLOTS == 0 and dst.shape[0] == src.shape[0]
    if not whole or per_partition(dst) * mx_layout.SLOTS != free:
        call.refuse(
            f"src has shape {src.shape}, dst {dst.shape}",
            f"give dst src's partitions, and 1/{mx_layout.SLOTS} as many free elements "
            "as src",
        )
    if _is_gathered(scale):
        call.refuse("dst_scale is an indirect view", "quantize to a tile, then scatter")
    call.values["dst_scale"] = _quadrants(call, "dst_scale", dst)
    return call.emit()


@instruction
def nc_matmul_mx(call: Request) -> Any:
    """Select the scales' partitions, and determine whether the product accumulates."""
    _check_partitions(call, "stationary")
    _check_partitions(call, "moving")
    for name in ("dst", "stationary", "moving"):
        call.values[name] = on_tensor_engine(call.values[name])
    dst, stationary, moving, accumulate = call.of(
        "dst", "stationary", "moving", "accumulate"
    )
    columns = per_partition(stationary)
    if columns % 2:
        call.refuse(f"stationary has {columns} free elements", "use an even number")
    check_product(call)
    position, size = call.of("tile_position", "tile_size")
    if bool(position) != bool(size):
        asked = f"tile_position={position}, tile_size={size}"
        call.refuse(asked, "give both as (row, column), or neither")
    scales = _quadrants(call, "stationary_scale", stationary)
    call.values["stationary_scale"] = scales
    call.values["moving_scale"] = _quadrants(call, "moving_scale", moving)
    adds = accumulates(dst.access(), accumulate, tracing.current().psum_notes)
    return call.emit(
        reads_outputs=adds,
        accumulate=adds,
        stationary_scales=len(scales),
        tile_position=tuple(position or (0, 0)),
        tile_size=tuple(size or WHOLE_ARRAY),
    )


def _check_partitions(call: Request, name: str) -> None:
    t = call.values[name]
    if t.shape[0] % mx_layout.QUADRANT or t.shape[0] > mx_layout.PARTITIONS:
        call.refuse(
            f"{name} has {t.shape[0]} partitions",
            f"use a multiple of {mx_layout.QUADRANT}, at most {mx_layout.PARTITIONS}; "
            "pad with zeros",
        )


def _quadrants(call: Request, name: str, data: NkiTensor) -> list[NkiTensor]:
    """Return the parts of a scale tensor that hold the scales of `data`, one view per
    quadrant. An indirect view cannot be sliced, so it is returned whole."""
    scale = call.values[name]
    quadrants = data.shape[0] // mx_layout.QUADRANT
    least = (quadrants - 1) * mx_layout.QUADRANT + mx_layout.SCALES
    if (
        per_partition(scale) != per_partition(data)
        or not least <= scale.shape[0] <= data.shape[0]
    ):
        short = f" or [{data.shape[0] // mx_layout.GROUP}, F]" if quadrants == 1 else ""
        call.refuse(
            f"{name} has shape {scale.shape} beside x4 words of shape {data.shape}",
            f"give [{data.shape[0]}, F]{short} with F = {per_partition(data)}",
        )
    start = start_partition(scale.access()) % mx_layout.QUADRANT
    if start not in mx_layout.SCALE_OFFSETS:
        offsets = ", ".join(map(str, mx_layout.SCALE_OFFSETS))
        call.refuse(
            f"{name} starts at partition {start} of a quadrant",
            f"start at one of {offsets}",
        )
    if _is_gathered(scale):
        return [on_tensor_engine(scale)]
    starts = range(0, quadrants * mx_layout.QUADRANT, mx_layout.QUADRANT)
    return [scale.slice(0, first, first + mx_layout.SCALES) for first in starts]


def _is_gathered(t: NkiTensor) -> bool:
    return t.dynamic is not None and t.dynamic.kind == "indirect"
