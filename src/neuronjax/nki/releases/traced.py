"""Differences that only a traced kernel shows: shapes, dtypes and memories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType

from neuronjax.ir.kernel import Access, KernelInstruction

_WIDEST_FP32 = 4096
_BANK_FP32 = 512
_HARDWARE_ROWS = 16
_HARDWARE_WIDTH = 128
_SENT_PARTITIONS = 16


def _sources(i: KernelInstruction) -> list[Access]:
    return [operand for operand in i.inputs if isinstance(operand, Access)]


def _psum_source(i: KernelInstruction) -> bool:
    return any(source.storage.memory == "psum" for source in _sources(i)[:1])


def _other_rank(i: KernelInstruction) -> bool:
    return len(i.outputs[0].shape) != len(_sources(i)[0].shape)


def _hwdge_shape(i: KernelInstruction) -> bool:
    shape = _sources(i)[0].shape
    if i.attributes.get("dge_mode") != "hwdge":
        return False
    return shape[0] != _HARDWARE_ROWS or shape[-1] != _HARDWARE_WIDTH


def _wide_matmul(i: KernelInstruction) -> bool:
    return prod(i.outputs[0].shape[1:]) > _WIDEST_FP32


def _ocp_fp8_matmul(i: KernelInstruction) -> bool:
    return any(source.dtype == "float8_e4m3fn" for source in _sources(i))


def _odd_partitions(i: KernelInstruction) -> bool:
    return any(a.shape[0] % _SENT_PARTITIONS for a in i.accesses)


def _copy_with_bias(i: KernelInstruction) -> bool:
    return i.attributes["op"] == "copy" and i.forms[2:3] not in ("", "-")


def _not_four_dims(i: KernelInstruction) -> bool:
    return len(_sources(i)[0].shape) != 4


def _gather_that_skips(i: KernelInstruction) -> bool:
    gathers = any(source.index is not None for source in _sources(i))
    return gathers and i.attributes["oob_mode"] == "skip"


def _part_of_a_bank(i: KernelInstruction) -> bool:
    dst = i.outputs[0]
    wide = prod(dst.shape[1:])
    return bool(i.attributes["accumulate"]) and wide < min(
        dst.storage.free_size, _BANK_FP32
    )


#: What `When.traced` names -> whether an instruction is so.
TRACED: Mapping[str, Callable[[KernelInstruction], bool]] = MappingProxyType(
    {
        "psum_source": _psum_source,
        "other_rank": _other_rank,
        "hwdge_shape": _hwdge_shape,
        "wide_matmul": _wide_matmul,
        "ocp_fp8_matmul": _ocp_fp8_matmul,
        "odd_partitions": _odd_partitions,
        "copy_with_bias": _copy_with_bias,
        "not_four_dims": _not_four_dims,
        "gather_that_skips": _gather_that_skips,
        "part_of_a_bank": _part_of_a_bank,
    }
)
