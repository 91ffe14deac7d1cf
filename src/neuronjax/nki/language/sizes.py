"""`nl.tile_size`: sizes of the target's memories and of its array."""

from __future__ import annotations

from neuronjax.hardware import CoreSpec
from neuronjax.nki import active, trace as tracing
from neuronjax.nki.memory import NKIObject
from neuronjax.nki.targets import chosen_target

_FP32_BYTES = 4


class _TileSize(NKIObject):
    """Read from the core that the kernel is traced for."""

    @property
    def _core(self) -> CoreSpec:
        target = tracing.current().target if active.in_kernel() else chosen_target()
        return target.core

    @property
    def pmax(self) -> int:
        """Partitions."""
        return self._core.partitions

    @property
    def psum_bank_fmax_bytes(self) -> int:
        """Bytes of a PSUM bank in one partition."""
        return self._core.psum_bank_bytes_per_partition

    @property
    def psum_bank_fmax(self) -> int:
        """The same in FP32 elements."""
        return self.psum_bank_fmax_bytes // _FP32_BYTES

    @property
    def psum_fmax(self) -> int:
        """The older name of `psum_bank_fmax`."""
        return self.psum_bank_fmax

    @property
    def gemm_stationary_fmax(self) -> int:
        """Columns of a stationary operand."""
        return self._core.max_stationary_free

    @property
    def gemm_moving_fmax(self) -> int:
        """Columns of a moving operand whose result fits one PSUM bank, in FP32."""
        return self.psum_bank_fmax

    @property
    def bn_stats_fmax(self) -> int:
        """Elements per partition of `bn_stats`."""
        return 512  # nki.isa.bn_stats, "Tile size"

    @property
    def psum_min_align(self) -> int:
        """Bytes to which PSUM addresses are aligned."""
        return 4  # ASSUMPTION: one FP32 element

    @property
    def sbuf_min_align(self) -> int:
        """Bytes to which SBUF addresses are aligned."""
        return 1  # ASSUMPTION

    @property
    def psum_num_banks(self) -> int:
        """PSUM banks per partition."""
        return self._core.psum_banks

    @property
    def sbuf_size_bytes(self) -> int:
        """SBUF, all partitions."""
        return self._core.sbuf_bytes

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Usable bytes of an SBUF partition."""
        return self._core.sbuf_usable_bytes_per_partition

    @property
    def sbuf_fmax(self) -> int:
        """The same in FP32 elements."""
        return self.sbuf_fmax_bytes // _FP32_BYTES

    @property
    def total_available_sbuf_size(self) -> int:
        """The older name of `sbuf_fmax_bytes`."""
        return self.sbuf_fmax_bytes


tile_size = _TileSize()
