"""Limits of data types, by core and operator.

Sources: nki.isa ("Data types" of every instruction) and nki/api/nki.api.shared.rst.
Limits of single operands are in `OperandSpec.dtypes` and `fp32`. Where the documents
are silent nothing is checked.
"""

from __future__ import annotations

from neuronjax.hardware import CoreSpec, chips_with
from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.alu_operators import BITVEC
from neuronjax.ir.kernel import KernelInstruction
from neuronjax.nki.limits.operands import operands, tensor_inputs, text
from neuronjax.nki.limits.registry import advice, broken, limit

# Formats that need a capability; every chip has the other dtypes.
NEWER = {
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e8m0fnu": "mx_matmul",
    "float8_e4m3fn_x4": "mx_matmul",
    "float8_e5m2_x4": "mx_matmul",
    "float4_e2m1fn_x4": "mx_matmul",
}


@limit()
def formats_exist(i: KernelInstruction, core: CoreSpec) -> None:
    """Refuse OCP E4M3 and microscaling types on cores without them, except in DMA."""
    if i.engine in ("dma", "sync"):
        return
    for operand in operands(i):
        capability = NEWER.get(operand.access.dtype)
        if capability is not None and capability not in core.capabilities:
            is_e4m3 = "e4m3" in operand.access.dtype
            nearest = "float8_e4m3 (largest value 240)" if is_e4m3 else "another dtype"
            raise broken(
                i,
                f"{operand.label} {text(operand.access)}, a dtype that "
                f"{core.name} lacks",
                f"use target {', '.join(chips_with(capability))}, or {nearest}",
            )


@limit("tensor_tensor", "tensor_scalar", "tensor_reduce")
def bits_are_integers(i: KernelInstruction, core: CoreSpec) -> None:
    """Refuse bitwise operators on floats, or in tensor_scalar not on VectorE."""
    ops = [i.attributes.get(key) for key in ("op", "op0", "op1")]
    bitwise = [op for op in ops if op in BITVEC]
    if not bitwise:
        return
    for operand in operands(i):
        if not dtypes.info(operand.access.dtype).is_integer:
            raise broken(
                i,
                f"{bitwise[0]} with {operand.label} {text(operand.access)}",
                "bitvec operators take integers: t.view(nl.uint32) reads the bits of a "
                "float32 tile",
            )
    if i.name == "tensor_scalar" and i.engine != "vector":
        raise broken(i, f"{bitwise[0]} on the {i.engine} engine", "use engine vector")


@advice("tensor_copy_predicated")
def copies_convert_nothing(i: KernelInstruction, core: CoreSpec) -> None:
    source = tensor_inputs(i)[0]
    if source is not None and source.dtype != i.outputs[0].dtype:
        raise broken(
            i,
            f"src {text(source)}, dst {text(i.outputs[0])}",
            "give src and dst one dtype (nisa.tensor_copy converts)",
        )


@limit("nc_transpose")
def transposes_keep_dtypes(i: KernelInstruction, core: CoreSpec) -> None:
    """Refuse a dst of another dtype than data; TensorE may write FP8 as 16 bits.

    nki/guides/architecture/trainium2_arch.rst, "Transpose": FP8 fills the lower half.
    """
    data, dst = tensor_inputs(i)[0], i.outputs[0]
    assert data is not None
    size = dtypes.itemsize
    widened = i.engine == "tensor" and size(data.dtype) == 1 and size(dst.dtype) == 2
    if data.dtype != dst.dtype and not widened:
        raise broken(i, f"data {text(data)}, dst {text(dst)}", f"make dst {data.dtype}")
