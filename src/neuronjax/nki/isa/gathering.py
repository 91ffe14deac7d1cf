"""Checks of gathers, top-k and shuffles that `ir.nki_instructions` cannot express."""

from __future__ import annotations

from typing import Any

from neuronjax.nki.isa.request import Request, instruction, per_partition

_QUADRANT = 32
_UNCHANGED = 255
_CORE_PARTITIONS = 16
_RUNS = (1, 2, 4, 8, 16, 32)
_MOST_INDICES = 4096


@instruction
def local_gather(call: Request) -> Any:
    dst, src, index, each = call.of("dst", "src_buffer", "index", "num_elem_per_idx")
    asked, partitions = call.values["num_valid_indices"], src.shape[0]
    if partitions != index.shape[0] or partitions % _CORE_PARTITIONS:
        call.refuse(
            f"src_buffer has {partitions} partitions, index {index.shape[0]}",
            "give both the same multiple of 16 partitions",
        )
    if each not in _RUNS:
        call.refuse(f"num_elem_per_idx {each}", f"use one of {_RUNS}")
    most = index.size // partitions * _CORE_PARTITIONS
    valid = most if asked is None else int(asked)
    if not 1 <= valid <= min(most, _MOST_INDICES):
        what = f"{valid} indices per 16 partitions"
        call.refuse(what, f"use 1 to {min(most, _MOST_INDICES)}")
    if dst.size != partitions * valid * each:
        remedy = f"give {valid * each} elements per partition"
        call.refuse(f"dst has shape {dst.shape}", remedy)
    return call.emit(valid=valid, elements=int(each))


@instruction
def nc_n_gather(call: Request) -> Any:
    dst, data = call.of("dst", "data")
    if data.shape[0] != dst.shape[0] or data.dtype != dst.dtype:
        call.refuse(
            f"data is {data.dtype}{data.shape}, dst {dst.dtype}{dst.shape}",
            "give both the same number of partitions and the same dtype",
        )
    return call.emit()


@instruction
def sequence_bounds(call: Request) -> Any:
    dst, segment_ids = call.of("dst", "segment_ids")
    if segment_ids.shape[0] != 1 or dst.size != 2 * segment_ids.size:
        call.refuse(
            f"segment_ids has shape {segment_ids.shape}, dst {dst.shape}",
            "give segment_ids one partition, and dst the shape (1, 2, n)",
        )
    return call.emit()


@instruction
def nonzero_with_count(call: Request) -> Any:
    dst, src = call.of("dst", "src")
    wanted = per_partition(src) + 1
    if dst.shape[0] != src.shape[0] or dst.size != dst.shape[0] * wanted:
        call.refuse(
            f"dst has shape {dst.shape}, src {src.shape}",
            f"give dst {wanted} elements per partition",
        )
    return call.emit()


@instruction
def topk(call: Request) -> Any:
    val_dst, src, n = call.of("val_dst", "src", "n")
    partitions, k = src.shape[0], per_partition(val_dst)
    if partitions % _CORE_PARTITIONS or val_dst.shape[0] != partitions:
        what = f"src has {partitions} partitions, val_dst {val_dst.shape[0]}"
        call.refuse(what, "give both the same multiple of 16")
    if not 8 <= n < 65_536 or n > src.size // partitions * _CORE_PARTITIONS:
        most = "no more than src has elements in 16 partitions"
        call.refuse(f"n is {n}", f"use 8 to 65,535, and {most}")
    if not 1 <= k < 32_768 or k > n:
        call.refuse(f"k is {k}", f"use 1 to {min(n, 32_767)}")
    return call.emit(n=int(n))


@instruction
def nc_stream_shuffle(call: Request) -> Any:
    dst, src, given = call.of("dst", "src", "shuffle_mask")
    mask = tuple(int(m) for m in given)
    legal = {*range(_QUADRANT), _UNCHANGED}
    if len(mask) != _QUADRANT or not legal.issuperset(mask):
        call.refuse(f"shuffle_mask {mask}", "give 32 integers, from 0 to 31 or 255")
    if dst.size * src.shape[0] != src.size * dst.shape[0]:
        call.refuse(
            f"dst has shape {dst.shape}, src {src.shape}",
            "give dst as many elements per partition as src",
        )
    for p in range(dst.shape[0]):
        source = p // _QUADRANT * _QUADRANT + mask[p % _QUADRANT]
        if mask[p % _QUADRANT] != _UNCHANGED and source >= src.shape[0]:
            call.refuse(
                f"partition {p} copies partition {source} of src, which has only "
                f"{src.shape[0]} partitions",
                "give src the partitions that the mask names",
            )
    return call.emit(reads_outputs=_UNCHANGED in mask[: dst.shape[0]], mask=mask)
