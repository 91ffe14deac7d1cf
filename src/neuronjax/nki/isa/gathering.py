"""Gathers, top-k and their like on GpSimdE; `nc_stream_shuffle` on VectorE."""

from __future__ import annotations

from collections.abc import Sequence

from neuronjax.nki.isa.operands import check_one_dtype, per_partition, refuse
from neuronjax.nki.isa.request import Request
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction

_QUADRANT = 32
_UNCHANGED = 255
_CORE_PARTITIONS = 16
_RUNS = (1, 2, 4, 8, 16, 32)
_MOST_INDICES = 4096


def local_gather(
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Gathers within groups of 16 partitions by indices of the same group."""
    where = "local_gather"
    request = Request(where, locals())
    partitions = src_buffer.shape[0]
    if partitions != index.shape[0] or partitions % _CORE_PARTITIONS:
        refuse(
            where,
            f"{partitions} partitions, index has {index.shape[0]}",
            "give both the same multiple of 16 partitions",
        )
    check_one_dtype(where, dst, src_buffer)
    if num_elem_per_idx not in _RUNS:
        refuse(where, f"num_elem_per_idx {num_elem_per_idx}", f"one of {_RUNS}")
    most = index.size // partitions * _CORE_PARTITIONS
    valid = most if num_valid_indices is None else int(num_valid_indices)
    if not 1 <= valid <= min(most, _MOST_INDICES):
        refuse(where, f"{valid} indices per core", f"1 to {min(most, _MOST_INDICES)}")
    if dst.size != partitions * valid * num_elem_per_idx:
        refuse(
            where,
            f"dst has shape {dst.shape}",
            f"give {valid * num_elem_per_idx} elements per partition",
        )
    return request.emit(valid=valid, elements=int(num_elem_per_idx))


def nc_n_gather(
    dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """Gathers within every partition by its own indices."""
    request = Request("nc_n_gather", locals())
    if data.shape[0] != dst.shape[0] or data.dtype != dst.dtype:
        refuse(
            "nc_n_gather",
            f"data is {data.dtype}{data.shape}, dst {dst.dtype}{dst.shape}",
            "give both the same partitions and dtype",
        )
    return request.emit()


def sequence_bounds(
    dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """Where the segment of every element begins and ends."""
    request = Request("sequence_bounds", locals())
    if segment_ids.shape[0] != 1 or dst.size != 2 * segment_ids.size:
        refuse(
            "sequence_bounds",
            f"segment_ids has shape {segment_ids.shape}, dst {dst.shape}",
            "give one partition, and dst shape (1, 2, n)",
        )
    return request.emit()


def nonzero_with_count(
    dst: NkiTensor,
    src: NkiTensor,
    index_offset: int = 0,
    padding_val: int = -1,
    name: str | None = None,
) -> NkiInstruction:
    """Indices of nonzero elements and their number, in partitions 0, 16, 32, ..."""
    request = Request("nonzero_with_count", locals())
    wanted = per_partition(src) + 1
    if dst.shape[0] != src.shape[0] or dst.size != dst.shape[0] * wanted:
        refuse(
            "nonzero_with_count",
            f"dst has shape {dst.shape}, src {src.shape}",
            f"give dst {wanted} elements per partition",
        )
    return request.emit()


def topk(
    val_dst: NkiTensor,
    idx_dst: NkiTensor,
    src: NkiTensor,
    n: int,
    name: str | None = None,
) -> NkiInstruction:
    """The k largest of every 16-partition snake, ascending, and their indices."""
    where = "topk"
    request = Request(where, locals())
    partitions, k = src.shape[0], per_partition(val_dst)
    if partitions % _CORE_PARTITIONS or val_dst.shape[0] != partitions:
        refuse(where, f"{partitions} partitions", "the same multiple of 16 in all")
    if not 8 <= n < 65_536 or n > src.size // partitions * _CORE_PARTITIONS:
        refuse(where, f"n is {n}", "8 to 65,535, and no more than src holds")
    if not 1 <= k < 32_768 or k > n:
        refuse(where, f"k is {k}", f"1 to {min(n, 32_767)}")
    return request.emit(n=int(n))


def nc_stream_shuffle(
    dst: NkiTensor, src: NkiTensor, shuffle_mask: Sequence[int], name: str | None = None
) -> NkiInstruction:
    """Partition p of each quadrant of dst = partition shuffle_mask[p] of src's."""
    where = "nc_stream_shuffle"
    request = Request(where, locals())
    mask = tuple(int(m) for m in shuffle_mask)
    if len(mask) != _QUADRANT or not all(
        0 <= m < _QUADRANT or m == _UNCHANGED for m in mask
    ):
        refuse(where, f"shuffle_mask {mask}", "32 integers from 0 to 31, or 255")
    check_one_dtype(where, dst, src)
    if dst.size * src.shape[0] != src.size * dst.shape[0]:
        refuse(
            where,
            f"dst has shape {dst.shape}, src {src.shape}",
            "give equal elements per partition",
        )
    for p in range(dst.shape[0]):
        source = p // _QUADRANT * _QUADRANT + mask[p % _QUADRANT]
        if mask[p % _QUADRANT] != _UNCHANGED and source >= src.shape[0]:
            refuse(
                where,
                f"partition {p} copies partition {source} of src, which has "
                f"{src.shape[0]}",
                "give src the partitions that the mask names",
            )
    stays = _UNCHANGED in mask[: dst.shape[0]]
    return request.emit(reads_outputs=stays, mask=mask)
