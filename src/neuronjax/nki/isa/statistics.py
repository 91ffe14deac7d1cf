"""VectorE: `bn_stats`, `bn_aggr`, `max8`, `nc_find_index8`, `nc_match_replace8`."""

from __future__ import annotations

from neuronjax.nki.isa.operands import per_partition, refuse
from neuronjax.nki.isa.request import Request
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction

_TRIPLE = 3
_MOST_OF_STATISTICS = 512
_LEAST, _MOST = 8, 16_384


def bn_stats(
    dst: NkiTensor, data: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """(count, mean, variance * count) of even, then of odd elements, per partition."""
    request = Request("bn_stats", locals())
    if per_partition(data) > _MOST_OF_STATISTICS:
        remedy = f"at most {_MOST_OF_STATISTICS}: one bn_stats per piece, one bn_aggr"
        _refuse_length("bn_stats", "data", data, f"{remedy} for all")
    return request.emit()


def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """mean and variance per partition of what several `bn_stats` wrote."""
    request = Request("bn_aggr", locals())
    if per_partition(data) % _TRIPLE:
        _refuse_length("bn_aggr", "data", data, f"a multiple of {_TRIPLE}")
    return request.emit()


def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> NkiInstruction:
    """The 8 largest values of every partition, in descending order."""
    request = Request("max8", locals())
    _check_length("max8", "src", src)
    return request.emit()


def nc_find_index8(
    dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """Where 8 values per partition are in data; all ones where they are not."""
    request = Request("nc_find_index8", locals())
    _check_length("nc_find_index8", "data", data)
    return request.emit()


def nc_match_replace8(
    dst: NkiTensor,
    data: NkiTensor,
    vals: NkiTensor,
    imm: float,
    dst_idx: NkiTensor | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """dst = data with the first match of each of 8 values replaced by imm."""
    request = Request("nc_match_replace8", locals())
    _check_length("nc_match_replace8", "data", data)
    return request.emit()


def _check_length(where: str, label: str, tile: NkiTensor) -> None:
    if not _LEAST <= per_partition(tile) <= _MOST:
        _refuse_length(where, label, tile, f"{_LEAST} to {_MOST}")


def _refuse_length(where: str, label: str, tile: NkiTensor, remedy: str) -> None:
    what = f"{label} has {per_partition(tile)} elements per partition"
    refuse(where, what, remedy)
