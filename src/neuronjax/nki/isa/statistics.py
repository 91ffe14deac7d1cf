"""VectorE: `bn_stats`, `bn_aggr`, `max8`, `nc_find_index8`, `nc_match_replace8`."""

from __future__ import annotations

from typing import Any

from neuronjax.nki.isa.operands import ON_CHIP, check_same_shape, check_tensor, refuse
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction, emit

_TRIPLE = 3
_EIGHT = 8
_LONGEST = 16_384
_INDEX = ("uint16", "uint32")


def bn_stats(
    dst: NkiTensor, data: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """(count, mean, variance * count) of even, then of odd elements, per partition.

    Args:
        dst: on chip, six elements per partition.
        data: on chip, at most 512 elements per partition.
        name: label of the instruction.
    """
    _check_tiles("bn_stats", dst=dst, data=data)
    _check_elements("bn_stats", "dst", dst, data, 2 * _TRIPLE)
    most = 512
    if _per_partition(data) > most:
        refuse(
            "bn_stats",
            f"data has {_per_partition(data)} elements per partition",
            f"at most {most}: one bn_stats per piece, one bn_aggr for all",
        )
    return emit("bn_stats", "vector", [dst], [data], label=name)


def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """mean and variance per partition of what several `bn_stats` wrote.

    Args:
        dst: on chip, two elements per partition.
        data: on chip, (count, mean, variance * count) again and again.
        name: label of the instruction.
    """
    _check_tiles("bn_aggr", dst=dst, data=data)
    _check_elements("bn_aggr", "dst", dst, data, 2)
    if _per_partition(data) % _TRIPLE:
        refuse(
            "bn_aggr",
            f"data has {_per_partition(data)} elements per partition",
            "a multiple of 3",
        )
    return emit("bn_aggr", "vector", [dst], [data], label=name)


def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> NkiInstruction:
    """The 8 largest values of every partition, in descending order.

    Args:
        dst: on chip, 8 elements per partition.
        src: on chip, 8 to 16,384 elements per partition.
        name: label of the instruction.
    """
    _check_tiles("max8", dst=dst, src=src)
    _check_elements("max8", "dst", dst, src, _EIGHT)
    _check_length("max8", "src", src)
    return emit("max8", "vector", [dst], [src], label=name)


def nc_find_index8(
    dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """Where 8 values per partition are in data; all ones where they are not.

    Args:
        dst: on chip, uint16 or uint32, 8 elements per partition.
        data: on chip, 8 to 16,384 elements per partition.
        vals: on chip, 8 elements per partition.
        name: label of the instruction.
    """
    _check_tiles("nc_find_index8", dst=dst, data=data, vals=vals)
    _check_index("nc_find_index8", "dst", dst, data)
    _check_elements("nc_find_index8", "vals", vals, data, _EIGHT)
    _check_length("nc_find_index8", "data", data)
    return emit("nc_find_index8", "vector", [dst], [data, vals], label=name)


def nc_match_replace8(
    dst: NkiTensor,
    data: NkiTensor,
    vals: NkiTensor,
    imm: float,
    dst_idx: NkiTensor | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """dst = data with the first match of each of 8 values replaced by imm.

    Args:
        dst, data: on chip, one shape, 8 to 16,384 elements per partition.
        vals: on chip, 8 elements per partition.
        imm: FP32.
        dst_idx: uint16 or uint32, 8 per partition, takes where they were.
        name: label of the instruction.
    """
    where = "nc_match_replace8"
    _check_tiles(where, dst=dst, data=data, vals=vals)
    check_same_shape(where, dst, ("data", data))
    _check_elements(where, "vals", vals, data, _EIGHT)
    _check_length(where, "data", data)
    outputs = [dst]
    if dst_idx is not None:
        _check_tiles(where, dst_idx=dst_idx)
        _check_index(where, "dst_idx", dst_idx, data)
        outputs.append(dst_idx)
    operands = [data, vals, float(imm)]
    return emit(where, "vector", outputs, operands, label=name)


def _per_partition(tile: NkiTensor) -> int:
    return tile.size // tile.shape[0]


def _check_tiles(where: str, **tiles: Any) -> None:
    for label, tile in tiles.items():
        check_tensor(where, label, tile, *ON_CHIP)


def _check_elements(
    where: str, label: str, tile: NkiTensor, data: NkiTensor, count: int
) -> None:
    if tile.shape[0] != data.shape[0] or _per_partition(tile) != count:
        refuse(
            where,
            f"{label} has shape {tile.shape}",
            f"give shape ({data.shape[0]}, {count})",
        )


def _check_index(where: str, label: str, tile: NkiTensor, data: NkiTensor) -> None:
    _check_elements(where, label, tile, data, _EIGHT)
    if tile.dtype not in _INDEX:
        refuse(where, f"{label} is {tile.dtype}", f"one of {', '.join(_INDEX)}")


def _check_length(where: str, label: str, tile: NkiTensor) -> None:
    if not _EIGHT <= _per_partition(tile) <= _LONGEST:
        refuse(
            where,
            f"{label} has {_per_partition(tile)} elements per partition",
            f"{_EIGHT} to {_LONGEST}",
        )
