"""DMA: `dma_copy`, `dma_transpose` and `dma_compute`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuronjax.nki import trace as tracing
from neuronjax.nki.isa.constants import (
    dge_mode as DgeMode,
    engine as Engine,
    oob_mode as OobMode,
)
from neuronjax.nki.isa.operands import check_one_dtype, refuse
from neuronjax.nki.isa.request import Request
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction

#: Axes of the result by the number of dimensions (nki.isa.dma_transpose).
_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
_MOST_SOURCES = 16


def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: Any = OobMode.error,
    dge_mode: Any = DgeMode.unknown,
    engine: Any = Engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """dst = src, by the DMA engines, converted by way of FP32 if the dtypes differ."""
    request = Request("dma_copy", locals())
    _check_elements("dma_copy", "src", src, dst)
    given = -1 if priority is None else priority
    mode = request.attributes["dge_mode"]
    if mode == "unknown" and tracing.current().older:
        if dst.dynamic is None and src.dynamic is None:
            mode = "none"  # a table that the host has built
    by = Engine(engine).name
    return request.emit("dma", dge_mode=mode, dge_engine=by, priority=given)


def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: Sequence[int] | None = None,
    priority: int | None = None,
    dge_mode: Any = DgeMode.unknown,
    oob_mode: Any = OobMode.error,
    name: str | None = None,
) -> NkiInstruction:
    """dst = src with its axes turned round: (1, 0), (2, 1, 0) or (3, 1, 2, 0)."""
    where = "dma_transpose"
    request = Request(where, locals())
    check_one_dtype(where, dst, src)
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
    return request.emit(axes=wanted, priority=priority)


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
    """
    where, srcs = "dma_compute", list(srcs)
    request = Request(where, locals())
    if not 1 <= len(srcs) <= _MOST_SOURCES:
        refuse(where, f"{len(srcs)} sources", f"1 to {_MOST_SOURCES}")
    for n, source in enumerate(srcs):
        _check_elements(where, f"srcs[{n}]", source, dst)
    if scales is not None and any(scale != 1.0 for scale in scales):
        refuse(where, f"scales {list(scales)}", "all 1.0, or None")
    indirect = any(t.is_indirect() for t in (dst, *srcs))
    if indirect and (len(srcs) != 2 or not unique_indices):
        refuse(
            where,
            f"{len(srcs)} sources, unique_indices={unique_indices}, with indices",
            "two sources and unique_indices=True",
        )
    return request.emit()


def _check_elements(where: str, name: str, source: NkiTensor, dst: NkiTensor) -> None:
    if source.size != dst.size:
        refuse(
            where,
            f"{name} has shape {source.shape}, dst {dst.shape}",
            "give equal numbers of elements",
        )
