"""The capabilities of NeuronCores, by the names in `CoreSpec.capabilities`.

Source keys are those of `chips.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from neuronjax.hardware.chips import CHIPS

CAPABILITIES: Mapping[str, str] = MappingProxyType(
    {
        "stochastic_rounding": "FP32 results round stochastically on request [JE, RM]",
        "control_flow": "loops and branches that depend on computed values [C2]",
        "kernels": "kernels in NKI [SIM]",
        "lfsr": "vector-engine random bits from an LFSR [A4]",
        "xorwow": "XORWOW generator, `rand2` [A4, ISA]",
        "float8_e4m3": "IEEE-like E4M3, largest finite 240 [ERR/EVRF052]",
        "float8_e4m3fn": "OCP E4M3, largest finite 448 [ERR/EVRF051, ISA]",
        "float8_e5m2": "IEEE-like E5M2 [SH]",
        "fp8_double_row": "two FP8 products per array cell and clock cycle [A3, ISA]",
        "mx_matmul": "`nc_matmul_mx` [A4, ISA]",
        "quantize_mx": "`quantize_mx` on the vector engine [ISA]",
        "sparse_matmul": "stationary operand with up to 4 non-zeros of 16 [A3, C3, C4]",
        "bf16_psum": "PSUM accumulates in BF16, RNE or stochastic [A4]",
        "exact_transpose": "the array transposes bits, NaN and Inf included [A3]",
        "quarter_tiling": "array tiles of 32 rows or columns, not only 64 [ISA]",
        "vector_perf_modes": "16-bit vector operations are 2 or 4 times as fast [A3]",
        "scalar_perf_modes": "16-bit scalar operations are up to twice as fast [A4]",
        "scalar_engine_exact_copy": "scalar-engine copies keep the bits [A3, ISA]",
        "vector_exponential": "`exponential` on the vector engine [A4, ISA]",
        "parallel_sbuf_ports": "vector and GpSimd access SBUF simultaneously [A3]",
        "dma_transpose": "the DMA engines transpose 2- and 4-byte elements [A3]",
        "hwdge": "hardware that generates DMA descriptors [A3]",
        "dma_priority": "four classes of DMA service [A4, ISA]",
        "gpsimd_dma": "DMA integrated into GpSimd [A3]",
        "sbuf_accumulate": "DMA adds to SBUF at the full rate of a copy [A4]",
        "indirect": "`.indirect()` gather and scatter views [ISA]",
        "activate2": "`activate2` on the scalar engine [ISA]",
        "range_select": "`range_select` on the vector engine [ISA]",
        "core_barrier": "`core_barrier` and `sendrecv` inside a logical core [ISA]",
        "scalar_bias": "a number as the bias of `activation`, not only a vector [ISA]",
        "scalar_engine_alu": "`tensor_scalar` with any operators on the scalar engine "
        "[A4, ISA]",
        "accumulate_onto_values": "matmuls add to other engines' values in PSUM [ISA]",
        "nonzero_with_count": "`nonzero_with_count` on GpSimd [ISA]",
        "gpsimd_random": "`rng` and generator states on GpSimd [ISA]",
        "native_int64": "64-bit integers, selected by a compiler flag [CLI, DT]",
    }
)
"""Capability -> what it means, with the source."""


def chips_with(capability: str) -> tuple[str, ...]:
    """Return the names of the chips that have a capability of `CAPABILITIES`."""
    return tuple(n for n, chip in CHIPS.items() if capability in chip.core.capabilities)


def chips_with_engine(name: str) -> tuple[str, ...]:
    """Return the names of the chips that have an engine, such as "gpsimd" or "cc"."""
    return tuple(n for n, chip in CHIPS.items() if name not in chip.lacks)


def chips_that_take(dtype: str) -> tuple[str, ...]:
    """Return the names of the chips whose tensor engine takes operands of a dtype."""
    return tuple(n for n, chip in CHIPS.items() if dtype in chip.core.tensor.dtypes)
