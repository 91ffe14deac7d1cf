"""DMA: `dma_copy`."""

from __future__ import annotations

from typing import Any

from neuronjax.nki.isa.constants import (
    dge_mode as DgeMode,
    engine as Engine,
    oob_mode as OobMode,
)
from neuronjax.nki.isa.operands import check_tensor, refuse
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction, emit


def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: Any = OobMode.error,
    dge_mode: Any = DgeMode.unknown,
    engine: Any = Engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """dst = src, by the DMA engines, converted by way of FP32 if the dtypes differ.

    Args:
        dst: in HBM or SBUF (PSUM too); equal numbers of elements.
        src: likewise.
        priority: DMA class of service, 0 to 3.
        oob_mode: of runtime indices.
        dge_mode: who generates the descriptors; values do not depend on it.
        engine: likewise.
        name: label of the instruction.
    """
    check_tensor("dma_copy", "dst", dst)
    check_tensor("dma_copy", "src", src)
    if dst.size != src.size:
        refuse(
            "dma_copy",
            f"src has shape {src.shape}, dst {dst.shape}",
            "give equal numbers of elements",
        )
    attributes = {
        "oob_mode": OobMode(oob_mode).name,
        "dge_mode": DgeMode(dge_mode).name,
        "dge_engine": Engine(engine).name,
        "priority": -1 if priority is None else priority,
    }
    return emit("dma_copy", "dma", [dst], [src], attributes=attributes, label=name)
