"""NeuronCores and chips as data: clocks, widths, memories, dtypes, capabilities.

Units are in the field names (`_bytes`, `_hz`, `_cycles`, `_bytes_per_second`,
`_tflops` = 1e12 floating-point operations per second, a multiply-add counting as 2).
Nothing here computes: costs live in `timing`, rounding in `numerics`. Rules elsewhere
branch on a name in `CoreSpec.capabilities`, never on a generation. `see
CONTRADICTIONS` points to `docs/pages/contradictions.py`.

The bracketed key beside a value names its source, a page of the AWS Neuron SDK
documentation at SDK 2.32.0 (github.com/aws-neuron/aws-neuron-sdk, commit 81ce03ae):

    A2 A3 A4   nki/guides/architecture/trainium{_inferentia2,2,3}_arch.rst
    C2 C3 C4   about-neuron/arch/neuron-hardware/neuron-core-v{2,3,4}.rst
    H1 H2 H3   about-neuron/arch/neuron-hardware/trainium{,2,3}.rst
    T1 T2 T3   about-neuron/arch/neuron-hardware/trn{1,2,3}-arch.rst
    HI TI      about-neuron/arch/neuron-hardware/inferentia2.rst, inf2-arch.rst
    C1 H0 T0   the same of Inferentia at SDK 2.28.1: neuron-core-v1.rst, inferentia.rst,
               inf1-arch.rst
    NCP DT1    about-neuron/arch/neuron-features/neuroncore-pipeline.rst, data-types.rst
               (the part on NeuronCore v1), at SDK 2.28.1
    ISA        nki/api/nki/isa/__init__.py        (V26: the same at tag v2.26.1)
    DM DB      nki/get-started/about/nki-dma-overview.rst
               nki/deep-dives/nki-dma-bandwidth-guide.rst
    SH DT CQ   nki/api/nki.api.shared.rst,
               about-neuron/arch/neuron-features/data-types.rst,
               libraries/nxd-inference/developer_guides/custom-quantization.rst
    LNC DMEM   about-neuron/arch/neuron-features/logical-neuroncore-config.rst,
               neuron-runtime/explore/device-memory.rst
    RM JE      about-neuron/arch/neuron-features/rounding-modes.rst,
               frameworks/jax/api-reference-guide/neuron-envvars.rst
    NL SIM CLI nki/api/nki.language.rst, nki/guides/nki_simulator.rst,
               compiler/neuronx-cc/api-reference-guide/index.rst
    PS GL      tools/neuron-explorer/profile-schema-reference.rst, glossary.rst
    ERR        compiler/error-codes/
    HC         nkipy (github.com/aws-neuron/nkipy, b91c980): HardwareConstants.h
    DRV        aws-neuron-driver (github.com/aws-neuron/aws-neuron-driver, fca19f7d)
    KDA        latencies and profiler's counters of NKI kernels on trn2
               (github.com/Jerry2423/kda-for-trainium, 90770f2)
    BMM        times and traffic of BF16 matmuls on trn3, in nki-library's test of
               matmul_mxfp8 (github.com/aws-neuron/nki-library, 092a49d)
    MXB        profile of a matmul in MXFP8 on trn3
               (github.com/yahavb/trn2-matmul-bench, matmul_benchmark_trn3.log)
    KLN        launches with no, one and twelve all-reduces (github.com/foxl-ai/kiln,
               docs/neuron-notes.md, SDK 2.32)
    VL         regression baselines of the vendor's kernel library on trn2
    ANN        AWS's announcement of Trainium4, December 2025
    derived    arithmetic on quoted values; ASSUMPTION marks a guess
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

KIB = 2**10  # [derived] binary kilo
MIB = 2**20  # [derived] binary mega
GIB = 2**30  # [derived] binary giga


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByDtype:
    """One figure per dtype class; None where the class is absent or unpublished.

    Attributes:
        mx: microscaling elements (MXFP8, MXFP4) in `nc_matmul_mx`.
        fp8: plain 8-bit floats.
        int8: 8-bit integers, where the tensor engine takes them.
        bf16: 16-bit floats; on the tensor engine also TF32.
        fp32: 32-bit floats, and every class not named.
        sparse: 16-bit operands against a 4:16 stationary operand (tensor engine only).
    """

    mx: float | None = None
    fp8: float | None = None
    int8: float | None = None
    bf16: float
    fp32: float | None
    sparse: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """One engine of a NeuronCore.

    Attributes:
        name: "tensor", "vector", "scalar", "gpsimd" or "sync", as in `nki.isa`.
        clock_hz: cycles per second of the data path.
        elements_per_cycle: documented input width over all partitions, or None for a
            sequencer without a data path. Sparse widths include the tags.
        min_initiation_cycles: issue interval of the shortest instruction.
        dtypes: numpy or ml_dtypes names it reads and writes; `EMULATOR_ONLY_DTYPES`
            have no such name.
        reads: on-chip memories it can read, of "sbuf" and "psum".
        writes: on-chip memories it can write.
    """

    name: str
    clock_hz: int
    elements_per_cycle: ByDtype | None
    min_initiation_cycles: int
    dtypes: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoreSpec:
    """One physical NeuronCore.

    Attributes:
        name: "NeuronCore-v2" and so on.
        tensor, vector, scalar, gpsimd, sync: the engines; gpsimd is None on a core
            without one.
        partitions: rows of SBUF and PSUM, and of the tensor engine's array.
        sbuf_bytes: state buffer, all partitions.
        sbuf_usable_bytes_per_partition: what the toolchain leaves to programs.
        psum_bytes: accumulation buffer, all partitions and banks.
        psum_banks: banks per partition; one holds one matmul's output.
        array_columns: columns of the array; its rows are the partitions.
        products_per_cell_per_cycle: products that a cell of the array adds per cycle.
            For each moving column a matmul takes k_tile / (partitions *
            products_per_cell_per_cycle) cycles, `k_tile` being that of its mode.
        k_tile: contraction rows of one matmul.
        k_tile_double_row: the same in double-row FP8, or None.
        k_tile_mx: the same in `nc_matmul_mx`, or None.
        max_stationary_free: columns of the stationary operand.
        max_moving_free: columns of the moving operand if PSUM adds in FP32.
        max_moving_free_bf16: the same if PSUM adds in BF16, or None.
        max_free_sbuf_elements: free size of a vector or scalar access to SBUF.
        max_free_psum_elements: the same for PSUM.
        access_start_cycles: fixed cost of one SBUF or PSUM access.
        seen_load_cycles: measured cycles by which the load of a whole stationary
            operand, one contraction row per cell, delays the matmul that is running;
            None if not measured.
        mx_dtypes: element dtypes of `nc_matmul_mx`.
        documented_tflops: the architecture guide's peaks of one core, for checking.
        capabilities: names in `neuronjax.hardware.CAPABILITIES`.
    """

    name: str
    tensor: EngineSpec
    vector: EngineSpec
    scalar: EngineSpec
    gpsimd: EngineSpec | None
    sync: EngineSpec
    partitions: int
    sbuf_bytes: int
    sbuf_usable_bytes_per_partition: int
    psum_bytes: int
    psum_banks: int
    array_columns: int
    products_per_cell_per_cycle: ByDtype
    k_tile: int
    k_tile_double_row: int | None
    k_tile_mx: int | None
    max_stationary_free: int
    max_moving_free: int
    max_moving_free_bf16: int | None
    max_free_sbuf_elements: int
    max_free_psum_elements: int
    access_start_cycles: int
    seen_load_cycles: float | None
    mx_dtypes: tuple[str, ...]
    documented_tflops: ByDtype
    capabilities: frozenset[str]

    @property
    def engines(self) -> tuple[EngineSpec, ...]:
        """The engines that the core has, tensor first."""
        every = (self.tensor, self.vector, self.scalar, self.gpsimd, self.sync)
        return tuple(engine for engine in every if engine is not None)

    @property
    def psum_bank_bytes_per_partition(self) -> int:
        """Bytes of one PSUM bank in one partition."""
        return self.psum_bytes // (self.partitions * self.psum_banks)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChipSpec:
    """One accelerator chip ("device" in the vendor's tools).

    Attributes:
        name: the target's name.
        product: the vendor's name.
        core: its NeuronCores, all alike.
        cores_per_chip: physical NeuronCores.
        hbm_bytes: capacity.
        hbm_reserved_bytes_per_core: taken by micro-code on behalf of each core.
        hbm_bytes_per_second: published peak.
        hbm_channels: number of HBM's channels, over which addresses are interleaved;
            None where the effect of strides over them was not measured.
        dma_engines: DMA engines, divided evenly among the cores.
        dma_engine_bytes_per_second: practical rate of one engine.
        dma_engine_peak_bytes_per_second: theoretical rate of one engine.
        dma_streaming_bytes_per_second: rate of one engine with further transfers in its
            queue, or None where that was not measured.
        dma_start_seconds: fixed cost of one transfer.
        joining_seconds: additional time of a program on a logical core of several
            physical cores, which begin and end together.
        hwdge_issue_seconds: time of one hardware-generated descriptor; None without.
        software_packet_seconds: GpSimdE's time for each contiguous piece of a transfer
            whose descriptors it makes.
        neuronlink_bytes_per_second: published sum over links and directions.
        cc_cores: cores that orchestrate collectives; 0 for a chip without collectives.
        published_tflops: the product page's peaks; not always cores x core peak.
        forward_fp8: 8-bit float of weights and activations, None without any.
        lnc_options: legal logical NeuronCore sizes, in physical cores.
        lnc_default: the runtime's default.
        barrier_seconds: the wait of a program with collectives, once per launch: with 2
            ranks, with 4, and the increase for every doubling beyond 4.
        collective_start_seconds: the additional time of a collective in a program.
        base_clock_hz: the clock of the profiler's cycle counts, or None if not
            published.
        serves_only: True for a chip that is sold for inference.
        projected: True for a chip without a full specification: figures that are not
            published are guessed, and nothing was measured.
    """

    name: str
    product: str
    core: CoreSpec
    cores_per_chip: int
    hbm_bytes: int
    hbm_reserved_bytes_per_core: int
    hbm_bytes_per_second: int
    hbm_channels: int | None
    dma_engines: int
    dma_engine_bytes_per_second: int
    dma_engine_peak_bytes_per_second: int
    dma_streaming_bytes_per_second: int | None
    dma_start_seconds: float
    joining_seconds: float
    hwdge_issue_seconds: float | None
    software_packet_seconds: float
    neuronlink_bytes_per_second: int
    cc_cores: int
    published_tflops: ByDtype
    forward_fp8: str | None
    lnc_options: tuple[int, ...]
    lnc_default: int
    barrier_seconds: tuple[float, float, float]
    collective_start_seconds: float
    base_clock_hz: int | None = None
    serves_only: bool = False
    projected: bool = False

    @property
    def lacks(self) -> frozenset[str]:
        """The engines that the chip does not have, by their names in instructions."""
        absent = {"gpsimd": self.core.gpsimd is None, "cc": not self.cc_cores}
        return frozenset(name for name, is_absent in absent.items() if is_absent)


EMULATOR_ONLY_DTYPES = frozenset({"tfloat32", "cfloat8"})
"""Chip dtypes that numpy and ml_dtypes lack; the names are the emulator's own."""

_INTEGERS = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32")  # [SH, NL]
_FLOATS = ("float32", "tfloat32", "bfloat16", "float16")  # [SH]
_FP8 = ("float8_e4m3", "float8_e5m2")  # [SH]
_TENSOR_V3 = (*_FLOATS, *_FP8, "float8_e3m4")  # [ISA]; e3m4 without NKI name [A3]
_TENSOR_V2 = (*_TENSOR_V3, "cfloat8")  # [A2, DT]
_TENSOR_V4 = (*_FLOATS, *_FP8, "float8_e4m3fn")  # [ISA]
_LANES_V3 = (*_INTEGERS, *_FLOATS, *_FP8)  # [SH]
_LANES_V4 = (*_LANES_V3, "float8_e4m3fn")  # [SH, ERR/EVRF051]
_BOTH = ("sbuf", "psum")

_TENSOR_V2_ENGINE = EngineSpec(
    name="tensor",
    clock_hz=2_800_000_000,  # [A2]
    elements_per_cycle=ByDtype(fp8=256, bf16=256, fp32=256),  # 2 x 128 [A2]
    min_initiation_cycles=64,  # MM_INIT_LATENCY [A2]
    dtypes=_TENSOR_V2,
    reads=("sbuf",),
    writes=("psum",),
)
_VECTOR_V2_ENGINE = EngineSpec(
    name="vector",
    clock_hz=1_120_000_000,  # [A2]
    elements_per_cycle=ByDtype(fp8=128, bf16=128, fp32=128),  # [A2]
    min_initiation_cycles=64,  # MIN_II [V26]
    dtypes=_LANES_V3,
    reads=_BOTH,
    writes=_BOTH,
)
_SCALAR_V2_ENGINE = dataclasses.replace(
    _VECTOR_V2_ENGINE,
    name="scalar",
    clock_hz=1_400_000_000,  # [A2]
)
_GPSIMD_V2_ENGINE = dataclasses.replace(
    _SCALAR_V2_ENGINE,  # the width table has one entry for both [A2]
    name="gpsimd",
    min_initiation_cycles=150,  # instruction start [V26]
    reads=("sbuf",),
    writes=("sbuf",),
)
_SYNC_V2_ENGINE = EngineSpec(
    name="sync",
    clock_hz=1_400_000_000,  # trn1's base clock [PS]; ASSUMPTION: SyncE runs at it
    elements_per_cycle=None,
    min_initiation_cycles=1,  # ASSUMPTION: the sequencer's issue rate is unpublished
    dtypes=(),
    reads=(),
    writes=(),
)

NEURON_CORE_V2 = CoreSpec(
    name="NeuronCore-v2",
    tensor=_TENSOR_V2_ENGINE,
    vector=_VECTOR_V2_ENGINE,
    scalar=_SCALAR_V2_ENGINE,
    gpsimd=_GPSIMD_V2_ENGINE,
    sync=_SYNC_V2_ENGINE,
    partitions=128,  # [A2]
    sbuf_bytes=24 * MIB,  # 128 x 192 KiB [A2]
    sbuf_usable_bytes_per_partition=180_224,  # [HC]
    psum_bytes=2 * MIB,  # 128 x 16 KiB [A2]
    psum_banks=8,  # [A2]
    array_columns=128,  # [A2]
    products_per_cell_per_cycle=ByDtype(fp8=1, bf16=1, fp32=1 / 4),  # [A2, V26]
    k_tile=128,  # [A2]
    k_tile_double_row=None,
    k_tile_mx=None,
    max_stationary_free=128,  # [A2]
    max_moving_free=512,  # [A2]
    max_moving_free_bf16=None,
    max_free_sbuf_elements=64 * KIB,  # [A2]
    max_free_psum_elements=4 * KIB,  # [A2]
    access_start_cycles=60,  # [A2]
    seen_load_cycles=None,
    mx_dtypes=(),
    documented_tflops=ByDtype(fp8=92, bf16=92, fp32=23),  # [A2]
    capabilities=frozenset(
        "stochastic_rounding lfsr float8_e4m3 float8_e5m2 control_flow kernels".split()
    ),
)

# The pages name the engines, their dtypes and their peaks. Clocks, the size of the
# array and of the memories are not published. ASSUMPTION: everything that is not
# written here equals NeuronCore-v2's; VectorE computes integers too, through FP32.
_TENSOR_V1_ENGINE = dataclasses.replace(
    _TENSOR_V2_ENGINE,
    clock_hz=1_000_000_000,  # base clock of inf1 [PS]; TensorE's own: ASSUMPTION
    elements_per_cycle=ByDtype(bf16=256, fp32=None),  # ASSUMPTION: 2 x 128
    dtypes=("bfloat16", "float16", "int8"),  # [C1]
)
_VECTOR_V1_ENGINE = dataclasses.replace(
    _VECTOR_V2_ENGINE,
    clock_hz=1_000_000_000,  # base clock of inf1 [PS]; VectorE's own: ASSUMPTION
    elements_per_cycle=ByDtype(bf16=128, fp32=128),  # ASSUMPTION: 256 FLOP/cycle [C1]
    dtypes=(*_INTEGERS, "float32", "bfloat16", "float16"),  # [C1]; unsigned: ASSUMPTION
)
NEURON_CORE_V1 = dataclasses.replace(
    NEURON_CORE_V2,
    name="NeuronCore-v1",
    tensor=_TENSOR_V1_ENGINE,
    vector=_VECTOR_V1_ENGINE,
    scalar=dataclasses.replace(_VECTOR_V1_ENGINE, name="scalar"),  # ASSUMPTION
    gpsimd=None,  # "three main engines (Tensor/Vector/Scalar Engines)" [C1]
    sync=dataclasses.replace(_SYNC_V2_ENGINE, clock_hz=1_000_000_000),  # [PS]
    sbuf_bytes=12 * MIB,  # ASSUMPTION: half of v2's; holds 5e6 weights [NCP]
    sbuf_usable_bytes_per_partition=90_112,  # ASSUMPTION: the same share as in v2
    psum_bytes=1 * MIB,  # ASSUMPTION: half of v2's, as the array is
    psum_banks=4,  # ASSUMPTION
    array_columns=64,  # ASSUMPTION: 128 x 64 at 1 GHz are the 16 TFLOPS of [C1]
    products_per_cell_per_cycle=ByDtype(
        int8=2,  # 128 TOPS of INT8 for 64 TFLOPS of BF16 [H0]
        bf16=1,  # ASSUMPTION
        fp32=1 / 4,  # ASSUMPTION: as in v2
    ),
    max_stationary_free=64,  # ASSUMPTION
    documented_tflops=ByDtype(bf16=16, fp32=None),  # [C1]
    capabilities=frozenset(),
)

# A3 leaves the width blank: ASSUMPTION that it is that of v2 and of v4 [A4].
_GPSIMD_V3_ENGINE = dataclasses.replace(
    _GPSIMD_V2_ENGINE,
    clock_hz=1_200_000_000,  # [A3]
)
# Overheads and limits that A3 and A4 do not repeat: ASSUMPTION that they are v2's.
NEURON_CORE_V3 = dataclasses.replace(
    NEURON_CORE_V2,
    name="NeuronCore-v3",
    tensor=dataclasses.replace(
        _TENSOR_V2_ENGINE,
        clock_hz=2_400_000_000,  # [A3]
        elements_per_cycle=ByDtype(fp8=512, bf16=256, fp32=256, sparse=640),  # [A3]
        dtypes=_TENSOR_V3,
    ),
    vector=dataclasses.replace(
        _VECTOR_V2_ENGINE,
        clock_hz=960_000_000,  # [A3]
        elements_per_cycle=ByDtype(fp8=256, bf16=512, fp32=256),  # [A3]
    ),
    scalar=dataclasses.replace(_SCALAR_V2_ENGINE, clock_hz=1_200_000_000),  # [A3]
    gpsimd=_GPSIMD_V3_ENGINE,
    # SyncE's own clock is unpublished: ASSUMPTION of trn2's base clock, on trn3 too.
    sync=dataclasses.replace(_SYNC_V2_ENGINE, clock_hz=1_200_000_000),  # [PS]
    sbuf_bytes=28 * MIB,  # 128 x 224 KiB [A3]
    sbuf_usable_bytes_per_partition=212_984,  # [HC]
    products_per_cell_per_cycle=ByDtype(
        fp8=2,  # double row [A3]
        bf16=1,  # [A3]
        fp32=1 / 4,  # [V26]
        sparse=4,  # 4:16 [A3, C3]
    ),
    k_tile_double_row=256,  # [A3]
    documented_tflops=ByDtype(fp8=158, bf16=79, fp32=20, sparse=316),  # [A3, C3]
    capabilities=NEURON_CORE_V2.capabilities
    | set(
        (
            "fp8_double_row sparse_matmul exact_transpose quarter_tiling "
            "vector_perf_modes scalar_engine_exact_copy parallel_sbuf_ports "
            "dma_transpose hwdge gpsimd_dma range_select core_barrier scalar_bias "
            "nonzero_with_count gpsimd_random native_int64"
        ).split()
    ),
)

NEURON_CORE_V4 = dataclasses.replace(
    NEURON_CORE_V3,
    name="NeuronCore-v4",
    tensor=dataclasses.replace(
        NEURON_CORE_V3.tensor,
        elements_per_cycle=ByDtype(
            mx=1024,  # [A4]
            fp8=256,  # non-MX [A4]
            bf16=256,  # [A4]
            fp32=256,  # [A4]
            sparse=640,  # [A4]
        ),
        dtypes=_TENSOR_V4,
    ),
    vector=dataclasses.replace(
        NEURON_CORE_V3.vector,
        clock_hz=1_200_000_000,  # [A4]
        elements_per_cycle=ByDtype(fp8=512, bf16=512, fp32=256),  # [A4]
        dtypes=_LANES_V4,
    ),
    scalar=dataclasses.replace(
        NEURON_CORE_V3.scalar,
        elements_per_cycle=ByDtype(fp8=256, bf16=256, fp32=128),  # [A4]
        dtypes=_LANES_V4,
    ),
    gpsimd=dataclasses.replace(_GPSIMD_V3_ENGINE, dtypes=_LANES_V4),
    sbuf_bytes=32 * MIB,  # 128 x 256 KiB [A4]
    sbuf_usable_bytes_per_partition=245_752,  # [HC]
    products_per_cell_per_cycle=ByDtype(
        mx=4,  # [A4]
        fp8=2,  # double row [ISA]; see CONTRADICTIONS
        bf16=1,  # [A4]
        fp32=1 / 4,  # [V26]
        sparse=4,  # 4:16 [C4]
    ),
    k_tile_mx=512,  # [A4]
    # A matmul of 512 columns, with four rows in a cell, takes 253.9 ns, of which the
    # columns take 213.3 ns [MXB].
    seen_load_cycles=24.4,  # [MXB]
    max_moving_free=4096,  # [ISA]; see CONTRADICTIONS
    max_moving_free_bf16=8192,  # [ISA]
    mx_dtypes=("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"),  # [ISA, A4]
    documented_tflops=ByDtype(mx=315, bf16=79, fp32=20, sparse=315),  # [A4, C4]
    capabilities=(NEURON_CORE_V3.capabilities - {"lfsr"})
    | set(
        (
            "float8_e4m3fn mx_matmul quantize_mx bf16_psum xorwow "
            "scalar_perf_modes vector_exponential dma_priority "
            "sbuf_accumulate indirect activate2 scalar_engine_alu "
            "accumulate_onto_values"
        ).split()
    ),
)

TRN1 = ChipSpec(
    name="trn1",
    product="Trainium1",
    core=NEURON_CORE_V2,
    cores_per_chip=2,  # [A2]
    hbm_bytes=32 * GIB,  # [A2]
    hbm_reserved_bytes_per_core=96_000_000,  # "96 MB" [DMEM]
    hbm_bytes_per_second=820 * 10**9,  # [A2]; see CONTRADICTIONS
    hbm_channels=16,  # two stacks [A2] of HBM2e, of eight channels by JEDEC's standard
    dma_engines=32,  # [A2]
    dma_engine_bytes_per_second=17 * 10**9,  # [DM, DB]; see CONTRADICTIONS
    dma_engine_peak_bytes_per_second=27_200_000_000,  # [DM]
    dma_streaming_bytes_per_second=None,
    dma_start_seconds=1300e-9,  # [DB]
    joining_seconds=0.0,  # its logical cores are physical ones [LNC]
    hwdge_issue_seconds=None,
    software_packet_seconds=43e-9,  # 51 ns for 181 bytes, 35 ns for 34 [KLN]
    neuronlink_bytes_per_second=384 * 10**9,  # [H2]
    cc_cores=6,  # [A2]
    published_tflops=ByDtype(fp8=190, bf16=190, fp32=47.5),  # [H1]
    forward_fp8="float8_e4m3",  # [ERR/EVRF051]
    lnc_options=(1,),  # [LNC]
    lnc_default=1,  # [LNC]
    # Measured with 2 and with 8 to 32 ranks; the wait of 4 ranks is extrapolated.
    barrier_seconds=(0.01e-3, 0.99e-3, 1.32e-3),  # [KLN]
    collective_start_seconds=24e-6,  # 26 us of 2 ranks [KLN] less nccom-test's 2 us
    base_clock_hz=1_400_000_000,  # [PS]
)

INF1 = dataclasses.replace(
    TRN1,
    name="inf1",
    product="Inferentia (projected)",
    core=NEURON_CORE_V1,
    cores_per_chip=4,  # [H0]
    hbm_bytes=8 * GIB,  # DDR4 [H0]
    hbm_bytes_per_second=50 * GIB,  # [H0, T0]; see CONTRADICTIONS
    hbm_channels=None,
    hbm_reserved_bytes_per_core=96_000_000,  # ASSUMPTION: trn1's
    dma_engines=12,  # 3 for each core [DRV]
    dma_engine_bytes_per_second=17 * 10**9,  # ASSUMPTION: trn1's
    dma_engine_peak_bytes_per_second=27_200_000_000,  # ASSUMPTION: trn1's
    dma_start_seconds=1300e-9,  # ASSUMPTION: trn1's
    neuronlink_bytes_per_second=32 * GIB,  # [T0]
    cc_cores=0,  # NeuronLink-v1 is for pipelines [H0]; no CC-core is documented
    published_tflops=ByDtype(int8=128, bf16=64, fp32=None),  # [H0]
    forward_fp8=None,
    base_clock_hz=1_000_000_000,  # [PS]
    serves_only=True,
    projected=True,
)

INF2 = dataclasses.replace(
    TRN1,
    name="inf2",
    product="Inferentia2",
    neuronlink_bytes_per_second=192 * GIB,  # two links of 96 GiB/s [TI]
    serves_only=True,
)

TRN2 = ChipSpec(
    name="trn2",
    product="Trainium2",
    core=NEURON_CORE_V3,
    cores_per_chip=8,  # [A3]
    hbm_bytes=96 * GIB,  # [A3]
    hbm_reserved_bytes_per_core=96_000_000,  # "96 MB" [DMEM]
    hbm_bytes_per_second=2_900 * 10**9,  # [H2, T2]; see CONTRADICTIONS
    hbm_channels=None,  # no conflicts: 4 KiB rows 16 KiB apart move at full rate [KDA]
    dma_engines=128,  # [A3]
    dma_engine_bytes_per_second=23 * 10**9,  # [DM, DB]; see CONTRADICTIONS
    dma_engine_peak_bytes_per_second=27_200_000_000,  # [DM]
    dma_streaming_bytes_per_second=25_600_000_000,  # SiLU, AdamW [KDA]
    dma_start_seconds=1300e-9,  # [DB]
    # Fitted: beside its instructions a program takes 36 to 49 us at LNC 2, 10 at LNC 1.
    joining_seconds=30e-6,  # [VL]
    hwdge_issue_seconds=600e-9,  # [A3]
    software_packet_seconds=43e-9,  # as on trn1 [KLN]
    neuronlink_bytes_per_second=1_280 * 10**9,  # [H2]
    cc_cores=16,  # [H2, DRV]; see CONTRADICTIONS
    published_tflops=ByDtype(fp8=1299, bf16=667, fp32=181, sparse=2563),  # [H2]
    forward_fp8="float8_e4m3",  # [ERR/EVRF051]
    lnc_options=(1, 2),  # [LNC]
    lnc_default=2,  # [LNC]
    # Measured with 2 to 64 ranks; ASSUMPTION: later chips wait as long.
    barrier_seconds=(0.064e-3, 0.89e-3, 0.495e-3),  # [KLN]
    collective_start_seconds=14e-6,  # 16 us of 2 ranks [KLN] less nccom-test's 2 us
    base_clock_hz=1_200_000_000,  # [PS]
)

TRN3 = dataclasses.replace(
    TRN2,
    name="trn3",
    product="Trainium3",
    core=NEURON_CORE_V4,
    hbm_bytes=144 * GIB,  # [A4]
    hbm_bytes_per_second=4_900 * 10**9,  # [H3, T3]; see CONTRADICTIONS
    dma_engine_bytes_per_second=33 * 10**9,  # [DM, DB]; see CONTRADICTIONS
    dma_engine_peak_bytes_per_second=38_400_000_000,  # [DM]
    dma_streaming_bytes_per_second=None,
    # Fitted at LNC 2: a matmul of 256 x 256 x 128 takes 17 us [BMM]: the 10 us that
    # every program takes (assumed, as on trn2), these 5 us, and its instructions.
    joining_seconds=5e-6,  # [BMM]
    software_packet_seconds=5.1e-9,  # GpSimdE: 10.3 ms for 1,998,000 pieces [MXB]
    neuronlink_bytes_per_second=2_560 * 10**9,  # [H3]; see CONTRADICTIONS
    published_tflops=ByDtype(
        mx=2517,  # [H3]
        fp8=2517,  # the "FP8" row of the table; equals MX [H3]
        bf16=671,  # [H3]
        fp32=183,  # [H3]
        sparse=2517,  # [H3]
    ),
    forward_fp8="float8_e4m3fn",  # [ERR/EVRF051, ISA]
    base_clock_hz=None,  # not stated
)

# A projection. AWS: "at least 3x the FP8 rate and 4x the memory bandwidth of
# Trainium3" [ANN]. Whatever the sentence leaves open stays at Trainium3's value.
_NEURON_CORE_PROJECTED = dataclasses.replace(
    NEURON_CORE_V4,
    name="NeuronCore of Trainium4 (projected)",
    products_per_cell_per_cycle=dataclasses.replace(
        NEURON_CORE_V4.products_per_cell_per_cycle,
        mx=12,  # 3 x 4 [ANN]
        fp8=6,  # 3 x 2 [ANN]
    ),
    documented_tflops=ByDtype(mx=945, bf16=79, fp32=20, sparse=315),  # 3 x 315 [ANN]
)

TRN4 = dataclasses.replace(
    TRN3,
    name="trn4",
    product="Trainium4 (projected)",
    core=_NEURON_CORE_PROJECTED,
    hbm_bytes_per_second=19_600 * 10**9,  # 4 x Trainium3 [ANN]
    # ASSUMPTION: DMA grows with HBM, or no program could use the bandwidth.
    dma_engine_bytes_per_second=132 * 10**9,  # 4 x 33 ASSUMPTION
    dma_engine_peak_bytes_per_second=153_600_000_000,  # 4 x 38.4 ASSUMPTION
    published_tflops=dataclasses.replace(
        TRN3.published_tflops,
        mx=7551,  # 3 x 2517 [ANN]
        fp8=7551,  # 3 x 2517 [ANN]
    ),
    projected=True,
)

CHIPS: Mapping[str, ChipSpec] = MappingProxyType(
    {chip.name: chip for chip in (TRN1, INF2, TRN2, TRN3, TRN4, INF1)}
)

CHIP_ALIASES: Mapping[str, str] = MappingProxyType(
    {"gen2": "trn1", "gen3": "trn2", "gen4": "trn3"}  # NeuronCore generations [SIM]
)
