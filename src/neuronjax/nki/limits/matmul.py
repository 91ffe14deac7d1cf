"""Limits of TensorE: tile sizes, dtypes and modes (nki.isa.nc_matmul, nc_matmul_mx).

The text of nc_matmul describes tiles of columns, while its parameters exclude them
("start_column must be 0"); public kernels use them, so they are legal here. The checks
of `isa.microscaling` are not repeated.
"""

from __future__ import annotations

from neuronjax.hardware import CoreSpec
from neuronjax.ir.kernel import Access, KernelInstruction
from neuronjax.nki.limits.operands import byte_range, free_size, tensor_inputs, text
from neuronjax.nki.limits.registry import broken, limit, missing
from neuronjax.numerics.float_format import FP8

WIDE = frozenset({"float32", "tfloat32"})
FLOATS = WIDE | {"bfloat16", "float16", *FP8}
LEGACY_E4M3, OCP_E4M3 = "float8_e4m3", "float8_e4m3fn"


def _inputs(i: KernelInstruction) -> tuple[Access, Access]:
    stationary, moving, *_ = tensor_inputs(i)
    assert stationary is not None
    assert moving is not None
    return stationary, moving


@limit("nc_matmul")
def operand_dtypes(i: KernelInstruction, core: CoreSpec) -> None:
    pair = _inputs(i)
    names = [a.dtype for a in pair]
    shown = f"stationary {text(pair[0])}, moving {text(pair[1])}"
    for name in names:
        if name not in FLOATS:
            raise broken(i, shown, f"use {', '.join(sorted(FLOATS))}, not {name}")
    # A transpose copies bits, so the identity has the dtype of the data.
    if len(WIDE & {*names}) == 1 and not WIDE.issuperset(names):
        raise broken(
            i,
            shown,
            "float32 and tfloat32 go only with each other: cast one of the operands",
        )
    if {*names} == {LEGACY_E4M3, OCP_E4M3}:
        raise broken(i, shown, "use one of the two E4M3 formats for both")


@limit("nc_matmul")
def result_dtype(i: KernelInstruction, core: CoreSpec) -> None:
    """Refuse a product in a dtype that PSUM lacks; a transpose only copies bits."""
    dst = i.outputs[0]
    if i.attributes["is_transpose"] or dst.dtype == "float32":
        return
    if dst.dtype != "bfloat16":
        raise broken(i, f"dst {text(dst)}", "use float32, or bfloat16 on NeuronCore-v4")
    if "bf16_psum" not in core.capabilities:
        raise missing(i, core, f"dst {text(dst)}", "bf16_psum", "a float32 dst")


@limit("nc_matmul", "nc_matmul_mx")
def tiles_fit(i: KernelInstruction, core: CoreSpec) -> None:
    """Refuse operands larger than the array, or than the tile of it that is used."""
    stationary, moving = _inputs(i)
    rows, columns = i.attributes["tile_size"]
    per_cell = i.attributes.get("rows_per_cell", 1)
    m, n = free_size(stationary) // per_cell, free_size(moving) // per_cell
    most = min(columns, core.max_stationary_free)
    if stationary.shape[0] > rows:
        raise broken(
            i,
            f"stationary {text(stationary)} has {stationary.shape[0]} partitions",
            f"use at most {rows}, the rows of the tile: split K and accumulate",
        )
    if m > most:
        raise broken(
            i,
            f"stationary {text(stationary)} has {m} columns",
            f"use at most {most}: split stationary, with one matmul per piece",
        )
    widest = core.max_moving_free
    if i.outputs[0].dtype == "bfloat16" and core.max_moving_free_bf16:
        widest = core.max_moving_free_bf16
    if n > widest:
        raise broken(
            i,
            f"moving {text(moving)} has {n} columns",
            f"use at most {widest}: split moving, with one matmul per piece",
        )


@limit("nc_matmul", "nc_matmul_mx")
def array_tiles(i: KernelInstruction, core: CoreSpec) -> None:
    sizes, position = i.attributes["tile_size"], i.attributes["tile_position"]
    legal = (64, 128)
    if "quarter_tiling" in core.capabilities:
        legal = (32, *legal)
    asked = f"tile_position {position}, tile_size {sizes}"
    if len(sizes) != 2 or len(position) != 2 or any(s not in legal for s in sizes):
        raise broken(i, asked, f"give pairs, with sizes {', '.join(map(str, legal))}")
    if i.name == "nc_matmul_mx" and sizes[1] != legal[-1]:
        raise broken(i, asked, f"use all {legal[-1]} columns")
    for start, size in zip(position, sizes, strict=True):
        if start % size or not 0 <= start <= 128 - size:
            starts = ", ".join(str(s) for s in range(0, 128, size))
            raise broken(i, asked, f"let a tile of {size} start at one of {starts}")


@limit("nc_matmul")
def double_row(i: KernelInstruction, core: CoreSpec) -> None:
    if i.attributes["rows_per_cell"] == 1:
        return
    if "fp8_double_row" not in core.capabilities:
        raise missing(i, core, "double_row", "fp8_double_row", "perf_mode none")
    for access in _inputs(i):
        if access.dtype not in FP8:
            raise broken(
                i,
                f"double_row with {text(access)}",
                f"use one of {', '.join(sorted(FP8))}, or perf_mode none",
            )
    if i.attributes["tile_size"][1] != 128:
        raise broken(i, "double_row with column tiles", "use tile_size (rows, 128)")
    if i.attributes["is_transpose"]:
        raise broken(i, "double_row with is_transpose", "use perf_mode none")


@limit("nc_matmul", "nc_transpose")
def one_bank(i: KernelInstruction, core: CoreSpec) -> None:
    """Refuse a dst in several PSUM banks before NeuronCore-v4.

    A storage without an address is assumed to start with a bank."""
    if i.engine != "tensor" or core.max_moving_free > 512:
        return
    bank = core.psum_bank_bytes_per_partition
    dst = i.outputs[0]
    if dst.dynamic is not None:
        return
    first, last = byte_range(dst)
    if first // bank != last // bank:
        raise broken(
            i,
            f"dst {text(dst)} takes bytes {first} to {last} of a partition of PSUM",
            f"use one bank: {bank} bytes from a multiple of {bank} ({bank // 4} FP32)",
        )
