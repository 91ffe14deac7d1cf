"""Limits of the DMA instructions (nki.isa.dma_copy, dma_transpose, dma_compute).

The documents do not limit the element size of a transfer; `timing` has the cost of
short runs. `engine` without hwdge is ignored, because kernels pass it.
"""

from __future__ import annotations

from neuronjax.hardware import CoreSpec
from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.kernel import Access, KernelInstruction
from neuronjax.nki.limits.operands import tensor_inputs, text
from neuronjax.nki.limits.registry import broken, limit, missing

PRIORITIES = range(4)
TRANSPOSED_ITEMSIZE = 2
TRANSPOSED_WIDTH = 128
HARDWARE_ROWS = (1, 2, 4, 8, 16)


@limit("dma_copy", "dma_transpose")
def descriptors(i: KernelInstruction, core: CoreSpec) -> None:
    """Refuse hardware descriptors and priorities on cores that lack them."""
    capabilities = core.capabilities
    if i.attributes["dge_mode"] == "hwdge" and "hwdge" not in capabilities:
        raise missing(i, core, "dge_mode hwdge", "hwdge", "dge_mode unknown")
    priority = i.attributes["priority"]
    if priority is None or priority < 0:
        return
    if priority not in PRIORITIES:
        raise broken(i, f"priority {priority}", "use 0 to 3")
    if "dma_priority" not in capabilities:
        raise missing(i, core, "a priority", "dma_priority", "priority=None")


@limit("dma_copy", "dma_compute")
def one_index_for_each_row(i: KernelInstruction, core: CoreSpec) -> None:
    """Refuse indices that are not one for each row (nki.isa.dma_copy)."""
    for access in (*i.outputs, *tensor_inputs(i)):
        if access is None or access.dynamic is None or access.dynamic.kind != "vector":
            continue
        index, rows = access.dynamic.index, access.shape[0]
        if isinstance(index, Access) and index.size != rows:
            raise broken(
                i,
                f"{index.size} indices for {rows} rows of {text(access)}",
                "give one index for each row",
            )


@limit("dma_copy")
def hardware_moves_bytes(i: KernelInstruction, core: CoreSpec) -> None:
    """Refuse hwdge between dtypes (nki/migration/index.rst, "dge_mode type
    matching")."""
    source, dst = tensor_inputs(i)[0], i.outputs[0]
    if i.attributes["dge_mode"] != "hwdge" or source is None:
        return
    if source.dtype != dst.dtype:
        raise broken(
            i,
            f"hwdge from {text(source)} to {text(dst)}",
            "give both one dtype with t.view(dtype), or convert with dge_mode swdge",
        )


@limit("dma_transpose")
def transposes(i: KernelInstruction, core: CoreSpec) -> None:
    """Refuse shapes that the chosen descriptors cannot transpose."""
    source = tensor_inputs(i)[0]
    assert source is not None
    if source.dynamic is not None and source.dynamic.kind == "vector":
        _check_gathered(i, source, core)
    elif i.attributes["dge_mode"] == "hwdge":
        rows, shape = source.shape[0], source.shape
        if len(shape) == 2 and rows != 16:
            raise broken(i, f"src {text(source)}", "hwdge needs a matrix of 16 rows")
        if len(shape) > 2 and (rows not in HARDWARE_ROWS or rows * shape[-2] % 16):
            raise broken(
                i,
                f"src {text(source)}",
                f"use a first size of {', '.join(map(str, HARDWARE_ROWS))}; its "
                "product with the second last size must be a multiple of 16",
            )
        _check_elements(i, source)
    elif i.attributes["dge_mode"] == "swdge":
        raise broken(i, "swdge without indices", "use dge_mode unknown or hwdge")


def _check_elements(i: KernelInstruction, source: Access) -> None:
    if source.shape[-1] > TRANSPOSED_WIDTH:
        raise broken(
            i, f"src {text(source)}", f"use a last size of at most {TRANSPOSED_WIDTH}"
        )
    if dtypes.itemsize(source.dtype) != TRANSPOSED_ITEMSIZE:
        raise broken(i, f"src {text(source)}", "use a dtype of 2 bytes, see t.view")


def _check_gathered(i: KernelInstruction, source: Access, core: CoreSpec) -> None:
    """Refuse what nki.isa.dma_transpose excludes if src is indirect."""
    if "dma_transpose" not in core.capabilities:
        raise missing(i, core, "a gathering dma_transpose", "dma_transpose")
    if i.attributes["dge_mode"] == "hwdge":
        raise broken(i, "hwdge with indices", "use dge_mode unknown or swdge")
    _check_elements(i, source)
    assert source.dynamic is not None
    index = source.dynamic.index
    if source.storage.on_chip or not isinstance(index, Access):
        raise broken(i, f"src {text(source)}", "put src in HBM, the indices in SBUF")
    rows, (partitions, *columns) = source.shape[0], index.shape
    if rows % 16 or index.size < rows:
        raise broken(
            i,
            f"a gather of {rows} rows with {index.size} indices",
            "use a multiple of 16 rows, and give an index for each row",
        )
    several = any(count > 1 for count in columns)
    if partitions % 16 or not 16 <= partitions <= 128 or (several and partitions < 128):
        raise broken(
            i,
            f"indices of shape {list(index.shape)}",
            "use 16, 32, ... or 128 partitions, and 128 if there are several columns",
        )
    if index.dtype != "uint32":
        raise broken(i, f"indices {text(index)}", "use uint32")
    if len(source.shape) == 4 and 1 not in source.shape[1:3]:
        raise broken(
            i, f"src {text(source)}", "make the size of dimension 1 or 2 equal 1"
        )
