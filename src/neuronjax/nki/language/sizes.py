"""`nl.tile_size`: sizes of the target's memories and of TensorE."""

from __future__ import annotations

from collections.abc import Callable

from neuronjax.hardware import CoreSpec
from neuronjax.nki import active, trace as tracing
from neuronjax.nki.memory import NKIObject
from neuronjax.nki.targets import chosen_target

_FP32_BYTES = 4


def _size(meaning: str, of: Callable[[CoreSpec], int]) -> property:
    def read(_: object) -> int:
        target = tracing.current().target if active.in_kernel() else chosen_target()
        return of(target.core)

    return property(read, doc=meaning)


class _TileSize(NKIObject):
    """Sizes of the core for which the kernel is traced."""

    pmax = _size("Partitions.", lambda core: core.partitions)
    psum_bank_fmax_bytes = _size(
        "Bytes of a PSUM bank in one partition.",
        lambda core: core.psum_bank_bytes_per_partition,
    )
    psum_bank_fmax = _size(
        "FP32 elements of a PSUM bank in one partition.",
        lambda core: core.psum_bank_bytes_per_partition // _FP32_BYTES,
    )
    psum_fmax = psum_bank_fmax  # the older name of psum_bank_fmax
    gemm_stationary_fmax = _size(
        "Most columns of a stationary operand.", lambda core: core.max_stationary_free
    )
    # Columns of a moving operand whose result fits one PSUM bank, in FP32.
    gemm_moving_fmax = psum_bank_fmax
    # nki.isa.bn_stats, "Tile size".
    bn_stats_fmax = _size("Most elements per partition in bn_stats.", lambda _: 512)
    # ASSUMPTION: one FP32 element.
    psum_min_align = _size("Bytes to which PSUM addresses are aligned.", lambda _: 4)
    # ASSUMPTION: any byte.
    sbuf_min_align = _size("Bytes to which SBUF addresses are aligned.", lambda _: 1)
    psum_num_banks = _size("PSUM banks per partition.", lambda core: core.psum_banks)
    sbuf_size_bytes = _size(
        "Bytes of SBUF, all partitions.", lambda core: core.sbuf_bytes
    )
    sbuf_fmax_bytes = _size(
        "Usable bytes of an SBUF partition.",
        lambda core: core.sbuf_usable_bytes_per_partition,
    )
    sbuf_fmax = _size(
        "Usable FP32 elements of an SBUF partition.",
        lambda core: core.sbuf_usable_bytes_per_partition // _FP32_BYTES,
    )
    total_available_sbuf_size = sbuf_fmax_bytes  # the older name of sbuf_fmax_bytes


tile_size = _TileSize()
