"""DMA: `dma_transpose` and `dma_compute`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuronjax.ir.alu_operators import checked_op
from neuronjax.nki.isa.constants import dge_mode as DgeMode, oob_mode as OobMode
from neuronjax.nki.isa.operands import check_tensor, refuse
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction, emit

#: Axes of the result by the number of dimensions (nki.isa.dma_transpose).
_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
_MOST_SOURCES = 16
_MEMORIES = ("sbuf", "private_hbm", "shared_hbm")


def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: Sequence[int] | None = None,
    priority: int | None = None,
    dge_mode: Any = DgeMode.unknown,
    oob_mode: Any = OobMode.error,
    name: str | None = None,
) -> NkiInstruction:
    """dst = src with its axes turned round: (1, 0), (2, 1, 0) or (3, 1, 2, 0).

    Args:
        dst: SBUF, of src's dtype.
        src: HBM or SBUF; may be gathered by a vector of indices.
        axes: the order; only the documented one of the number of dimensions.
        priority: DMA service class 0 to 3 (NeuronCore-v4).
        dge_mode: who makes the descriptors.
        oob_mode: what an index out of bounds does.
        name: label of the instruction.
    """
    where = "dma_transpose"
    check_tensor(where, "dst", dst, "sbuf")
    check_tensor(where, "src", src, *_MEMORIES)
    if dst.dtype != src.dtype:
        refuse(where, f"{src.dtype} into {dst.dtype}", "give both one dtype")
    wanted = _AXES.get(src.ndim)
    if wanted is None or (axes is not None and tuple(axes) != wanted):
        refuse(
            where,
            f"axes {axes} of {src.ndim} dimensions",
            "(1, 0) of two, (2, 1, 0) of three, (3, 1, 2, 0) of four",
        )
    shape = tuple(src.shape[a] for a in wanted)
    if dst.size != src.size or dst.shape[0] != shape[0]:
        refuse(where, f"dst has shape {dst.shape}", f"give shape {shape}")
    attributes = {
        "axes": wanted,
        "dge_mode": DgeMode(dge_mode).name,
        "oob_mode": OobMode(oob_mode).name,
        "priority": priority,
    }
    return emit(where, "dma", [dst], [src], attributes=attributes, label=name)


def dma_compute(
    dst: NkiTensor,
    srcs: Sequence[NkiTensor],
    reduce_op: Any,
    scales: Sequence[float] | None = None,
    unique_indices: bool = True,
    oob_mode: Any = OobMode.error,
    name: str | None = None,
) -> NkiInstruction:
    """dst = the sum of up to 16 tensors, in FP32, on the way through the DMA engines.

    With a vector of indices on dst (scatter) or on one source (gather) the sum is a
    read, an addition and a write of the elements that the indices name.

    Args:
        dst: HBM or SBUF.
        srcs: HBM or SBUF, as many elements each as dst.
        reduce_op: nl.add.
        scales: all 1.0, or None.
        unique_indices: True: equal indices are not supported.
        oob_mode: what an index out of bounds does.
        name: label of the instruction.
    """
    where = "dma_compute"
    checked_op(reduce_op, frozenset({"add"}), "nisa.dma_compute")
    check_tensor(where, "dst", dst, *_MEMORIES)
    if not 1 <= len(srcs) <= _MOST_SOURCES:
        refuse(where, f"{len(srcs)} sources", f"1 to {_MOST_SOURCES}")
    for n, source in enumerate(srcs):
        check_tensor(where, f"srcs[{n}]", source, *_MEMORIES)
        if source.size != dst.size:
            refuse(
                where,
                f"srcs[{n}] has shape {source.shape}, dst {dst.shape}",
                "give equal numbers of elements",
            )
    if scales is not None and any(scale != 1.0 for scale in scales):
        refuse(where, f"scales {list(scales)}", "all 1.0, or None")
    indirect = any(t.is_indirect() for t in (dst, *srcs))
    if indirect and (len(srcs) != 2 or not unique_indices):
        refuse(
            where,
            f"{len(srcs)} sources, unique_indices={unique_indices}, with indices",
            "two sources and unique_indices=True",
        )
    attributes = {"oob_mode": OobMode(oob_mode).name}
    return emit(where, "dma", [dst], list(srcs), attributes=attributes, label=name)
