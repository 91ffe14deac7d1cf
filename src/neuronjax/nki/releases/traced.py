"""Rules for differences that depend on a traced kernel's shapes, dtypes and
memories."""

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


def _hwdge_shape(i: KernelInstruction) -> bool:
    shape = _sources(i)[0].shape
    if i.attributes.get("dge_mode") != "hwdge":
        return False
    return shape[0] != _HARDWARE_ROWS or shape[-1] != _HARDWARE_WIDTH


def _gather_that_skips(i: KernelInstruction) -> bool:
    gathers = any(source.index is not None for source in _sources(i))
    return gathers and i.attributes["oob_mode"] == "skip"


def _part_of_a_bank(i: KernelInstruction) -> bool:
    dst = i.outputs[0]
    wide = prod(dst.shape[1:])
    return bool(i.attributes["accumulate"]) and wide < min(
        dst.storage.free_size, _BANK_FP32
    )


#: The rules that `When.traced` names.
TRACED: Mapping[str, Callable[[KernelInstruction], bool]] = MappingProxyType(
    {
        "psum_source": lambda i: any(
            source.storage.memory == "psum" for source in _sources(i)[:1]
        ),
        "other_rank": lambda i: len(i.outputs[0].shape) != len(_sources(i)[0].shape),
        "hwdge_shape": _hwdge_shape,
        "wide_matmul": lambda i: prod(i.outputs[0].shape[1:]) > _WIDEST_FP32,
        "ocp_fp8_matmul": lambda i: any(
            source.dtype == "float8_e4m3fn" for source in _sources(i)
        ),
        "odd_partitions": lambda i: any(
            a.shape[0] % _SENT_PARTITIONS for a in i.accesses
        ),
        # The third letter of an activation's forms describes its bias.
        "copy_with_bias": lambda i: (
            i.attributes["op"] == "copy" and i.forms[2:3] not in ("", "-")
        ),
        "not_four_dims": lambda i: len(_sources(i)[0].shape) != 4,
        "gather_that_skips": _gather_that_skips,
        "part_of_a_bank": _part_of_a_bank,
    }
)
