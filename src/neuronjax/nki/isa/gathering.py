"""GpSimdE: `local_gather`, `nc_n_gather`, `sequence_bounds` and their like."""

from __future__ import annotations

from neuronjax.nki.isa.operands import check_same_shape, check_tensor, refuse
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction, emit

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
    """Gathers within groups of 16 partitions by indices of the same group.

    Args:
        dst: SBUF, of src_buffer's dtype.
        src_buffer: SBUF, a multiple of 16 partitions.
        index: SBUF, uint16, as many partitions; read partition first.
        num_elem_per_idx: contiguous elements per index: 1, 2, 4, ... 32.
        num_valid_indices: how many of a group's indices count; default all.
        name: label of the instruction.
    """
    where = "local_gather"
    for label, tile in (("dst", dst), ("src_buffer", src_buffer), ("index", index)):
        check_tensor(where, label, tile, "sbuf")
    partitions = src_buffer.shape[0]
    if partitions != index.shape[0] or partitions % _CORE_PARTITIONS:
        refuse(
            where,
            f"{partitions} partitions, index has {index.shape[0]}",
            "give both the same multiple of 16 partitions",
        )
    if index.dtype != "uint16":
        refuse(where, f"index is {index.dtype}", "uint16")
    if dst.dtype != src_buffer.dtype:
        refuse(where, f"{src_buffer.dtype} into {dst.dtype}", "give both one dtype")
    if num_elem_per_idx not in _RUNS:
        refuse(where, f"num_elem_per_idx {num_elem_per_idx}", f"one of {_RUNS}")
    most = index.size // partitions * _CORE_PARTITIONS
    valid = most if num_valid_indices is None else int(num_valid_indices)
    if not 1 <= valid <= min(most, _MOST_INDICES):
        refuse(
            where,
            f"{valid} indices per core",
            f"1 to {min(most, _MOST_INDICES)}",
        )
    if dst.size != partitions * valid * num_elem_per_idx:
        refuse(
            where,
            f"dst has shape {dst.shape}",
            f"give {valid * num_elem_per_idx} elements per partition",
        )
    attributes = {"valid": valid, "elements": int(num_elem_per_idx)}
    operands = [src_buffer, index]
    return emit(where, "gpsimd", [dst], operands, attributes=attributes, label=name)


def nc_n_gather(
    dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """Gathers within every partition by its own indices.

    Args:
        dst: SBUF, of data's dtype and of the shape of indices.
        data: SBUF; its free dimensions count as one.
        indices: SBUF, uint32.
        name: label of the instruction.
    """
    where = "nc_n_gather"
    for label, tile in (("dst", dst), ("data", data), ("indices", indices)):
        check_tensor(where, label, tile, "sbuf")
    check_same_shape(where, dst, ("indices", indices))
    if data.shape[0] != dst.shape[0] or data.dtype != dst.dtype:
        refuse(
            where,
            f"data is {data.dtype}{data.shape}, dst {dst.dtype}{dst.shape}",
            "give both the same partitions and dtype",
        )
    if indices.dtype != "uint32":
        refuse(where, f"indices are {indices.dtype}", "uint32")
    return emit(where, "gpsimd", [dst], [data, indices], label=name)


def sequence_bounds(
    dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """Where the segment of every element begins and ends.

    Args:
        dst: SBUF, (1, 2, n), float32 or int32: starts, then ends.
        segment_ids: SBUF, (1, n), of the same types; 0 is padding.
        name: label of the instruction.
    """
    where = "sequence_bounds"
    for label, tile in (("dst", dst), ("segment_ids", segment_ids)):
        check_tensor(where, label, tile, "sbuf")
        if tile.dtype not in ("float32", "int32"):
            refuse(where, f"{label} is {tile.dtype}", "float32 or int32")
    if segment_ids.shape[0] != 1 or dst.size != 2 * segment_ids.size:
        refuse(
            where,
            f"segment_ids has shape {segment_ids.shape}, dst {dst.shape}",
            "give one partition, and dst shape (1, 2, n)",
        )
    return emit(where, "gpsimd", [dst], [segment_ids], label=name)


def nonzero_with_count(
    dst: NkiTensor,
    src: NkiTensor,
    index_offset: int = 0,
    padding_val: int = -1,
    name: str | None = None,
) -> NkiInstruction:
    """Indices of nonzero elements and their number, in partitions 0, 16, 32, ...

    Args:
        dst: SBUF, int32, one element per partition more than src; others stay.
        src: SBUF, float32 or int32.
        index_offset: added to every index.
        padding_val: fills the rest.
        name: label of the instruction.
    """
    where = "nonzero_with_count"
    check_tensor(where, "dst", dst, "sbuf")
    check_tensor(where, "src", src, "sbuf")
    if src.dtype not in ("float32", "int32") or dst.dtype != "int32":
        refuse(
            where,
            f"{src.dtype} into {dst.dtype}",
            "float32 or int32 into int32",
        )
    wanted = src.size // src.shape[0] + 1
    if dst.shape[0] != src.shape[0] or dst.size != dst.shape[0] * wanted:
        refuse(
            where,
            f"dst has shape {dst.shape}, src {src.shape}",
            f"give dst {wanted} elements per partition",
        )
    operands = [src, int(index_offset), int(padding_val)]
    return emit(where, "gpsimd", [dst], operands, reads_outputs=True, label=name)


def topk(
    val_dst: NkiTensor,
    idx_dst: NkiTensor,
    src: NkiTensor,
    n: int,
    name: str | None = None,
) -> NkiInstruction:
    """The k largest of every 16-partition snake, ascending, and their indices.

    Args:
        val_dst: SBUF, bfloat16, (partitions, k).
        idx_dst: SBUF, uint32, (partitions, k).
        src: SBUF, bfloat16; elements 0 to 15 are column 0 of 16 partitions, and so on.
        n: elements of the snake that count, 8 to 65,535.
        name: label of the instruction.
    """
    where = "topk"
    tiles = (("val_dst", val_dst), ("idx_dst", idx_dst), ("src", src))
    for (label, tile), dtype in zip(
        tiles, ("bfloat16", "uint32", "bfloat16"), strict=True
    ):
        check_tensor(where, label, tile, "sbuf")
        if tile.dtype != dtype:
            refuse(where, f"{label} is {tile.dtype}", dtype)
    check_same_shape(where, val_dst, ("idx_dst", idx_dst))
    partitions, k = src.shape[0], val_dst.size // val_dst.shape[0]
    if partitions % _CORE_PARTITIONS or val_dst.shape[0] != partitions:
        refuse(where, f"{partitions} partitions", "the same multiple of 16 in all")
    if not 8 <= n < 65_536 or n > src.size // partitions * _CORE_PARTITIONS:
        refuse(where, f"n is {n}", "8 to 65,535, and no more than src holds")
    if not 1 <= k < 32_768 or k > n:
        refuse(where, f"k is {k}", f"1 to {min(n, 32_767)}")
    attributes = {"n": int(n)}
    outputs = [val_dst, idx_dst]
    return emit(where, "gpsimd", outputs, [src], attributes=attributes, label=name)
